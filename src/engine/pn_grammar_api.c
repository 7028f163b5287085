/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_grammar_api.c - grammars of pantheon.h, and the trie of a model's vocabulary.
 */
#include "engine/pn_grammar_api.h"

#include "sample/pn_guide.h"
#include "sample/pn_schema.h"

static pn_status grammar_wrap(pn_engine *e, pn_gram *g, pn_grammar **out, pn_err *err)
{
    pn_grammar *w = pn_mem_calloc(pn_engine_mem(e), PN_ACCT_GRAMMAR, 1, sizeof *w);
    if (!w) {
        pn_gram_release(g);
        return pn_fail_nomem(err, "a grammar", sizeof *w);
    }
    w->engine = e;
    w->gram = g;
    *out = w;
    return PN_OK;
}

PN_API pn_status pn_grammar_gbnf(pn_engine *e, const char *text, size_t len, pn_grammar **out, pn_err *err)
{
    pn_gram *g;
    if (!e || (!text && len) || !out)
        return pn_fail(err, PN_E_INVALID, "pn_grammar_gbnf: engine, text and out must be given");
    pn_status st = pn_gram_from_gbnf(&g, pn_engine_mem(e), text, len, NULL, NULL, NULL, err);
    return st ? st : grammar_wrap(e, g, out, err);
}

PN_API pn_status pn_grammar_json_schema(pn_engine *e, const char *text, size_t len, pn_grammar **out, pn_err *err)
{
    pn_gram *g;
    if (!e || (!text && len) || !out)
        return pn_fail(err, PN_E_INVALID, "pn_grammar_json_schema: engine, text and out must be given");
    pn_status st = pn_schema_compile(&g, pn_engine_mem(e), text, len, NULL, err);
    if (!st)
        st = grammar_wrap(e, g, out, err);
    if (!st)
        (*out)->is_document = true;
    return st;
}

PN_API void pn_grammar_free(pn_grammar *g)
{
    if (!g)
        return;
    pn_gram_release(g->gram);
    if (g->is_calls)
        pn_calls_fini(&g->calls);
    pn_mem_free(pn_engine_mem(g->engine), PN_ACCT_GRAMMAR, g, sizeof *g);
}

/* An answer as text: what is said and what is called. */
static bool grammar_matches_calls(pn_grammar *g, const char *text, size_t len)
{
    pn_guide *guide = NULL;
    const pn_guide_params p = {.gram = g->calls.gram, .triggers = g->calls.triggers, .n_triggers = g->calls.n_triggers,
                               .watch = g->calls.watch, .owed = g->required, .lanes = true, .single = g->single, .forbid = g->none};
    bool ok = pn_guide_new(&guide, pn_engine_mem(g->engine), &p, NULL) == PN_OK &&
              pn_guide_accept_bytes(guide, text, len, NULL) == PN_OK && pn_guide_may_end(guide);
    pn_guide_free(guide);
    return ok;
}

PN_API int pn_grammar_matches(pn_grammar *g, const char *text, size_t len)
{
    if (!g || (!text && len))
        return 0;
    return g->is_calls ? grammar_matches_calls(g, text, len) : pn_gram_matches(g->gram, text, len, NULL) == 1;
}

PN_API pn_status pn_grammar_print(const pn_grammar *g, pn_write_fn write, void *user, pn_err *err)
{
    pn_str s;
    if (!g || !write)
        return pn_fail(err, PN_E_INVALID, "pn_grammar_print: grammar and write must be given");
    pn_str_init(&s, pn_engine_mem(g->engine), PN_ACCT_GRAMMAR);
    const pn_gram *gram = g->is_calls ? g->calls.gram : g->gram;
    pn_status st = gram ? pn_gram_print((pn_gram *)(uintptr_t)gram, &s, err) : PN_OK;
    if (!st && write(user, pn_str_cstr(&s), s.len))
        st = pn_fail(err, PN_E_CANCELLED, "the callback stopped the printing of a grammar");
    pn_str_fini(&s);
    return st;
}

/* ---- tool calls ------------------------------------------------------------------------------------ */

PN_INTERNAL pn_token pn_grammar_find_marker(void *vocab, const char *text, size_t len)
{
    const pn_vocab *v = vocab;
    pn_token t = pn_vocab_find(v, text, len);
    pn_token_kind k = t < 0 ? PN_TOKEN_UNDEFINED : pn_vocab_kind(v, t);
    return k == PN_TOKEN_CONTROL || k == PN_TOKEN_USER_DEFINED ? t : -1;
}

PN_INTERNAL pn_status pn_grammar_calls(pn_engine *e, const pn_vocab *v, const pn_calls_params *p, pn_grammar **out, pn_err *err)
{
    pn_calls_params full = *p;
    pn_grammar *g = NULL;
    full.find = v ? pn_grammar_find_marker : NULL;
    full.user = (void *)(uintptr_t)v;
    pn_status st = grammar_wrap(e, NULL, &g, err);
    if (st)
        return st;
    st = pn_calls_new(&g->calls, pn_engine_mem(e), &full, err);
    if (st) {
        pn_grammar_free(g);
        return st;
    }
    g->is_calls = true;
    g->required = p->required;
    g->single = p->single;
    g->none = p->none;
    *out = g;
    return PN_OK;
}

PN_API pn_status pn_grammar_tools(pn_engine *e, const pn_model *m, const pn_tools_params *params, pn_grammar **out, pn_err *err)
{
    pn_tools_params p;
    pn_json_doc tools;
    pn_out_format format;
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    if (!e || !out || !p.tools)
        return pn_fail(err, PN_E_INVALID, "pn_grammar_tools: engine, tools and out must be given");
    if (p.name && p.choice != PN_TOOLS_REQUIRED)
        return pn_fail(err, PN_E_INVALID, "a function is named, so the choice of tools has to be PN_TOOLS_REQUIRED");
    pn_bytes text = m ? pn_model_template(m, true) : (pn_bytes){"", 0};
    if (p.chat_template)
        text = (pn_bytes){p.chat_template, p.chat_template_len ? p.chat_template_len : strlen(p.chat_template)};
    pn_out_detect(&format, text.data ? text.data : "", text.len);
    if (p.syntax && !pn_out_find(&format, p.syntax))
        return pn_fail(err, PN_E_INVALID, "tool syntax '%.60s' is not known; hermes, harmony, llama3 are some that are", p.syntax);
    pn_status st = pn_json_parse(&tools, pn_engine_mem(e), PN_ACCT_GRAMMAR, p.tools, p.tools_len ? p.tools_len : strlen(p.tools), NULL, err);
    if (st)
        return pn_err_prefix(err, st, "tools");
    const pn_calls_params calls = {.format = &format, .tools = &tools, .only = {p.name, p.name ? strlen(p.name) : 0},
                                   .required = p.choice == PN_TOOLS_REQUIRED, .none = p.choice == PN_TOOLS_NONE, .single = p.single != 0};
    st = pn_grammar_calls(e, m ? m->vocab : NULL, &calls, out, err);
    pn_json_fini(&tools);
    return st;
}

PN_API const char *pn_grammar_widened(const pn_grammar *g) { return g && g->is_calls ? pn_str_cstr(&g->calls.widened) : ""; }

/* ---- vocabularies ---------------------------------------------------------------------------------- */

static bool grammar_is_text(pn_token_kind k)
{
    return k != PN_TOKEN_CONTROL && k != PN_TOKEN_UNUSED && k != PN_TOKEN_UNKNOWN;
}

PN_INTERNAL pn_status pn_gtrie_from_vocab(pn_gtrie **out, pn_mem *mem, const pn_vocab *v, pn_err *err)
{
    uint32_t n = pn_vocab_n_tokens(v), n_ends = 0;
    pn_bytes *pieces = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, n, sizeof *pieces);
    pn_token *ends = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, n, sizeof *ends);
    pn_status st = PN_OK;
    char tmp[8];
    if (!pieces || !ends)
        st = pn_fail_nomem(err, "a token trie", (uint64_t)n * (sizeof *pieces + sizeof *ends));
    for (uint32_t i = 0; i < n && !st; i++) {
        pn_token t = (pn_token)i;
        if (pn_vocab_ends(v, t))
            ends[n_ends++] = t;
        else if (grammar_is_text(pn_vocab_kind(v, t)))
            pieces[i] = pn_vocab_piece(v, t, false, tmp);
    }
    pn_gtrie_source src = {pieces, n, PN_MAX(n, pn_vocab_n_logits(v)), NULL, ends, n_ends};
    if (!st)
        st = pn_gtrie_new(out, mem, &src, err);
    pn_mem_free(mem, PN_ACCT_GRAMMAR, pieces, n * sizeof *pieces);
    pn_mem_free(mem, PN_ACCT_GRAMMAR, ends, n * sizeof *ends);
    return st;
}
