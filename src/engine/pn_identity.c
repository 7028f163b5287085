/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_identity.c - a model's identity (store/pn_identity.h), from the header and a sample of the weights.
 *
 * Metadata goes in as the file has it, key by key: what a key means is not asked, so a key that matters and is new
 * counts too.  Of each tensor two pieces of 64 bytes are read, one in the middle and the last one; small ones
 * (norms, rotary factors) whole.  Two models that were trained on from one differ in nearly all bytes.
 */
#include "engine/pn_tier.h"

#include "cpu/pn_cpu.h"

enum { IDENTITY_PIECE = 64, IDENTITY_WHOLE = 4096 };

static bool identity_begins(pn_bytes s, const char *with)
{
    size_t n = strlen(with);
    return s.len >= n && memcmp(s.data, with, n) == 0;
}

/* Which part a key of the metadata belongs to; PN_ID_PARTS: none. */
static pn_identity_part identity_of(const pn_desc *d, pn_bytes key)
{
    size_t n = strlen(d->arch_name);
    if (identity_begins(key, "tokenizer."))
        return identity_begins(key, "tokenizer.chat_template") ? PN_ID_PARTS : PN_ID_VOCAB;
    if (identity_begins(key, d->arch_name) && key.len > n && key.data[n] == '.')
        return identity_begins((pn_bytes){key.data + n + 1, key.len - n - 1}, "rope.") ? PN_ID_ROPE : PN_ID_ARCH;
    return identity_begins(key, "general.architecture") ? PN_ID_ARCH : PN_ID_PARTS;
}

static void identity_add_bytes(pn_digest *d, const void *bytes, size_t n)
{
    pn_digest_add_u64(d, n);
    pn_digest_add(d, bytes, n);
}

static void identity_header(const pn_model *m, pn_digest *d)
{
    const pn_weights *w = &m->file.weights;
    for (size_t i = 0; i < w->gguf[0].n_kv; i++) {
        const pn_gguf_kv *kv = &w->gguf[0].kv[i];
        pn_identity_part part = identity_of(&m->desc, kv->key);
        if (part == PN_ID_PARTS)
            continue;
        identity_add_bytes(&d[part], kv->key.data, kv->key.len);
        pn_digest_add_u64(&d[part], kv->type);
        identity_add_bytes(&d[part], kv->data, (size_t)kv->data_len);
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        const pn_gguf_tensor *t = w->tensors[i].t;
        identity_add_bytes(&d[PN_ID_TENSORS], t->name, strlen(t->name));
        pn_digest_add_u64(&d[PN_ID_TENSORS], t->dtype);
        for (uint32_t k = 0; k < t->n_dims; k++)
            pn_digest_add_u64(&d[PN_ID_TENSORS], t->ne[k]);
        if (w->tensors[i].repacked)             /* encoded anew it has the same type and other bits */
            identity_add_bytes(&d[PN_ID_TENSORS], "repacked", 8);
    }
}

static pn_status identity_sample(const pn_weights *w, const pn_dir_tensor *t, pn_digest *d, pn_err *err)
{
    uint8_t bytes[IDENTITY_WHOLE];
    uint64_t size = t->file->bytes;         /* the type that a matrix has in memory is in the header's part */
    if (size <= sizeof bytes) {
        pn_status st = pn_weights_read(w, t, 0, bytes, (size_t)size, err);
        identity_add_bytes(d, bytes, st ? 0 : (size_t)size);
        return st;
    }
    pn_status st = pn_weights_read(w, t, size / 2, bytes, IDENTITY_PIECE, err);
    if (!st)
        st = pn_weights_read(w, t, size - IDENTITY_PIECE, bytes + IDENTITY_PIECE, IDENTITY_PIECE, err);
    if (!st)
        identity_add_bytes(d, bytes, 2 * IDENTITY_PIECE);
    return st;
}

/* The vocabulary of a folder, which has no keys: tokens and what kind they are.  How text is cut does not matter to a
 * session, whose tokens are numbers. */
static void identity_folder_vocab(const pn_model *m, pn_digest *d)
{
    for (uint32_t t = 0; m->folder_vocab && t < pn_vocab_n_tokens(m->vocab); t++) {
        pn_bytes text = pn_vocab_text(m->vocab, (pn_token)t);
        identity_add_bytes(d, text.data, text.len);
        pn_digest_add_u64(d, (uint64_t)pn_vocab_kind(m->vocab, (pn_token)t));
    }
}

/* What decides about bits beside the model. */
static void identity_arithmetic(const pn_model *m, pn_digest *d)
{
    const char *const names[] = {PN_VERSION, m->n_dies ? m->dies[0]->ops->name : "", pn_cpu_get()->name, m->exact ? "exact" : "fast"};
    for (size_t i = 0; i < PN_COUNT_OF(names); i++)
        identity_add_bytes(d, names[i], strlen(names[i]));
}

PN_INTERNAL pn_status pn_model_identity(const pn_model *m, pn_identity *out, pn_err *err)
{
    const pn_weights *w = &m->file.weights;
    pn_digest d[PN_ID_PARTS];
    pn_status st = PN_OK;
    for (int i = 0; i < PN_ID_PARTS; i++)
        pn_digest_begin(&d[i], PN_DIGEST_BYTES);
    identity_header(m, d);
    identity_folder_vocab(m, &d[PN_ID_VOCAB]);
    identity_arithmetic(m, &d[PN_ID_ARITHMETIC]);
    for (size_t i = 0; i < w->n_tensors && !st; i++)
        st = identity_sample(w, &w->tensors[i], &d[PN_ID_BYTES], err);
    for (int i = 0; i < PN_ID_PARTS; i++)
        pn_digest_end(&d[i], out->part[i], PN_DIGEST_BYTES);
    return st;
}
