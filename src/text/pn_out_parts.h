/*
 * pn_out_parts.h - the inside of the output parser, shared by its files and nobody else.
 *
 *     pn_toolcall.c     the text around calls, events, what happens to a broken call
 *     pn_out_detect.c   the table of families, and which one a template belongs to
 *     pn_out_json.c     {"name": N, "arguments": {...}} and its relatives
 *     pn_out_named.c    NAME <delimiter> {...}
 *     pn_out_xml.c      <function=N><parameter=K>V</parameter></function> and its relatives
 *     pn_out_nested.c   arguments as tags inside tags
 *     pn_out_python.c   f(a='x', b=3), and Gemma's call:f{a:<|"|>x<|"|>}
 *     pn_out_harmony.c  messages with a header: who to, which channel
 *     pn_out_value.c    the type of an argument by its schema, and values as JSON
 *
 * A grammar of calls is a step function over the text not yet consumed.  It consumes what it
 * understands and says how to go on; it is called again with more text when it says OUT_MORE.  A
 * grammar decides only on bytes that can no longer mean something else, so the cuts between pieces
 * cannot be seen.
 */
#ifndef PN_OUT_PARTS_H
#define PN_OUT_PARTS_H

#include "text/pn_out_family.h"
#include "text/pn_toolcall.h"

#include "base/pn_str.h"

enum {
    OUT_DEPTH_MAX = 128,            /* containers inside each other */
    OUT_HOLD_MAX = 1 << 20,         /* bytes of a value that must be seen whole */
    OUT_BLANK_MAX = 4096            /* white space that may yet turn out to be nothing */
};

typedef enum out_step {
    OUT_MORE,                       /* cannot go on without more text */
    OUT_AGAIN,                      /* something was consumed or the state changed: call again */
    OUT_BAD,                        /* this is no call */
    OUT_DONE                        /* back to text; the next byte is not consumed */
} out_step;

/* Text-level markers of one parser. */
typedef enum out_act {
    OUT_ACT_OPEN, OUT_ACT_THINK, OUT_ACT_THINK_END, OUT_ACT_SKIP, OUT_ACT_END, OUT_ACT_CODE, OUT_ACT_SEGMENT,
    OUT_ACT_HEADER
} out_act;

typedef struct out_mark {
    const char *text;
    uint32_t len;
    out_act act;
} out_mark;

enum { OUT_MARKS_MAX = 64 };

/* Follows one JSON value through its bytes without storing it. */
typedef struct out_scan {
    uint8_t is_object[OUT_DEPTH_MAX / 8];   /* a bit for each open container */
    uint32_t depth;
    bool in_string, escaped, scalar, done, broken;
} out_scan;

/* Turns a literal as Python or Gemma write it into JSON. */
typedef struct out_lit {
    char close[OUT_DEPTH_MAX];      /* what ends each open container; 'o' bit kept in is_object */
    uint8_t is_object[OUT_DEPTH_MAX];
    uint32_t depth;
    uint8_t state;
    char quote;                     /* of the string being read; 'g': Gemma's */
    uint8_t n_quote;                /* 3: a triple-quoted string */
    uint8_t n_hex;                  /* of an escape still to come */
    uint32_t code, high;            /* the escape; a high surrogate that waits */
    char word[64];                  /* a number, a name */
    uint32_t word_len;
    bool first;                     /* nothing yet in the innermost container */
} out_lit;

typedef struct out_element {        /* of nested tags */
    uint32_t schema;
    uint8_t kind;                   /* 0 not known, 'o', 'a', 's' text */
    bool any;                       /* has children */
    char key[64];
} out_element;

enum { OUT_ELEMENTS_MAX = 24 };

struct pn_out {
    pn_mem *mem;
    const out_family *family;
    pn_out_format format;
    pn_out_params params;
    const pn_json_doc *tools;       /* NULL: unknown */
    pn_out_sink sink;
    void *user;

    pn_str in;                      /* text not yet consumed is in.data[at..in.len) */
    size_t at;
    size_t before;                  /* bytes consumed and no longer in `in` */
    bool final;                     /* nothing will follow */
    bool ended, stopped, starting;

    /* text */
    out_mark marks[OUT_MARKS_MAX];
    size_t n_marks;
    uint8_t first[32];              /* a bit for each byte that begins a marker: most text has none */
    bool in_reasoning;
    bool fresh;                     /* only white space since the start, a call or reasoning */
    bool drop_lead;                 /* white space before the next content is nothing */
    bool block_begun;               /* this block of reasoning has text */
    bool any_reasoning, any_content;
    pn_str blank[2];                /* pending white space: content, reasoning */
    pn_str blank_at[2];             /* a size_t for each byte of it: its offset in the input */

    /* events */
    pn_str event;                   /* text of event_kind not yet delivered */
    pn_out_kind event_kind;
    size_t event_at;                /* its offset in the input */
    uint32_t n_calls;

    /* the call being read */
    out_grammar grammar;            /* OUT_TEXT: none */
    uint8_t state;
    bool from_reasoning;            /* where the call stands */
    bool begun;                     /* its name has been delivered */
    bool args_done;                 /* its arguments are complete */
    size_t call_at;                 /* begun: where it begins in the input */
    bool any_param;
    bool bare;                      /* JSON without opener */
    bool in_array;
    bool listed;                    /* JSON: the array of calls is closed, none follows */
    pn_str raw;                     /* all of it while begun is false */
    pn_str name, id, val, args;
    uint32_t params_node;           /* schema of the arguments; PN_JSON_NONE */
    out_scan scan;
    out_lit lit;
    uint8_t fence;                  /* a code fence was opened */

    /* one grammar's own */
    uint32_t nest;                  /* JSON: objects around the call's members */
    uint8_t key;                    /* JSON: what the member is */
    uint8_t type;                   /* XML: OUT_T_ of the value */
    bool value_begun;               /* JSON: a member of unknown meaning was seen */
    bool hold_newline, cdata;
    uint32_t high;                  /* an unfinished surrogate pair of a string being unwrapped */
    uint8_t esc, n_hex;
    uint32_t code;
    out_element *elements;          /* owned, [OUT_ELEMENTS_MAX] or NULL */
    uint32_t n_elements;
    uint8_t body;                   /* harmony: what the message is */
};

/* --- the text in front of the parser (pn_toolcall.c) ----------------------------------------- */

static inline const char *out_text(const pn_out *p) { return p->in.data ? p->in.data + p->at : ""; }
static inline size_t out_left(const pn_out *p) { return p->in.len - p->at; }
static inline size_t out_offset(const pn_out *p) { return p->before + p->at; }      /* of out_text in the input */
static inline bool out_is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Consume n bytes. */
PN_INTERNAL void pn_out_skip(pn_out *p, size_t n);

/* Consume white space; false: there may be more of it. */
PN_INTERNAL bool pn_out_blanks(pn_out *p);

/* 1: `mark` stands at byte `from` of the text; 0: it does not; -1: it may. */
PN_INTERNAL int pn_out_at(const pn_out *p, size_t from, const char *mark);

/* Bytes in front of the first of the marks; *which: the mark there, or -1: none yet, and what follows
 * the returned bytes must wait. */
PN_INTERNAL size_t pn_out_find_mark(const pn_out *p, const char *const *marks, size_t n, int *which);

/* Consume up to a mark into dst: index of the mark (not consumed), -1 more text, -2 over `max` bytes or
 * at the end of the output. */
PN_INTERNAL int pn_out_until(pn_out *p, const char *const *marks, size_t n, pn_str *dst, size_t max);

/* --- events (pn_toolcall.c) ------------------------------------------------------------------ */

/* `at`: the text's offset in the input; what is no copy of the input stands where it is put in. */
PN_INTERNAL void pn_out_emit(pn_out *p, pn_out_kind kind, const char *text, size_t n, size_t at);
PN_INTERNAL void pn_out_put_text(pn_out *p, const char *text, size_t n, size_t at);     /* with the rules for white space */
PN_INTERNAL void pn_out_put_blank(pn_out *p, int which, const char *text, size_t n, size_t at);
PN_INTERNAL void pn_out_begin_call(pn_out *p);      /* p->name, p->id */
PN_INTERNAL void pn_out_end_call(pn_out *p, bool complete);
PN_INTERNAL void pn_out_new_call(pn_out *p);        /* the next call of a section starts here */
PN_INTERNAL void pn_out_think(pn_out *p, bool open);
static inline void out_args(pn_out *p, const char *text, size_t n) { pn_out_emit(p, PN_OUT_ARGUMENTS, text, n, 0); }
static inline void out_argsz(pn_out *p, const char *text) { out_args(p, text, strlen(text)); }

/* Where the family's section may go on or end: white space, then a closer (consumed: OUT_DONE), a new
 * call (OUT_AGAIN, *call set; `call` NULL: none is known), or anything else (OUT_DONE). */
PN_INTERNAL out_step pn_out_section(pn_out *p, const char *call, bool *is_call);

/* --- grammars -------------------------------------------------------------------------------- */

PN_INTERNAL void pn_out_start(pn_out *p, out_grammar g);
PN_INTERNAL out_step pn_out_json_step(pn_out *p);
PN_INTERNAL void pn_out_json_init(pn_out *p, bool bare);
PN_INTERNAL out_step pn_out_named_step(pn_out *p);
PN_INTERNAL out_step pn_out_xml_step(pn_out *p);
PN_INTERNAL void pn_out_xml_finish(pn_out *p);          /* the output ends inside a value */
PN_INTERNAL out_step pn_out_nested_step(pn_out *p);
PN_INTERNAL void pn_out_nested_finish(pn_out *p);
PN_INTERNAL out_step pn_out_python_step(pn_out *p);
PN_INTERNAL out_step pn_out_gemma_step(pn_out *p);
PN_INTERNAL out_step pn_out_code_step(pn_out *p);
PN_INTERNAL void pn_out_code_finish(pn_out *p);
PN_INTERNAL out_step pn_out_header_step(pn_out *p);
PN_INTERNAL bool pn_out_header_finish(pn_out *p);       /* true: the message was a whole call */

/* --- JSON values ----------------------------------------------------------------------------- */

PN_INTERNAL void pn_out_scan_init(out_scan *s);

/* Bytes of text[0..n) that belong to the value; s->done: it ends there, s->broken: it cannot go on there.
 * A scalar ends in front of the first byte that is no part of it. */
PN_INTERNAL size_t pn_out_scan_run(out_scan *s, const char *text, size_t n);

/* Consume the arguments as they stand and deliver them: OUT_AGAIN when complete. */
PN_INTERNAL out_step pn_out_raw_args(pn_out *p);

/* Escaped for the inside of a JSON string, onto the arguments. */
PN_INTERNAL void pn_out_escape(pn_out *p, const char *text, size_t n);

/* The schema of the arguments of tool `name`, of a property of a schema, of an array's items;
 * PN_JSON_NONE. */
PN_INTERNAL uint32_t pn_out_schema_tool(const pn_out *p, const char *name, size_t len);
PN_INTERNAL bool pn_out_has_tool(const pn_out *p, const char *name, size_t len);
PN_INTERNAL uint32_t pn_out_schema_property(const pn_out *p, uint32_t schema, const char *key, size_t len);
PN_INTERNAL uint32_t pn_out_schema_items(const pn_out *p, uint32_t schema);
PN_INTERNAL out_type pn_out_schema_type(const pn_out *p, uint32_t schema);

/* A whole value as text, delivered as JSON of that type; a string when it cannot be. */
PN_INTERNAL void pn_out_typed(pn_out *p, out_type type, const char *text, size_t n);

/* --- literals -------------------------------------------------------------------------------- */

/* open: the byte that opened a container already consumed ('(' of a call), or 0. */
PN_INTERNAL void pn_out_lit_init(out_lit *l, char open);

/* Consume text[0..n), write JSON to out.  Returns bytes consumed.  *done: the value is complete;
 * *bad: it is none.  final: nothing follows text. */
PN_INTERNAL size_t pn_out_lit_run(out_lit *l, const char *text, size_t n, bool final, pn_str *out, bool *done, bool *bad);

/* The table (pn_out_detect.c). */
PN_INTERNAL const char *pn_out_end_mark(size_t i);      /* NULL past the end */

#endif /* PN_OUT_PARTS_H */
