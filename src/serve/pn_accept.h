/*
 * pn_accept.h - which of two types would the client rather have?  (Accept, RFC 9110 12.5.1)
 *
 * One path answers programs and browsers.  Programs send no Accept, or one that takes everything; browsers name
 * text/html first.  So HTML has to be asked for by name: what only "*" or "text/" allows gets the other type.
 */
#ifndef PN_ACCEPT_H
#define PN_ACCEPT_H

#include "serve/pn_http.h"

/* Is text/html named, and at least as welcome as application/json?  Equally welcome by name: no. */
PN_INTERNAL bool pn_accept_html(const pn_http_request *r);

#endif /* PN_ACCEPT_H */
