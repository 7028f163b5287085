/*
 * pn_schema.h - JSON Schema (draft 2020-12, older spellings too) to a grammar.
 *
 * What the grammar generates is always valid for the schema, and a schema whose demands cannot be
 * turned into a grammar is refused with the JSON pointer of the keyword: nothing becomes
 * unconstrained by accident.  The other direction is policy: of the valid texts only those are
 * generated that a careful writer would produce.
 *
 *   - Members stand in the order of the schema; undeclared ones follow the declared ones.
 *   - An object with declared properties is closed unless additionalProperties says otherwise.
 *   - White space is bounded: between tokens nothing, one blank, or one or two newlines and up to 20
 *     blanks or tabs; none around the document.  `compact`: none at all.
 *   - Numbers have at most 16 digits before and after the point (more when a bound has more).
 *   - A missing `type` is inferred from the keywords present.
 *   - A string with a pattern or format and a maxLength has at most 256 characters (or minLength).
 *   - Where a text has to be avoided, a string with a bound on its length has the first byte of that text
 *     in escapes only, and a key that is not declared has no escapes and not that byte.
 *   - More than 8 unique elements stand in the order of their enumeration.
 *   - allOf joins closed objects (additionalProperties: false closes the joined set of keys).
 *   - A key may come twice among undeclared ones; the last one counts.
 *
 * Refused: contains, if/then/else, dependentRequired, dependentSchemas, dependencies, $dynamicRef, `not`
 * except of {} and of enum, const and type, oneOf whose branches cannot be told apart, uniqueItems
 * without an enumeration, patternProperties that overlap, a $ref out of the document.
 *
 * Limits: 1 MiB of text, 128 levels, 50,000 schema nodes, 5,000 properties in an object and 20,000
 * in all, 20,000 enum values and 1 MiB of them, 256 branches after distribution, 64 references in a
 * row; then those of pn_grammar.h.
 *
 * Pure: no file-scope state.
 */
#ifndef PN_SCHEMA_H
#define PN_SCHEMA_H

#include "base/pn_json.h"
#include "sample/pn_gir.h"

typedef struct pn_schema_options {
    bool compact;               /* no white space between tokens */
    bool lenient;               /* widen what cannot be enforced instead of refusing it */
    bool python;                /* True, False, None */
    const char *quote;          /* not NULL: strings stand as they are, without escapes, between two of
                                   these, which they do not contain; keys have no quotes at all */
    pn_gnode quote_node;        /* what matches it, NONE: its bytes */
    const char *avoid;          /* not NULL: this text comes in no string and no key, as in bare text.
                                   For JSON between tags whose reader looks for the closer alone */
    pn_gnode avoid_body, avoid_char;    /* of pn_schema_avoid(), made once for many schemas */
} pn_schema_options;

/* Compile a schema's text.  o may be NULL: neither.  PN_E_FORMAT: not JSON.  PN_E_INVALID: not a
 * schema, nothing can satisfy it, or beyond a limit.  PN_E_UNSUPPORTED: a keyword that cannot be
 * enforced.  The text starts with the JSON pointer where there is one. */
PN_INTERNAL pn_status pn_schema_compile(pn_gram **out, pn_mem *mem, const char *json, size_t len,
                                        const pn_schema_options *o, pn_err *err);

/* The values of the schema at `node` of d as a node of g, to be built into something larger.  `root`,
 * the node or one above it, is the root of its schema: "#" means it, and pointers start there.  With
 * o->lenient the pointers of what was widened are appended to *widened (may be NULL), a line each.
 * Works in d's memory. */
PN_INTERNAL pn_status pn_schema_node(pn_gir *g, const pn_json_doc *d, uint32_t node, uint32_t root,
                                     const pn_schema_options *o, pn_gnode *out, pn_str *widened, pn_err *err);

/* Set o->avoid and what belongs to it. */
PN_INTERNAL void pn_schema_avoid(pn_gir *g, const char *avoid, pn_schema_options *o);

/* Of these values the strings alone, as bare text: no quotes, no escapes, and nowhere `until`, which
 * ends it.  There may be none (pn_gir_is_never). */
PN_INTERNAL pn_status pn_schema_text(pn_gir *g, const pn_json_doc *d, uint32_t node, uint32_t root, const char *until,
                                     const pn_schema_options *o, pn_gnode *out, pn_str *widened, pn_err *err);

#endif /* PN_SCHEMA_H */
