/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * bench_requant.c - what does it cost to make a live conversation's pages smaller?
 *
 *     bench_requant [MODEL [TOKENS [COMPARED]]]      models/demo.gguf, 1536, 256
 *
 * Three sessions read the same text (the gate's, repeated) up to TOKENS.  In two of them all pages but the first and
 * the last two become Q8_0, in one of these Q4_0 after that.  Then all read COMPARED more, and what they expect next is
 * compared with the session that was left alone: mean divergence, how often the likeliest token is the same.
 */
#include "engine/pn_engine_int.h"
#include "engine/pn_gate.h"

#include "pn_test.h"

typedef struct rqb {
    pn_engine *e;
    pn_model *m;
    pn_token *ids;              /* owned, [n + k] */
    size_t n, k;
    float *want;                /* owned, [k, n_vocab] */
    float *got;                 /* owned, [RQB_STEP, n_vocab] */
} rqb;

enum { RQB_STEP = 16 };

static void rqb_check(pn_status st, const pn_err *err)
{
    if (st) {
        fprintf(stderr, "%s\n", err->text);
        exit(1);
    }
}

static void rqb_tokens(rqb *b)
{
    pn_err err = {0};
    size_t n = 0;
    pn_str s;
    pn_str_init(&s, pn_engine_mem(b->e), PN_ACCT_MISC);
    for (size_t i = 0; pn_gate_text(i); i++)
        pn_str_addz(&s, pn_gate_text(i));
    pn_token *all = malloc(s.len * sizeof *all);
    rqb_check(pn_tokenize(b->m, s.data, s.len, 0, all, s.len, &n, &err), &err);
    b->ids = malloc((b->n + b->k) * sizeof *b->ids);
    for (size_t i = 0; i < b->n + b->k; i++)
        b->ids[i] = all[i % n];
    free(all);
    pn_str_fini(&s);
}

static double rqb_log_sum(const float *x, size_t n, size_t *top)
{
    double sum = 0;
    *top = 0;
    for (size_t i = 0; i < n; i++)
        *top = x[i] > x[*top] ? i : *top;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)x[*top]);
    return (double)x[*top] + log(sum);
}

/* The last k tokens; compared with `want`, or remembered there. */
static void rqb_rest(rqb *b, pn_session *s, const char *name)
{
    const size_t V = pn_vocab_size(b->m);
    pn_err err = {0};
    double kl = 0;
    size_t same = 0;
    for (size_t at = 0, n; at < b->k; at += n) {
        n = PN_MIN((size_t)RQB_STEP, b->k - at);
        rqb_check(pn_session_eval_all(s, b->ids + b->n + at, n, name ? b->got : b->want + at * V, &err), &err);
        for (size_t i = 0; i < n && name; i++) {
            const float *x = b->want + (at + i) * V, *y = b->got + i * V;
            size_t tx, ty;
            double lx = rqb_log_sum(x, V, &tx), ly = rqb_log_sum(y, V, &ty);
            for (size_t e = 0; e < V; e++)
                kl += exp((double)x[e] - lx) * ((double)x[e] - lx - ((double)y[e] - ly));
            same += tx == ty;
        }
    }
    if (name)
        printf("%s: mean divergence %.5f, the same likeliest token %.2f %%\n", name, kl / (double)b->k, 100.0 * (double)same / (double)b->k);
}

static void rqb_convert(pn_session *s, uint32_t type)
{
    uint64_t gain = pn_session_requant_gain(s, type, false, false);
    double t = pn_os_now();
    uint64_t freed = pn_session_requant(s, type, false, false, 1e18);
    t = pn_os_now() - t;
    printf("to %s: %.2f MiB freed (%s), %.1f ms\n", pn_kv_type_name((pn_dtype)type), (double)freed / 1048576, freed == gain ? "as announced" : "NOT AS ANNOUNCED", 1e3 * t);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {NULL, "f16 to q8_0", "f16 to q8_0 to q4_0"};
    rqb b = {.n = argc > 2 ? (size_t)atol(argv[2]) : 1536, .k = argc > 3 ? (size_t)atol(argv[3]) : 256};
    pn_err err = {0};
    rqb_check(pn_engine_open(&b.e, NULL, &err), &err);
    rqb_check(pn_model_load(b.e, argc > 1 ? argv[1] : "models/demo.gguf", NULL, &b.m, &err), &err);
    rqb_tokens(&b);
    b.want = malloc(b.k * pn_vocab_size(b.m) * sizeof(float));
    b.got = malloc(RQB_STEP * pn_vocab_size(b.m) * sizeof(float));
    printf("%zu tokens, then %zu compared\n", b.n, b.k);
    for (int i = 0; i < 3; i++) {
        pn_session *s = NULL;
        rqb_check(pn_session_new(b.m, &(pn_session_params){.n_ctx = (uint32_t)(b.n + b.k), .by_turn = 1}, &s, &err), &err);
        rqb_check(pn_session_eval(s, b.ids, b.n, &err), &err);
        if (i)
            rqb_convert(s, PN_DTYPE_Q8_0);
        if (i == 2)
            rqb_convert(s, PN_DTYPE_Q4_0);
        rqb_rest(&b, s, names[i]);
        pn_session_free(s);
    }
    free(b.ids);
    free(b.want);
    free(b.got);
    pn_model_free(b.m);
    pn_engine_close(b.e);
    return 0;
}
