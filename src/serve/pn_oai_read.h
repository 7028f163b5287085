/*
 * pn_oai_read.h - reading a request's body by tables: one row a field.
 *
 * For the parsers behind pn_oai.h and nobody else.  A parser opens the body, has the fields read (its own rows
 * first, then those that all requests which generate share), and checks what concerns several fields.  A
 * field without a row is unknown: SDKs add fields all the time, so it is no error, but it is listed.
 *
 * All functions that return bool say false when the request is refused; the error is filled then.
 */
#ifndef PN_OAI_READ_H
#define PN_OAI_READ_H

#include "serve/pn_oai.h"

typedef struct pn_oai_parser {
    pn_oai_common *q;           /* first member of the request that is read */
    pn_oai_error *e;
    uint32_t n_max;
} pn_oai_parser;

typedef bool (*pn_oai_reader)(pn_oai_parser *p, const char *name, uint32_t node);
typedef struct pn_oai_field { const char *name; pn_oai_reader read; } pn_oai_field;

/* *q is initialised in any case, so that pn_oai_close is right afterwards. */
PN_INTERNAL bool pn_oai_open(pn_oai_parser *p, pn_mem *mem, const char *text, size_t len);
PN_INTERNAL void pn_oai_close(pn_oai_common *q);

/* Every member of the body but nulls; generates: the shared rows count too. */
PN_INTERNAL bool pn_oai_read_fields(pn_oai_parser *p, const pn_oai_field *own, size_t n_own, bool generates);

/* A reader for fields that are looked at later, and for those whose value changes nothing. */
PN_INTERNAL bool pn_oai_read_nothing(pn_oai_parser *p, const char *name, uint32_t node);

PN_INTERNAL void pn_oai_ignore(pn_oai_parser *p, const char *name, size_t len);

/* The grammar of a list of strings, one of which is the answer. */
PN_INTERNAL bool pn_oai_read_choices(pn_oai_parser *p, const char *name, uint32_t node);

/* --- values --- */

PN_INTERNAL bool pn_oai_fail(pn_oai_parser *p, const char *param, const char *fmt, ...) PN_PRINTF(3, 4);
PN_INTERNAL bool pn_oai_fail_memory(pn_oai_parser *p);
PN_INTERNAL bool pn_oai_expected(pn_oai_parser *p, const char *param, const char *what, uint32_t node);
PN_INTERNAL bool pn_oai_read_bool(pn_oai_parser *p, const char *name, uint32_t node, bool *out);
PN_INTERNAL bool pn_oai_read_int(pn_oai_parser *p, const char *name, uint32_t node, int64_t lo, int64_t hi, int64_t *out);
PN_INTERNAL bool pn_oai_read_text(pn_oai_parser *p, const char *name, uint32_t node, pn_bytes *out);

/* string, [string], [token], [[token]] and mixtures; `most` inputs. */
PN_INTERNAL bool pn_oai_read_inputs(pn_oai_parser *p, const char *name, uint32_t node, size_t most, pn_oai_inputs *out);
PN_INTERNAL void pn_oai_inputs_fini(pn_mem *mem, pn_oai_inputs *in);

static inline bool pn_oai_same(pn_bytes b, const char *text) { return b.len == strlen(text) && memcmp(b.data, text, b.len) == 0; }
static inline bool pn_oai_given(const pn_json_doc *d, uint32_t node) { return pn_json_type_of(d, node) > PN_JSON_NULL; }

#endif /* PN_OAI_READ_H */
