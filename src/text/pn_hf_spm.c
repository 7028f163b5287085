/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_hf_spm.c - a SentencePiece model file (tokenizer.model).
 *
 * A protobuf message (protobuf.dev, "Encoding"; fields of sentencepiece_model.proto):
 *
 *     ModelProto     1 pieces*, 2 trainer_spec, 3 normalizer_spec
 *     SentencePiece  1 text, 2 score (float), 3 type (1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte)
 *     TrainerSpec    3 model_type (1 unigram, 2 BPE), 24 treat_whitespace_as_suffix, 40 unk_id, 41 bos_id,
 *                    42 eos_id, 43 pad_id
 *     NormalizerSpec 2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces,
 *                    5 escape_whitespaces
 *
 * Piece n is token n, and its types are numbered as token kinds are.  A BPE model needs no merges: the
 * scores order them.
 */
#include "text/pn_hf_impl.h"

#include <inttypes.h>

typedef struct hfm_field {
    uint32_t number, wire;
    uint64_t value;             /* wire types 0, 1, 5 */
    pn_bytes bytes;             /* wire type 2 */
} hfm_field;

/* Reads the fields of one message; `at` counts from the start of the file. */
typedef struct hfm_cursor {
    pn_hf_read *r;
    const char *base;
    size_t at, end;
    bool failed;
} hfm_cursor;

static bool hfm_bad(hfm_cursor *c, size_t at, const char *what)
{
    c->failed = true;
    pn_fail(c->r->err, PN_E_FORMAT, "%s: at byte %zu: %s", c->r->file, at, what);
    return false;
}

static bool hfm_varint(hfm_cursor *c, uint64_t *v)
{
    size_t from = c->at;
    *v = 0;
    for (unsigned shift = 0; c->at < c->end; shift += 7) {
        uint8_t b = (uint8_t)c->base[c->at++];
        if (shift > 63 || (shift == 63 && b > 1))
            return hfm_bad(c, from, "a varint longer than 10 bytes or 64 bits");
        *v |= (uint64_t)(b & 0x7F) << shift;
        if (!(b & 0x80))
            return true;
    }
    return hfm_bad(c, from, "a varint that does not end");
}

/* The next field; false at the end and on failure. */
static bool hfm_next(hfm_cursor *c, hfm_field *f)
{
    uint64_t key, len;
    size_t from = c->at;
    if (c->failed || c->at == c->end || !hfm_varint(c, &key))
        return false;
    *f = (hfm_field){.number = (uint32_t)(key >> 3), .wire = (uint32_t)(key & 7)};
    if (key >> 3 == 0 || key >> 3 > 0x1FFFFFFF)
        return hfm_bad(c, from, "a field number out of range");
    switch (f->wire) {
    case 0:
        return hfm_varint(c, &f->value);
    case 1:
    case 5:
        len = f->wire == 1 ? 8 : 4;
        if (c->end - c->at < len)
            return hfm_bad(c, from, "a fixed-size field is cut off");
        f->value = f->wire == 1 ? pn_le64(c->base + c->at) : pn_le32(c->base + c->at);
        c->at += (size_t)len;
        return true;
    case 2:
        if (!hfm_varint(c, &len))
            return false;
        if (len > c->end - c->at)
            return hfm_bad(c, from, "a field is longer than the message around it");
        f->bytes = (pn_bytes){c->base + c->at, (size_t)len};
        c->at += (size_t)len;
        return true;
    default:
        return hfm_bad(c, from, "a protobuf group or an unknown wire type");
    }
}

static hfm_cursor hfm_inside(const hfm_cursor *c, pn_bytes message)
{
    size_t at = (size_t)(message.data - c->base);
    return (hfm_cursor){.r = c->r, .base = c->base, .at = at, .end = at + message.len};
}

typedef struct hfm_model {
    uint64_t type;
    int64_t unk, bos, eos, pad;
    bool suffix, prefix, extra, escape, bytes;
} hfm_model;

static pn_status hfm_piece(hfm_cursor c, int64_t id, bool *bytes)
{
    hfm_field f;
    pn_bytes text = {"", 0};
    float score = 0;
    uint64_t type = PN_TOKEN_NORMAL;
    while (hfm_next(&c, &f)) {
        if (f.number == 1 && f.wire == 2)
            text = f.bytes;
        else if (f.number == 2 && f.wire == 5)
            score = pn_f32_from_bits((uint32_t)f.value);
        else if (f.number == 3 && f.wire == 0)
            type = f.value;
    }
    if (c.failed)
        return PN_E_FORMAT;
    if (type < PN_TOKEN_NORMAL || type > PN_TOKEN_BYTE)
        return pn_fail(c.r->err, PN_E_FORMAT, "%s: piece %" PRId64 " \"%.*s\" has the unknown type %" PRIu64, c.r->file, id, pn_hf_len(text),
                       text.data, type);
    if (!(score > -1e30f && score < 1e30f))
        return pn_fail(c.r->err, PN_E_FORMAT, "%s: piece %" PRId64 " \"%.*s\" has a score that is not a number", c.r->file, id,
                       pn_hf_len(text), text.data);
    *bytes = *bytes || type == PN_TOKEN_BYTE;
    unsigned flags = type == PN_TOKEN_USER_DEFINED || type == PN_TOKEN_CONTROL ? PN_TF_MODEL | PN_TF_ADDED : PN_TF_MODEL;
    return pn_hf_put(c.r, "pieces", text, id, (int32_t)type, flags, score);
}

static void hfm_trainer(hfm_cursor *c, hfm_model *m)
{
    hfm_field f;
    while (hfm_next(c, &f)) {
        if (f.wire != 0)
            continue;
        switch (f.number) {
        case 3: m->type = f.value; break;
        case 24: m->suffix = f.value != 0; break;
        case 40: m->unk = (int64_t)(int32_t)(uint32_t)f.value; break;      /* int32 fields: negatives fill 64 bits */
        case 41: m->bos = (int64_t)(int32_t)(uint32_t)f.value; break;
        case 42: m->eos = (int64_t)(int32_t)(uint32_t)f.value; break;
        case 43: m->pad = (int64_t)(int32_t)(uint32_t)f.value; break;
        }
    }
}

static void hfm_normalizer(hfm_cursor *c, hfm_model *m)
{
    hfm_field f;
    while (hfm_next(c, &f)) {
        if (f.number == 2 && f.wire == 2)
            c->r->h->charsmap = f.bytes;
        else if (f.number == 3 && f.wire == 0)
            m->prefix = f.value != 0;
        else if (f.number == 4 && f.wire == 0)
            m->extra = f.value != 0;
        else if (f.number == 5 && f.wire == 0)
            m->escape = f.value != 0;
    }
}

static pn_status hfm_read_model(pn_hf_read *r, hfm_model *m)
{
    pn_bytes file = r->files->tokenizer_model;
    hfm_cursor c = {.r = r, .base = file.data, .end = file.len};
    hfm_field f;
    int64_t id = 0;
    while (hfm_next(&c, &f)) {
        hfm_cursor in = hfm_inside(&c, f.bytes.data ? f.bytes : (pn_bytes){file.data, 0});
        pn_status st = PN_OK;
        if (f.number >= 1 && f.number <= 3 && f.wire != 2)
            return pn_fail(r->err, PN_E_FORMAT, "%s: field %" PRIu32 " is not a message", r->file, f.number);
        if (f.number == 1)
            st = hfm_piece(in, id++, &m->bytes);
        else if (f.number == 2)
            hfm_trainer(&in, m);
        else if (f.number == 3)
            hfm_normalizer(&in, m);
        if (st)
            return st;
        if (in.failed)
            return PN_E_FORMAT;
    }
    if (c.failed)
        return PN_E_FORMAT;
    return id ? PN_OK : pn_fail(r->err, PN_E_FORMAT, "%s: no pieces", r->file);
}

static int64_t hfm_id(const pn_hf_read *r, int64_t id)
{
    return id >= 0 && id < (int64_t)r->h->n_tokens && r->h->tokens[id].len ? id : -1;
}

PN_INTERNAL pn_status pn_hf_read_spm(pn_hf_read *r)
{
    pn_hf_vocab *h = r->h;
    hfm_model m = {.type = 1, .unk = 0, .bos = 1, .eos = 2, .pad = -1, .prefix = true, .extra = true, .escape = true};
    r->file = "tokenizer.model";
    pn_status st = hfm_read_model(r, &m);
    if (st)
        return st;
    if (m.type != 1 && m.type != 2)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: trainer_spec.model_type %" PRIu64 " is not supported, only unigram and BPE", r->file, m.type);
    if (m.suffix || !m.escape)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: %s is not supported", r->file,
                       m.suffix ? "trainer_spec.treat_whitespace_as_suffix" : "normalizer_spec.escape_whitespaces off");
    if (m.type == 1 && m.bytes)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: byte pieces of a unigram model are not supported", r->file);
    if (m.type == 2 && h->charsmap.len)
        pn_hf_warn(r, "tokenizer.model: characters are not normalised (precompiled_charsmap) in a BPE vocabulary");
    if (m.type == 2 && m.extra)
        pn_hf_warn(r, "tokenizer.model: repeated spaces are kept (remove_extra_whitespaces) in a BPE vocabulary");
    h->model = m.type == 2 ? (pn_bytes){"llama", 5} : (pn_bytes){"t5", 2};
    if (m.type == 2)
        h->charsmap = (pn_bytes){NULL, 0};
    h->add_space_prefix = m.prefix;
    h->remove_extra_whitespaces = m.extra;
    h->unk = hfm_id(r, m.unk);
    h->bos = hfm_id(r, m.bos);
    h->eos = hfm_id(r, m.eos);
    h->pad = hfm_id(r, m.pad);
    r->file = "tokenizer_config.json";
    return pn_hf_read_added(r, &r->config, pn_json_get(&r->config, 0, "added_tokens_decoder"), "added_tokens_decoder");
}
