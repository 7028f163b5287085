/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_stream.c - weights that pass through a ring give the bits of weights that are all there: for every
 * architecture, with rings down to one block of two rows, whatever is pinned, whoever shares the step; and no
 * cancelled step, failed read or cut file leaves anything behind that a later step would notice.
 */
#include "engine/pn_engine_int.h"

#include "pn_test.h"

#include <math.h>
#include "pread_faults.h"

enum { STREAM_TOKENS = 24, STREAM_CTX = 128 };

static const char *const stream_models[] = {
    "models/demo.gguf",
    "tests/vectors/golden/arch/gemma2.gguf",
    "tests/vectors/golden/arch/gemma3.gguf",
    "tests/vectors/golden/arch/lfm2.gguf",                  /* recurrent layers */
    "tests/vectors/golden/arch/llama_gqa_tied.gguf",        /* the embedding is the head, too */
    "tests/vectors/golden/arch/llama_moe.gguf",
    "tests/vectors/golden/arch/llama_rope_freqs.gguf",
    "tests/vectors/golden/arch/llama_rope_linear.gguf",
    "tests/vectors/golden/arch/llama_yarn.gguf",
    "tests/vectors/golden/arch/mistral3.gguf",
    "tests/vectors/golden/arch/phi3.gguf",
    "tests/vectors/golden/arch/phi3_longrope.gguf",
    "tests/vectors/golden/arch/qwen2.gguf",
    "tests/vectors/golden/arch/qwen2moe.gguf",
    "tests/vectors/golden/arch/qwen3.gguf",
    "tests/vectors/golden/arch/qwen3moe.gguf",
};

static const char *const stream_types[] = {
    "bf16", "f16", "iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs", "iq4_nl", "iq4_xs", "mxfp4", "q2_k", "q4_0",
    "q4_1", "q5_0", "q5_1", "q5_k_m", "q8_0", "tq1_0", "tq2_0",
};

typedef struct stream_way {
    uint32_t threads, batch;
    uint64_t block;
    uint32_t depth;
    uint64_t pin, experts;
} stream_way;

typedef struct stream_rig {
    pn_engine *e;
    pn_model *m;
    pn_session *s;
    pn_token tokens[STREAM_TOKENS];
} stream_rig;

static bool rig_open(stream_rig *r, const char *path, const stream_way *w, bool streamed)
{
    pn_err err = {0};
    pn_model_params mp = {.residency = PN_RESIDENCY_MAP};
    uint64_t seed = 99;
    if (streamed)
        mp = (pn_model_params){.residency = PN_RESIDENCY_STREAM, .stream_block = w->block, .stream_depth = w->depth,
                               .pin_bytes = w->pin, .expert_cache_bytes = w->experts};
    memset(r, 0, sizeof *r);
    const pn_session_params sp = {.n_ctx = STREAM_CTX, .n_batch = w->batch};
    bool ok = PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = w->threads}, &err) == PN_OK, "%s", err.text) &&
              PN_CHECK(pn_model_load(r->e, path, &mp, &r->m, &err) == PN_OK, "%s", err.text) &&
              PN_CHECK(pn_session_new(r->m, &sp, &r->s, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < STREAM_TOKENS && ok; i++)
        r->tokens[i] = (pn_token)(pn_test_rand(&seed) % r->m->desc.n_vocab / (i % 3 + 1));
    return ok;
}

static void rig_close(stream_rig *r)
{
    pn_session_free(r->s);
    pn_model_free(r->m);
    if (r->e)
        for (int a = 0; a < PN_ACCT_COUNT; a++)
            PN_CHECK(a == PN_ACCT_SCRATCH || a == PN_ACCT_MISC || atomic_load(&r->e->ledger.used[a]) == 0, "account %d keeps bytes", a);
    pn_engine_close(r->e);
}

/* All logits of the rig's tokens, malloc'd. */
static float *rig_logits(stream_rig *r, size_t *bytes)
{
    pn_err err = {0};
    *bytes = (size_t)r->m->desc.n_vocab * STREAM_TOKENS * sizeof(float);
    float *out = malloc(*bytes);
    PN_CHECK(pn_session_truncate(r->s, 0, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_eval_all(r->s, r->tokens, STREAM_TOKENS, out, &err) == PN_OK, "%s", err.text);
    return out;
}

static float *stream_want(const char *path, size_t *bytes)
{
    stream_rig r;
    float *want = NULL;
    if (rig_open(&r, path, &(stream_way){.threads = 1, .batch = STREAM_TOKENS}, false))
        want = rig_logits(&r, bytes);
    rig_close(&r);
    return want;
}

static void bits_are_those_of_resident_weights(void)
{
    static const stream_way ways[] = {
        {1, STREAM_TOKENS, 0, 0, 0, 0},
        {2, STREAM_TOKENS, 8192, 1, 0, 1},              /* one block; the fewest experts */
        {2, 6, 8192, 3, 50000, 0},
        {4, 1, 24576, 2, 0, 0},
        {3, 5, 20480, 64, 1 << 20, UINT64_MAX},         /* more blocks than the tiniest have spans */
        {4, STREAM_TOKENS, 16384, 2, UINT64_MAX, 0},    /* all pinned */
    };
    for (size_t k = 0; k < PN_COUNT_OF(stream_models); k++) {
        size_t bytes = 0;
        float *want = stream_want(stream_models[k], &bytes);
        for (size_t i = pn_test_quick() ? k % 2 : 0; want && i < PN_COUNT_OF(ways); i += pn_test_quick() ? 2 : 1) {
            stream_rig r;
            stream_way w = ways[i];
            if (w.experts == 1) {                       /* below the least it says how much that is */
                pn_err err = {0};
                unsigned long long least = 0;
                stream_rig probe;
                if (rig_open(&probe, stream_models[k], &(stream_way){.threads = 1, .batch = 1}, true))
                    least = pn_experts_floor(&probe.m->store.stream->experts);
                w.experts = least;
                pn_model *m = NULL;
                const pn_model_params mp = {.residency = PN_RESIDENCY_STREAM, .expert_cache_bytes = least - 1};
                PN_CHECK(!least || pn_model_load(probe.e, stream_models[k], &mp, &m, &err) == PN_E_BUDGET, "%s", err.text);
                rig_close(&probe);
            }
            if (rig_open(&r, stream_models[k], &w, true))
                for (int again = 0; again < 2; again++) {
                    float *got = rig_logits(&r, &bytes);
                    PN_CHECK(memcmp(want, got, bytes) == 0, "%s, way %zu, time %d: other bits", stream_models[k], i, again);
                    free(got);
                }
            rig_close(&r);
        }
        free(want);
    }
}

/* Every type of weight: its rows have their own size, and its kernels their own groups of rows. */
static void bits_of_every_type_are_those_of_resident_weights(void)
{
    for (size_t k = 0; k < PN_COUNT_OF(stream_types); k++) {
        char path[128];
        size_t bytes = 0;
        snprintf(path, sizeof path, "tests/vectors/golden/quant/%s.gguf", stream_types[k]);
        float *want = stream_want(path, &bytes), *got;
        stream_rig r;
        if (want && rig_open(&r, path, &(stream_way){2, 1 + k % 9, 8192 + 4096 * (k % 4), 2, 40000, 0}, true)) {
            PN_CHECK(memcmp(want, got = rig_logits(&r, &bytes), bytes) == 0, "%s: other bits", path);
            free(got);
            rig_close(&r);
        }
        free(want);
    }
}

/* What a plan from the header says is what the ledger holds after loading. */
static void plans_are_exact(void)
{
    static const stream_way ways[] = {{1, 8, 0, 0, 0, 0}, {1, 8, 65536, 3, 150000, 0}, {1, 8, 20000, 2, UINT64_MAX, UINT64_MAX}};
    for (size_t k = 0; k < PN_COUNT_OF(stream_models); k++)
        for (size_t i = 0; i < PN_COUNT_OF(ways); i++) {
            stream_rig r;
            pn_err err = {0};
            pn_plan_info p;
            pn_residency_info is = {0};
            const pn_plan_params pp = {.residency = PN_RESIDENCY_STREAM, .stream_block = ways[i].block, .stream_depth = ways[i].depth,
                                       .pin_bytes = ways[i].pin, .expert_cache_bytes = ways[i].experts, .n_ctx = STREAM_CTX, .n_batch = 8};
            pn_file *f = NULL;
            if (rig_open(&r, stream_models[k], &ways[i], true) &&
                PN_CHECK(pn_file_open(r.e, stream_models[k], &f, &err) == PN_OK && pn_file_plan(f, &pp, &p, &err) == PN_OK, "%s", err.text)) {
                pn_model_residency(r.m, &is);
                uint64_t weights = atomic_load(&r.e->ledger.used[PN_ACCT_WEIGHTS]) - r.m->desc.pinned_bytes, stage = atomic_load(&r.e->ledger.used[PN_ACCT_STAGE]);
                PN_CHECK(weights == p.pinned_bytes + p.expert_bytes && stage == p.stage_bytes, "%s: planned %" PRIu64 " + %" PRIu64 " and %" PRIu64
                         ", taken %" PRIu64 " and %" PRIu64, stream_models[k], p.pinned_bytes, p.expert_bytes, p.stage_bytes, weights, stage);
                PN_CHECK(p.pinned_bytes <= ways[i].pin && p.total_bytes == p.anon_bytes);
                PN_CHECK(is.mode == PN_RESIDENCY_STREAM && is.pinned_bytes == p.pinned_bytes && is.ring_bytes == p.stage_bytes &&
                         is.expert_bytes == p.expert_bytes && is.step_bytes == p.streamed_bytes, "%s: report", stream_models[k]);
                PN_CHECK(pn_session_eval(r.s, r.tokens, 1, &err) == PN_OK, "%s", err.text);
                pn_model_residency(r.m, &is);
                PN_CHECK(is.compute_seconds > 0 && is.expected_tps > 0 && is.disk_bytes_per_second > 0 && is.stream_bytes > 0, "%s: no speed", stream_models[k]);
                PN_CHECK((is.expert_misses > 0) == (p.expert_bytes > 0), "%s: misses", stream_models[k]);
            }
            pn_file_close(f);
            rig_close(&r);
        }
}

/* ---- memory ------------------------------------------------------------------------------------- */

typedef struct stream_heap {
    atomic_long calls, out;
    long fail_at;
    pn_mem libc;
} stream_heap;

static void *heap_alloc(void *user, size_t size, size_t align)
{
    stream_heap *h = user;
    (void)align;
    if (atomic_fetch_add(&h->calls, 1) + 1 == h->fail_at)
        return NULL;
    atomic_fetch_add(&h->out, 1);
    return h->libc.alloc(&h->libc, PN_ACCT_MISC, size);
}

static void heap_free(void *user, void *p, size_t size)
{
    stream_heap *h = user;
    atomic_fetch_sub(&h->out, 1);
    h->libc.free(&h->libc, PN_ACCT_MISC, p, size);
}

/* Load, one step; with the k-th allocation refused, for every k.  */
static void every_allocation_may_fail_and_none_is_made_in_a_step(const char *path)
{
    const pn_model_params mp = {.residency = PN_RESIDENCY_STREAM, .stream_block = 65536, .pin_bytes = 200000};
    const pn_session_params sp = {.n_ctx = STREAM_CTX, .n_batch = 8};
    pn_token t = 3;
    for (long k = 1;; k++) {
        stream_heap h = {.fail_at = k};
        pn_mem_init_libc(&h.libc);
        pn_engine *e = NULL;
        pn_model *m = NULL;
        pn_session *s = NULL;
        pn_err err = {0};
        pn_status st = pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .allocator = {heap_alloc, heap_free, &h}}, &err);
        if (!st)
            st = pn_model_load(e, path, &mp, &m, &err);
        if (!st)
            st = pn_session_new(m, &sp, &s, &err);
        long before = atomic_load(&h.calls);
        for (int i = 0; i < 100 && !st; i++)
            st = pn_session_eval(s, &t, 1, &err);
        PN_CHECK(st || atomic_load(&h.calls) == before, "%s: 100 steps allocate %ld times", path, atomic_load(&h.calls) - before);
        pn_session_free(s);
        pn_model_free(m);
        pn_engine_close(e);
        PN_CHECK(atomic_load(&h.out) == 0, "%s: failing allocation %ld leaks %ld blocks", path, k, atomic_load(&h.out));
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "%s: failing allocation %ld gives %s", path, k, pn_status_name(st));
        if (st == PN_OK)
            return;
    }
}

/* Somebody else asks all the time. */
typedef struct stream_watch {
    pn_model *m;
    atomic_bool stop;
    pn_thread thread;
} stream_watch;

static void watch_main(void *arg)
{
    stream_watch *w = arg;
    pn_residency_info is;
    while (!atomic_load(&w->stop)) {
        pn_model_residency(w->m, &is);
        pn_thread_yield();
    }
}

static uint64_t stream_slots(const pn_stream *s)
{
    uint64_t n = 0;
    for (size_t i = 0; s && i < s->experts.n_layers; i++)
        n += s->experts.layers[i].n_slots;
    return n;
}

/* Spans with memory, slots of experts, streamers made, put in place or left: all that a slice may change, one at a time. */
static void stream_pieces(const pn_residency_store *s, int64_t n[5])
{
    const pn_stream *t = s->next ? s->next : s->stream;
    n[0] = t ? t->ring.n_pinned : 0;
    n[1] = (int64_t)stream_slots(t);
    n[2] = s->next && s->next->file;
    n[3] = s->next || s->stream;
    n[4] = s->leaving;
}

/* In one go, or in slices of no time, each of which does one piece, while steps in between have the same bits. */
static pn_status stream_convert(stream_rig *r, const pn_model_params *p, bool sliced)
{
    static float logits[1 << 16];
    const size_t bytes = PN_MIN((size_t)r->m->desc.n_vocab * sizeof(float), sizeof logits);
    int64_t was[5], is[5];
    bool done = false;
    pn_err err = {0};
    for (int n = 0; !done; n++) {
        stream_pieces(&r->m->store, was);
        bool had = r->m->store.stream != NULL;
        pn_status st = pn_model_convert(r->m, p, sliced ? 0 : INFINITY, &done, &err);
        stream_pieces(&r->m->store, is);
        int pieces = 0;
        for (int i = 0; i < 5; i++)
            pieces += (int)PN_MAX(is[i] - was[i], was[i] - is[i]);
        if (st)
            return st;
        if (had == (r->m->store.stream != NULL))        /* else readers were started, or stopped, with the last piece */
            PN_CHECK(!sliced || pieces == 1 || (pieces == 0 && r->m->store.leaving), "a slice of %d pieces", pieces);
        if (!PN_CHECK(n < 5000 && (sliced || done), "%d slices", n))
            break;
        if (!sliced || n % 5)
            continue;
        PN_CHECK(pn_session_truncate(r->s, 0, &err) == PN_OK && pn_session_eval(r->s, r->tokens, 5, &err) == PN_OK, "%s", err.text);
        if (n)
            PN_CHECK(memcmp(logits, pn_session_logits(r->s), bytes) == 0, "other bits on the way, slice %d", n);
        memcpy(logits, pn_session_logits(r->s), bytes);
    }
    return PN_OK;
}

/* What is to be pinned is read by the steps that come by, once more at most, and not on the thread that asked for it. */
static void spans_are_pinned_as_they_pass(const char *path)
{
    stream_rig r;
    pn_err err = {0};
    size_t bytes = 0;
    float *want = stream_want(path, &bytes), *got;
    faults_clear();
    if (want && rig_open(&r, path, &(stream_way){.threads = 2, .batch = STREAM_TOKENS, .block = 8192, .depth = 3}, true)) {
        pn_ring *g = &r.m->store.stream->ring;
        uint64_t all = pn_ring_pinnable(g, UINT64_MAX), ahead = (uint64_t)g->depth * g->block_bytes;
        for (int round = 0; round < 3; round++) {
            pn_residency_info was, is;
            bool done = false;
            atomic_store(&faults.delay_us, round == 1 ? 2000 : 0);      /* nearly all of them are read in the step */
            pn_model_residency(r.m, &was);
            for (uint32_t n = 0; !done; n++)
                if (!PN_CHECK(g->n_pinned == n && pn_residency_repin(&r.m->store, all, 0, &done, &err) == PN_OK, "%u of %u: %s", g->n_pinned, n, err.text))
                    break;
            PN_CHECK(done && g->n_pinned == g->n_spans, "%u of %zu spans", g->n_pinned, g->n_spans);
            uint64_t most = 2 * ahead + was.step_bytes;
            for (int pass = 0; pn_residency_filling(&r.m->store); pass++) {
                pn_model_residency(r.m, &is);
                most += is.step_bytes + STREAM_TOKENS * (r.m->store.stream->rows.row_bytes + PN_DIRECT_ALIGN) + pn_experts_all(&r.m->store.stream->experts);
                if (!PN_CHECK(pass < 30, "a span is not there"))
                    break;
                PN_CHECK(memcmp(want, got = rig_logits(&r, &bytes), bytes) == 0, "%s: other bits, round %d, pass %d", path, round, pass);
                free(got);
            }
            pn_model_residency(r.m, &is);
            PN_CHECK(is.stream_bytes - was.stream_bytes <= most, "%s: %" PRIu64 " bytes read, at most %" PRIu64 " expected", path,
                     is.stream_bytes - was.stream_bytes, most);
            PN_CHECK(is.step_bytes == 0, "%" PRIu64 " bytes are read in a step yet", is.step_bytes);
            PN_CHECK(memcmp(want, got = rig_logits(&r, &bytes), bytes) == 0, "%s: other bits when pinned", path);
            free(got);
            for (uint32_t n = g->n_spans; g->n_pinned; n--)
                if (!PN_CHECK(g->n_pinned == n && pn_residency_repin(&r.m->store, 0, 0, &done, &err) == PN_OK, "%u of %u left", g->n_pinned, n))
                    break;
            PN_CHECK(done && g->pinned_bytes == 0, "%" PRIu64 " bytes are left", g->pinned_bytes);
            PN_CHECK(memcmp(want, got = rig_logits(&r, &bytes), bytes) == 0, "%s: other bits when not", path);
            free(got);
        }
    }
    faults_clear();
    rig_close(&r);
    free(want);
}

/* More and fewer, with steps in between that find spans in every state. */
static void spans_may_change_in_the_middle(const char *path)
{
    stream_rig r;
    pn_err err = {0};
    size_t bytes = 0;
    float *want = stream_want(path, &bytes), *got;
    uint64_t seed = 7;
    if (want && rig_open(&r, path, &(stream_way){.threads = 2, .batch = STREAM_TOKENS, .block = 8192, .depth = 4}, true)) {
        uint64_t all = r.m->store.stream->ring.bytes * 2;
        for (int round = 0; round < 40; round++) {
            uint64_t target = pn_test_rand(&seed) % all;
            bool done;
            atomic_store(&faults.delay_us, round % 3 ? (int)(pn_test_rand(&seed) % 500) : 0);
            for (uint64_t n = pn_test_rand(&seed) % 12; n; n--)
                PN_CHECK(pn_residency_repin(&r.m->store, target, 0, &done, &err) == PN_OK, "%s", err.text);
            PN_CHECK(memcmp(want, got = rig_logits(&r, &bytes), bytes) == 0, "%s: other bits, round %d", path, round);
            free(got);
        }
    }
    faults_clear();
    rig_close(&r);
    free(want);
}

/* Mapped, streamed with more and with less pinned, mapped again: the same bits all along, and no byte is lost. */
static void residency_may_change_between_steps(const char *path)
{
    stream_rig r;
    pn_err err = {0};
    size_t bytes = 0;
    float *want = stream_want(path, &bytes), *got;
    const pn_model_params to_stream = {.residency = PN_RESIDENCY_STREAM, .stream_block = 24576, .stream_depth = 2},
                          to_map = {.residency = PN_RESIDENCY_MAP};
    if (want && rig_open(&r, path, &(stream_way){.threads = 2, .batch = 9}, false)) {
        pn_residency_store *store = &r.m->store;
        uint64_t was = atomic_load(&r.e->ledger.total);
        stream_watch watch = {.m = r.m};
        bool watched = pn_thread_start(&watch.thread, watch_main, &watch);
        bool done;
        for (int round = 0; round < 2; round++) {
            PN_CHECK(stream_convert(&r, &to_stream, round) == PN_OK, "%s", err.text);
            PN_CHECK(store->stream && atomic_load(&r.e->ledger.used[PN_ACCT_WEIGHTS_MAP]) == 0, "still mapped");
            uint64_t all = store->stream->ring.bytes * 2, target[] = {all / 3, all, all / 5, 0};
            for (size_t i = 0; i < PN_COUNT_OF(target); i++) {
                int steps = 0;
                for (done = false; !done && steps < 2000; steps++) {
                    PN_CHECK(pn_residency_repin(store, target[i], 0, &done, &err) == PN_OK, "%s", err.text);
                    uint64_t p = store->stream->ring.pinned_bytes;
                    uint64_t e = store->stream->experts.n_layers ? pn_experts_memory(&store->stream->experts, store->stream->p.expert_bytes) : 0;
                    PN_CHECK(atomic_load(&r.e->ledger.used[PN_ACCT_WEIGHTS]) == r.m->desc.pinned_bytes + p + e, "the ledger says otherwise");
                    if (steps % 4 == 0)
                        PN_CHECK(pn_session_truncate(r.s, 0, &err) == PN_OK && pn_session_eval(r.s, r.tokens, 5, &err) == PN_OK, "%s", err.text);
                }
                PN_CHECK(store->stream->ring.pinned_bytes == pn_ring_pinnable(&store->stream->ring, target[i]), "target %zu in %d steps", i, steps);
                PN_CHECK(memcmp(want, got = rig_logits(&r, &bytes), bytes) == 0, "%s: other bits with %" PRIu64 " pinned", path, target[i]);
                free(got);
            }
            for (int k = 0; k < 4 && store->stream->experts.n_layers; k++) {
                uint64_t least = pn_experts_floor(&store->stream->experts), most = pn_experts_all(&store->stream->experts);
                PN_CHECK(pn_residency_resize_experts(store, least - 1, INFINITY, &done, &err) == PN_E_BUDGET, "less than the floor");
                PN_CHECK(pn_residency_resize_experts(store, k % 2 ? most : least, INFINITY, &done, &err) == PN_OK, "%s", err.text);
                PN_CHECK(memcmp(want, got = rig_logits(&r, &bytes), bytes) == 0, "%s: other bits with other experts", path);
                free(got);
            }
            r.e->ledger.limit = atomic_load(&r.e->ledger.total) + 1000;     /* no room: nothing changes */
            uint64_t had = store->stream->ring.pinned_bytes;
            PN_CHECK(pn_residency_repin(store, all, 0, &done, &err) == PN_E_NOMEM && store->stream->ring.pinned_bytes == had, "pinned without room");
            r.e->ledger.limit = 0;
            PN_CHECK(stream_convert(&r, &to_map, round) == PN_OK && !store->stream, "%s", err.text);
            PN_CHECK(atomic_load(&r.e->ledger.total) == was && atomic_load(&r.e->ledger.used[PN_ACCT_WEIGHTS_MAP]) == r.m->desc.weight_bytes, "bytes lost");
            PN_CHECK(memcmp(want, got = rig_logits(&r, &bytes), bytes) == 0, "%s: other bits mapped again", path);
            free(got);
            r.e->ledger.limit = was + 1000;
            PN_CHECK(stream_convert(&r, &to_stream, round) == PN_E_NOMEM && !store->stream && atomic_load(&r.e->ledger.total) == was, "half streamed");
            r.e->ledger.limit = 0;
        }
        atomic_store(&watch.stop, true);
        if (watched)
            pn_thread_join(&watch.thread);
    }
    rig_close(&r);
    free(want);
}

static void wrong_sizes_are_refused(void)
{
    static const struct { uint64_t block; pn_status want; } sizes[] = {{1, PN_E_INVALID}, {UINT64_MAX, PN_E_INVALID}, {(uint64_t)1 << 40, PN_E_INVALID}, {1 << 20, PN_OK}};
    pn_engine *e = NULL;
    pn_err err = {0};
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < PN_COUNT_OF(sizes); i++) {
        pn_model *m = NULL;
        const pn_model_params mp = {.residency = PN_RESIDENCY_STREAM, .stream_block = sizes[i].block, .stream_depth = 1000};
        pn_status st = pn_model_load(e, stream_models[0], &mp, &m, &err);
        PN_CHECK(st == sizes[i].want, "%" PRIu64 ": %s", sizes[i].block, err.text);
        pn_model_free(m);
    }
    pn_engine_close(e);
}

/* ---- where bytes come from, and how many -------------------------------------------------------- */

typedef struct stream_bytes {
    char *data;
    size_t n;
} stream_bytes;

static pn_status bytes_read(void *user, uint64_t offset, void *dst, size_t n)
{
    const stream_bytes *b = user;
    if (offset > b->n || n > b->n - offset)
        return PN_E_IO;                                 /* nobody may ask for what is not there */
    memcpy(dst, b->data + offset, n);
    return PN_OK;
}

static void callbacks_and_memory_may_be_streamed(const char *path)
{
    stream_bytes b = {0};
    size_t bytes = 0;
    float *want = stream_want(path, &bytes);
    b.data = pn_test_read_file(path, &b.n);
    const pn_model_params mp = {.residency = PN_RESIDENCY_STREAM, .stream_block = 32768, .pin_bytes = 100000};
    for (int way = 0; way < 2 && b.data && want; way++) {
        stream_rig r = {0}, like;
        pn_err err = {0};
        pn_file *f = NULL;
        rig_open(&like, path, &(stream_way){.threads = 1, .batch = 1}, false);
        PN_CHECK(pn_engine_open(&r.e, &(pn_engine_params){.n_threads = 2}, &err) == PN_OK, "%s", err.text);
        pn_status st = way ? pn_file_open_memory(r.e, b.data, b.n, &f, &err)
                           : pn_file_open_reader(r.e, &(pn_reader){.read = bytes_read, .user = &b, .size = b.n}, &f, &err);
        if (PN_CHECK(st == PN_OK, "%s", err.text) && PN_CHECK(pn_model_load_file(f, &mp, &r.m, &err) == PN_OK, "%s", err.text) &&
            PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = STREAM_CTX}, &r.s, &err) == PN_OK, "%s", err.text)) {
            memcpy(r.tokens, like.tokens, sizeof r.tokens);
            float *got = rig_logits(&r, &bytes);
            PN_CHECK(memcmp(want, got, bytes) == 0, "source %d: other bits", way);
            free(got);
        }
        pn_file_close(f);
        rig_close(&like);
        rig_close(&r);
    }
    free(b.data);
    free(want);
}

/* A model over two dies: each reads its part, so a step has two passes. */
static void both_parts_of_a_split_model_are_streamed(const char *path)
{
    static const uint32_t dies[] = {0, 1};
    size_t bytes = 0;
    float *want = stream_want(path, &bytes);
    const pn_model_params mp = {.residency = PN_RESIDENCY_STREAM, .stream_block = 20000, .stream_depth = 3, .pin_bytes = 50000, .dies = dies, .n_dies = 2};
    stream_rig r = {0}, like;
    pn_err err = {0};
    rig_open(&like, path, &(stream_way){.threads = 1, .batch = 1}, false);
    memcpy(r.tokens, like.tokens, sizeof r.tokens);
    rig_close(&like);
    if (want && PN_CHECK(pn_engine_open(&r.e, &(pn_engine_params){.n_threads = 2, .sim_dies = "2"}, &err) == PN_OK, "%s", err.text) &&
        PN_CHECK(pn_model_load(r.e, path, &mp, &r.m, &err) == PN_OK, "%s", err.text) &&
        PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = STREAM_CTX, .n_batch = 10}, &r.s, &err) == PN_OK, "%s", err.text))
        for (int i = 0; i < 2; i++) {
            float *got = rig_logits(&r, &bytes);
            PN_CHECK(memcmp(want, got, bytes) == 0, "%s: other bits over two dies", path);
            free(got);
        }
    rig_close(&r);
    free(want);
}

/* However few experts there is room for, a chunk reads each of them once at most. */
static void a_chunk_reads_no_expert_twice(const char *path)
{
    stream_rig r;
    bool done;
    pn_err err = {0};
    if (rig_open(&r, path, &(stream_way){.threads = 3, .batch = STREAM_TOKENS, .block = 65536, .depth = 2}, true)) {
        pn_stream *s = r.m->store.stream;
        PN_CHECK(pn_residency_resize_experts(&r.m->store, pn_experts_floor(&s->experts), INFINITY, &done, &err) == PN_OK && done, "%s", err.text);
        uint64_t rows = STREAM_TOKENS * (s->rows.row_bytes + PN_DIRECT_ALIGN), ahead = 2 * s->ring.depth * s->ring.block_bytes;
        for (int i = 0; i < 3; i++) {
            pn_residency_info was, is;
            pn_model_residency(r.m, &was);
            PN_CHECK(pn_session_truncate(r.s, 0, &err) == PN_OK && pn_session_eval(r.s, r.tokens, STREAM_TOKENS, &err) == PN_OK, "%s", err.text);
            pn_model_residency(r.m, &is);
            uint64_t most = is.step_bytes + rows + ahead + pn_experts_all(&s->experts);
            PN_CHECK(is.stream_bytes - was.stream_bytes <= most, "%s: %" PRIu64 " bytes read, at most %" PRIu64 " expected", path,
                     is.stream_bytes - was.stream_bytes, most);
            PN_CHECK(is.expert_hits + is.expert_misses > was.expert_hits + was.expert_misses, "nothing was counted");
        }
    }
    rig_close(&r);
}

/* ---- steps that do not end as they should ------------------------------------------------------- */

static int tick_at(void *user, uint32_t done, uint32_t total)
{
    (void)done, (void)total;
    return --*(long *)user == 0;
}

/* Cut short at its k-th tick, for every k until one is not cut short any more. */
static void a_cancelled_step_wedges_nothing(const char *path, const stream_way *w)
{
    size_t bytes = 0;
    float *want = stream_want(path, &bytes);
    stream_rig r;
    pn_err err = {0};
    int cut = 0;
    faults_clear();
    atomic_store(&faults.delay_us, 300);                /* a disk slow enough to be waited for */
    if (want && rig_open(&r, path, w, true)) {
        for (long k = 1; k < 60; k += 1 + k / 8) {
            long left = k;
            pn_session_on_tick(r.s, tick_at, &left);
            pn_session_truncate(r.s, 0, &err);
            pn_status st = pn_session_eval(r.s, r.tokens, STREAM_TOKENS, &err);
            PN_CHECK(st == PN_OK || st == PN_E_CANCELLED, "%s", err.text);
            cut += st == PN_E_CANCELLED;
            pn_session_on_tick(r.s, NULL, NULL);
            if (k % 3 == 1) {                           /* else it is the next cut step that finds the mess */
                atomic_store(&faults.delay_us, 0);
                float *got = rig_logits(&r, &bytes);
                PN_CHECK(memcmp(want, got, bytes) == 0, "%s: cut at tick %ld, other bits after", path, k);
                free(got);
                atomic_store(&faults.delay_us, 300);
            }
        }
        PN_CHECK(!PREAD_FAULTS || cut > 3, "%s: only %d steps were cut short", path, cut);
        rig_close(&r);
    }
    faults_clear();
    free(want);
}

/* Steps without any wanted row, embeddings, and rows one by one, in turn. */
static void steps_of_all_kinds_may_follow_each_other(const char *path, const stream_way *w)
{
    size_t bytes = 0;
    float *want = stream_want(path, &bytes);
    stream_rig r;
    pn_err err = {0};
    if (want && rig_open(&r, path, w, true)) {
        float *hidden[2] = {malloc(r.m->desc.n_embd * sizeof(float)), malloc(r.m->desc.n_embd * sizeof(float))};
        for (int i = 0; i < 3; i++) {
            float *got = rig_logits(&r, &bytes);
            PN_CHECK(memcmp(want, got, bytes) == 0, "%s: other bits", path);
            free(got);
            pn_session_truncate(r.s, 0, &err);
            PN_CHECK(pn_session_embed(r.s, r.tokens, STREAM_TOKENS, PN_POOLING_MEAN, 1, hidden[i > 0], &err) == PN_OK, "%s", err.text);
            PN_CHECK(i == 0 || memcmp(hidden[0], hidden[1], r.m->desc.n_embd * sizeof(float)) == 0, "%s: other embedding", path);
            pn_session_truncate(r.s, 0, &err);
            for (int k = 0; k < 5; k++)
                PN_CHECK(pn_session_eval(r.s, r.tokens + k, 1, &err) == PN_OK, "%s", err.text);
            PN_CHECK(memcmp((char *)want + bytes / STREAM_TOKENS * 4, pn_session_logits(r.s), bytes / STREAM_TOKENS) == 0, "%s: row by row", path);
        }
        free(hidden[0]);
        free(hidden[1]);
        rig_close(&r);
    }
    free(want);
}

/* ---- trouble with the file ---------------------------------------------------------------------- */

static void a_read_that_fails_fails_its_step_and_no_other(const char *path, const stream_way *w)
{
    size_t bytes = 0;
    float *want = stream_want(path, &bytes);
    stream_rig r;
    pn_err err = {0};
    int failed = 0;
    if (!PREAD_FAULTS) {
        pn_test_skip("no pread of our own");
        free(want);
        return;
    }
    if (want && rig_open(&r, path, w, true)) {
        for (long k = 1; k < 40; k += 3) {
            faults_clear();
            atomic_store(&faults.fail_errno, EIO);
            atomic_store(&faults.fail_at, k);
            err.text[0] = 0;
            pn_session_truncate(r.s, 0, &err);
            pn_status st = pn_session_eval(r.s, r.tokens, STREAM_TOKENS, &err);
            PN_CHECK(st == PN_OK || (st == PN_E_IO && strstr(err.text, path) && strstr(err.text, "offset")), "%d %s", (int)st, err.text);
            failed += st == PN_E_IO;
            faults_clear();
            float *got = rig_logits(&r, &bytes);
            PN_CHECK(memcmp(want, got, bytes) == 0, "%s: read %ld failed, other bits after", path, k);
            free(got);
        }
        PN_CHECK(failed > 0, "no read failed");
        atomic_store(&faults.eintr_every, 2);
        atomic_store(&faults.short_by, 4096);
        float *got = rig_logits(&r, &bytes);
        PN_CHECK(memcmp(want, got, bytes) == 0, "%s: short reads, other bits", path);
        free(got);
        faults_clear();
        atomic_store(&faults.refuse_direct, true);
        got = rig_logits(&r, &bytes);
        PN_CHECK(memcmp(want, got, bytes) == 0, "%s: through the cache, other bits", path);
        free(got);
        faults_clear();
        rig_close(&r);
    }
    free(want);
}

static void a_file_cut_short_fails_steps_until_it_is_whole_again(void)
{
    char path[128];
    size_t len = 0, bytes = 0;
    char *text = pn_test_read_file(stream_models[0], &len);
    float *want = stream_want(stream_models[0], &bytes);
    pn_err err = {0};
    stream_rig r;
    snprintf(path, sizeof path, "/tmp/pn_stream_%ld.gguf", (long)getpid());
    FILE *f = fopen(path, "wb");
    if (!f || !text || fwrite(text, 1, len, f) != len || fclose(f)) {
        pn_test_skip("%s cannot be written", path);
        free(text);
        free(want);
        return;
    }
    if (rig_open(&r, path, &(stream_way){.threads = 2, .batch = STREAM_TOKENS, .block = 65536, .depth = 2}, true)) {
        PN_CHECK(truncate(path, (off_t)(len / 2)) == 0);
        for (int i = 0; i < 3; i++) {
            pn_session_truncate(r.s, 0, &err);
            PN_CHECK(pn_session_eval(r.s, r.tokens, STREAM_TOKENS, &err) == PN_E_IO && strstr(err.text, "ends at byte"), "%s", err.text);
        }
        f = fopen(path, "r+b");
        if (PN_CHECK(f && fwrite(text, 1, len, f) == len && fclose(f) == 0)) {
            float *got = rig_logits(&r, &bytes);
            PN_CHECK(want && memcmp(want, got, bytes) == 0, "other bits");
            free(got);
        }
        rig_close(&r);
    }
    remove(path);
    free(text);
    free(want);
}

int main(void)
{
    static const stream_way small = {2, STREAM_TOKENS, 8192, 2, 0, 0}, large = {3, 16, 65536, 3, 100000, 0};
    bits_are_those_of_resident_weights();
    bits_of_every_type_are_those_of_resident_weights();
    plans_are_exact();
    wrong_sizes_are_refused();
    every_allocation_may_fail_and_none_is_made_in_a_step("tests/vectors/golden/arch/qwen2.gguf");
    every_allocation_may_fail_and_none_is_made_in_a_step("tests/vectors/golden/arch/llama_moe.gguf");
    callbacks_and_memory_may_be_streamed("models/demo.gguf");
    callbacks_and_memory_may_be_streamed("tests/vectors/golden/arch/llama_moe.gguf");
    both_parts_of_a_split_model_are_streamed("models/demo.gguf");
    both_parts_of_a_split_model_are_streamed("tests/vectors/golden/arch/llama_gqa_tied.gguf");
    both_parts_of_a_split_model_are_streamed("tests/vectors/golden/arch/qwen2moe.gguf");
    a_chunk_reads_no_expert_twice("tests/vectors/golden/arch/llama_moe.gguf");
    a_chunk_reads_no_expert_twice("tests/vectors/golden/arch/qwen3moe.gguf");
    spans_are_pinned_as_they_pass("models/demo.gguf");
    spans_are_pinned_as_they_pass("tests/vectors/golden/arch/qwen2moe.gguf");
    spans_may_change_in_the_middle("models/demo.gguf");
    spans_may_change_in_the_middle("tests/vectors/golden/arch/llama_gqa_tied.gguf");
    residency_may_change_between_steps("models/demo.gguf");
    residency_may_change_between_steps("tests/vectors/golden/arch/llama_gqa_tied.gguf");
    residency_may_change_between_steps("tests/vectors/golden/arch/qwen2moe.gguf");
    for (size_t k = 0; k < PN_COUNT_OF(stream_models); k += 3) {        /* dense, tied, windows, experts */
        a_cancelled_step_wedges_nothing(stream_models[k], &small);
        steps_of_all_kinds_may_follow_each_other(stream_models[k], k % 2 ? &small : &large);
        a_read_that_fails_fails_its_step_and_no_other(stream_models[k], &large);
    }
    a_cancelled_step_wedges_nothing("tests/vectors/golden/arch/qwen3moe.gguf", &(stream_way){2, STREAM_TOKENS, 8192, 2, 0, 0});
    a_read_that_fails_fails_its_step_and_no_other("tests/vectors/golden/arch/llama_moe.gguf", &small);
    a_file_cut_short_fails_steps_until_it_is_whole_again();
    return pn_test_end();
}
