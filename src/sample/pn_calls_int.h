/*
 * pn_calls_int.h - what the files of the tool-call grammars share; nobody else includes it.
 *
 *     pn_calls.c         tools, lanes, triggers, and the tags of each family
 *     pn_calls_args.c    the arguments of one tool in each spelling
 */
#ifndef PN_CALLS_INT_H
#define PN_CALLS_INT_H

#include "sample/pn_calls.h"
#include "sample/pn_schema.h"
#include "text/pn_out_family.h"

typedef struct calls_tool {
    pn_bytes name;
    uint32_t index;             /* in the array of tools */
    uint32_t node;              /* the object that holds name and parameters */
    uint32_t schema;            /* of the arguments; PN_JSON_NONE: there are none */
    bool strict;
    pn_gnode args;              /* in the family's spelling */
} calls_tool;

typedef struct calls_work {
    pn_mem *mem;
    const pn_calls_params *p;
    const out_family *f;
    pn_calls *out;
    pn_gir *g;
    pn_err *err;
    pn_status st;               /* the first failure; everything stops */
    calls_tool *tools;          /* owned, [n_tools] */
    size_t n_tools, cap_tools;
    pn_json_doc nothing;        /* {"type":"object"}: the schema of a tool that says none */
    pn_gnode *lanes;            /* owned, [n_lanes] */
    size_t n_lanes, cap_lanes;
    pn_gnode ws, nl;            /* white space inside JSON; up to two line ends between tags */
    pn_schema_options values;   /* how the family spells values */
    pn_gnode free_text;         /* any text between tags; NONE: the family has none */
} calls_work;

/* "<|channel|>final": tokens where the vocabulary has them, bytes between. */
PN_INTERNAL pn_gnode pn_calls_mark(calls_work *w, const char *text);

/* Record a failure at a pointer below the array of tools; PN_GNODE_NONE. */
PN_INTERNAL pn_gnode pn_calls_fail(calls_work *w, pn_status st, const calls_tool *t, const char *below, const char *what);

/* w->values for the family. */
PN_INTERNAL void pn_calls_spell(calls_work *w);

/* t->args for the grammar of the family.  False: failed. */
PN_INTERNAL bool pn_calls_arguments(calls_work *w, calls_tool *t);

#endif /* PN_CALLS_INT_H */
