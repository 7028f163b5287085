/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_chat.c - seven families of chat formats as one table of literals.
 *
 * Why a table: the families differ in the text around a message and in little else, so a row is a
 * format and the renderer has no case per family.  The full truth about a model is its own template
 * (a Jinja program); these rows are for models without one and for what needs no interpreter.
 *
 * Literals may hold two marks that stand for the vocabulary's own spelling:
 *   CHAT_BOS  the BOS token's text; left out where the prompt's own BOS has just been written
 *   CHAT_EOS  the EOS token's text, "</s>" when there is none
 *
 * Invariants
 *   1. A span covers literals and nothing else.  Neighbouring literals share one span, so a control
 *      token may cross from one into the next; it can never reach into content.
 *   2. text(0..n) == text(0..k) less its last end when that is the assistant's, plus text(k..n):
 *      a session goes on exactly where a fresh prompt would be.
 */
#include "text/pn_chat.h"

#include "base/pn_err.h"

#include <inttypes.h>

#define CHAT_BOS "\1"
#define CHAT_EOS "\2"

enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES };

enum {
    CHAT_WRITES_BOS = 1,        /* the family's template begins with bos_token */
    CHAT_TRIM = 2,              /* content without white space around it */
    CHAT_FOLD = 4               /* no system role: begin[CHAT_SYSTEM] S end[CHAT_SYSTEM] stand
                                   inside the next user message, before its content */
};

struct pn_chat_format_info {
    const char *name;
    unsigned flags;
    const char *begin[CHAT_ROLES], *end[CHAT_ROLES];
    const char *generation;     /* where the assistant is to speak */
};

/* Sources: the families' published templates. */
static const pn_chat_format_info chat_formats[] = {
    {"chatml", 0,
     {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"},
     {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"},
     "<|im_start|>assistant\n"},
    {"llama3", CHAT_WRITES_BOS | CHAT_TRIM,
     {"<|start_header_id|>system<|end_header_id|>\n\n", "<|start_header_id|>user<|end_header_id|>\n\n",
      "<|start_header_id|>assistant<|end_header_id|>\n\n"},
     {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"},
     "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"llama2", CHAT_WRITES_BOS | CHAT_FOLD,
     {"<<SYS>>\n", CHAT_BOS "[INST] ", " "},
     {"\n<</SYS>>\n\n", " [/INST]", CHAT_EOS},
     ""},
    {"mistral-v1", CHAT_WRITES_BOS | CHAT_FOLD,
     {"", " [INST] ", " "},
     {"\n\n", " [/INST]", CHAT_EOS},
     ""},
    {"mistral-v3", CHAT_WRITES_BOS | CHAT_FOLD,
     {"", "[INST] ", " "},
     {"\n\n", "[/INST]", CHAT_EOS},
     ""},
    {"mistral-v3-tekken", CHAT_WRITES_BOS | CHAT_FOLD,
     {"", "[INST]", ""},
     {"\n\n", "[/INST]", CHAT_EOS},
     ""},
    {"mistral-v7", CHAT_WRITES_BOS,
     {"[SYSTEM_PROMPT] ", "[INST] ", " "},
     {"[/SYSTEM_PROMPT]", "[/INST]", CHAT_EOS},
     ""},
    {"mistral-v7-tekken", CHAT_WRITES_BOS,
     {"[SYSTEM_PROMPT]", "[INST]", ""},
     {"[/SYSTEM_PROMPT]", "[/INST]", CHAT_EOS},
     ""},
    {"phi3", 0,
     {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
     {"<|end|>\n", "<|end|>\n", "<|end|>\n"},
     "<|assistant|>\n"},
    {"gemma", CHAT_WRITES_BOS | CHAT_TRIM | CHAT_FOLD,
     {"", "<start_of_turn>user\n", "<start_of_turn>model\n"},
     {"\n\n", "<end_of_turn>\n", "<end_of_turn>\n"},
     "<start_of_turn>model\n"},
    {"zephyr", 0,
     {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
     {CHAT_EOS "\n", CHAT_EOS "\n", CHAT_EOS "\n"},
     "<|assistant|>\n"},
};

/* ------------------------------------------------------------------------------------------
 * Which format
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL const pn_chat_format_info *pn_chat_find(const char *name)
{
    if (strcmp(name, "mistral") == 0)
        name = "mistral-v3";
    for (size_t i = 0; i < PN_COUNT_OF(chat_formats); i++)
        if (strcmp(name, chat_formats[i].name) == 0)
            return &chat_formats[i];
    return NULL;
}

PN_INTERNAL const char *pn_chat_name(const pn_chat_format_info *f) { return f->name; }

/* Where `what` first stands in text from `from` on; text.len: nowhere. */
static size_t chat_search(pn_bytes text, size_t from, const char *what)
{
    size_t n = strlen(what);
    while (from < text.len && n <= text.len - from) {
        const char *p = memchr(text.data + from, what[0], text.len - from - n + 1);
        if (!p)
            break;
        from = (size_t)(p - text.data);
        if (memcmp(p, what, n) == 0)
            return from;
        from++;
    }
    return text.len;
}

static bool chat_has(pn_bytes text, const char *what) { return chat_search(text, 0, what) < text.len; }

/* With [INST] the families differ by spaces only, and a template's string literals show them. */
static const char *chat_detect_inst(pn_bytes t)
{
    bool spaced = chat_has(t, "[INST] ");
    if (chat_has(t, "[SYSTEM_PROMPT]"))
        return spaced ? "mistral-v7" : "mistral-v7-tekken";
    if (chat_has(t, "<<SYS>>"))
        return "llama2";
    if (chat_has(t, " [INST]") || chat_has(t, " [/INST]"))
        return "mistral-v1";
    return spaced ? "mistral-v3" : "mistral-v3-tekken";
}

/* Zephyr ends the user's turn with an end token; Falcon 3 and GLM-edge, which share its markers, do
 * not.  So look between <|user|> and the next marker. */
static bool chat_is_zephyr(pn_bytes t)
{
    size_t user = chat_search(t, 0, "<|user|>"), stop;
    if (user == t.len || !chat_has(t, "<|assistant|>"))
        return false;
    stop = PN_MIN(chat_search(t, user, "<|assistant|>"), chat_search(t, user, "<|system|>"));
    return chat_search(t, user, "eos_token") < stop || chat_search(t, user, "<|endoftext|>") < stop;
}

static const char *chat_detect_template(pn_bytes t)
{
    if (chat_has(t, "<|im_start|>"))    /* phi4 and SmolVLM write it too, but go on differently */
        return chat_has(t, "<|im_sep|>") || chat_has(t, "<end_of_utterance>") ? NULL : "chatml";
    if (chat_has(t, "[INST]"))
        return chat_detect_inst(t);
    if (chat_has(t, "<|assistant|>") && chat_has(t, "<|end|>"))
        return "phi3";
    if (chat_has(t, "[gMASK]"))
        return NULL;
    if (chat_is_zephyr(t))
        return "zephyr";
    if (chat_has(t, "<start_of_turn>"))
        return "gemma";
    if (chat_has(t, "<|start_header_id|>"))
        return "llama3";
    return NULL;
}

static bool chat_is_token(const pn_vocab *v, const char *text) { return pn_vocab_find(v, text, strlen(text)) >= 0; }

static const char *chat_detect_vocab(const pn_vocab *v)
{
    /* A SentencePiece vocabulary (its words begin with U+2581) goes with spaces, Tekken without. */
    bool spaced = chat_is_token(v, "\xE2\x96\x81the");
    if (chat_is_token(v, "<|start_header_id|>") && chat_is_token(v, "<|eot_id|>"))
        return "llama3";
    if (chat_is_token(v, "<start_of_turn>"))
        return "gemma";
    if (chat_is_token(v, "[SYSTEM_PROMPT]"))
        return spaced ? "mistral-v7" : "mistral-v7-tekken";
    if (chat_is_token(v, "[INST]"))
        return spaced ? "mistral-v3" : "mistral-v3-tekken";
    if (chat_is_token(v, "<|im_start|>"))
        return chat_is_token(v, "<|im_sep|>") ? NULL : "chatml";
    if (chat_is_token(v, "<|assistant|>") && chat_is_token(v, "<|end|>"))
        return "phi3";
    return NULL;
}

PN_INTERNAL const pn_chat_format_info *pn_chat_detect(const pn_vocab *v, const char *tmpl, size_t tmpl_len)
{
    const char *name = NULL;
    if (tmpl && tmpl_len)
        name = chat_detect_template((pn_bytes){tmpl, tmpl_len});
    else if (v)
        name = chat_detect_vocab(v);
    return name ? pn_chat_find(name) : NULL;
}

/* ------------------------------------------------------------------------------------------
 * The prompt: text and the stretches of it that are trusted
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_prompt_init(pn_prompt *p, pn_mem *mem)
{
    *p = (pn_prompt){.spans = NULL};
    pn_str_init(&p->text, mem, PN_ACCT_MISC);
}

PN_INTERNAL void pn_prompt_fini(pn_prompt *p)
{
    pn_mem_free(p->text.mem, PN_ACCT_MISC, p->spans, p->cap_spans * sizeof *p->spans);
    p->spans = NULL;
    p->n_spans = p->cap_spans = 0;
    pn_str_fini(&p->text);
}

/* Append trusted bytes.  Failure is remembered in p->text, as pn_str does it. */
static void chat_trusted(pn_prompt *p, const char *bytes, size_t n)
{
    size_t begin = p->text.len;
    if (!n)
        return;
    pn_str_add(&p->text, bytes, n);
    if (p->text.failed)
        return;
    if (p->n_spans && p->spans[p->n_spans - 1].end == begin) {
        p->spans[p->n_spans - 1].end = p->text.len;
        return;
    }
    if (!pn_mem_grow(p->text.mem, PN_ACCT_MISC, (void **)&p->spans, &p->cap_spans, p->n_spans + 1,
                     sizeof *p->spans)) {
        p->text.failed = true;
        return;
    }
    p->spans[p->n_spans++] = (pn_span){begin, p->text.len};
}

/* ------------------------------------------------------------------------------------------
 * Rendering
 * ------------------------------------------------------------------------------------------ */

typedef struct chat_render {
    const pn_chat_format_info *f;
    const pn_message *msgs;
    pn_prompt *out;
    pn_bytes bos, eos;          /* the vocabulary's texts; bos empty: none */
    bool begun;                 /* a message stands before this point: BOS is no longer the last word */
    size_t waiting, n_waiting;  /* system messages to fold: the first, and how many from there on */
} chat_render;

static void chat_literal(chat_render *r, const char *lit)
{
    for (; *lit; lit++) {
        size_t run = strcspn(lit, CHAT_BOS CHAT_EOS);
        chat_trusted(r->out, lit, run);
        lit += run;
        if (*lit == CHAT_BOS[0] && r->begun)
            chat_trusted(r->out, r->bos.data, r->bos.len);
        else if (*lit == CHAT_EOS[0])
            chat_trusted(r->out, r->eos.data, r->eos.len);
        else if (!*lit)
            return;
    }
}

static pn_bytes chat_content(const pn_message *m)
{
    if (!m->content)
        return (pn_bytes){"", 0};
    return (pn_bytes){m->content, m->content_len ? m->content_len : strlen(m->content)};
}

static bool chat_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void chat_add_content(chat_render *r, const pn_message *m, bool trim)
{
    pn_bytes c = chat_content(m);
    while (trim && c.len && chat_is_space(c.data[0]))
        c.data++, c.len--;
    while (trim && c.len && chat_is_space(c.data[c.len - 1]))
        c.len--;
    pn_str_add(&r->out->text, c.data, c.len);
}

static int chat_role(const pn_message *m)
{
    static const char *const names[CHAT_ROLES] = {"system", "user", "assistant"};
    for (int k = 0; m->role && k < CHAT_ROLES; k++)
        if (strcmp(m->role, names[k]) == 0)
            return k;
    return CHAT_ROLES;
}

static bool chat_folds(const chat_render *r, int role) { return role == CHAT_SYSTEM && r->f->flags & CHAT_FOLD; }

/* The waiting system messages, "\n\n" between them; they stand at waiting.. but not in one row. */
static void chat_add_waiting(chat_render *r)
{
    bool any = false;
    if (!r->n_waiting)
        return;
    chat_literal(r, r->f->begin[CHAT_SYSTEM]);
    for (size_t i = r->waiting; r->n_waiting; i++) {
        if (chat_role(&r->msgs[i]) != CHAT_SYSTEM)
            continue;
        if (any)
            chat_literal(r, "\n\n");
        chat_add_content(r, &r->msgs[i], false);
        any = true;
        r->n_waiting--;
    }
    chat_literal(r, r->f->end[CHAT_SYSTEM]);
}

/* A message, or (m NULL) the waiting system text alone as a user's. */
static void chat_turn(chat_render *r, int role, const pn_message *m)
{
    chat_literal(r, r->f->begin[role]);
    if (role == CHAT_USER)
        chat_add_waiting(r);
    if (m)
        chat_add_content(r, m, (r->f->flags & CHAT_TRIM) != 0);
    chat_literal(r, r->f->end[role]);
    r->begun = true;
}

/* What the messages before `first` leave behind: waiting system text, and an end not yet written. */
static void chat_skip(chat_render *r, size_t first)
{
    int role = CHAT_ROLES;
    for (size_t i = 0; i < first; i++) {
        role = chat_role(&r->msgs[i]);
        if (chat_folds(r, role)) {
            if (!r->n_waiting++)
                r->waiting = i;
            continue;
        }
        if (role == CHAT_USER)
            r->n_waiting = 0;
        r->begun = true;
    }
    if (role == CHAT_ASSISTANT)
        chat_literal(r, r->f->end[CHAT_ASSISTANT]);
}

static pn_status chat_check(const pn_message *msgs, size_t n, size_t first, pn_err *err)
{
    if (first > n)
        return pn_fail(err, PN_E_INVALID, "first message: expected at most %zu, found %zu", n, first);
    for (size_t i = 0; i < n; i++) {
        if (chat_role(&msgs[i]) == CHAT_ROLES)
            return pn_fail(err, PN_E_INVALID, "messages[%zu].role: expected system, user or assistant, found %s%.40s%s",
                           i, msgs[i].role ? "\"" : "", msgs[i].role ? msgs[i].role : "NULL", msgs[i].role ? "\"" : "");
        if (!msgs[i].content && msgs[i].content_len)
            return pn_fail(err, PN_E_INVALID, "messages[%zu].content: expected %zu bytes, found NULL", i,
                           msgs[i].content_len);
    }
    return PN_OK;
}

static pn_bytes chat_special(const pn_vocab *v, pn_special which)
{
    pn_token t = v ? pn_vocab_special(v, which) : -1;
    return t >= 0 ? pn_vocab_text(v, t) : (pn_bytes){NULL, 0};
}

PN_INTERNAL pn_status pn_chat_render(const pn_chat_format_info *f, const pn_vocab *v, const pn_message *msgs,
                                     size_t n, size_t first, bool add_generation, pn_prompt *out, pn_err *err)
{
    chat_render r = {.f = f, .msgs = msgs, .out = out};
    pn_status st = chat_check(msgs, n, first, err);
    if (st)
        return st;
    pn_str_clear(&out->text);
    out->n_spans = 0;
    if (v && (f->flags & CHAT_WRITES_BOS || pn_vocab_add_bos(v)))
        r.bos = chat_special(v, PN_SPECIAL_BOS);
    r.eos = chat_special(v, PN_SPECIAL_EOS);
    if (!r.eos.len)
        r.eos = (pn_bytes){"</s>", 4};
    if (first == 0)
        chat_trusted(out, r.bos.data, r.bos.len);
    chat_skip(&r, first);
    for (size_t i = first; i < n; i++) {
        int role = chat_role(&msgs[i]);
        if (!chat_folds(&r, role))
            chat_turn(&r, role, &msgs[i]);
        else if (!r.n_waiting++)
            r.waiting = i;
    }
    if (r.n_waiting)
        chat_turn(&r, CHAT_USER, NULL);
    if (add_generation)
        chat_literal(&r, f->generation);
    if (out->text.failed) {
        uint64_t bytes = out->text.len;
        pn_str_clear(&out->text);
        out->n_spans = 0;
        return pn_fail_nomem(err, "a chat prompt", bytes);
    }
    return PN_OK;
}

#undef CHAT_BOS
#undef CHAT_EOS
