/*
 * test_kv.c - pages of a sequence: sizes, windows, truncation.
 */
#include "store/pn_kv.h"

#include "pn_test.h"

enum { P = PN_KV_PAGE_TOKENS };

static const pn_state_spec kv_spec = {
    .group = {{.n_layers = 2, .n_heads = 3, .d_k = 64, .d_v = 64}, {.n_layers = 5, .n_heads = 3, .d_k = 64, .d_v = 64, .window = 100}},
    .n_groups = 2};

/* Bytes a token of well-known models; memory sheet: 32 x 8 x 128, 16 x 8 x 64, 30 x 3 x 64. */
static void bytes_per_token_of_known_models(void)
{
    static const struct { uint32_t layers, heads, d; uint64_t f16; } known[] = {
        {32, 8, 128, 131072}, {16, 8, 64, 32768}, {30, 3, 64, 23040}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        pn_state_spec s = {.n_groups = 1};
        s.group[0] = (pn_stream_group){.n_layers = known[i].layers, .n_heads = known[i].heads, .d_k = known[i].d, .d_v = known[i].d};
        PN_CHECK(pn_kv_bytes_per_token(&s, PN_DTYPE_F16) == known[i].f16, "model %zu", i);
        PN_CHECK(pn_kv_bytes_per_token(&s, PN_DTYPE_F32) == 2 * known[i].f16, "model %zu", i);
    }
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
    for (long k = 1; k <= 9; k++) {
        pn_test_mem m;
        pn_kv kv;
        pn_err err;
        pn_test_mem_init(&m, k);
        pn_status st = pn_kv_open(&kv, &m.mem, &kv_spec, 200, 20, PN_DTYPE_F16, &err);
        PN_CHECK(st == (k <= 8 ? PN_E_NOMEM : PN_OK), "allocation %ld: %d", k, (int)st);
        pn_kv_close(&kv);
        PN_CHECK(m.outstanding == 0, "%ld blocks left", m.outstanding);
    }
}

int main(void)
{
    bytes_per_token_of_known_models();
    windows_keep_what_queries_see_and_no_more();
    truncation_is_refused_behind_the_window();
    opening_survives_any_failing_allocation();
    return pn_test_end();
}
