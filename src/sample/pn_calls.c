/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_calls.c - the tags around calls, and the lanes that they make.
 *
 * A section is what follows an opener of the family's table: one call or several, and the closer.  Where
 * the model makes a section for each call, sections repeat.  So for each family there are three things to
 * say: how a call looks, how many stand in a section, and what ends it.
 */
#include "sample/pn_calls_int.h"
#include "base/pn_err.h"

/* Beside the usual limits of a grammar, for each tool. */
enum { CALLS_STEPS = 5000000, CALLS_TOOL_STEPS = 50000, CALLS_ELEMENTS = 200000, CALLS_TOOL_ELEMENTS = 1000, CALLS_TOOLS_MAX = 1024 };
enum { CALLS_DEPTH = 120 };             /* containers inside each other: our readers and most others stop at 128 */
enum { CALLS_NAME_MAX = 200 };          /* a reader's OUT_NAME_MAX, without what stands around some names */

/* ------------------------------------------------------------------------------------------
 * Markers and small parts
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_gnode pn_calls_mark(calls_work *w, const char *text)
{
    return pn_gir_mark(w->g, text, w->p->find, w->p->user);
}

static pn_gnode calls_text(calls_work *w, const char *text) { return pn_gir_text(w->g, text); }

static pn_gnode calls_name(calls_work *w, const calls_tool *t) { return pn_gir_bytes(w->g, t->name.data, t->name.len); }

/* Letters, digits or both, min..max of them. */
static pn_gnode calls_letters(calls_work *w, bool letters, uint32_t min, uint32_t max)
{
    static const pn_cp_range chars[] = {{'0', '9'}, {'a', 'z'}, {'A', 'Z'}};
    return pn_gir_repeat(w->g, pn_gir_class(w->g, chars, letters ? 3 : 1, false), min, max);
}

/* call (sep call)*, or one. */
static pn_gnode calls_several(calls_work *w, pn_gnode call, pn_gnode sep)
{
    if (w->p->single)
        return call;
    return pn_gir_seq2(w->g, call, pn_gir_repeat(w->g, pn_gir_seq2(w->g, sep, call), 0, PN_GIR_MANY));
}

/* One alternative a tool. */
typedef pn_gnode (*calls_form)(calls_work *w, const calls_tool *t, const void *how);

static pn_gnode calls_any(calls_work *w, calls_form form, const void *how)
{
    pn_gnode all = pn_gir_never(w->g);
    for (size_t i = 0; i < w->n_tools; i++)
        all = pn_gir_alt2(w->g, all, form(w, &w->tools[i], how));
    return all;
}

/* ------------------------------------------------------------------------------------------
 * JSON
 * ------------------------------------------------------------------------------------------ */

enum { CALLS_ONE, CALLS_ARRAY, CALLS_LINES };
enum { CALLS_NO_ID, CALLS_NUMBER_FIRST, CALLS_ID_LAST };

typedef struct calls_json {
    const char *family;
    const char *name, *args;    /* keys; name NULL: the name is the key of the arguments */
    uint8_t shape, id;
    bool closes;                /* with the family's closer */
    const char *before, *after; /* around the array */
} calls_json;

static const calls_json calls_json_rows[] = {
    {"hermes", "name", "arguments", CALLS_ONE, CALLS_NO_ID, true, "", ""},
    {"generic", "name", "arguments", CALLS_ONE, CALLS_NO_ID, true, "", ""},
    {"llama3", "name", "parameters", CALLS_ONE, CALLS_NO_ID, false, "", ""},
    {"mistral", "name", "arguments", CALLS_ARRAY, CALLS_ID_LAST, false, "", ""},
    {"nemotron-v2", "name", "arguments", CALLS_ARRAY, CALLS_NO_ID, true, "", ""},
    {"command-r7b", "tool_name", "parameters", CALLS_ARRAY, CALLS_NUMBER_FIRST, true, "", ""},
    {"command-r-plus", "tool_name", "parameters", CALLS_ARRAY, CALLS_NO_ID, false, "```json\n", "\n```"},
    {"apertus", NULL, NULL, CALLS_ARRAY, CALLS_NO_ID, true, "", ""},
    {"gigachat", "name", "arguments", CALLS_ONE, CALLS_NO_ID, false, "", ""},
    {"granite-3", "name", "arguments", CALLS_ARRAY, CALLS_NO_ID, false, "", ""},
    {"phi4-mini", "name", "arguments", CALLS_ARRAY, CALLS_NO_ID, true, "", ""},
    {"apriel", "name", "arguments", CALLS_ARRAY, CALLS_ID_LAST, true, "", ""},
    {"minimax-m1", "name", "arguments", CALLS_LINES, CALLS_NO_ID, true, "", ""},
};

static const calls_json *calls_json_row(const calls_work *w)
{
    for (size_t i = 0; i < PN_COUNT_OF(calls_json_rows); i++)
        if (strcmp(calls_json_rows[i].family, w->f->name) == 0)
            return &calls_json_rows[i];
    return &calls_json_rows[0];
}

static pn_gnode calls_json_key(calls_work *w, const char *key)
{
    return pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, "\""), calls_text(w, key), calls_text(w, "\":"), w->ws}, 4);
}

/* From the end of the name to the end of the object:  , "arguments": {...}} */
static pn_gnode calls_json_rest(calls_work *w, const calls_tool *t, const void *how)
{
    const calls_json *j = how;
    pn_gnode id = pn_gir_empty(w->g);
    if (j->id == CALLS_ID_LAST)
        id = pn_gir_opt(w->g, pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, ","), w->ws, calls_json_key(w, "id"), calls_text(w, "\""),
                                                            calls_letters(w, true, 9, 9), calls_text(w, "\"")}, 6));
    return pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, ","), w->ws, calls_json_key(w, j->args), t->args, id, w->ws,
                                         calls_text(w, "}")}, 7);
}

static pn_gnode calls_json_named(calls_work *w, const calls_tool *t, const void *how)
{
    const calls_json *j = how;
    pn_gnode name = pn_gir_json_text(w->g, t->name.data, t->name.len);
    if (!j->name)
        return pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, "\""), name, calls_text(w, "\":"), w->ws, t->args, w->ws,
                                             calls_text(w, "}")}, 7);
    return pn_gir_seq3(w->g, name, calls_text(w, "\""), calls_json_rest(w, t, j));
}

static pn_gnode calls_json_object(calls_work *w, const calls_json *j)
{
    pn_gnode head = pn_gir_seq2(w->g, calls_text(w, "{"), w->ws), id = pn_gir_empty(w->g);
    if (j->id == CALLS_NUMBER_FIRST)
        id = pn_gir_seq(w->g, (pn_gnode[]){calls_json_key(w, "tool_call_id"), calls_text(w, "\""), calls_letters(w, false, 1, 4),
                                           calls_text(w, "\","), w->ws}, 5);
    if (!j->name)
        return pn_gir_seq2(w->g, head, calls_any(w, calls_json_named, j));
    return pn_gir_seq(w->g, (pn_gnode[]){head, id, calls_json_key(w, j->name), calls_text(w, "\""), calls_any(w, calls_json_named, j)}, 5);
}

static pn_gnode calls_json_array(calls_work *w, const calls_json *j)
{
    pn_gnode sep = pn_gir_seq3(w->g, w->ws, calls_text(w, ","), w->ws);
    return pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, "["), w->ws, calls_several(w, calls_json_object(w, j), sep), w->ws,
                                         calls_text(w, "]")}, 5);
}

static pn_gnode calls_json_section(calls_work *w, size_t open)
{
    const calls_json *j = calls_json_row(w);
    const char *close = w->f->close[0];
    bool closes = j->closes && close && !(strcmp(w->f->name, "phi4-mini") == 0 && open == 0);   /* functools[...] */
    pn_gnode body = j->shape == CALLS_ARRAY ? calls_json_array(w, j) : calls_json_object(w, j);
    if (j->shape == CALLS_LINES)
        body = calls_several(w, body, calls_text(w, "\n"));
    pn_gnode edge = j->shape == CALLS_ARRAY ? w->ws : w->nl;
    pn_gnode tail = closes ? pn_gir_seq2(w->g, edge, pn_calls_mark(w, close)) : pn_gir_empty(w->g);
    return pn_gir_seq(w->g, (pn_gnode[]){edge, calls_text(w, j->before), body, calls_text(w, j->after), tail}, 5);
}

/* ------------------------------------------------------------------------------------------
 * Names and delimiters
 * ------------------------------------------------------------------------------------------ */

static pn_gnode calls_deepseek(calls_work *w, const calls_tool *t, const void *how)
{
    pn_gnode sep = pn_calls_mark(w, w->f->named->args), name = calls_name(w, t);
    pn_gnode fenced = pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, "function"), sep, name, calls_text(w, "\n```json\n"), t->args,
                                                    calls_text(w, "\n```")}, 6);
    (void)how;
    return pn_gir_alt2(w->g, fenced, pn_gir_seq3(w->g, name, sep, t->args));
}

static pn_gnode calls_kimi(calls_work *w, const calls_tool *t, const void *how)
{
    (void)how;
    return pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, "functions."), calls_name(w, t), calls_text(w, ":"), calls_letters(w, false, 1, 4),
                                         pn_calls_mark(w, w->f->named->args), t->args}, 6);
}

static pn_gnode calls_solar(calls_work *w, const calls_tool *t, const void *how)
{
    (void)how;
    return pn_gir_seq(w->g, (pn_gnode[]){calls_letters(w, true, 1, 32), pn_calls_mark(w, w->f->named->id_first), calls_name(w, t),
                                         pn_calls_mark(w, w->f->named->args), t->args}, 5);
}

/* f[ARGS]{...}, f>{...}, f\n{...} */
static pn_gnode calls_plain(calls_work *w, const calls_tool *t, const void *how)
{
    const out_named *n = w->f->named;
    pn_gnode id = pn_gir_empty(w->g);
    (void)how;
    if (n->before_id)
        id = pn_gir_opt(w->g, pn_gir_seq2(w->g, pn_calls_mark(w, n->before_id), calls_letters(w, true, 9, 9)));
    return pn_gir_seq(w->g, (pn_gnode[]){calls_name(w, t), id, pn_calls_mark(w, n->args), t->args}, 4);
}

/* Sections of calls that have openers and closers of their own.  inner: the first opener has been. */
static pn_gnode calls_wrapped(calls_work *w, calls_form form, const char *call_end, const char *section_end, bool inner)
{
    pn_gnode open = pn_calls_mark(w, w->f->named->call), close = pn_calls_mark(w, call_end);
    pn_gnode body = pn_gir_seq2(w->g, calls_any(w, form, NULL), close);
    if (inner)
        return body;
    pn_gnode list = calls_several(w, pn_gir_seq2(w->g, open, body), w->nl);
    return pn_gir_seq(w->g, (pn_gnode[]){w->nl, list, w->nl, pn_calls_mark(w, section_end)}, 4);
}

static pn_gnode calls_named_section(calls_work *w, size_t open)
{
    const char *name = w->f->name;
    bool inner = w->f->named->call && strcmp(w->f->open[open], w->f->named->call) == 0;
    if (strcmp(name, "deepseek") == 0)
        return calls_wrapped(w, calls_deepseek, "<｜tool▁call▁end｜>", w->f->close[0], inner);
    if (strcmp(name, "kimi-k2") == 0)
        return calls_wrapped(w, calls_kimi, "<|tool_call_end|>", w->f->close[0], inner);
    if (strcmp(name, "solar") == 0)
        return calls_wrapped(w, calls_solar, "<|tool_call:end|>", w->f->close[0], inner);
    pn_gnode call = calls_any(w, calls_plain, NULL);
    if (strcmp(name, "mistral") == 0)           /* an array of objects is the older syntax */
        return pn_gir_alt2(w->g, call, calls_json_array(w, calls_json_row(w)));
    return strcmp(name, "functionary-3.1") == 0 ? pn_gir_seq2(w->g, call, pn_calls_mark(w, w->f->close[0])) : call;
}

/* ------------------------------------------------------------------------------------------
 * Tags
 * ------------------------------------------------------------------------------------------ */

/* A call behind its own opener, to its own closer. */
static pn_gnode calls_xml_call(calls_work *w, const calls_tool *t, const void *how)
{
    const out_xml *x = w->f->xml;
    pn_gnode head = pn_gir_empty(w->g);
    (void)how;
    if (strcmp(w->f->name, "kimi-k3") == 0)
        head = pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, "\" index=\""), calls_letters(w, false, 1, 4), calls_text(w, "\""),
                                             pn_calls_mark(w, x->call_head)}, 4);
    else if (x->attributes)
        head = pn_gir_seq2(w->g, calls_text(w, "\""), pn_calls_mark(w, x->call_head));
    else if (x->call)
        head = pn_calls_mark(w, x->call_head);
    return pn_gir_seq(w->g, (pn_gnode[]){calls_name(w, t), head, t->args, w->nl, pn_calls_mark(w, x->call_end)}, 5);
}

static pn_gnode calls_nested_call(calls_work *w, const calls_tool *t, const void *how)
{
    (void)how;
    pn_gnode mark = pn_calls_mark(w, "]<]minimax[>[");
    return pn_gir_seq(w->g, (pn_gnode[]){mark, calls_text(w, "<invoke name=\""), calls_name(w, t), calls_text(w, "\">"), t->args, w->nl,
                                         mark, calls_text(w, "</invoke>")}, 8);
}

static pn_gnode calls_nested_section(calls_work *w)
{
    pn_gnode list = calls_several(w, calls_any(w, calls_nested_call, NULL), w->nl);
    return pn_gir_seq(w->g, (pn_gnode[]){w->nl, list, w->nl, pn_calls_mark(w, w->f->close[0])}, 4);
}

/* Families that put several calls into one section; the others open a section for each. */
static bool calls_xml_shares(const char *family)
{
    static const char *const shared[] = {"kimi-k3", "muse", "deepseek-dsml", "minimax-m2", "hy3"};
    for (size_t i = 0; i < PN_COUNT_OF(shared); i++)
        if (strcmp(shared[i], family) == 0)
            return true;
    return false;
}

static pn_gnode calls_xml_section(calls_work *w, size_t open)
{
    const out_xml *x = w->f->xml;
    const char *close = w->f->close[0];
    pn_gnode call = calls_any(w, calls_xml_call, NULL);
    if (!x->call || strcmp(w->f->open[open], x->call) == 0)
        return call;
    if (open < PN_COUNT_OF(w->f->close) && w->f->close[open])   /* of several sections each has its own */
        close = w->f->close[open];
    pn_gnode one = pn_gir_seq2(w->g, pn_calls_mark(w, x->call), call);
    pn_gnode list = calls_xml_shares(w->f->name) ? calls_several(w, one, w->nl) : one;
    return pn_gir_seq(w->g, (pn_gnode[]){w->nl, list, w->nl, pn_calls_mark(w, close)}, 4);
}

/* ------------------------------------------------------------------------------------------
 * Literals
 * ------------------------------------------------------------------------------------------ */

static pn_gnode calls_python_call(calls_work *w, const calls_tool *t, const void *how)
{
    (void)how;
    return pn_gir_seq(w->g, (pn_gnode[]){calls_name(w, t), calls_text(w, "("), t->args, calls_text(w, ")")}, 4);
}

static pn_gnode calls_gemma_call(calls_work *w, const calls_tool *t, const void *how)
{
    (void)how;
    return pn_gir_seq3(w->g, calls_text(w, "call:"), calls_name(w, t), t->args);
}

/* ------------------------------------------------------------------------------------------
 * Messages with headers
 * ------------------------------------------------------------------------------------------ */

/* Behind "to=functions.": the name, the rest of the header, the arguments.  how: a channel may follow. */
static pn_gnode calls_harmony_call(calls_work *w, const calls_tool *t, const void *how)
{
    pn_gir *g = w->g;
    pn_gnode type = pn_gir_opt(g, pn_gir_alt2(g, calls_text(w, " json"), pn_gir_seq3(g, pn_gir_opt(g, calls_text(w, " ")),
                                                                                    pn_calls_mark(w, "<|constrain|>"), calls_text(w, "json"))));
    pn_gnode channel = pn_gir_empty(g);
    if (how)
        channel = pn_gir_opt(g, pn_gir_alt2(g, pn_calls_mark(w, "<|channel|>commentary"), pn_calls_mark(w, "<|channel|>analysis")));
    return pn_gir_seq(g, (pn_gnode[]){calls_name(w, t), channel, type, pn_calls_mark(w, "<|message|>"), t->args}, 5);
}

/* The whole answer: thoughts, then the call. */
static pn_gnode calls_harmony_answer(calls_work *w)
{
    pn_gir *g = w->g;
    pn_gnode any = pn_gir_repeat(g, pn_gir_class(g, NULL, 0, true), 0, PN_GIR_MANY);
    pn_gnode markers[] = {calls_text(w, "<|end|>"), calls_text(w, "<|start|>"), calls_text(w, "<|channel|>")};
    pn_gnode text = pn_gir_and_not(g, any, pn_gir_seq3(g, any, pn_gir_alt(g, markers, PN_COUNT_OF(markers)), any));
    pn_gnode thought = pn_gir_seq(g, (pn_gnode[]){pn_calls_mark(w, "<|channel|>analysis<|message|>"), text, pn_calls_mark(w, "<|end|>"),
                                                  pn_calls_mark(w, "<|start|>assistant")}, 4);
    pn_gnode by_role = pn_gir_seq2(g, calls_text(w, " to=functions."), calls_any(w, calls_harmony_call, ""));
    pn_gnode by_channel = pn_gir_seq2(g, pn_calls_mark(w, "<|channel|>commentary to=functions."), calls_any(w, calls_harmony_call, NULL));
    return pn_gir_seq2(g, pn_gir_repeat(g, thought, 0, PN_GIR_MANY), pn_gir_alt2(g, by_role, by_channel));
}

/* Muse: the recipient in the header, the call as tags. */
static pn_gnode calls_muse_answer(calls_work *w, const calls_tool *t, const void *how)
{
    (void)how;
    pn_gnode call = pn_gir_seq2(w->g, pn_calls_mark(w, w->f->xml->call), calls_xml_call(w, t, NULL));
    return pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, " to="), calls_name(w, t), pn_calls_mark(w, "<|message|>"),
                                         pn_calls_mark(w, w->f->open[0]), w->nl, calls_several(w, call, w->nl), w->nl,
                                         pn_calls_mark(w, w->f->close[0])}, 8);
}

/* ------------------------------------------------------------------------------------------
 * Lanes and triggers
 * ------------------------------------------------------------------------------------------ */

/* What follows the family's opener number `open`. */
static pn_gnode calls_section(calls_work *w, size_t open)
{
    switch (w->f->grammar) {
    case OUT_NAMED: return calls_named_section(w, open);
    case OUT_XML: return calls_xml_section(w, open);
    case OUT_NESTED: return calls_nested_section(w);
    case OUT_PYTHON: {
        pn_gnode sep = pn_gir_seq2(w->g, calls_text(w, ","), w->ws);
        return pn_gir_seq(w->g, (pn_gnode[]){calls_text(w, "["), calls_several(w, calls_any(w, calls_python_call, NULL), sep),
                                             calls_text(w, "]"), pn_calls_mark(w, w->f->close[0])}, 4);
    }
    case OUT_GEMMA: return pn_gir_seq2(w->g, calls_any(w, calls_gemma_call, NULL), pn_calls_mark(w, w->f->close[0]));
    default: return calls_json_section(w, open);
    }
}

static uint32_t calls_lane(calls_work *w, pn_gnode body)
{
    if (!pn_mem_grow(w->mem, PN_ACCT_GRAMMAR, (void **)&w->lanes, &w->cap_lanes, w->n_lanes + 1, sizeof *w->lanes)) {
        w->st = pn_fail_nomem(w->err, "tool grammars", (w->n_lanes + 1) * sizeof *w->lanes);
        return 0;
    }
    w->lanes[w->n_lanes] = body;
    return (uint32_t)w->n_lanes++;
}

/* t: all but text and len. */
static void calls_trigger(calls_work *w, const char *text, size_t len, pn_trigger t)
{
    pn_calls *c = w->out;
    if (w->st)
        return;
    t.text = pn_mem_strndup(w->mem, PN_ACCT_GRAMMAR, text, len);
    t.len = (uint32_t)len;
    if (!t.text || !pn_mem_grow(w->mem, PN_ACCT_GRAMMAR, (void **)&c->triggers, &c->cap_triggers, c->n_triggers + 1, sizeof *c->triggers)) {
        pn_mem_free(w->mem, PN_ACCT_GRAMMAR, t.text, t.text ? len + 1 : 0);
        w->st = pn_fail_nomem(w->err, "tool grammars", len + 1);
        return;
    }
    c->triggers[c->n_triggers++] = t;
}

static void calls_trigger_z(calls_work *w, const char *text, pn_trigger t) { calls_trigger(w, text, strlen(text), t); }

/* A bare object counts as a call when it names a tool: then the trigger reaches to the end of the name.
 * more: what may follow the call. */
static void calls_bare_trigger(calls_work *w, const calls_tool *t, const calls_json *j, pn_gnode more)
{
    static const calls_json parameters = {"llama3", "name", "parameters", CALLS_ONE, CALLS_NO_ID, false, "", ""};
    pn_gnode rest = calls_json_rest(w, t, j);
    pn_str s;
    if (strcmp(j->args, "parameters") != 0)
        rest = pn_gir_alt2(w->g, rest, calls_json_rest(w, t, &parameters));
    uint32_t lane = calls_lane(w, pn_gir_seq3(w->g, w->ws, rest, more));
    pn_str_init(&s, w->mem, PN_ACCT_GRAMMAR);
    pn_str_addz(&s, "{\"name\": \"");
    pn_str_add(&s, t->name.data, t->name.len);
    pn_str_addc(&s, '"');
    if (s.failed && !w->st)
        w->st = pn_fail_nomem(w->err, "tool grammars", s.len);
    calls_trigger(w, pn_str_cstr(&s), s.len, (pn_trigger){.lane = lane, .bare = true});
    pn_str_fini(&s);
}

/* ">>>f\n", and "f\n" where the prompt has written the first ">>>". */
static void calls_segment_triggers(calls_work *w, const calls_tool *t)
{
    uint32_t lane = calls_lane(w, t->args);
    pn_str s;
    pn_str_init(&s, w->mem, PN_ACCT_GRAMMAR);
    pn_str_addz(&s, w->f->open[0]);
    pn_str_add(&s, t->name.data, t->name.len);
    pn_str_addc(&s, '\n');
    size_t skip = strlen(w->f->open[0]);
    if (s.failed && !w->st)
        w->st = pn_fail_nomem(w->err, "tool grammars", s.len);
    calls_trigger(w, pn_str_cstr(&s), s.len, (pn_trigger){.lane = lane});
    calls_trigger(w, pn_str_cstr(&s) + PN_MIN(skip, s.len), s.len - PN_MIN(skip, s.len), (pn_trigger){.lane = lane, .at_start = true});
    pn_str_fini(&s);
}

/* Wherever a header may say who is called. */
static void calls_harmony_triggers(calls_work *w)
{
    static const char *const by_role[] = {" to=", "<|start|>assistant to="};
    static const char *const by_channel[] = {"<|channel|>commentary to=", "<|channel|>analysis to="};
    pn_gnode to = calls_text(w, "functions.");
    uint32_t role = calls_lane(w, pn_gir_seq2(w->g, to, calls_any(w, calls_harmony_call, "")));
    uint32_t channel = calls_lane(w, pn_gir_seq2(w->g, to, calls_any(w, calls_harmony_call, NULL)));
    for (size_t i = 0; i < 2; i++) {
        calls_trigger_z(w, by_role[i], (pn_trigger){.lane = role, .at_start = i == 0, .last = true});
        calls_trigger_z(w, by_channel[i], (pn_trigger){.lane = channel, .last = true});
    }
}

/* Calls of this family have no closer, and more objects behind one are more calls. */
static bool calls_is_open(const calls_work *w)
{
    const calls_json *j = calls_json_row(w);
    return w->f->grammar == OUT_JSON && j->shape == CALLS_ONE && !j->closes;
}

static void calls_auto(calls_work *w)
{
    if (w->f->grammar == OUT_HARMONY) {
        calls_harmony_triggers(w);
        return;
    }
    pn_gnode more = pn_gir_empty(w->g);
    if ((w->f->flags & OUT_BARE) && !w->p->single)
        more = pn_gir_repeat(w->g, pn_gir_seq2(w->g, calls_text(w, "; "), calls_json_object(w, calls_json_row(w))), 0, PN_GIR_MANY);
    for (size_t i = 0; i < w->n_tools && !w->st; i++) {
        if (w->f->flags & OUT_SEGMENTS)
            calls_segment_triggers(w, &w->tools[i]);
        if (w->f->flags & OUT_BARE)
            calls_bare_trigger(w, &w->tools[i], calls_json_row(w), more);
    }
    for (size_t i = 0; i < PN_COUNT_OF(w->f->open) && w->f->open[i] && !(w->f->flags & OUT_SEGMENTS); i++)
        calls_trigger_z(w, w->f->open[i], (pn_trigger){.lane = calls_lane(w, calls_section(w, i)), .last = calls_is_open(w)});
    if (w->f->flags & OUT_CODE_TAG)
        calls_trigger_z(w, "<|python_tag|>", (pn_trigger){.lane = calls_lane(w, calls_json_object(w, calls_json_row(w))), .last = true});
}

/* A call is owed: what the family's openers are is of use in its reasoning alone, and they have no lanes. */
static void calls_openers(calls_work *w)
{
    for (size_t i = 0; i < PN_COUNT_OF(w->f->open) && w->f->open[i]; i++)
        calls_trigger_z(w, w->f->open[i], (pn_trigger){.lane = 0});
    if (w->f->flags & OUT_CODE_TAG)
        calls_trigger_z(w, "<|python_tag|>", (pn_trigger){.lane = 0});
}

/* Does each call have a section of its own? */
static bool calls_repeat(const out_family *f)
{
    static const char *const once[] = {"command-r-plus", "gigachat", "granite-3", "phi4-mini", "lfm2", "minimax-m3", "kimi-k2", "solar", "deepseek"};
    for (size_t i = 0; i < PN_COUNT_OF(once); i++)
        if (strcmp(once[i], f->name) == 0)
            return false;
    if (f->grammar == OUT_XML)
        return !calls_xml_shares(f->name);
    return f->grammar != OUT_JSON || !f->open[0] || strcmp(f->name, "hermes") == 0 || strcmp(f->name, "generic") == 0;
}

/* The answer as a whole. */
static pn_gnode calls_answer(calls_work *w)
{
    if (w->f->grammar == OUT_HARMONY)
        return calls_harmony_answer(w);
    if (w->f->grammar == OUT_XML && (w->f->flags & OUT_HEADERS))
        return calls_any(w, calls_muse_answer, NULL);
    if (!w->f->open[0])
        return calls_several(w, calls_json_object(w, calls_json_row(w)), calls_text(w, "; "));
    pn_gnode open = pn_calls_mark(w, w->f->open[0]), section = calls_section(w, 0);
    if (w->f->flags & OUT_SEGMENTS)             /* the prompt has written the first opener */
        return calls_several(w, section, open);
    pn_gnode one = pn_gir_seq2(w->g, open, section);
    return calls_repeat(w->f) ? calls_several(w, one, w->nl) : one;
}

/* ------------------------------------------------------------------------------------------
 * Tools
 * ------------------------------------------------------------------------------------------ */

static bool calls_valid_name(pn_bytes s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.data[i] <= ' ' || strchr("<>{}[]()\"'`|=\\", s.data[i]))
            return false;
    return s.len > 0 && s.len <= CALLS_NAME_MAX;
}

/* Names that the family's reader would take for something else. */
static bool calls_readable_name(const calls_work *w, pn_bytes s)
{
    bool literal = w->f->grammar == OUT_PYTHON || w->f->grammar == OUT_GEMMA;
    for (size_t i = 0; i < s.len && literal; i++) {
        char c = s.data[i];
        if ((unsigned char)c < 0x80 && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !strchr("_-+.$:/", c))
            return false;
    }
    if ((w->f->flags & OUT_NAME_IS_KEY) && pn_out_key_of(s.data, s.len) != OUT_K_NONE)
        return false;
    const char *taken = w->f->flags & OUT_SEGMENTS ? "all" : strcmp(w->f->name, "deepseek") == 0 ? "function" : "";
    return s.len != strlen(taken) || memcmp(s.data, taken, s.len) != 0;
}

static bool calls_is_new(const calls_work *w, pn_bytes name)
{
    for (size_t i = 0; i < w->n_tools; i++)
        if (w->tools[i].name.len == name.len && memcmp(w->tools[i].name.data, name.data, name.len) == 0)
            return false;
    return true;
}

/* Where the schema of the arguments lies; one that says nothing is none. */
static bool calls_find_schema(calls_work *w, calls_tool *t)
{
    const pn_json_doc *d = w->p->tools;
    pn_bytes type;
    uint32_t s = pn_json_get(d, t->node, "parameters");
    if (s == PN_JSON_NONE)
        s = pn_json_get(d, t->node, "input_schema");
    pn_json_type kind = pn_json_type_of(d, s);
    t->schema = PN_JSON_NONE;
    if (kind == PN_JSON_ABSENT || kind == PN_JSON_NULL || (kind == PN_JSON_OBJECT && pn_json_count(d, s) == 0))
        return true;
    t->schema = s;
    if (kind != PN_JSON_OBJECT)
        return pn_calls_fail(w, PN_E_INVALID, t, "", "expected a JSON Schema, an object") != PN_GNODE_NONE;
    if (pn_json_str(d, pn_json_get(d, s, "type"), &type) && (type.len != 6 || memcmp(type.data, "object", 6) != 0))
        return pn_calls_fail(w, PN_E_INVALID, t, "/type", "expected \"object\": arguments have names") != PN_GNODE_NONE;
    return true;
}

static bool calls_add_tool(calls_work *w, uint32_t item, uint32_t index)
{
    const pn_json_doc *d = w->p->tools;
    uint32_t f = pn_json_get(d, item, "function");
    calls_tool t = {.index = index, .node = pn_json_type_of(d, f) == PN_JSON_OBJECT ? f : item, .schema = PN_JSON_NONE};
    if (!pn_json_str(d, pn_json_get(d, t.node, "name"), &t.name) || !calls_valid_name(t.name))
        return pn_calls_fail(w, PN_E_INVALID, &t, "/name", "expected the name of a function, without blanks and brackets, of at most 200 "
                             "bytes") != PN_GNODE_NONE;
    if (!calls_readable_name(w, t.name))
        return pn_calls_fail(w, PN_E_UNSUPPORTED, &t, "/name", "means something else in this model's syntax of calls") != PN_GNODE_NONE;
    pn_json_bool(d, pn_json_get(d, t.node, "strict"), &t.strict);
    if (w->p->only.data && (w->p->only.len != t.name.len || memcmp(w->p->only.data, t.name.data, t.name.len) != 0))
        return true;
    if (!calls_is_new(w, t.name))
        return pn_calls_fail(w, PN_E_INVALID, &t, "/name", "another function has this name") != PN_GNODE_NONE;
    if (!calls_find_schema(w, &t))
        return false;
    if (!pn_mem_grow(w->mem, PN_ACCT_GRAMMAR, (void **)&w->tools, &w->cap_tools, w->n_tools + 1, sizeof *w->tools)) {
        w->st = pn_fail_nomem(w->err, "tool grammars", (w->n_tools + 1) * sizeof *w->tools);
        return false;
    }
    w->tools[w->n_tools++] = t;
    return true;
}

static bool calls_read_tools(calls_work *w)
{
    const pn_json_doc *d = w->p->tools;
    uint32_t index = 0;
    if (pn_json_type_of(d, PN_JSON_ROOT) != PN_JSON_ARRAY || pn_json_count(d, PN_JSON_ROOT) > CALLS_TOOLS_MAX) {
        w->st = pn_fail(w->err, PN_E_INVALID, "tools: expected an array of at most %d, found %s of %u", (int)CALLS_TOOLS_MAX,
                        pn_json_type_name(pn_json_type_of(d, PN_JSON_ROOT)), (unsigned)pn_json_count(d, PN_JSON_ROOT));
        return false;
    }
    for (uint32_t c = pn_json_first(d, PN_JSON_ROOT); c != PN_JSON_NONE; c = pn_json_next(d, c))
        if (!calls_add_tool(w, c, index++))
            return false;
    if (!w->n_tools)
        w->st = w->p->only.data ? pn_fail(w->err, PN_E_INVALID, "no tool is called '%.*s'", (int)PN_MIN(w->p->only.len, 100), w->p->only.data)
                               : pn_fail(w->err, PN_E_INVALID, "tools: expected at least one function, found none");
    return w->n_tools > 0;
}

/* Two bytes and then the lane's language, for each lane. */
static pn_status calls_finish(calls_work *w)
{
    pn_gnode root = pn_gir_never(w->g);
    for (size_t i = 0; i < w->n_lanes; i++) {
        const char choice[2] = {(char)(i >> 8), (char)(i & 255)};
        root = pn_gir_alt2(w->g, root, pn_gir_seq2(w->g, pn_gir_bytes(w->g, choice, 2), w->lanes[i]));
    }
    return pn_gir_finish(w->g, root, &w->out->gram, w->err);
}

/* builder: the memory that the grammar is made in. */
static pn_status calls_build(calls_work *w, pn_mem *builder)
{
    static const char nothing[] = "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}";
    w->st = pn_json_parse(&w->nothing, w->mem, PN_ACCT_GRAMMAR, nothing, sizeof nothing - 1, NULL, w->err);
    if (w->st || !calls_read_tools(w))
        return w->st;
    const pn_gram_limits limits = {.compile_steps = CALLS_STEPS + (uint64_t)CALLS_TOOL_STEPS * w->n_tools,
                                   .elements = CALLS_ELEMENTS + CALLS_TOOL_ELEMENTS * (uint32_t)w->n_tools,
                                   .depth = CALLS_DEPTH};
    w->st = pn_gir_new(&w->g, builder, &limits, w->err);
    if (w->st)
        return w->st;
    pn_gnode blank = pn_gir_alt2(w->g, calls_text(w, " "), calls_text(w, "\t"));
    w->nl = pn_gir_repeat(w->g, calls_text(w, "\n"), 0, 2);
    w->ws = pn_gir_opt(w->g, pn_gir_alt2(w->g, calls_text(w, " "), pn_gir_seq2(w->g, calls_text(w, "\n"), pn_gir_repeat(w->g, blank, 0, 20))));
    pn_calls_spell(w);
    for (size_t i = 0; i < w->n_tools && !w->p->none; i++)
        if (!pn_calls_arguments(w, &w->tools[i]))
            return w->st;
    w->out->watch = w->f->flags & OUT_BARE ? PN_WATCH_BARE : w->f->flags & OUT_SEGMENTS ? PN_WATCH_SEGMENTS
                  : w->f->grammar == OUT_HARMONY ? PN_WATCH_HEADERS : PN_WATCH_NOTHING;
    if (w->p->required) {
        calls_lane(w, calls_answer(w));
        calls_openers(w);
    } else {
        calls_auto(w);
    }
    return w->st || w->p->none ? w->st : calls_finish(w);
}

PN_INTERNAL pn_status pn_calls_new(pn_calls *out, pn_mem *mem, const pn_calls_params *p, pn_err *err)
{
    calls_work w;
    pn_err mine = {PN_OK, {0}};
    memset(&w, 0, sizeof w);
    memset(out, 0, sizeof *out);
    out->mem = mem;
    pn_str_init(&out->widened, mem, PN_ACCT_GRAMMAR);
    w.mem = mem;
    w.p = p;
    w.out = out;
    w.f = pn_out_family(p->format->family);
    w.err = err ? err : &mine;
    pn_gir_purse purse;
    pn_gir_purse_init(&purse, mem, NULL);
    pn_status st = calls_build(&w, &purse.mem);
    if (!st && out->widened.failed)
        st = pn_fail_nomem(w.err, "tool grammars", out->widened.len);
    pn_gir_free(w.g);
    st = pn_gir_purse_close(&purse, out->gram, st, w.err);
    pn_json_fini(&w.nothing);
    pn_mem_free(mem, PN_ACCT_GRAMMAR, w.tools, w.cap_tools * sizeof *w.tools);
    pn_mem_free(mem, PN_ACCT_GRAMMAR, w.lanes, w.cap_lanes * sizeof *w.lanes);
    if (st)
        pn_calls_fini(out);
    return st;
}

PN_INTERNAL void pn_calls_fini(pn_calls *c)
{
    pn_gram_release(c->gram);
    for (size_t i = 0; i < c->n_triggers; i++)
        pn_mem_free(c->mem, PN_ACCT_GRAMMAR, c->triggers[i].text, c->triggers[i].len + 1);
    pn_mem_free(c->mem, PN_ACCT_GRAMMAR, c->triggers, c->cap_triggers * sizeof *c->triggers);
    c->gram = NULL;
    c->triggers = NULL;
    c->n_triggers = c->cap_triggers = 0;
    pn_str_fini(&c->widened);
}
