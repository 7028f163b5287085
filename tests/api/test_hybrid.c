/*
 * test_hybrid.c - a model some of whose layers are recurrent: what it refuses, what it takes, and that its state goes
 * wherever its keys and values go.
 */
#include "cache_rig.h"

static const char hybrid_path[] = "tests/vectors/golden/arch/lfm2.gguf";

/* ------------------------------------------------------------------------------------------
 * The file
 * ------------------------------------------------------------------------------------------ */

/* Where `key` is in the image, or 0. */
static size_t hybrid_find(const char *image, size_t len, const char *key)
{
    for (size_t i = 0, n = strlen(key); i + n < len; i++)
        if (memcmp(image + i, key, n) == 0)
            return i;
    return 0;
}

/* The file with n bytes changed `at` bytes behind the beginning of `key`; it has to be refused with these words. */
static void hybrid_refused(const char *key, size_t at, const void *bytes, size_t n, const char *say)
{
    size_t len = 0;
    char *image = pn_test_read_file(hybrid_path, &len);
    size_t where = image ? hybrid_find(image, len, key) : 0;
    pn_engine *e = NULL;
    pn_file *f = NULL;
    pn_model *m = NULL;
    pn_err err = {0};
    if (PN_CHECK(where != 0, "%s is not there", key) && PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text)) {
        memcpy(image + where + at, bytes, n);
        pn_status st = pn_file_open_memory(e, image, len, &f, &err);
        if (!st)
            st = pn_model_load_file(f, NULL, &m, &err);
        PN_CHECK(st != PN_OK && strstr(err.text, say), "%s: \"%s\" lacks \"%s\"", key, err.text, say);
        pn_model_free(m);
        pn_file_close(f);
        pn_engine_close(e);
    }
    free(image);
}

static void what_does_not_fit_together_is_refused(void)
{
    static const char taps[] = "lfm2.shortconv.l_cache", heads[] = "lfm2.attention.head_count_kv";
    static const uint8_t one[4] = {1}, four[4] = {4}, nine[4] = {9}, none[16] = {0}, more[16] = {0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0};
    hybrid_refused(taps, sizeof taps - 1 + 4, one, 4, "'lfm2.shortconv.l_cache' is 1, expected 2 to 8");
    hybrid_refused(taps, sizeof taps - 1 + 4, nine, 4, "'lfm2.shortconv.l_cache' is 9, expected 2 to 8");
    hybrid_refused(taps, sizeof taps - 1 + 4, four, 4, "tensor 'blk.0.shortconv.conv.weight' has shape [3, 48, 1], expected [4, 48, 1]");
    hybrid_refused(taps, 5, "S", 1, "key 'lfm2.shortconv.l_cache' is missing");
    hybrid_refused(heads, sizeof heads - 1 + 16, none, 16, "'lfm2.attention.head_count_kv' is 0 for every layer");
    hybrid_refused(heads, sizeof heads - 1 + 16, more, 16, "layer 3 has another number of attention heads than layer 2");
    hybrid_refused("blk.3.shortconv.in_proj.weight", 4, "9", 1, "tensor 'blk.3.shortconv.in_proj.weight' is missing");
    hybrid_refused("token_embd_norm.weight", 0, "T", 1, "tensor 'output_norm.weight' is missing");
}

/* ------------------------------------------------------------------------------------------
 * Memory
 * ------------------------------------------------------------------------------------------ */

static uint64_t hybrid_used(pn_engine *e, pn_account a)
{
    pn_mem_info i;
    pn_engine_memory(e, &i);
    return i.used[a];
}

/* Three layers of 2 rows of 48 numbers, a slot to read and one to write. */
enum { HYBRID_SLOT = 3 * 2 * 48 * 4, HYBRID_TURN = 2 * (HYBRID_SLOT + 64) };

static void the_plan_counts_the_state(void)
{
    cache_rig r;
    pn_file *f = NULL;
    pn_plan_info plan;
    pn_err err = {0};
    if (cache_open(&r, hybrid_path)) {
        uint64_t totals[2] = {0};
        PN_CHECK(pn_file_open(r.e, hybrid_path, &f, &err) == PN_OK, "%s", err.text);
        for (uint32_t n = 1; n <= 2; n++) {
            PN_CHECK(pn_file_plan(f, &(pn_plan_params){.n_sessions = n}, &plan, &err) == PN_OK, "%s", err.text);
            PN_CHECK(plan.state_bytes == (uint64_t)n * HYBRID_TURN, "%u sessions: %u bytes of state", (unsigned)n, (unsigned)plan.state_bytes);
            totals[n - 1] = plan.total_bytes;
        }
        PN_CHECK(totals[1] - totals[0] > plan.kv_bytes_per_session + HYBRID_TURN, "the sum lacks the state");
        pn_file_close(f);
        for (int by_turn = 0; by_turn < 2; by_turn++) {
            pn_session *s = cache_session(&r, 200, by_turn);
            PN_CHECK(hybrid_used(r.e, PN_ACCT_STATE) == (by_turn ? 0 : HYBRID_TURN), "%u bytes when opened", (unsigned)hybrid_used(r.e, PN_ACCT_STATE));
            PN_CHECK(pn_session_eval(s, r.ids, 70, &err) == PN_OK, "%s", err.text);
            PN_CHECK(hybrid_used(r.e, PN_ACCT_STATE) == (by_turn ? HYBRID_TURN / 2 : HYBRID_TURN), "%u bytes between turns",
                     (unsigned)hybrid_used(r.e, PN_ACCT_STATE));
            PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK && hybrid_used(r.e, PN_ACCT_STATE) == (by_turn ? 0 : HYBRID_TURN), "%u bytes when empty",
                     (unsigned)hybrid_used(r.e, PN_ACCT_STATE));
            pn_session_free(s);
            PN_CHECK(hybrid_used(r.e, PN_ACCT_STATE) == 0, "%u bytes stay", (unsigned)hybrid_used(r.e, PN_ACCT_STATE));
        }
    }
    cache_close(&r);
}

/* A turn that does not fit is told what the state takes; and what it says fits does. */
static void admission_counts_the_state(void)
{
    cache_rig r;
    pn_err err = {0};
    pn_mem_info i;
    pn_budget_info b = {0};
    if (cache_open(&r, hybrid_path)) {
        pn_session *s = cache_session(&r, 512, 1);
        pn_engine_memory(r.e, &i);
        for (int64_t more = 4096; !b.max_context_now && more < 64 << 20; more += 4096) {       /* as little as something fits in */
            PN_CHECK(pn_mem_limit(r.e, -1, (int64_t)i.total_used + more, &err) == PN_OK, "%s", err.text);
            PN_CHECK(pn_session_eval(s, r.ids, 300, &err) == PN_E_BUDGET && pn_last_budget(s, &b) == PN_OK, "%s", err.text);
        }
        PN_CHECK(b.fixed_bytes_needed == HYBRID_TURN && b.max_context_now > 0 && b.max_context_now < 300, "%u bytes fixed, %u tokens fit",
                 (unsigned)b.fixed_bytes_needed, (unsigned)b.max_context_now);
        PN_CHECK(hybrid_used(r.e, PN_ACCT_STATE) == 0, "a refused turn keeps state");
        PN_CHECK(pn_session_eval(s, r.ids, b.max_context_now, &err) == PN_OK, "%s", err.text);
        pn_session_free(s);
    }
    cache_close(&r);
}

/* ------------------------------------------------------------------------------------------
 * Bits
 * ------------------------------------------------------------------------------------------ */

/* Logits of every token, in chunks of every size, with one thread and several. */
static void cuts_and_threads_change_no_bit(void)
{
    static const uint32_t chunks[] = {512, 1, 2, 3, 5, 17, 64, 100};
    enum { N = 200 };
    float *first = NULL;
    for (uint32_t threads = 1; threads <= 3; threads++)
        for (int exact = 0; exact < 2; exact++) {
            pn_engine *e = NULL;
            pn_model *m = NULL;
            pn_err err = {0};
            if (!PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = threads}, &err) == PN_OK, "%s", err.text) ||
                !PN_CHECK(pn_model_load(e, hybrid_path, &(pn_model_params){.exact = exact}, &m, &err) == PN_OK, "%s", err.text))
                return;
            uint32_t V = pn_vocab_size(m);
            pn_token t[N];
            uint64_t seed = 7;
            for (int i = 0; i < N; i++)
                t[i] = (pn_token)(pn_test_rand(&seed) % V);
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                float *now = malloc((size_t)N * V * sizeof *now);
                pn_session *s = NULL;
                const pn_session_params p = {.n_ctx = N, .n_batch = chunks[c], .has_kv_type = 1, .kv_type = PN_DTYPE_F32};
                PN_CHECK(pn_session_new(m, &p, &s, &err) == PN_OK && pn_session_eval_all(s, t, N, now, &err) == PN_OK, "%s", err.text);
                PN_CHECK(!first || memcmp(first, now, (size_t)N * V * sizeof *now) == 0, "chunks of %u, %u threads: other bits", (unsigned)chunks[c],
                         (unsigned)threads);
                pn_session_free(s);
                if (first)
                    free(now);
                else
                    first = now;
            }
            pn_model_free(m);
            pn_engine_close(e);
        }
    free(first);
}

int main(void)
{
    what_does_not_fit_together_is_refused();
    the_plan_counts_the_state();
    admission_counts_the_state();
    cuts_and_threads_change_no_bit();
    return pn_test_end();
}
