/*
 * pn_oai_error.h - what clients are told when a request is not answered.
 *
 * Clients act on the status and on words.  SDKs try again after 408, 409, 429 and everything from 500 on, so
 * what is wrong with a request is never a 5xx, and a failure that would come again says so (no_retry).
 * Agents find out by the message that a conversation has become too long, and shorten it.
 *
 * Pure.  Messages are cut to fit, never allocated.
 */
#ifndef PN_OAI_ERROR_H
#define PN_OAI_ERROR_H

#include "base/pn_str.h"
#include "pantheon.h"

/* An error as the API answers it: {"error":{"message","type","param","code"}}. */
typedef struct pn_oai_error {
    int status;                 /* of HTTP */
    const char *type, *code;    /* static; code NULL: null */
    char param[96];             /* the field; "": null */
    char message[640];
    char extra[1024];           /* more members, JSON without braces; "": none */
    uint32_t retry_ms;          /* for Retry-After and retry-after-ms; 0: none */
    bool no_retry;              /* x-should-retry: false */
    const char *allow;          /* static: the method for Allow, or NULL */
} pn_oai_error;

PN_INTERNAL void pn_oai_error_json(const pn_oai_error *e, pn_str *out);
PN_INTERNAL void pn_oai_error_object(const pn_oai_error *e, pn_str *out);   /* what is behind "error": */

/* Everything but extra, retry_ms, no_retry and allow, which become empty. */
PN_INTERNAL void pn_oai_error_set(pn_oai_error *e, int status, const char *type, const char *code, const char *param, const char *fmt,
                                  ...) PN_PRINTF(6, 7);

PN_INTERNAL void pn_oai_error_model(pn_oai_error *e, pn_bytes asked, const char *const *served, size_t n_served);    /* 404 */
PN_INTERNAL void pn_oai_error_route(pn_oai_error *e, pn_bytes path);                                                 /* 404 */
PN_INTERNAL void pn_oai_error_method(pn_oai_error *e, pn_bytes method, const char *allowed);                         /* 405; `allowed` is static */
PN_INTERNAL void pn_oai_error_key(pn_oai_error *e, bool given);             /* 401; given: there was one, a wrong one */
PN_INTERNAL void pn_oai_error_queue(pn_oai_error *e, uint32_t waiting, uint32_t retry_ms);                           /* 429 */
PN_INTERNAL void pn_oai_error_loading(pn_oai_error *e, const char *what, uint32_t retry_ms);    /* 503: "the model m is loading" */

/* A turn was refused (pn_last_budget).  400 for one that never fits, or that would if it were shorter; waits: it fits
 * once others have ended, which nobody waits for here: 429. */
PN_INTERNAL void pn_oai_error_budget(pn_oai_error *e, const pn_budget_info *b, bool waits, uint32_t retry_ms);

/* The same without numbers but those of `text`. */
PN_INTERNAL void pn_oai_error_memory(pn_oai_error *e, const char *text, bool waits, uint32_t retry_ms);

/* A model that does not fit: 507.  The sums of its plan are members of the error; `text` says which of them is too much. */
PN_INTERNAL void pn_oai_error_load(pn_oai_error *e, const char *name, const pn_plan_info *p, const char *text);

/* What the library said about a request. */
PN_INTERNAL void pn_oai_error_status(pn_oai_error *e, pn_status st, const char *text);

#endif /* PN_OAI_ERROR_H */
