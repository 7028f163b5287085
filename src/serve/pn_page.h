/*
 * pn_page.h - the page at "/", for browsers: one HTML text with its script and style inside.
 *
 * The source is src/serve/page/index.html; pn_page.c is made from it.  Script and style carry a nonce that is new in
 * each reply, so that the policy sent with it (Content-Security-Policy) runs them and nothing else.
 */
#ifndef PN_PAGE_H
#define PN_PAGE_H

#include "base/pn_str.h"

/* Stands in the text where the nonce belongs. */
#define PN_PAGE_NONCE "@NONCE@"

/* A line with its end; NULL: there is no such line. */
PN_INTERNAL const char *pn_page_line(size_t i);

#endif /* PN_PAGE_H */
