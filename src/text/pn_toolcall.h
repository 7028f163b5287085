/*
 * pn_toolcall.h - what a model writes, taken apart while it is being written.
 *
 * A chat model's raw output mixes three things: reasoning, the answer, and calls of tools, in the
 * syntax of its family ("<tool_call>{...}</tool_call>", "[TOOL_CALLS]f[ARGS]{...}", "<|channel|>...").
 * The parser turns it into events; arguments always come out as one JSON text, whatever the family
 * writes (tags, Python, ...).
 *
 * Invariants
 *   1. Events only add: concatenated texts do not depend on how the input was cut into pieces, and
 *      nothing delivered is taken back.  A text event never ends inside a character.
 *   2. Of what may become a marker, the parser holds back the shortest tail that decides.
 *   3. What looks like a call and turns out not to be one is delivered as text (reasoning or content,
 *      where it stood).  When the name has been delivered already, the call ends with
 *      complete == false and the rest is content.
 *   4. Work is linear in the input, memory is bounded by what is held back (the values that need
 *      their end to be understood, at most OUT_HOLD_MAX bytes), nothing recurses.
 *
 * Families are found from the source text of the model's chat template.  Feed the text with control
 * tokens rendered (many markers are such tokens), without the token that ended the answer; the common
 * end markers are dropped at the end of the output if they are there.
 *
 * Threads: one parser, one thread.  Pure: text in, events out.
 */
#ifndef PN_TOOLCALL_H
#define PN_TOOLCALL_H

#include "base/pn_json.h"
#include "base/pn_mem.h"

/* --- which syntax ---------------------------------------------------------------------------- */

/* A plain value: all pointers are to constants. */
typedef struct pn_out_format {
    const char *name;               /* "hermes", "harmony", ... "generic" */
    int family;                     /* index in the table of families */
    const char *think_open, *think_close;
    bool orphan;                    /* the template knows think_close: one without opener counts */
    bool guessed;                   /* the template knows neither: they are read, but a grammar leaves no room for them */
    uint64_t ends;                  /* end markers the template mentions, a bit each */
} pn_out_format;

/* From a template's source; len 0: "generic".  Cannot fail. */
PN_INTERNAL void pn_out_detect(pn_out_format *out, const char *tmpl, size_t len);

/* By name, for tests and overrides; false: no such family. */
PN_INTERNAL bool pn_out_find(pn_out_format *out, const char *name);
PN_INTERNAL const char *pn_out_family_name(size_t i);       /* NULL past the end */

/* Every marker of every family and every end of answers, some of them more than once. */
PN_INTERNAL void pn_out_each_marker(void (*fn)(void *user, const char *text), void *user);

/* Does the generation prompt leave the reasoning open (an opener without closer after it)? */
PN_INTERNAL bool pn_out_forced_open(const pn_out_format *f, const char *prompt, size_t len);

/* --- events ---------------------------------------------------------------------------------- */

typedef enum pn_out_kind {
    PN_OUT_REASONING,               /* text */
    PN_OUT_CONTENT,                 /* text */
    PN_OUT_CALL_BEGIN,              /* text: the name; id: the model's own, may be empty */
    PN_OUT_ARGUMENTS,               /* text: the next piece of the arguments */
    PN_OUT_CALL_END                 /* id: the model's own when it came after the arguments */
} pn_out_kind;

typedef struct pn_out_event {
    pn_out_kind kind;
    uint32_t call;                  /* index of the call, from 0 */
    bool complete;                  /* CALL_END: the call was well-formed to its end */
    const char *text, *id;          /* borrowed during the call, not terminated */
    size_t len, id_len;
    size_t at;                      /* offset in all that was pushed: where a text stands (it is copied from
                                       there), where a call begins, what lies behind its end.  ARGUMENTS: 0.
                                       Text that is the parser's own (a line end between two blocks) has
                                       the offset where it was put in */
} pn_out_event;

/* Nonzero stops: pn_out_push then returns PN_E_CANCELLED. */
typedef int (*pn_out_sink)(void *user, const pn_out_event *e);

typedef struct pn_out_params {
    bool whole;                     /* nothing is delivered before the end: a closer of reasoning
                                       without opener makes all before it reasoning.  Else, when the
                                       text has gone out as content already, such a closer is dropped */
    bool no_reasoning;              /* reasoning markers are ordinary text */
    bool no_calls;                  /* calls are ordinary text (tool_choice "none") */
} pn_out_params;

/* --- parsing --------------------------------------------------------------------------------- */

typedef struct pn_out pn_out;

/* `tools`: OpenAI's array (or an object with "tools"), borrowed while the parser lives; NULL: unknown.
 * Its schemas decide how tagged values are read.  `prompt`: the generation prompt, where the output
 * goes on.  params may be NULL. */
PN_INTERNAL pn_status pn_out_new(pn_out **out, pn_mem *mem, const pn_out_format *format,
                                 const pn_json_doc *tools, const char *prompt, size_t prompt_len,
                                 const pn_out_params *params, pn_out_sink sink, void *user, pn_err *err);
PN_INTERNAL pn_status pn_out_push(pn_out *p, const char *text, size_t len, pn_err *err);
PN_INTERNAL pn_status pn_out_end(pn_out *p, pn_err *err);       /* no push afterwards */

/* Bytes of the input, from its start, of which it is known what they are: text that has been delivered,
 * a call, or markup and white space that was dropped. */
PN_INTERNAL size_t pn_out_settled(const pn_out *p);
PN_INTERNAL void pn_out_free(pn_out *p);

/* --- collecting ------------------------------------------------------------------------------ */

typedef struct pn_out_call {
    pn_str name, id, arguments;
    bool complete;
} pn_out_call;

typedef struct pn_out_result {
    pn_mem *mem;
    pn_str reasoning, content;
    pn_out_call *calls;             /* owned, [n_calls] */
    size_t n_calls, cap_calls;
    bool failed;                    /* memory ran out */
} pn_out_result;

PN_INTERNAL void pn_out_result_init(pn_out_result *r, pn_mem *mem);
PN_INTERNAL void pn_out_result_fini(pn_out_result *r);
PN_INTERNAL int pn_out_collect(void *user, const pn_out_event *e);      /* a pn_out_sink over a result */

/* {"reasoning_content":string|null,"content":string|null,"tool_calls":[{"name","arguments"}]}; the
 * arguments are a JSON value, a string when they are not JSON. */
PN_INTERNAL void pn_out_result_json(const pn_out_result *r, pn_str *out);

#endif /* PN_TOOLCALL_H */
