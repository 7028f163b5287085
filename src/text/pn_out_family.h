/*
 * pn_out_family.h - how each family of models spells a tool call: one table for all who read or write calls.
 *
 * The parser (pn_toolcall.c) reads these spellings out of an answer; the grammars of sample/pn_calls.c
 * make a model write them.  A family is found from the text of a chat template: see pn_toolcall.h.
 */
#ifndef PN_OUT_FAMILY_H
#define PN_OUT_FAMILY_H

#include "base/pn_json.h"

enum { OUT_NAME_MAX = 256 };        /* bytes of a function's or parameter's name */

typedef enum out_grammar {
    OUT_TEXT, OUT_JSON, OUT_NAMED, OUT_XML, OUT_NESTED, OUT_PYTHON, OUT_GEMMA, OUT_TAGGED_CODE, OUT_HARMONY
} out_grammar;

/* How NAME <delimiter> {...} is spelled. */
typedef struct out_named {
    const char *call;               /* opens each call inside a section; NULL: the text's opener does */
    const char *before_id;          /* stands between name and id; NULL: none */
    const char *args;               /* ends the header */
    const char *id_first;           /* ends an id that comes before the name; NULL: none */
    bool brace;                     /* '{' ends the header too */
} out_named;

/* How <function=N><parameter=K>V</parameter></function> is spelled. */
typedef struct out_xml {
    const char *call, *call_head;   /* before the name (NULL: nothing), after it */
    const char *param, *param_head; /* before the key, after it */
    const char *value;              /* before the value, after white space; NULL: nothing */
    const char *param_end, *call_end;
    bool attributes;                /* the name ends at a quote, attributes follow */
    bool trim_newline;              /* one newline on each side of a value is not the value's */
} out_xml;

typedef struct out_family {
    const char *name;
    out_grammar grammar;
    const char *all[3];             /* in the template's text: all of these */
    const char *any[3];             /* and, when there are any, one of these */
    const char *open[6];            /* where a call or a section of calls begins */
    const char *close[4];           /* where it ends; may be missing */
    const char *skip[6];            /* dropped from text */
    const char *think[2];           /* NULL: as the template's text tells */
    const out_named *named;
    const out_xml *xml;
    unsigned flags;
} out_family;

enum {
    OUT_BARE = 1,                   /* a JSON object at the start of the answer may be a call */
    OUT_NAME_IS_KEY = 2,            /* {"f": {...}} */
    OUT_SEGMENTS = 4,               /* functionary 3.2: ">>>name\n" cuts the output into segments */
    OUT_HEADERS = 8,                /* messages have headers that end in <|message|> */
    OUT_CODE_TAG = 16               /* <|python_tag|> */
};

/* The row of pn_out_format.family; NULL: no such row. */
PN_INTERNAL const out_family *pn_out_family(int i);

/* What a key of a JSON call says.  Some models wrap the call in an object or an array of its own. */
typedef enum out_key { OUT_K_NONE, OUT_K_NAME, OUT_K_ARGS, OUT_K_ID, OUT_K_WRAP, OUT_K_OTHER } out_key;
PN_INTERNAL out_key pn_out_key_of(const char *key, size_t len);

/* Tagged syntaxes write values as bare text.  What a schema (a node of d; references start at `root`)
 * makes of such a text: a string where it allows one among others, else what it names. */
typedef enum out_type { OUT_T_UNKNOWN, OUT_T_STRING, OUT_T_BOOL, OUT_T_NULL, OUT_T_NUMBER, OUT_T_OTHER } out_type;
PN_INTERNAL out_type pn_out_type_of(const pn_json_doc *d, uint32_t root, uint32_t schema);

#endif /* PN_OUT_FAMILY_H */
