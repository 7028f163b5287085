/*
 * pn_json.h - JSON in and out: a bounded reader into a compact tree, and writing onto a pn_str.
 *
 * Reading.  The text becomes nodes of 28 bytes in one array (a node is named by its index) and one
 * block with all strings unescaped and all numbers as written.  Why a tree and not events: request
 * bodies, schemas and tokenizer files are all looked into by key, in an order that the sender chose.
 * The text may be hostile: RFC 8259 to the letter, valid UTF-8, a limit on bytes, depth and nodes,
 * no recursion, key look-up by a hash seeded per document.
 *
 * Invariants
 *   1. Members and elements keep the order of the text (templates and prefix caches depend on it).
 *   2. A number keeps its text, so 1.0, 1e2 and integers beyond 2^53 can be repeated exactly.
 *   3. Every string and number is followed by a NUL that is not counted; strings may hold NULs.
 *   4. PN_JSON_NONE is accepted wherever a node is and behaves as absent, so that
 *      pn_json_get(d, pn_json_get(d, 0, "a"), "b") needs no check in between.
 *
 * Pure: no file-scope state.  Threads: a parsed document is constant; any number may read it.
 */
#ifndef PN_JSON_H
#define PN_JSON_H

#include "base/pn_mem.h"
#include "base/pn_str.h"

typedef enum pn_json_type {
    PN_JSON_ABSENT = 0,         /* what PN_JSON_NONE is */
    PN_JSON_NULL, PN_JSON_BOOL, PN_JSON_NUMBER, PN_JSON_STRING, PN_JSON_ARRAY, PN_JSON_OBJECT
} pn_json_type;

#define PN_JSON_NONE UINT32_MAX
#define PN_JSON_ROOT 0u

/* Zero means the default for every field. */
typedef struct pn_json_params {
    uint32_t max_depth;         /* containers inside each other; 0: 128 */
    size_t max_bytes;           /* of text; 0: 256 MiB; at most 2^31 - 2 */
    size_t max_nodes;           /* 0: no limit but max_bytes */
    bool unique_keys;           /* a repeated key is an error; else the last one wins */
    bool fix_surrogates;        /* \ud83d without its other half becomes U+FFFD; else an error */
} pn_json_params;

typedef struct pn_json_node pn_json_node;

typedef struct pn_json_doc {
    pn_mem *mem;                /* borrowed */
    pn_account account;
    pn_json_node *nodes;        /* owned, [cap_nodes]; [0] is the root */
    size_t n_nodes, cap_nodes;
    char *text;                 /* owned, [text_cap]: strings and numbers */
    size_t text_len, text_cap;
    uint32_t *index;            /* owned, [index_cap]: members by (object, key) */
    size_t n_members, index_cap;
    uint64_t seed;
} pn_json_doc;

/* Parse all of text[0..n), which is not needed afterwards.  On failure *d is empty (fini is
 * harmless) and the text names the byte offset, what was expected and what was found.
 * PN_E_FORMAT: not JSON, or beyond a limit.  params may be NULL. */
PN_INTERNAL pn_status pn_json_parse(pn_json_doc *d, pn_mem *mem, pn_account account, const char *text,
                                    size_t n, const pn_json_params *params, pn_err *err);
PN_INTERNAL void pn_json_fini(pn_json_doc *d);

PN_INTERNAL pn_json_type pn_json_type_of(const pn_json_doc *d, uint32_t node);
PN_INTERNAL const char *pn_json_type_name(pn_json_type t);     /* "object"; static */

/* Member of an object by key, in constant time; PN_JSON_NONE: absent, or not an object. */
PN_INTERNAL uint32_t pn_json_get(const pn_json_doc *d, uint32_t node, const char *key);
PN_INTERNAL uint32_t pn_json_find(const pn_json_doc *d, uint32_t node, const char *key, size_t len);

/* Walk an array or object:  for (c = pn_json_first(d, n); c != PN_JSON_NONE; c = pn_json_next(d, c)) */
PN_INTERNAL uint32_t pn_json_count(const pn_json_doc *d, uint32_t node);
PN_INTERNAL uint32_t pn_json_first(const pn_json_doc *d, uint32_t node);
PN_INTERNAL uint32_t pn_json_next(const pn_json_doc *d, uint32_t node);
PN_INTERNAL pn_bytes pn_json_key_of(const pn_json_doc *d, uint32_t node);  /* {NULL, 0}: no member */

/* Values, borrowed from d.  False: another type, or does not fit. */
PN_INTERNAL bool pn_json_str(const pn_json_doc *d, uint32_t node, pn_bytes *out);
PN_INTERNAL bool pn_json_num(const pn_json_doc *d, uint32_t node, pn_bytes *out);  /* as written */
PN_INTERNAL bool pn_json_bool(const pn_json_doc *d, uint32_t node, bool *out);
PN_INTERNAL bool pn_json_f64(const pn_json_doc *d, uint32_t node, double *out);    /* finite */
PN_INTERNAL bool pn_json_i64(const pn_json_doc *d, uint32_t node, int64_t *out);   /* 5, 5.0, 5e0 */

/* --- writing ---------------------------------------------------------------------------------
 * Values go onto a pn_str, which remembers failure.  Commas need no state: pn_json_key and
 * pn_json_item look at the last byte, which tells whether a value has just ended.
 *     pn_str_addc(s, '{'); pn_json_key(s, "n"); pn_json_write_i64(s, 1); pn_str_addc(s, '}'); */

/* Quoted and escaped; bytes that are not UTF-8 become U+FFFD. */
PN_INTERNAL void pn_json_write_str(pn_str *s, const char *text, size_t n);
PN_INTERNAL void pn_json_write_strz(pn_str *s, const char *text);      /* NULL: null */

/* The fewest digits that read back as the same value, '.' in any locale; NaN and inf: null. */
PN_INTERNAL void pn_json_write_f64(pn_str *s, double v);
PN_INTERNAL void pn_json_write_f32(pn_str *s, float v);
PN_INTERNAL void pn_json_write_i64(pn_str *s, int64_t v);
PN_INTERNAL void pn_json_write_u64(pn_str *s, uint64_t v);
PN_INTERNAL void pn_json_write_bool(pn_str *s, bool v);

/* A node with all below it, without spaces, numbers as they were written; NONE: null. */
PN_INTERNAL void pn_json_write_node(pn_str *s, const pn_json_doc *d, uint32_t node);

PN_INTERNAL void pn_json_item(pn_str *s);                      /* a comma, when one is due */
PN_INTERNAL void pn_json_key(pn_str *s, const char *key);      /* comma when due, "key": */

/* --- private, visible for its size ------------------------------------------------------------ */

/* Offsets are into doc->text.  While a container is open, `next` holds its last child: its own
 * next sibling cannot exist yet. */
struct pn_json_node {
    uint32_t type;              /* pn_json_type; JSON_DEAD added: replaced by a later equal key */
    uint32_t parent;            /* PN_JSON_NONE for the root */
    uint32_t next;              /* sibling or PN_JSON_NONE */
    uint32_t key, key_len;      /* members; key PN_JSON_NONE otherwise */
    uint32_t a, b;              /* string, number: offset, length; container: first child, count;
                                   bool: value */
};

#endif /* PN_JSON_H */
