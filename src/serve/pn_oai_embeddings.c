/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_embeddings.c - requests for embeddings, and their answers.
 */
#include "serve/pn_oai_embeddings.h"

#include <stdio.h>

#include "serve/pn_oai_read.h"

enum { EMBED_INPUTS_MAX = 2048 };

static pn_oai_embeddings *embed_of(const pn_oai_parser *p) { return (pn_oai_embeddings *)p->q; }

/* ------------------------------------------------------------------------------------------
 * The request
 * ------------------------------------------------------------------------------------------ */

static bool embed_input(pn_oai_parser *p, const char *name, uint32_t node)
{
    return pn_oai_read_inputs(p, name, node, EMBED_INPUTS_MAX, &embed_of(p)->inputs);
}

/* Which of the words it is. */
static bool embed_word(pn_oai_parser *p, const char *name, uint32_t node, const char *a, const char *b, int *which)
{
    pn_bytes word;
    if (!pn_oai_read_text(p, name, node, &word))
        return false;
    *which = pn_oai_same(word, b);
    return *which || pn_oai_same(word, a) ||
           pn_oai_fail(p, name, "%s: expected %s or %s, found '%.*s'", name, a, b, (int)PN_MIN(word.len, (size_t)40), word.data);
}

static bool embed_encoding(pn_oai_parser *p, const char *name, uint32_t node)
{
    int which;
    bool ok = embed_word(p, name, node, "float", "base64", &which);
    if (ok)
        embed_of(p)->base64 = which;
    return ok;
}

static bool embed_pooling(pn_oai_parser *p, const char *name, uint32_t node)
{
    int which;
    bool ok = embed_word(p, name, node, "mean", "last", &which);
    if (ok)
        embed_of(p)->pooling = which ? PN_OAI_POOLING_LAST : PN_OAI_POOLING_MEAN;
    return ok;
}

static bool embed_dimensions(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    bool ok = pn_oai_read_int(p, name, node, 1, INT32_MAX, &v);
    if (ok)
        embed_of(p)->dimensions = (uint32_t)v;
    return ok;
}

static const pn_oai_field embed_fields[] = {
    {"input", embed_input}, {"encoding_format", embed_encoding}, {"dimensions", embed_dimensions}, {"pooling", embed_pooling},
};

static bool embed_check(pn_oai_parser *p)
{
    const pn_oai_inputs *in = &embed_of(p)->inputs;
    const pn_json_doc *d = &p->q->body;
    char param[32];
    if (!in->n)
        return pn_oai_fail(p, "input", "input: expected a string, an array of strings, or tokens; found nothing");
    for (size_t i = 0; i < in->n; i++) {
        const pn_oai_piece *piece = &in->pieces[in->list[i].first];
        if (in->list[i].n_pieces > 1 || piece->n_tokens || piece->text.len)
            continue;
        if (pn_json_type_of(d, pn_json_get(d, PN_JSON_ROOT, "input")) == PN_JSON_STRING)
            snprintf(param, sizeof param, "input");
        else
            snprintf(param, sizeof param, "input[%zu]", i);
        return pn_oai_fail(p, param, "%s: expected text, found an empty string", param);
    }
    return true;
}

PN_INTERNAL bool pn_oai_embeddings_parse(pn_oai_embeddings *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e)
{
    pn_oai_parser p = {&out->common, e, 1};
    memset(out, 0, sizeof *out);
    bool ok = pn_oai_open(&p, mem, text, len) && pn_oai_read_fields(&p, embed_fields, PN_COUNT_OF(embed_fields), false) && embed_check(&p);
    if (!ok)
        pn_oai_embeddings_fini(out);
    return ok;
}

PN_INTERNAL void pn_oai_embeddings_fini(pn_oai_embeddings *q)
{
    pn_oai_inputs_fini(q->common.mem, &q->inputs);
    pn_oai_close(&q->common);
}

/* ------------------------------------------------------------------------------------------
 * The answer
 * ------------------------------------------------------------------------------------------ */

static uint8_t embed_byte(const float *v, size_t i) { return (uint8_t)(pn_f32_bits(v[i / 4]) >> (8 * (i % 4))); }

/* RFC 4648, section 4, of the floats' bytes, least significant first. */
static void embed_base64(pn_str *s, const float *v, size_t dim)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = dim * 4;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t three = (uint32_t)embed_byte(v, i) << 16;
        three |= i + 1 < n ? (uint32_t)embed_byte(v, i + 1) << 8 : 0;
        three |= i + 2 < n ? embed_byte(v, i + 2) : 0;
        const char four[4] = {digits[three >> 18], digits[three >> 12 & 63], i + 1 < n ? digits[three >> 6 & 63] : '=',
                              i + 2 < n ? digits[three & 63] : '='};
        pn_str_add(s, four, sizeof four);
    }
}

static void embed_vector(pn_str *s, const float *v, size_t dim, bool base64)
{
    pn_str_addc(s, base64 ? '"' : '[');
    if (base64)
        embed_base64(s, v, dim);
    for (size_t i = 0; !base64 && i < dim; i++) {
        if (i)
            pn_str_addc(s, ',');
        pn_json_write_f32(s, v[i]);
    }
    pn_str_addc(s, base64 ? '"' : ']');
}

PN_INTERNAL void pn_oai_embeddings_body(pn_str *out, const char *model, const float *const *vectors, size_t n, size_t dim, bool base64,
                                        const pn_oai_usage *usage)
{
    pn_str_addz(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        pn_str_addf(out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
        embed_vector(out, vectors[i], dim, base64);
        pn_str_addc(out, '}');
    }
    pn_str_addz(out, "],\"model\":");
    pn_json_write_strz(out, model);
    pn_str_addf(out, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", (unsigned)usage->prompt, (unsigned)usage->prompt);
}
