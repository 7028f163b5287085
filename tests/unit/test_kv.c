/*
 * test_kv.c - pages of a sequence: sizes, windows, truncation, sharing, smaller types.
 */
#include "store/pn_kv.h"

#include "cpu/pn_cpu.h"
#include "num/pn_quant.h"
#include "pn_test.h"

enum { P = PN_KV_PAGE_TOKENS };

static const pn_state_spec kv_spec = {
    .group = {{.n_layers = 2, .n_heads = 3, .d_k = 64, .d_v = 64}, {.n_layers = 5, .n_heads = 3, .d_k = 64, .d_v = 64, .window = 100}},
    .n_groups = 2};

/* Bytes a token of well-known models: Llama-3.1-8B, Llama-3.2-1B, SmolLM2-135M, the full layers of Qwen3.6-35B-A3B. */
static void bytes_per_token_of_known_models(void)
{
    static const struct { uint32_t layers, heads, d; uint64_t f16, q8_0, q4_0; } known[] = {
        {32, 8, 128, 131072, 69632, 36864}, {16, 8, 64, 32768, 17408, 9216}, {30, 3, 64, 23040, 12240, 6480}, {10, 2, 256, 20480, 10880, 5760}};
    for (size_t i = 0; i < PN_COUNT_OF(known); i++) {
        pn_state_spec s = {.n_groups = 1};
        s.group[0] = (pn_stream_group){.n_layers = known[i].layers, .n_heads = known[i].heads, .d_k = known[i].d, .d_v = known[i].d};
        PN_CHECK(pn_kv_bytes_per_token(&s, PN_DTYPE_F16) == known[i].f16, "model %zu", i);
        PN_CHECK(pn_kv_bytes_per_token(&s, PN_DTYPE_F32) == 2 * known[i].f16, "model %zu", i);
        PN_CHECK(pn_kv_bytes_per_token(&s, PN_DTYPE_Q8_0) == known[i].q8_0 && pn_kv_bytes_per_token(&s, PN_DTYPE_Q4_0) == known[i].q4_0, "model %zu", i);
        PN_CHECK(pn_kv_bytes_per_token(&s, PN_DTYPE_Q5_1) == known[i].f16 * 24 / 64 && pn_kv_bytes_per_token(&s, PN_DTYPE_Q5_0) == known[i].f16 * 22 / 64 &&
                 pn_kv_bytes_per_token(&s, PN_DTYPE_Q4_1) == known[i].f16 * 20 / 64, "model %zu", i);
    }
}

/* Every type's planes follow each other without a gap, mixed ones too, and rows of a block type are whole blocks. */
static void planes_fill_a_page(void)
{
    static const uint32_t types[] = {PN_DTYPE_F32, PN_DTYPE_F16, PN_DTYPE_Q8_0, PN_DTYPE_Q5_1, PN_DTYPE_Q5_0, PN_DTYPE_Q4_1, PN_DTYPE_Q4_0};
    static const pn_stream_group g = {.n_layers = 2, .n_heads = 3, .d_k = 96, .d_v = 64};
    for (size_t i = 0; i < PN_COUNT_OF(types); i++)
        for (size_t j = 0; j < PN_COUNT_OF(types); j++) {
            uint8_t *base = (uint8_t *)(uintptr_t)4096, *at = base;
            const pn_kv_page p = {.data = base, .k_type = (uint8_t)types[i], .v_type = (uint8_t)types[j]};
            uint64_t k, v;
            PN_CHECK(pn_dtype_row_bytes(types[i], g.d_k, &k) && pn_dtype_row_bytes(types[j], g.d_v, &v), " ");
            for (uint32_t n = 0; n < 6; n++) {
                PN_CHECK(pn_kv_k_plane(&g, &p, n / 3, n % 3) == at && (uintptr_t)at % 64 == 0, "keys of %u", (unsigned)n);
                PN_CHECK(pn_kv_v_plane(&g, &p, n / 3, n % 3) == at + P * k, "values of %u", (unsigned)n);
                at += P * (k + v);
            }
            PN_CHECK(pn_kv_page_bytes(&g, types[i], types[j]) == (uint64_t)(at - base), "types %u and %u", (unsigned)types[i], (unsigned)types[j]);
        }
}

static void types_of_blocks_want_heads_of_blocks(void)
{
    pn_state_spec s = {.group = {{.n_layers = 1, .n_heads = 1, .d_k = 64, .d_v = 64}, {.n_layers = 1, .n_heads = 1, .d_k = 96, .d_v = 80}}, .n_groups = 2};
    pn_err err;
    PN_CHECK(pn_kv_check_type(&s, PN_DTYPE_F16, NULL) == PN_OK && pn_kv_check_type(&s, PN_DTYPE_F32, NULL) == PN_OK, " ");
    PN_CHECK(pn_kv_check_type(&s, PN_DTYPE_Q8_0, &err) == PN_E_UNSUPPORTED && strstr(err.text, "80") && strstr(err.text, "q8_0"), "%s", err.text);
    PN_CHECK(pn_kv_check_type(&s, PN_DTYPE_Q4_K, &err) == PN_E_UNSUPPORTED && strstr(err.text, "Q4_K"), "%s", err.text);
    PN_CHECK(pn_kv_check_type(&s, PN_DTYPE_BF16, &err) == PN_E_UNSUPPORTED && pn_kv_check_type(&s, 1000, &err) == PN_E_UNSUPPORTED, "%s", err.text);
    s.group[1].d_v = 96;
    PN_CHECK(pn_kv_check_type(&s, PN_DTYPE_Q8_0, NULL) == PN_OK, " ");
}

static bool visible_pages_are_there(const pn_kv *kv, uint32_t g, uint32_t pos)
{
    uint32_t w = kv->spec->group[g].window, lo = w && pos + 1 > w ? pos + 1 - w : 0;
    for (uint32_t i = lo / P; i <= pos / P; i++)
        if (!kv->group[g].table[i])
            return false;
    return true;
}

static void windows_keep_what_queries_see_and_no_more(void)
{
    static const uint32_t steps[] = {1, 7, 64, 130};
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        pn_test_mem m;
        pn_kv kv;
        pn_err err;
        uint32_t n_ctx = 1000, batch = 130;
        uint64_t bytes, pages;
        pn_test_mem_init(&m, 0);
        if (!PN_CHECK(pn_kv_open(&kv, &m.mem, &kv_spec, n_ctx, batch, PN_DTYPE_F16, &err) == PN_OK, "%s", err.text))
            return;
        PN_CHECK(pn_kv_bytes(&kv_spec, n_ctx, batch, PN_DTYPE_F16, &bytes, &pages) && bytes == m.bytes,
                 "said %" PRIu64 " bytes, took %" PRIu64, bytes, m.bytes);
        PN_CHECK(kv.group[0].n_pages == (1000 + P - 1) / P && kv.group[1].n_pages < kv.group[0].n_pages, "%u and %u pages",
                 (unsigned)kv.group[0].n_pages, (unsigned)kv.group[1].n_pages);
        while (kv.length + steps[k] <= n_ctx) {
            pn_kv_prepare(&kv, steps[k]);
            for (uint32_t g = 0; g < 2; g++)
                for (uint32_t i = 0; i < steps[k]; i++)
                    PN_CHECK(visible_pages_are_there(&kv, g, kv.length + i), "group %u, position %u", (unsigned)g,
                             (unsigned)(kv.length + i));
            pn_kv_commit(&kv, steps[k]);
        }
        pn_kv_close(&kv);
        PN_CHECK(m.outstanding == 0, "%ld blocks left", m.outstanding);
    }
}

/* The count of pages of a window is what the worst batch needs, and no more. */
static void windows_reserve_exactly_what_can_be_in_use(void)
{
    static const uint32_t windows[] = {1, 2, 12, 63, 64, 65, 66, 100, 128, 129, 130}, batches[] = {1, 2, 63, 64, 65, 66, 67, 130};
    for (size_t w = 0; w < PN_COUNT_OF(windows); w++)
        for (size_t b = 0; b < PN_COUNT_OF(batches); b++) {
            pn_state_spec spec = {.group = {{.n_layers = 1, .n_heads = 1, .d_k = 1, .d_v = 1, .window = windows[w]}}, .n_groups = 1};
            pn_test_mem m;
            pn_kv kv;
            pn_test_mem_init(&m, 0);
            PN_CHECK(pn_kv_open(&kv, &m.mem, &spec, 1200, batches[b], PN_DTYPE_F16, NULL) == PN_OK, " ");
            uint32_t least = UINT32_MAX;
            for (uint32_t start = 0; start < P; start++) {
                pn_kv_truncate(&kv, 0);
                while (kv.length < 300 + start) {
                    pn_kv_prepare(&kv, 1);
                    pn_kv_commit(&kv, 1);
                }
                for (int i = 0; i < 3; i++) {
                    pn_kv_prepare(&kv, batches[b]);
                    least = PN_MIN(least, kv.group[0].n_free);
                    pn_kv_commit(&kv, batches[b]);
                }
            }
            PN_CHECK(least == 0, "window %u, batch %u: %u pages are never used", (unsigned)windows[w], (unsigned)batches[b],
                     (unsigned)least);
            pn_kv_close(&kv);
        }
}

static void truncation_is_refused_behind_the_window(void)
{
    pn_test_mem m;
    pn_kv kv;
    pn_test_mem_init(&m, 0);
    PN_CHECK(pn_kv_open(&kv, &m.mem, &kv_spec, 1000, 50, PN_DTYPE_F32, NULL) == PN_OK, " ");
    for (int i = 0; i < 10; i++) {
        pn_kv_prepare(&kv, 50);
        pn_kv_commit(&kv, 50);
    }
    PN_CHECK(kv.length == 500, "%u", (unsigned)kv.length);
    PN_CHECK(!pn_kv_truncate(&kv, 600) && pn_kv_truncate(&kv, 500) && pn_kv_truncate(&kv, 499), "near the end");
    PN_CHECK(!pn_kv_truncate(&kv, 100) && kv.length == 499, "position 100 was still held");
    PN_CHECK(pn_kv_truncate(&kv, 0) && kv.length == 0, "to the start");
    for (uint32_t g = 0; g < 2; g++)
        PN_CHECK(kv.group[g].n_free == kv.group[g].n_pages, "group %u: %u of %u pages free", (unsigned)g,
                 (unsigned)kv.group[g].n_free, (unsigned)kv.group[g].n_pages);
    pn_kv_prepare(&kv, 50);
    PN_CHECK(visible_pages_are_there(&kv, 0, 49) && visible_pages_are_there(&kv, 1, 49), "after starting again");
    pn_kv_close(&kv);
}

static void opening_survives_any_failing_allocation(void)
{
    for (long k = 1, st = PN_E_NOMEM; st != PN_OK; k++) {
        pn_test_mem m;
        pn_kv kv;
        pn_err err;
        pn_test_mem_init(&m, k);
        st = pn_kv_open(&kv, &m.mem, &kv_spec, 200, 20, PN_DTYPE_F16, &err);
        PN_CHECK(st == PN_OK ? m.n_calls < k : st == PN_E_NOMEM, "allocation %ld: %ld", k, st);
        pn_kv_close(&kv);
        PN_CHECK(m.outstanding == 0 && m.bytes == 0, "%ld blocks left", m.outstanding);
    }
}

/* ---- sharing: sequences that write a stamp for each token, against plain lists ------------- */

enum { SHARE_SEQS = 4, SHARE_CTX = 600, SHARE_BATCH = 130 };

static const pn_state_spec share_spec = {
    .group = {{.n_layers = 1, .n_heads = 1, .d_k = 2, .d_v = 2}, {.n_layers = 3, .n_heads = 1, .d_k = 2, .d_v = 2, .window = 100}},
    .n_groups = 2};

typedef struct share_rig {
    pn_test_mem m;
    pn_kv kv[SHARE_SEQS];
    bool open[SHARE_SEQS];
    uint32_t list[SHARE_SEQS][SHARE_CTX];       /* what position i should read */
    uint32_t next_stamp;
    bool by_turn;                               /* every second sequence is */
} share_rig;

static uint32_t *share_slot(pn_kv_page *p, uint32_t pos) { return (uint32_t *)p->data + pos % P; }

static void share_step(share_rig *r, uint32_t q, uint32_t n)
{
    pn_kv *kv = &r->kv[q];
    long calls = r->m.n_calls;
    pn_kv_prepare(kv, n);
    for (uint32_t pos = kv->length; pos < kv->length + n; pos++) {
        r->list[q][pos] = ++r->next_stamp;
        for (uint32_t g = 0; g < 2; g++)
            if (PN_CHECK(kv->group[g].table[pos / P] && !kv->group[g].table[pos / P]->common, "position %u of group %u",
                         (unsigned)pos, (unsigned)g))
                *share_slot(kv->group[g].table[pos / P], pos) = r->next_stamp;
    }
    pn_kv_commit(kv, n);
    PN_CHECK(r->m.n_calls == calls, "a step allocated");
}

/* Sequence `to`, empty, starts with n tokens of `from`. */
static void share_fork(share_rig *r, uint32_t from, uint32_t to, uint32_t n)
{
    pn_kv_page *pages[2][(SHARE_CTX + P - 1) / P] = {{0}};
    pn_kv_page *const *tables[PN_MAX_GROUPS] = {pages[0], pages[1]};
    bool all = true;
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t i = pn_kv_first_page(&share_spec, g, n); i < (n + P - 1) / P; i++) {
            pages[g][i] = pn_kv_share(&r->kv[from], g, i);
            all = all && pages[g][i];
        }
    PN_CHECK(pn_kv_adopt(&r->kv[to], tables, n, NULL) == all, "adopted without all pages, or not with them");
    if (all)
        memcpy(r->list[to], r->list[from], n * sizeof r->list[0][0]);
    PN_CHECK(r->kv[to].length == (all ? n : 0), "%u tokens", (unsigned)r->kv[to].length);
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < PN_COUNT_OF(pages[g]); i++)
            pn_kv_release(pages[g][i]);
}

static uint32_t share_holders(const share_rig *r, const pn_kv_page *p)
{
    uint32_t n = 0;
    for (uint32_t q = 0; q < SHARE_SEQS; q++)
        for (uint32_t g = 0; r->open[q] && g < 2; g++)
            for (uint32_t i = 0; i < r->kv[q].group[g].n_table; i++)
                n += r->kv[q].group[g].table[i] == p;
    return n;
}

static void share_check(const share_rig *r)
{
    uint64_t bytes = 0, one, pages;
    double common[2] = {0};     /* pages: each holder adds its part */
    pn_kv_bytes(&share_spec, SHARE_CTX, SHARE_BATCH, PN_DTYPE_F16, &one, &pages);
    for (uint32_t q = 0; q < SHARE_SEQS; q++) {
        const pn_kv *kv = &r->kv[q];
        for (uint32_t g = 0; r->open[q] && g < 2; g++) {
            uint32_t own = kv->group[g].n_free;
            for (uint32_t i = 0; i < kv->group[g].n_table; i++) {
                pn_kv_page *p = kv->group[g].table[i];
                uint32_t holders = p ? share_holders(r, p) : 0;
                PN_CHECK(!p || p->refs == holders, "%u references, %u holders", p ? (unsigned)p->refs : 0, (unsigned)holders);
                own += p && !p->common;
                common[g] += p && p->common ? 1.0 / holders : 0;
            }
            PN_CHECK(own == kv->group[g].n_pages && own <= kv->group[g].max_pages && (kv->by_turn || own == kv->group[g].max_pages),
                     "%u own pages of %u, at most %u", (unsigned)own, (unsigned)kv->group[g].n_pages, (unsigned)kv->group[g].max_pages);
            bytes += kv->by_turn ? own * pn_kv_page_cost(&share_spec, g, PN_DTYPE_F16) : 0;
            uint32_t w = share_spec.group[g].window, from = w && kv->length + 1 > w ? kv->length + 1 - w : 0;
            for (uint32_t pos = from; pos < kv->length; pos++)
                if (!PN_CHECK(kv->group[g].table[pos / P] && *share_slot(kv->group[g].table[pos / P], pos) == r->list[q][pos],
                              "sequence %u, group %u, position %u", (unsigned)q, (unsigned)g, (unsigned)pos))
                    return;
        }
        bytes += !r->open[q] ? 0 : kv->by_turn ? pn_kv_bare_bytes(&share_spec, SHARE_CTX, SHARE_BATCH) : one;
    }
    for (uint32_t g = 0; g < 2; g++)
        bytes += (uint64_t)(common[g] + 0.5) * pn_kv_page_cost(&share_spec, g, PN_DTYPE_F16);
    PN_CHECK(bytes == r->m.bytes, "%" PRIu64 " bytes, taken %" PRIu64, bytes, r->m.bytes);
}

static void share_open(share_rig *r, uint32_t q)
{
    pn_status st = (r->by_turn && q % 2 ? pn_kv_open_bare : pn_kv_open)(&r->kv[q], &r->m.mem, &share_spec, SHARE_CTX, SHARE_BATCH,
                                                                       PN_DTYPE_F16, NULL);
    r->open[q] = st == PN_OK;
}

/* By the turn: within the turn that has begun, or a new one of up to three such steps. */
static bool share_turn(share_rig *r, uint32_t q, uint32_t n, uint32_t steps)
{
    pn_kv *kv = &r->kv[q];
    if (!kv->by_turn || kv->length + n <= kv->reserved)
        return true;
    uint32_t end = PN_MIN(kv->length + n * steps, (uint32_t)SHARE_CTX);
    uint64_t need = pn_kv_reserve_bytes(kv, end, 0), had = r->m.bytes;
    bool ok = pn_kv_reserve(kv, end);
    PN_CHECK(r->m.bytes == had + (ok ? need : 0), "said %" PRIu64 " bytes, took %" PRIu64, need, r->m.bytes - had);
    return ok;
}

/* Random steps, forks, truncations and closings; the fail_at-th allocation fails. */
static long share_random(uint64_t seed, int ops, long fail_at, bool by_turn)
{
    static share_rig r;
    memset(&r, 0, sizeof r);
    r.by_turn = by_turn;
    pn_test_mem_init(&r.m, fail_at);
    while (ops--) {
        uint32_t q = (uint32_t)(pn_test_rand(&seed) % SHARE_SEQS), o = (uint32_t)(pn_test_rand(&seed) % SHARE_SEQS);
        uint32_t n = (uint32_t)(pn_test_rand(&seed) % SHARE_BATCH) + 1, what = (uint32_t)(pn_test_rand(&seed) % 16);
        long calls = r.m.n_calls;
        if (!r.open[q]) {
            share_open(&r, q);
        } else if (what == 0) {
            if (n % 2)
                pn_kv_retire(&r.kv[q]);
            pn_kv_close(&r.kv[q]);
            r.open[q] = false;
        } else if (what <= 2) {
            pn_kv_truncate(&r.kv[q], 0);
            if (o != q && r.open[o] && r.kv[o].length)
                share_fork(&r, o, q, 1 + (uint32_t)(pn_test_rand(&seed) % r.kv[o].length));
            pn_kv_trim(&r.kv[q]);
        } else if (what <= 5) {
            pn_kv_truncate(&r.kv[q], r.kv[q].length - PN_MIN(r.kv[q].length, n / 2));
            PN_CHECK(r.m.n_calls == calls, "truncation allocated");
            pn_kv_trim(&r.kv[q]);
            for (uint32_t g = 0; g < 2; g++)
                PN_CHECK(r.kv[q].group[g].n_free == 0 || !r.kv[q].by_turn, "pages left after a turn");
        } else if (r.kv[q].length + n <= SHARE_CTX && share_turn(&r, q, n, 1 + (uint32_t)(pn_test_rand(&seed) % 3))) {
            share_step(&r, q, n);
        }
        share_check(&r);
    }
    for (uint32_t q = 0; q < SHARE_SEQS; q++)
        if (r.open[q])
            pn_kv_close(&r.kv[q]);
    PN_CHECK(r.m.outstanding == 0 && r.m.bytes == 0, "%ld blocks left", r.m.outstanding);
    return r.m.n_calls;
}

static void shared_pages_read_what_each_sequence_wrote(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        share_random(seed, 1000, 0, seed % 2);
}

static void sharing_survives_any_failing_allocation(void)
{
    for (long k = 1, calls = 1; k <= calls; k++) {
        long n = share_random(77, 60, k, false), m = share_random(78, 120, k, true);
        calls = PN_MAX(calls, PN_MAX(n, m));
    }
}

static void a_shared_page_is_copied_before_it_is_written(void)
{
    static share_rig r;
    memset(&r, 0, sizeof r);
    pn_test_mem_init(&r.m, 0);
    share_open(&r, 0);
    share_open(&r, 1);
    share_step(&r, 0, 100);
    pn_kv_page *p = pn_kv_share(&r.kv[0], 0, 0), *half = pn_kv_share(&r.kv[0], 0, 1);
    uint8_t was[4 * P * 2];
    memcpy(was, p->data, sizeof was);
    PN_CHECK(p->refs == 2 && half->refs == 2 && r.kv[0].group[0].n_free == r.kv[0].group[0].n_pages, "the reserve is whole");
    PN_CHECK(!pn_kv_share(&r.kv[0], 0, 2), "a page that is not written");
    pn_kv_truncate(&r.kv[0], 10);
    PN_CHECK(r.kv[0].group[0].table[0] == p && half->refs == 1, "truncating is not writing");
    share_step(&r, 0, 1);
    PN_CHECK(r.kv[0].group[0].table[0] != p && p->refs == 1 && memcmp(was, p->data, sizeof was) == 0, "copied");
    PN_CHECK(memcmp(was, r.kv[0].group[0].table[0]->data, 10 * 4) == 0, "with what was written before");
    pn_kv_retain(p);
    pn_kv_release(p);
    pn_kv_release(p);
    pn_kv_release(half);
    share_check(&r);
    long calls = r.m.n_calls;
    pn_kv_retire(&r.kv[0]);
    p = pn_kv_share(&r.kv[0], 0, 0);
    PN_CHECK(p && r.m.n_calls == calls, "sharing from a finished sequence is free");
    pn_kv_close(&r.kv[0]);
    PN_CHECK(p->refs == 1 && *share_slot(p, 10) == r.list[0][10], "the page outlives it");
    pn_kv_release(p);
    pn_kv_close(&r.kv[1]);
    PN_CHECK(r.m.outstanding == 0, "%ld blocks left", r.m.outstanding);
}

/* A turn takes its own pages alone, and leaves those that hold something. */
static void a_turn_takes_what_it_needs(void)
{
    pn_test_mem m;
    pn_kv kv;
    pn_test_mem_init(&m, 0);
    PN_CHECK(pn_kv_open_bare(&kv, &m.mem, &kv_spec, 1000, 50, PN_DTYPE_F16, NULL) == PN_OK &&
             m.bytes == pn_kv_bare_bytes(&kv_spec, 1000, 50), "%" PRIu64 " bytes", m.bytes);
    const uint64_t full = pn_kv_page_cost(&kv_spec, 0, PN_DTYPE_F16), narrow = pn_kv_page_cost(&kv_spec, 1, PN_DTYPE_F16);
    PN_CHECK(pn_kv_reserve_bytes(&kv, 0, 0) == 0 && pn_kv_reserve_bytes(&kv, 1, 0) == full + narrow && pn_kv_reserve_bytes(&kv, 64, 0) == full + narrow &&
             pn_kv_reserve_bytes(&kv, 65, 0) == 2 * (full + narrow) &&
             pn_kv_reserve_bytes(&kv, 1000, 0) == 16 * full + kv.group[1].max_pages * narrow, "bytes of a turn");
    PN_CHECK(pn_kv_reserve(&kv, 130), " ");
    for (int i = 0; i < 2; i++) {
        pn_kv_prepare(&kv, 50);
        pn_kv_commit(&kv, 50);
    }
    PN_CHECK(pn_kv_reserve_bytes(&kv, 130, 0) == 0 && kv.group[0].n_free == 1, "%u free", (unsigned)kv.group[0].n_free);
    pn_kv_trim(&kv);
    PN_CHECK(kv.group[0].n_pages == 2 && kv.group[0].n_free == 0 && pn_kv_reserve_bytes(&kv, 128, 0) == 0 &&
             pn_kv_reserve_bytes(&kv, 129, 0) == full + narrow, "%u pages", (unsigned)kv.group[0].n_pages);
    /* The half page is shared: going on costs its copy. */
    pn_kv_page *half = pn_kv_share(&kv, 0, 1);
    PN_CHECK(half && kv.group[0].n_pages == 1 && pn_kv_reserve_bytes(&kv, 101, 0) == full && pn_kv_reserve(&kv, 101), "a copy");
    pn_kv_prepare(&kv, 1);
    PN_CHECK(half->refs == 1 && kv.group[0].table[1] != half, "copied");
    pn_kv_release(half);
    pn_kv_close(&kv);
    PN_CHECK(m.outstanding == 0 && m.bytes == 0, "%ld blocks left", m.outstanding);
}

/* ---- smaller pages: a sequence with rows of floats in its pages -------------------------------- */

static const pn_state_spec small_spec = {
    .group = {{.n_layers = 2, .n_heads = 3, .d_k = 96, .d_v = 64},
              {.n_layers = 2, .n_heads = 1, .d_k = 64, .d_v = 64, .window = 100},
              {.n_layers = 1, .n_heads = 2, .d_k = 40, .d_v = 64}},
    .n_groups = 3};

static void small_fill(pn_kv *kv, uint32_t n, uint64_t *seed)
{
    PN_CHECK(kv->length + n <= kv->reserved, " ");
    while (n) {
        uint32_t step = PN_MIN(n, kv->n_batch);
        pn_kv_prepare(kv, step);
        for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++)
            for (uint32_t pos = kv->length; pos < kv->length + step; pos++) {
                const pn_stream_group *g = &kv->spec->group[gi];
                const pn_kv_page *p = kv->group[gi].table[pos / P];
                for (uint32_t h = 0; h < g->n_layers * g->n_heads; h++)
                    for (int v = 0; v < 2; v++) {
                        float x[96];
                        uint32_t d = v ? g->d_v : g->d_k, type = v ? p->v_type : p->k_type;
                        uint8_t *plane = v ? pn_kv_v_plane(g, p, h / g->n_heads, h % g->n_heads) : pn_kv_k_plane(g, p, h / g->n_heads, h % g->n_heads);
                        for (uint32_t i = 0; i < d; i++)
                            x[i] = (float)((double)(pn_test_rand(seed) >> 40) * 0x1p-23 - 1.0);
                        if (!v && p->rotated)
                            pn_cpu_ref()->hadamard(x, d, pn_cpu_rotation(d));
                        pn_quant_row(type, x, plane + pos % P * pn_kv_elem_bytes(type, d), d);
                    }
            }
        pn_kv_commit(kv, step);
        n -= step;
    }
}

/* Root mean square of the difference between page i of the two sequences, keys rotated back where they are. */
static double small_far(const pn_kv *a, const pn_kv *b, uint32_t gi, uint32_t i)
{
    const pn_stream_group *g = &a->spec->group[gi];
    double sum = 0, count = 0;
    for (uint32_t h = 0; h < g->n_layers * g->n_heads; h++)
        for (int v = 0; v < 2; v++) {
            static float x[2][P * 96];
            uint32_t n = P * (v ? g->d_v : g->d_k);
            for (int s = 0; s < 2; s++) {
                const pn_kv_page *p = (s ? b : a)->group[gi].table[i];
                pn_dequant_row(v ? p->v_type : p->k_type, v ? pn_kv_v_plane(g, p, h / g->n_heads, h % g->n_heads)
                                                             : pn_kv_k_plane(g, p, h / g->n_heads, h % g->n_heads), x[s], n);
                if (!v && p->rotated)
                    pn_cpu_ref()->hadamard(x[s], n, pn_cpu_rotation(g->d_k));
            }
            for (uint32_t e = 0; e < n; e++)
                sum += pow((double)x[0][e] - (double)x[1][e], 2);
            count += n;
        }
    return sqrt(sum / count);
}

/* Own pages, free and in the table, are n_pages; the ledger has what is held to the byte. */
static void small_sound(const pn_kv *kv, const pn_test_mem *m, uint64_t others)
{
    uint64_t bytes = pn_kv_bare_bytes(kv->spec, kv->n_ctx, kv->n_batch) + others;
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++) {
        const pn_kv_group *g = &kv->group[gi];
        uint32_t own = g->n_free;
        for (uint32_t i = 0; i < g->n_table; i++) {
            const pn_kv_page *p = g->table[i];
            own += p && !p->common;
            bytes += p && !p->common ? 64 + pn_kv_page_bytes(&kv->spec->group[gi], p->k_type, p->v_type) : 0;
            PN_CHECK(!p || (p->k_type == p->v_type && p->rotated == pn_kv_is_block(p->k_type)), "a header");
            PN_CHECK(!p || p->k_type == kv->type || (!p->common && p->refs == 1), "a converted page is shared");
        }
        for (uint32_t i = 0; i < g->n_free; i++)
            PN_CHECK(g->free[i]->k_type == kv->type && g->free[i]->refs == 0, "a converted page on the free stack");
        bytes += g->n_free * pn_kv_page_cost(kv->spec, gi, kv->type);
        PN_CHECK(own == g->n_pages && own <= g->max_pages, "group %u: %u own pages of %u", (unsigned)gi, (unsigned)own, (unsigned)g->n_pages);
    }
    PN_CHECK(bytes == m->bytes, "%" PRIu64 " bytes, taken %" PRIu64, bytes, m->bytes);
}

static void smaller_pages_hold_nearly_the_same(void)
{
    static const struct { uint32_t type; double far; } to[] = {
        {PN_DTYPE_F16, 2e-4}, {PN_DTYPE_Q8_0, 0.006}, {PN_DTYPE_Q5_1, 0.03}, {PN_DTYPE_Q5_0, 0.05}, {PN_DTYPE_Q4_1, 0.08}, {PN_DTYPE_Q4_0, 0.12}};
    pn_test_mem m, m2;
    pn_kv kv, was;
    uint64_t seed = 5, seed2 = 5;
    pn_test_mem_init(&m, 0);
    pn_test_mem_init(&m2, 0);
    PN_CHECK(!pn_kv_open_bare(&kv, &m.mem, &small_spec, 1000, 50, PN_DTYPE_F32, NULL) && pn_kv_reserve(&kv, 600), " ");
    PN_CHECK(!pn_kv_open_bare(&was, &m2.mem, &small_spec, 1000, 50, PN_DTYPE_F32, NULL) && pn_kv_reserve(&was, 600), " ");
    small_fill(&kv, 500, &seed);
    small_fill(&was, 500, &seed2);
    for (size_t t = 0; t < PN_COUNT_OF(to); t++) {
        uint64_t gain = pn_kv_requant_gain(&kv, to[t].type, false), had = m.bytes;
        PN_CHECK(gain > 0 && pn_kv_requant_gain(&kv, to[t].type, true) > gain, " ");
        PN_CHECK(pn_kv_requant_some(&kv, to[t].type, false, 3) < gain, "three pages");
        (void)pn_kv_requant_some(&kv, to[t].type, false, UINT32_MAX);
        PN_CHECK(had - m.bytes == gain && pn_kv_requant_gain(&kv, to[t].type, false) == 0, "said %" PRIu64 ", freed %" PRIu64, gain, had - m.bytes);
        small_sound(&kv, &m, 0);
        for (uint32_t g = 0; g < 3; g++)
            for (uint32_t i = 0; i < 8; i++) {
                bool odd = small_spec.group[g].d_k == 40 && pn_kv_is_block(to[t].type);
                if (!kv.group[g].table[i])
                    continue;
                if (i == 0 || i >= 6 || g == 1)
                    PN_CHECK(kv.group[g].table[i]->k_type == PN_DTYPE_F32 &&
                             (i == 7 || !memcmp(kv.group[g].table[i]->data, was.group[g].table[i]->data, (size_t)kv.group[g].page_bytes)),
                             "group %u: protected page %u", (unsigned)g, (unsigned)i);
                else
                    PN_CHECK(kv.group[g].table[i]->k_type == (odd ? PN_DTYPE_F16 : to[t].type) && small_far(&kv, &was, g, i) < to[t].far,
                             "group %u, page %u as %s: %g", (unsigned)g, (unsigned)i, pn_kv_type_name((pn_dtype)to[t].type), small_far(&kv, &was, g, i));
            }
        PN_CHECK(pn_kv_pristine(&kv) == P && pn_kv_smallest(&kv) == to[t].type, "%u", (unsigned)pn_kv_smallest(&kv));
    }
    PN_CHECK(!pn_kv_share(&kv, 0, 1) && pn_kv_requant(&kv, 0, 0, PN_DTYPE_Q4_0) == 0 && pn_kv_requant(&kv, 0, 9, PN_DTYPE_Q4_0) == 0 &&
             pn_kv_requant(&kv, 0, 1, PN_DTYPE_Q8_0) == 0 && pn_kv_requant(&kv, 1, 7, PN_DTYPE_Q8_0) == 0, "what may not be converted");
    /* Recent ones too, the half one among them; then the sequence goes on in it. */
    PN_CHECK(pn_kv_requant_some(&kv, PN_DTYPE_Q8_0, true, UINT32_MAX) > 0 && kv.group[0].table[7]->k_type == PN_DTYPE_Q8_0, " ");
    long calls = m.n_calls;
    small_fill(&kv, 100, &seed);
    PN_CHECK(m.n_calls == calls && kv.group[0].table[8]->k_type == PN_DTYPE_F32, "a step allocated");
    small_sound(&kv, &m, 0);
    pn_kv_close(&kv);
    pn_kv_close(&was);
    PN_CHECK(m.outstanding == 0 && m.bytes == 0, "%ld blocks left", m.outstanding);
}

/* Cut back behind, into and before converted pages, and go on; the reserve holds. */
static void truncated_smaller_pages_leave_a_sound_reserve(void)
{
    static const uint32_t cuts[] = {460, 449, 448, 300, 256, 200, 65, 64, 40, 0};
    for (size_t c = 0; c < PN_COUNT_OF(cuts); c++) {
        pn_test_mem m;
        pn_kv kv;
        uint64_t seed = 9;
        pn_state_spec spec = {.group = {small_spec.group[0]}, .n_groups = 1};
        pn_test_mem_init(&m, 0);
        PN_CHECK(!pn_kv_open_bare(&kv, &m.mem, &spec, 1000, 50, PN_DTYPE_F16, NULL) && pn_kv_reserve(&kv, 1000), " ");
        small_fill(&kv, 500, &seed);
        (void)pn_kv_requant_some(&kv, PN_DTYPE_Q8_0, false, 3);
        (void)pn_kv_requant_some(&kv, PN_DTYPE_Q4_0, true, 2);
        small_sound(&kv, &m, 0);
        PN_CHECK(pn_kv_truncate(&kv, cuts[c]), " ");
        small_sound(&kv, &m, 0);
        pn_kv_trim(&kv);
        PN_CHECK(pn_kv_pristine(&kv) == PN_MIN(cuts[c], (uint32_t)P) && kv.group[0].n_free == 0, "%u", (unsigned)pn_kv_pristine(&kv));
        uint64_t need = pn_kv_reserve_bytes(&kv, 1000, 0), had = m.bytes;
        PN_CHECK(pn_kv_reserve(&kv, 1000) && m.bytes == had + need, "said %" PRIu64 " bytes, took %" PRIu64, need, m.bytes - had);
        long calls = m.n_calls;
        small_fill(&kv, 1000 - cuts[c], &seed);
        PN_CHECK(m.n_calls == calls && kv.group[0].n_free == 0, "a step allocated, or pages are left");
        small_sound(&kv, &m, 0);
        pn_kv_retire(&kv);
        pn_kv_close(&kv);
        PN_CHECK(m.outstanding == 0 && m.bytes == 0, "%ld blocks left", m.outstanding);
    }
}

/* Pages in a tree stay as they are; one that was given back by all others becomes own and small. */
static void what_others_hold_is_not_converted(void)
{
    pn_test_mem m;
    pn_kv kv, whole;
    uint64_t seed = 3;
    pn_state_spec spec = {.group = {small_spec.group[0]}, .n_groups = 1};
    pn_test_mem_init(&m, 0);
    PN_CHECK(!pn_kv_open_bare(&kv, &m.mem, &spec, 500, 50, PN_DTYPE_F16, NULL) && pn_kv_reserve(&kv, 400), " ");
    small_fill(&kv, 330, &seed);
    pn_kv_page *two = pn_kv_share(&kv, 0, 2), *three = pn_kv_share(&kv, 0, 3), *half = pn_kv_share(&kv, 0, 5);
    PN_CHECK(two && three && half && kv.group[0].n_pages == 3 + 2, "%u", (unsigned)kv.group[0].n_pages);
    const uint64_t cost = pn_kv_page_cost(&spec, 0, PN_DTYPE_F16), small = pn_kv_page_cost(&spec, 0, PN_DTYPE_Q8_0);
    PN_CHECK(pn_kv_requant_gain(&kv, PN_DTYPE_Q8_0, false) == cost - small, "page 1 alone");
    pn_kv_release(three);
    pn_kv_release(half);
    PN_CHECK(pn_kv_requant_gain(&kv, PN_DTYPE_Q8_0, true) == 3 * (cost - small), "pages 1, 3 and 4; the half page will be copied");
    uint64_t had = m.bytes, freed = pn_kv_requant_some(&kv, PN_DTYPE_Q8_0, true, UINT32_MAX);
    PN_CHECK(freed == 3 * (cost - small) && had - m.bytes == freed && kv.group[0].table[2] == two && kv.group[0].n_pages == 4 + 2, "%" PRIu64, freed);
    small_sound(&kv, &m, 2 * cost);
    small_fill(&kv, 70, &seed);
    small_sound(&kv, &m, cost);
    pn_kv_close(&kv);
    pn_kv_release(two);
    PN_CHECK(!pn_kv_open(&whole, &m.mem, &spec, 500, 50, PN_DTYPE_F16, NULL), " ");
    whole.reserved = 400;
    small_fill(&whole, 330, &seed);
    PN_CHECK(pn_kv_requant_gain(&whole, PN_DTYPE_Q8_0, true) == 0 && pn_kv_requant_some(&whole, PN_DTYPE_Q8_0, true, 9) == 0, "opened whole");
    pn_kv_close(&whole);
    PN_CHECK(m.outstanding == 0 && m.bytes == 0, "%ld blocks left", m.outstanding);
}

/* A tenth of what a hybrid holds is the least that is worth while, however far converting has come: 7 of 10 pages of one
 * head of 32 may be converted, each to 4352 of 8192 bytes, beside two slots of state. */
static void a_hybrid_with_few_keys_is_left_alone(void)
{
    enum { GAIN = 7 * (8192 - 4352), MOST = 10 * GAIN - 10 * 8192 };        /* of state */
    for (int more = -64; more <= 64; more += 64) {
        pn_state_spec spec = {.group = {{.n_layers = 1, .n_heads = 1, .d_k = 32, .d_v = 32}}, .n_groups = 1,
                              .slot_bytes = (uint64_t)(MOST / 2 - 64 + more)};
        pn_test_mem m;
        pn_kv kv;
        uint64_t seed = 4;
        pn_test_mem_init(&m, 0);
        PN_CHECK(!pn_kv_open_bare(&kv, &m.mem, &spec, 700, 640, PN_DTYPE_F16, NULL) && pn_kv_reserve(&kv, 640), " ");
        small_fill(&kv, 640, &seed);
        PN_CHECK(pn_kv_requant_gain(&kv, PN_DTYPE_Q8_0, false) == GAIN && pn_kv_requant_pays(&kv, PN_DTYPE_Q8_0) == (more <= 0) &&
                 pn_kv_requant_pays(&kv, PN_DTYPE_Q4_0), "%d bytes more", more);
        (void)pn_kv_requant_some(&kv, PN_DTYPE_Q8_0, false, 5);
        PN_CHECK(pn_kv_requant_pays(&kv, PN_DTYPE_Q8_0) == (more <= 0), "half converted, %d bytes more", more);
        kv.state.slot_bytes = 0;
        PN_CHECK(pn_kv_requant_pays(&kv, PN_DTYPE_Q8_0), "without state");
        kv.state.slot_bytes = spec.slot_bytes;
        pn_kv_close(&kv);
        PN_CHECK(m.outstanding == 0 && m.bytes == 0, "%ld blocks left", m.outstanding);
    }
}

static void converting_survives_any_failing_allocation(void)
{
    for (long k = 0; k < 16; k++) {
        pn_test_mem m;
        pn_kv kv;
        uint64_t seed = 2;
        pn_test_mem_init(&m, 0);
        PN_CHECK(!pn_kv_open_bare(&kv, &m.mem, &small_spec, 500, 50, PN_DTYPE_F16, NULL) && pn_kv_reserve(&kv, 500), " ");
        small_fill(&kv, 450, &seed);
        uint64_t gain = pn_kv_requant_gain(&kv, PN_DTYPE_Q4_0, true), had = m.bytes;
        m.fail_at = m.n_calls + 1 + k;
        uint64_t freed = pn_kv_requant_some(&kv, PN_DTYPE_Q4_0, true, UINT32_MAX);
        PN_CHECK(had - m.bytes == freed && (k < 7 ? freed < gain : freed == gain), "allocation %ld: freed %" PRIu64, k, freed);
        small_sound(&kv, &m, 0);
        small_fill(&kv, 50, &seed);
        pn_kv_close(&kv);
        PN_CHECK(m.outstanding == 0 && m.bytes == 0, "%ld blocks left", m.outstanding);
    }
}

int main(void)
{
    smaller_pages_hold_nearly_the_same();
    truncated_smaller_pages_leave_a_sound_reserve();
    what_others_hold_is_not_converted();
    a_hybrid_with_few_keys_is_left_alone();
    converting_survives_any_failing_allocation();
    a_turn_takes_what_it_needs();
    bytes_per_token_of_known_models();
    planes_fill_a_page();
    types_of_blocks_want_heads_of_blocks();
    windows_keep_what_queries_see_and_no_more();
    windows_reserve_exactly_what_can_be_in_use();
    truncation_is_refused_behind_the_window();
    opening_survives_any_failing_allocation();
    a_shared_page_is_copied_before_it_is_written();
    shared_pages_read_what_each_sequence_wrote();
    sharing_survives_any_failing_allocation();
    return pn_test_end();
}
