/*
 * pn_chat_norm.h - from what clients send to what a template can render.
 *
 * Templates differ in what they accept: content as a string or as parts, arguments as an object or as
 * text, one call a message or several, a system role or none.  pn_tpl_probe finds out by rendering
 * small conversations once, when the template is loaded; pn_chat_normalize then rewrites a request so
 * that nothing the client said is lost and nothing raises that need not.
 */
#ifndef PN_CHAT_NORM_H
#define PN_CHAT_NORM_H

#include "text/pn_template.h"

/* What a template can do.  Plain data. */
typedef struct pn_tpl_caps {
    bool string_content, typed_content; /* content: "text"; content: [{"type": "text", ...}] */
    bool system_role;
    bool later_system;          /* a system message after others is rendered */
    bool two_users;             /* user messages in a row are accepted */
    bool tools;                 /* lists the tools */
    bool tool_calls;            /* renders calls in the history */
    bool object_args;           /* arguments as an object; else as a string */
    bool parallel_calls;        /* several calls in one message */
    bool tool_role;             /* results in messages of role tool */
    bool reasoning;             /* reasoning_content of earlier turns can appear */
    bool thinking_parts;        /* reasoning as a part {"type": "thinking"} */
    bool thinking_toggle;       /* enable_thinking changes the prompt */
    bool reasoning_effort;      /* the variable is read */
    bool generation_prompt;     /* add_generation_prompt adds something */
    bool developer;             /* handles the role developer itself */
    bool harmony;               /* gpt-oss: content and thinking exclude each other beside a call */
    bool short_ids;             /* call ids must be nine letters or digits (Mistral) */
    bool kimi_ids;              /* functions.NAME:N */
    bool fold_results;          /* results inside the assistant's message (older Gemma 4) */
    bool order_results;         /* results in the order of their calls (DeepSeek V4) */
} pn_tpl_caps;

/* PN_E_NOMEM only; a template that raises on a probe cannot do that thing. */
PN_INTERNAL pn_status pn_tpl_probe(const pn_tpl *t, pn_mem *mem, pn_tpl_caps *out, pn_err *err);

/* Append to *out the JSON text of the variables to render: `in`'s root object with its messages and
 * tools made to fit, chat_template_kwargs merged over the rest, add_generation_prompt true when absent.
 * PN_E_INVALID names the message that is wrong and how. */
PN_INTERNAL pn_status pn_chat_normalize(const pn_tpl_caps *caps, pn_mem *mem, const pn_json_doc *in, pn_str *out,
                                        pn_err *err);

#endif /* PN_CHAT_NORM_H */
