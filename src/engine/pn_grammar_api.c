/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_grammar_api.c - grammars of pantheon.h, and the trie of a model's vocabulary.
 */
#include "engine/pn_grammar_api.h"

#include "sample/pn_schema.h"

static pn_status grammar_wrap(pn_engine *e, pn_gram *g, pn_grammar **out, pn_err *err)
{
    pn_grammar *w = pn_mem_calloc(&e->ledger.mem, PN_ACCT_GRAMMAR, 1, sizeof *w);
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
    pn_status st = pn_gram_from_gbnf(&g, &e->ledger.mem, text, len, NULL, NULL, NULL, err);
    return st ? st : grammar_wrap(e, g, out, err);
}

PN_API pn_status pn_grammar_json_schema(pn_engine *e, const char *text, size_t len, pn_grammar **out, pn_err *err)
{
    pn_gram *g;
    if (!e || (!text && len) || !out)
        return pn_fail(err, PN_E_INVALID, "pn_grammar_json_schema: engine, text and out must be given");
    pn_status st = pn_schema_compile(&g, &e->ledger.mem, text, len, NULL, err);
    return st ? st : grammar_wrap(e, g, out, err);
}

PN_API void pn_grammar_free(pn_grammar *g)
{
    if (!g)
        return;
    pn_gram_release(g->gram);
    pn_mem_free(&g->engine->ledger.mem, PN_ACCT_GRAMMAR, g, sizeof *g);
}

PN_API int pn_grammar_matches(pn_grammar *g, const char *text, size_t len)
{
    return g && (text || !len) && pn_gram_matches(g->gram, text, len, NULL) == 1;
}

PN_API pn_status pn_grammar_print(const pn_grammar *g, pn_write_fn write, void *user, pn_err *err)
{
    pn_str s;
    if (!g || !write)
        return pn_fail(err, PN_E_INVALID, "pn_grammar_print: grammar and write must be given");
    pn_str_init(&s, &g->engine->ledger.mem, PN_ACCT_GRAMMAR);
    pn_status st = pn_gram_print(g->gram, &s, err);
    if (!st && write(user, pn_str_cstr(&s), s.len))
        st = pn_fail(err, PN_E_CANCELLED, "the callback stopped the printing of a grammar");
    pn_str_fini(&s);
    return st;
}

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
