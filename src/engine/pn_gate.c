/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Two sessions read the text side by side, the first half in large steps, the second in small ones whose logits
 * are compared at once: all of them would be half a gigabyte for a large vocabulary.
 */
#include "engine/pn_gate.h"

#include <inttypes.h>
#include <math.h>

#include "base/pn_str.h"
#include "num/pn_math.h"

enum {
    GATE_TOKENS = 2048,                 /* of which the last half is compared; memory sheet 8 */
    GATE_LEAST = 64,                    /* fewer say nothing */
    GATE_LOGITS = 8 << 20               /* bytes of logits of one session, about */
};

static const double gate_kl = 0.02, gate_top1 = 0.97;   /* memory sheet 8 */

typedef struct gate_probe {
    pn_model *m;
    pn_token *tokens;                   /* owned, [cap] */
    size_t n, cap;
    pn_session *s[2];                   /* F16, and the type */
    float *logits[2];                   /* owned, [rows, n_vocab] */
    uint32_t rows;
    double kl;
    uint32_t same, compared;
} gate_probe;

/* ------------------------------------------------------------------------------------------
 * What is known
 * ------------------------------------------------------------------------------------------ */

static void gate_judge(pn_kv_gate *g, const pn_kv_gate_params *p)
{
    double kl = p && p->max_kl > 0 ? p->max_kl : gate_kl, top1 = p && p->min_top1 > 0 ? p->min_top1 : gate_top1;
    g->eligible = g->kl <= kl && g->top1 >= top1;
}

PN_INTERNAL bool pn_gate_known(pn_model *m, uint32_t type, const pn_kv_gate_params *limits, pn_kv_gate *out)
{
    memset(out, 0, sizeof *out);
    if (type >= ENGINE_KV_IDS)
        return false;
    pn_mutex_lock(&m->lock);
    *out = m->gate[type];
    pn_mutex_unlock(&m->lock);
    gate_judge(out, limits);
    return out->n_positions != 0;
}

PN_INTERNAL uint32_t pn_gate_smallest(pn_model *m, uint32_t least, const pn_kv_gate_params *limits)
{
#define GATE_ID(t) PN_DTYPE_##t,
    static const uint32_t types[] = {PN_KV_EACH_TYPE(GATE_ID)};
#undef GATE_ID
    uint32_t best = PN_DTYPE_F16;
    for (size_t i = 0; i < PN_COUNT_OF(types); i++) {
        pn_kv_gate g;
        uint64_t bytes = pn_kv_elem_bytes(types[i], 32);
        if (bytes < pn_kv_elem_bytes(best, 32) && bytes >= pn_kv_elem_bytes(least, 32) && pn_gate_known(m, types[i], limits, &g) && g.eligible)
            best = types[i];
    }
    return best;
}

/* ------------------------------------------------------------------------------------------
 * The probe
 * ------------------------------------------------------------------------------------------ */

/* log of the sum of e^x; *top gets the place of the largest. */
static double gate_log_sum(const float *x, uint32_t n, uint32_t *top)
{
    double sum = 0;
    *top = 0;
    for (uint32_t i = 1; i < n; i++)
        *top = x[i] > x[*top] ? i : *top;
    for (uint32_t i = 0; i < n; i++)
        sum += pn_exp((double)x[i] - (double)x[*top]);
    return (double)x[*top] + pn_log(sum);
}

static void gate_compare(gate_probe *g, const float *a, const float *b)
{
    uint32_t top_a, top_b, n = g->m->desc.n_vocab;
    double la = gate_log_sum(a, n, &top_a), lb = gate_log_sum(b, n, &top_b);
    for (uint32_t i = 0; i < n; i++) {
        double pa = (double)a[i] - la;
        g->kl += pn_exp(pa) * (pa - ((double)b[i] - lb));
    }
    g->same += top_a == top_b;
    g->compared++;
}

static pn_status gate_tokens(gate_probe *g, pn_err *err)
{
    pn_str s;
    const char *piece;
    pn_str_init(&s, pn_engine_mem(g->m->engine), PN_ACCT_MISC);
    for (size_t i = 0; (piece = pn_gate_text(i)) != NULL; i++)
        pn_str_addz(&s, piece);
    pn_status st = s.failed ? pn_fail_nomem(err, "the text of a probe", s.len) : PN_OK;
    g->cap = s.len + 1;
    if (!st && !(g->tokens = pn_mem_calloc(pn_engine_mem(g->m->engine), PN_ACCT_MISC, g->cap, sizeof *g->tokens)))
        st = pn_fail_nomem(err, "the tokens of a probe", g->cap * sizeof *g->tokens);
    if (!st)
        st = pn_tokenize(g->m, s.data, s.len, PN_TOKENIZE_BOS, g->tokens, g->cap, &g->n, err);
    pn_str_fini(&s);
    g->n = PN_MIN(PN_MIN(g->n, (size_t)GATE_TOKENS), (size_t)g->m->desc.n_ctx_train);
    if (!st && g->n < GATE_LEAST)
        st = pn_fail(err, PN_E_UNSUPPORTED, "a probe of keys and values needs %d tokens: the model reads %zu at most", GATE_LEAST, g->n);
    return st;
}

static pn_status gate_open(gate_probe *g, uint32_t type, const pn_kv_gate_params *p, pn_err *err)
{
    const uint64_t row = (uint64_t)g->m->desc.n_vocab * sizeof(float);
    g->rows = (uint32_t)PN_MIN(PN_MAX(GATE_LOGITS / row, UINT64_C(1)), UINT64_C(64));
    pn_status st = PN_OK;
    for (int i = 0; i < 2 && !st; i++) {
        const pn_session_params how = {.n_ctx = (uint32_t)g->n, .has_kv_type = 1, .kv_type = i ? (pn_dtype)type : PN_DTYPE_F16};
        st = pn_session_new(g->m, &how, &g->s[i], err);
        if (!st && p)
            pn_session_on_tick(g->s[i], p->tick, p->user);
        if (!st && !(g->logits[i] = pn_mem_calloc(pn_engine_mem(g->m->engine), PN_ACCT_SCRATCH, g->rows * row, 1)))
            st = pn_fail_nomem(err, "the logits of a probe", g->rows * row);
    }
    return st;
}

static pn_status gate_read(gate_probe *g, pn_err *err)
{
    const size_t V = g->m->desc.n_vocab, half = g->n - g->n / 2;
    pn_status st = pn_session_eval(g->s[0], g->tokens, half, err);
    if (!st)
        st = pn_session_eval(g->s[1], g->tokens, half, err);
    for (size_t at = half, n; at < g->n && !st; at += n) {
        n = PN_MIN((size_t)g->rows, g->n - at);
        for (int i = 0; i < 2 && !st; i++)
            st = pn_session_eval_all(g->s[i], g->tokens + at, n, g->logits[i], err);
        for (size_t i = 0; i < n && !st; i++)
            gate_compare(g, g->logits[0] + i * V, g->logits[1] + i * V);
    }
    if (!st && isnan(g->kl))
        st = pn_fail(err, PN_E_NUMERIC, "the model's logits are not finite");
    return st;
}

static void gate_close(gate_probe *g)
{
    pn_mem *mem = pn_engine_mem(g->m->engine);
    for (int i = 0; i < 2; i++) {
        pn_session_free(g->s[i]);
        pn_mem_free(mem, PN_ACCT_SCRATCH, g->logits[i], (size_t)g->rows * g->m->desc.n_vocab * sizeof(float));
    }
    pn_mem_free(mem, PN_ACCT_MISC, g->tokens, g->cap * sizeof *g->tokens);
}

PN_API pn_status pn_model_kv_gate(pn_model *m, pn_dtype type, const pn_kv_gate_params *params, pn_kv_gate *out, pn_err *err)
{
    pn_kv_gate_params p;
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    if (!m || !out)
        return pn_fail(err, PN_E_INVALID, "%s", m ? "no place for the result given" : "no model given");
    if (pn_gate_known(m, (uint32_t)type, &p, out))
        return PN_OK;
    gate_probe g = {.m = m};
    pn_status st = m->vocab_only ? pn_fail(err, PN_E_INVALID, "the model was loaded without weights")
                                 : pn_kv_check_type(&m->desc.state, (uint32_t)type, err);
    if (!st)
        st = gate_tokens(&g, err);
    if (!st)
        st = gate_open(&g, (uint32_t)type, &p, err);
    if (!st)
        st = gate_read(&g, err);
    gate_close(&g);
    if (st)
        return st;
    *out = (pn_kv_gate){.n_positions = g.compared, .kl = PN_MAX(g.kl / g.compared, 0.0), .top1 = (double)g.same / g.compared};
    pn_mutex_lock(&m->lock);
    m->gate[type] = *out;
    pn_mutex_unlock(&m->lock);
    gate_judge(out, &p);
    return PN_OK;
}
