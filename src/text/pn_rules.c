/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_rules.c - the middle of a tokenizer.json's pipeline: between added tokens and words.
 */
#include "text/pn_rules.h"

#include "text/pn_vocab_impl.h"

/* The texts of tokens that are looked for after the steps went through the steps themselves. */
static bool rules_norm_texts(pn_vocab *v, pn_norm *nm, pn_str *texts)
{
    const pn_vocab_rules *r = v->rules;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        v->norm_off[i] = (uint32_t)texts->len;
        if (!(v->flags[i] & PN_TF_ADDED) || !(v->flags[i] & PN_TF_NORMALIZED))
            continue;
        if (!pn_norm_run(nm, r->steps, r->n_steps, v->tokens[i].data, v->tokens[i].len, false))
            return false;
        pn_str_add(texts, nm->out.text.data, nm->out.text.len);
        if (texts->failed || texts->len > INT32_MAX)
            return false;
        if (nm->out.text.len)
            v->special_norm.ids[v->special_norm.n++] = i;
    }
    v->norm_off[v->n_tokens] = (uint32_t)texts->len;
    return true;
}

PN_INTERNAL bool pn_rules_build(pn_vocab *v)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        n += (v->flags[i] & PN_TF_ADDED) && (v->flags[i] & PN_TF_NORMALIZED);
    if (!n)
        return true;
    v->special_norm.ids = pn_vocab_alloc(v, n, sizeof *v->special_norm.ids);
    v->special_norm.cap = v->special_norm.ids ? n : 0;
    v->norm_off = pn_vocab_alloc(v, (uint64_t)v->n_tokens + 1, sizeof *v->norm_off);
    if (!v->special_norm.ids || !v->norm_off)
        return false;
    pn_norm nm;
    pn_str texts;
    pn_norm_init(&nm, v->mem);
    pn_str_init(&texts, v->mem, PN_ACCT_VOCAB);
    bool ok = rules_norm_texts(v, &nm, &texts);
    if (ok && (v->norm_text = pn_vocab_alloc(v, texts.len, 1)) != NULL) {
        v->norm_len = texts.len;
        if (texts.len)
            memcpy(v->norm_text, texts.data, texts.len);
    }
    ok = ok && v->norm_text;
    pn_str_fini(&texts);
    pn_norm_fini(&nm);
    v->special_norm.arena = v->norm_text;
    v->special_norm.off = v->norm_off;
    return ok && pn_lex_build(&v->special_norm, v->mem);
}

/* A stretch after the steps and between added tokens.  first: it begins the text. */
PN_INTERNAL bool pn_rules_encode(pn_enc *e, const char *s, size_t n, bool first)
{
    const pn_vocab_rules *r = e->v->rules;
    bool raw = r->pretok.flags & PN_PRETOK_RAW, space = r->space == PN_SPACE_ALWAYS || (r->space == PN_SPACE_FIRST && first);
    if (!r->metaspace && (!space || s[0] == ' '))
        return pn_bpe_words(e, s, n);
    pn_str_clear(&e->buf);
    if (!raw) {
        pn_str_addc(&e->buf, ' ');
        pn_str_add(&e->buf, s, n);
    } else {
        if (space && s[0] != ' ' && !(n >= 3 && memcmp(s, "\xE2\x96\x81", 3) == 0))
            pn_enc_escape(&e->buf, " ", 1);
        pn_enc_escape(&e->buf, s, n);
    }
    return !e->buf.failed && pn_bpe_words(e, e->buf.data, e->buf.len);
}
