/*
 * pn_oai_translate.h - a request of another API said as a chat completions request.
 *
 * One text goes in and one comes out, which pn_oai_chat_parse reads: whatever the API, there is one place where
 * fields are checked and one form that the server works with.  A translator has a row for each field that has
 * another name or form; every other field goes over as it is, so that extensions work everywhere and what the
 * chat parser does not know is listed under the client's own name.
 *
 * For the parsers of Anthropic's Messages and OpenAI's Responses, and nobody else.
 */
#ifndef PN_OAI_TRANSLATE_H
#define PN_OAI_TRANSLATE_H

#include "serve/pn_oai_read.h"

typedef struct pn_oai_translator {
    pn_oai_parser p;            /* first: readers get this; p.q is &in */
    pn_oai_common in;           /* the client's body, and what of it is ignored */
    pn_str out;                 /* members of the chat body, so far */
    pn_str messages;            /* elements of its array of messages */
} pn_oai_translator;

/* *t is initialised in any case. */
PN_INTERNAL bool pn_oai_translate_open(pn_oai_translator *t, pn_mem *mem, const char *text, size_t len, pn_oai_error *e);
PN_INTERNAL void pn_oai_translate_close(pn_oai_translator *t);
PN_INTERNAL bool pn_oai_translate_fields(pn_oai_translator *t, const pn_oai_field *rows, size_t n_rows);

typedef struct pn_oai_rename { const char *chat, *client; } pn_oai_rename;

/* Read what came out.  An error speaks of the client's field: the first row whose `chat` begins its param. */
PN_INTERNAL bool pn_oai_translate_end(pn_oai_translator *t, pn_oai_chat *out, const pn_oai_rename *names, size_t n_names);

/* --- for readers --- */

static inline pn_oai_translator *pn_oai_translator_of(pn_oai_parser *p) { return (pn_oai_translator *)p; }

/* The field under another name, as it is. */
PN_INTERNAL void pn_oai_translate_as(pn_oai_parser *p, const char *name, uint32_t node);

/* The string `key` of an object; an error is about "at.key". */
PN_INTERNAL bool pn_oai_translate_member(pn_oai_parser *p, const char *at, uint32_t node, const char *key, pn_bytes *out);

/* A reader: chat would take the field for something that this API does not have, so it is only listed. */
PN_INTERNAL bool pn_oai_translate_ignore(pn_oai_parser *p, const char *name, uint32_t node);

#endif /* PN_OAI_TRANSLATE_H */
