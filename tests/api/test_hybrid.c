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
            for (size_t c = pn_test_quick() ? (threads + (size_t)exact) % 3 : 0; c < sizeof chunks / sizeof *chunks; c += pn_test_quick() ? 3 : 1) {
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

/* ------------------------------------------------------------------------------------------
 * Snapshots
 * ------------------------------------------------------------------------------------------ */

/* What is known is known where there is a snapshot, and gives the bits of a cold run. */
static void a_hit_is_where_a_snapshot_is(const char *sim)
{
    cache_rig r;
    if (cache_open_with(&r, hybrid_path, &(pn_engine_params){.n_threads = 1, .sim_dies = sim})) {
        cache_said cold, cold_other, longer;
        cache_cold(&r, r.ids, CACHE_PROMPT, &cold);
        cache_cold(&r, r.other, CACHE_PROMPT, &cold_other);
        const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT), q = cache_ask(r.other, CACHE_PROMPT);
        PN_CHECK(hybrid_used(r.e, PN_ACCT_STATE) == 0, "snapshots without a cache");
        for (int by_turn = 0; by_turn < 2; by_turn++) {
            PN_CHECK(cache_run(&r, &p, by_turn, &cold, "first") == (by_turn ? 4 * P : 0), "not what is known");
            PN_CHECK(cache_run(&r, &p, by_turn, &cold, "again") == 4 * P, "not what is known");
            /* 150 tokens are the same, and no snapshot is there */
            PN_CHECK(cache_run(&r, &q, by_turn, &cold_other, "other") == (by_turn ? 4 * P : 0), "a hit without a snapshot");
            PN_CHECK(pn_model_cached(r.m, r.ids, CACHE_PROMPT) == 4 * P && pn_model_cached(r.m, r.ids, 4 * P) == 0 &&
                     pn_model_cached(r.m, r.other, CACHE_PROMPT) == 4 * P, "what is known");
        }
        pn_token more[CACHE_PROMPT + CACHE_NEW + 40];
        memcpy(more, cold.tokens, cold.n * sizeof *more);
        memcpy(more + cold.n, r.ids, 40 * sizeof *more);
        cache_cold(&r, more, cold.n + 40, &longer);
        const pn_generate_params l = cache_ask(more, cold.n + 40);
        PN_CHECK(cold.n == 320 && cache_run(&r, &l, 1, &longer, "an answer") == 5 * P, "an answer is not known");
        pn_prefix_info i = cache_info(r.e);
        PN_CHECK(i.hits == 5 && i.queries == 7 && i.evicted == 0, "%u of %u", (unsigned)i.hits, (unsigned)i.queries);
        PN_CHECK(hybrid_used(r.e, PN_ACCT_STATE) > 0 && hybrid_used(r.e, PN_ACCT_STATE) + hybrid_used(r.e, PN_ACCT_PREFIX) == i.bytes,
                 "%u bytes of snapshots", (unsigned)hybrid_used(r.e, PN_ACCT_STATE));
        pn_model_free(r.m);
        r.m = NULL;
        PN_CHECK(hybrid_used(r.e, PN_ACCT_STATE) == 0, "snapshots outlive the model");
        free(cold.logits);
        free(cold_other.logits);
        free(longer.logits);
    }
    cache_close(&r);
}

enum { TURNS = 6, TURN_NEW = 37, TURN_SAYS = 21, TURN_ALL = TURNS * (TURN_NEW + TURN_SAYS) };

/* Turn after turn, each in a session of its own that is sent the whole conversation: what is computed is what is behind the
 * last page boundary of the turn before, and the bits are those of no cache. */
static void turns_compute_what_is_new(uint32_t n_batch, int request, const char *sim)
{
    cache_rig r;
    pn_err err = {0};
    if (cache_open_with(&r, hybrid_path, &(pn_engine_params){.n_threads = 1, .sim_dies = sim})) {
        pn_token said[TURN_ALL + 1];
        uint32_t n = 0, computed = 0, held = 0;
        float *cold = malloc(r.V * sizeof *cold);
        for (uint32_t turn = 0; turn < TURNS; turn++) {
            for (uint32_t i = 0; i < TURN_NEW; i++)
                said[n++] = r.ids[(turn * TURN_NEW + i) % CACHE_PROMPT];
            pn_token answers[2][TURN_SAYS];
            for (int warm = 0; warm < 2; warm++) {
                pn_session *s = NULL;
                pn_generate_result g = {0};
                pn_generate_params p = cache_ask(said, n);
                p.max_tokens = TURN_SAYS;
                p.no_cache = !warm;
                PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = 512, .n_batch = n_batch, .by_turn = 1}, &s, &err) == PN_OK, "%s", err.text);
                if (request) {
                    pn_request *q = NULL;
                    uint32_t active = 1;
                    PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
                    while (active)
                        pn_engine_step(r.e, 0, &active, &err);
                    PN_CHECK(pn_request_result(q, &g, &err) == PN_OK, "%s", err.text);
                    pn_request_free(q);
                } else {
                    PN_CHECK(pn_session_generate(s, &p, &g, &err) == PN_OK, "%s", err.text);
                }
                memcpy(answers[warm], pn_session_tokens(s) + n, sizeof answers[warm]);
                if (warm) {
                    PN_CHECK(memcmp(answers[0], answers[1], sizeof answers[0]) == 0, "turn %u: other tokens", (unsigned)turn);
                    PN_CHECK(memcmp(cold, pn_session_logits(s), r.V * sizeof *cold) == 0, "turn %u: other bits", (unsigned)turn);
                    PN_CHECK(g.n_cached == held, "turn %u: %u of %u tokens cached, %u known", (unsigned)turn, (unsigned)g.n_cached, (unsigned)n, (unsigned)held);
                    computed += g.n_context - g.n_cached;
                    held = pn_session_length(s) / P * P;
                } else {
                    memcpy(cold, pn_session_logits(s), r.V * sizeof *cold);
                }
                pn_session_free(s);
            }
            memcpy(said + n, answers[0], sizeof answers[0]);
            n += TURN_SAYS;
        }
        PN_CHECK(held >= 5 * P && computed < TURNS * (TURN_NEW + P), "%u tokens computed", (unsigned)computed);
        free(cold);
    }
    cache_close(&r);
}

/* A session can be cut where the cache has a snapshot, and nowhere else but at 0. */
static void a_session_goes_back_to_a_snapshot(void)
{
    cache_rig r;
    pn_err err = {0};
    if (cache_open(&r, hybrid_path))
        for (int by_turn = 0; by_turn < 2; by_turn++) {
            pn_session *s = cache_session(&r, 600, by_turn), *fresh = cache_session(&r, 600, by_turn);
            const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT);
            PN_CHECK(pn_session_generate(s, &p, NULL, &err) == PN_OK && pn_session_length(s) == 320, "%s", err.text);
            PN_CHECK(pn_session_truncate(s, 200, &err) == PN_E_STATE && strstr(err.text, "recurrent") && pn_session_length(s) == 320, "%s", err.text);
            PN_CHECK(pn_session_truncate(s, 192, &err) == PN_E_STATE && pn_session_truncate(s, 320, &err) == PN_OK && pn_session_logits(s), "%s", err.text);
            PN_CHECK(pn_session_truncate(s, 256, &err) == PN_OK && pn_session_length(s) == 256 && !pn_session_logits(s), "%s", err.text);
            PN_CHECK(pn_session_eval(s, r.other, 50, &err) == PN_OK && pn_session_eval(fresh, r.ids, 256, &err) == PN_OK &&
                     pn_session_eval(fresh, r.other, 50, &err) == PN_OK, "%s", err.text);
            PN_CHECK(memcmp(pn_session_logits(s), pn_session_logits(fresh), r.V * sizeof(float)) == 0, "other bits");
            /* What was evaluated behind it is no generation's: the cache does not know it. */
            PN_CHECK(pn_session_truncate(s, 256, &err) == PN_OK && pn_session_truncate(s, 0, &err) == PN_OK && pn_session_eval(s, r.ids, 100, &err) == PN_OK &&
                     pn_session_truncate(s, 64, &err) == PN_E_STATE, "%s", err.text);
            pn_session_free(s);
            pn_session_free(fresh);
        }
    cache_close(&r);
}

/* Agents that take turns, with a cache too small for all of their snapshots: those in the middle go, and what is used again
 * stays nine tenths of what is sent. */
static void many_turns_of_agents_use_what_is_known(void)
{
    enum { AGENTS = 4, MANY = 40, BUDGET = 1090000 };
    cache_rig r;
    pn_err err = {0};
    if (cache_open_with(&r, hybrid_path, &(pn_engine_params){.n_threads = 1, .prefix_bytes = BUDGET})) {
        static pn_token said[AGENTS][MANY * (TURN_NEW + TURN_SAYS) + 1];
        uint32_t n[AGENTS] = {0};
        uint64_t sent = 0, cached = 0, seed = 4;
        for (int turn = 0; turn < MANY; turn++)
            for (int a = 0; a < AGENTS; a++) {
                for (int i = 0; i < TURN_NEW; i++)
                    said[a][n[a]++] = (pn_token)(pn_test_rand(&seed) % r.V);
                pn_session *s = NULL;
                pn_generate_result g = {0};
                pn_generate_params p = cache_ask(said[a], n[a]);
                p.max_tokens = TURN_SAYS;
                PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = 2400, .by_turn = 1}, &s, &err) == PN_OK &&
                         pn_session_generate(s, &p, &g, &err) == PN_OK, "%s", err.text);
                memcpy(said[a] + n[a], pn_session_tokens(s) + n[a], TURN_SAYS * sizeof(pn_token));
                n[a] += TURN_SAYS;
                sent += g.n_context;
                cached += g.n_cached;
                pn_session_free(s);
                pn_prefix_info i = cache_info(r.e);
                PN_CHECK(i.bytes <= BUDGET && hybrid_used(r.e, PN_ACCT_STATE) <= BUDGET, "%u bytes", (unsigned)i.bytes);
            }
        printf("%d agents, %d turns: %.1f %% used again, %u evicted, %u bytes of state\n", AGENTS, MANY, 100.0 * (double)cached / (double)sent,
               (unsigned)cache_info(r.e).evicted, (unsigned)hybrid_used(r.e, PN_ACCT_STATE));
        PN_CHECK(cached * 10 >= sent * 9 && cache_info(r.e).evicted == 0, "%u of %u tokens", (unsigned)cached, (unsigned)sent);
    }
    cache_close(&r);
}

int main(void)
{
    what_does_not_fit_together_is_refused();
    the_plan_counts_the_state();
    admission_counts_the_state();
    cuts_and_threads_change_no_bit();
    a_hit_is_where_a_snapshot_is(NULL);
    a_hit_is_where_a_snapshot_is("2");
    for (int request = 0; request < 2; request++) {
        turns_compute_what_is_new(512, request, NULL);
        turns_compute_what_is_new(50, request, NULL);
        turns_compute_what_is_new(7, request, NULL);
        turns_compute_what_is_new(50, request, "2");
    }
    a_session_goes_back_to_a_snapshot();
    many_turns_of_agents_use_what_is_known();
    return pn_test_end();
}
