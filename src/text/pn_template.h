/*
 * pn_template.h - a model's own chat template (a Jinja program) to a prompt that knows whose text is whose.
 *
 * The template is trusted, the conversation is not: a user who types "<|im_end|>" must not end his
 * turn.  So every string the interpreter handles carries, byte for byte, whether it is the template's
 * own text, and the prompt comes with the trusted stretches, in which alone control tokens are looked
 * for (pn_vocab_encode).
 *
 * Trusted: literals and text of the template; the variables bos_token, eos_token, pad_token and
 * unk_token; dates; the punctuation of |tojson and of printed containers; numbers the template counts
 * itself; and a message's role when it is one of the names everybody uses (system, user, assistant,
 * tool, developer), because templates build markers such as "<|user|>" out of it.  Everything else
 * that comes from variables is not, and no operation makes it so.
 *
 * The program is hostile too, or may be: depth, steps, loops, output, memory and time are bounded.
 * It is parsed once and constant afterwards: any number of threads may render it.
 */
#ifndef PN_TEMPLATE_H
#define PN_TEMPLATE_H

#include "base/pn_json.h"
#include "text/pn_chat.h"

typedef struct pn_tpl pn_tpl;

/* Zero means the default for every field. */
typedef struct pn_tpl_limits {
    uint64_t max_steps;         /* nodes evaluated, elements and stretches of text handled, some 50 ns each;
                                   0: 2 million, and 64 for each byte and value of the variables */
    uint32_t max_loops;         /* rounds of all loops together; 0: 1 million */
    uint32_t max_ms;            /* of wall time; 0: 10,000 */
    size_t max_output;          /* bytes; 0: 16 MiB, or 64 times the variables' text when that is more */
    size_t max_memory;          /* bytes of values; 0: 64 MiB */
    int64_t now;                /* strftime_now: seconds since 1970, in UTC; 0: the clock, in local time */
} pn_tpl_limits;

/* Parse src[0..len), which is not needed afterwards.  PN_E_FORMAT: syntax, an unknown filter or test,
 * too large or too deep, with line and column; PN_E_NOMEM. */
PN_INTERNAL pn_status pn_tpl_new(pn_tpl **out, pn_mem *mem, const char *src, size_t len, pn_err *err);
PN_INTERNAL void pn_tpl_free(pn_tpl *t);

/* The text it was made from, newlines normalised; lives as long as t. */
PN_INTERNAL pn_bytes pn_tpl_source(const pn_tpl *t);

/* Does a variable of this name occur anywhere in the program? */
PN_INTERNAL bool pn_tpl_mentions(const pn_tpl *t, const char *name);

/* Run it.  `vars`: a document whose root is an object, one variable a member.  *out is emptied first.
 * limits may be NULL.  PN_E_INVALID: the template called raise_exception (the text is its own), a type
 * error ("template line N: ..."), or a limit, which is named; PN_E_NOMEM. */
PN_INTERNAL pn_status pn_tpl_render(const pn_tpl *t, pn_mem *mem, const pn_json_doc *vars, const pn_tpl_limits *limits,
                                    pn_prompt *out, pn_err *err);

#endif /* PN_TEMPLATE_H */
