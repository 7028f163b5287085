/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_rwkv_trie.c - RWKV "World": always the longest token of bytes.
 *
 * Token texts are escaped in the file (\t \n \r \xHH, and \ before any other character for itself);
 * the unescaped bytes are both what is matched and what is rendered, so the list is built over the
 * vocabulary's pieces.
 */
#include "text/pn_vocab_impl.h"

static int rwkv_hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

PN_INTERNAL size_t pn_rwkv_unescape(pn_bytes text, char *dst)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++, n++) {
        char c = text.data[i];
        if (c == '\\' && i + 1 < text.len) {
            c = text.data[++i];
            if (c == 't' || c == 'n' || c == 'r') {
                c = c == 't' ? '\t' : c == 'n' ? '\n' : '\r';
            } else if (c == 'x' && i + 2 < text.len && rwkv_hex(text.data[i + 1]) >= 0 && rwkv_hex(text.data[i + 2]) >= 0) {
                c = (char)(rwkv_hex(text.data[i + 1]) * 16 + rwkv_hex(text.data[i + 2]));
                i += 2;
            }
        }
        if (dst)
            dst[n] = c;
    }
    return n;
}

PN_INTERNAL pn_status pn_rwkv_build(pn_vocab *v, pn_err *err)
{
    v->lex.ids = pn_vocab_alloc(v, v->n_tokens, sizeof *v->lex.ids);
    if (!v->lex.ids)
        return pn_fail_nomem(err, "the token list", (uint64_t)v->n_tokens * 4);
    v->lex.cap = v->n_tokens;
    v->lex.arena = v->pieces;
    v->lex.off = v->piece_off;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if ((v->attr[i] & PN_TA_KIND) == PN_TOKEN_NORMAL || (v->attr[i] & PN_TA_KIND) == PN_TOKEN_USER_DEFINED)
            v->lex.ids[v->lex.n++] = i;
    if (!pn_lex_build(&v->lex, v->mem))
        return pn_fail_nomem(err, "sorting the tokens", (uint64_t)v->n_tokens * 32);
    return PN_OK;
}

PN_INTERNAL bool pn_rwkv_encode(pn_enc *e, const char *s, size_t n)
{
    const pn_vocab *v = e->v;
    for (size_t at = 0, len; at < n; at += len) {
        pn_lex_walk w;
        int32_t best = v->unk;
        len = 1;
        pn_lex_begin(&v->lex, &w);
        for (int32_t t; (t = pn_lex_next(&v->lex, &w, s + at, n - at)) >= 0;)
            if (pn_enc_allows(e, t)) {
                best = t;
                len = w.depth;
            }
        if (best >= 0 && !pn_enc_push(e, best))
            return false;
    }
    return true;
}
