/*
 * test_cold.c - conversations on disk: what memory gave up, or the last run of the program knew, comes back with the
 * same bits; what is not right, whole and ours does not; and nothing that happens to the disk fails a request.
 */
#define _GNU_SOURCE 1           /* nanosleep, truncate; before any header */
#include "cold_rig.h"

#if COLD_RIG

/* full attention; windows of 32 and 12 tokens; two rotary tables */
static const char *const cold_models[] = {"models/demo.gguf", "tests/vectors/golden/arch/gemma3.gguf",
                                          "tests/vectors/golden/arch/gemma2.gguf", "tests/vectors/golden/arch/phi3.gguf"};
static const char cold_hybrid[] = "tests/vectors/golden/arch/lfm2.gguf";        /* goes on at snapshots: behind 256 and 320 tokens here */

static uint64_t cold_drop(pn_engine *e)
{
    uint64_t freed = 0;
    pn_mem_release(e, UINT64_MAX, &freed);
    PN_CHECK(cache_info(e).pages == 0, "%u pages stay", (unsigned)cache_info(e).pages);
    return freed;
}

/* Saved, dropped, read: in the same engine and in the next one. */
static void what_was_dropped_comes_back_with_the_same_bits(const char *path, const char *sim)
{
    const uint32_t part = path == cold_hybrid ? 0 : 2 * P;
    cache_rig r;
    cache_said cold, cold_other;
    pn_engine_params how = cold_params();
    how.sim_dies = sim;
    if (cache_open_with(&r, path, &how)) {
        cache_cold(&r, r.ids, CACHE_PROMPT, &cold);
        cache_cold(&r, r.other, CACHE_PROMPT, &cold_other);
        const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT);
        PN_CHECK(cold_info(r.e).saved == 0 && cold_files() == 0, "%s: saved without a cache", path);
        PN_CHECK(cache_run(&r, &p, 1, &cold, path) == 0, "%s: something was known", path);
        pn_cold_info i = cold_settled(r.e);
        uint64_t pages = cache_info(r.e).pages;
        PN_CHECK(i.pages == pages && i.saved == pages && pages == 5 && (uint64_t)cold_files() == pages && i.bytes == i.saved_bytes,
                 "%s: %u of %u pages on disk", path, (unsigned)i.pages, (unsigned)pages);
        for (int by_turn = 0; by_turn < 2; by_turn++) {
            cold_drop(r.e);
            PN_CHECK(cache_run(&r, &p, by_turn, &cold, path) == 4 * P, "%s: not what is on disk", path);
        }
        i = cold_settled(r.e);
        PN_CHECK(i.restored == 8 && i.saved == pages && i.failed_read + i.failed_damaged + i.failed_stranger == 0, "%s: %u read, %u saved", path,
                 (unsigned)i.restored, (unsigned)i.saved);
    }
    cache_close(&r);
    if (cache_open_with(&r, path, &how)) {          /* the program was started again */
        const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT), q = cache_ask(r.other, CACHE_PROMPT);
        PN_CHECK(cold_info(r.e).pages == 5 && cold_info(r.e).bytes, "%s: nothing was found again", path);
        PN_CHECK(cache_run(&r, &q, 1, &cold_other, path) == part, "%s: another way inside a page", path);
        PN_CHECK(cache_run(&r, &p, 0, &cold, path) == 4 * P && cold_info(r.e).restored >= 2 + part / P, "%s: not what is on disk", path);
        pn_token more[CACHE_PROMPT + CACHE_NEW + 40];
        memcpy(more, cold.tokens, cold.n * sizeof *more);
        memcpy(more + cold.n, r.ids, 40 * sizeof *more);
        const pn_generate_params l = cache_ask(more, cold.n + 40);
        cold_settled(r.e);
        cold_drop(r.e);
        PN_CHECK(cold.n == 320 && cache_run(&r, &l, 1, NULL, path) == 5 * P, "%s: an answer", path);
        free(cold.logits);
        free(cold_other.logits);
    }
    cache_close(&r);
    cold_each(NULL, NULL);
}

/* Salts, types of keys and values, and models do not find each other's. */
static void tenants_and_kinds_are_kept_apart(void)
{
    cache_rig r;
    pn_err err = {0};
    const pn_engine_params how = cold_params();
    if (cache_open_with(&r, cold_models[0], &how)) {
        pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT);
        for (p.salt = 0; p.salt < 2; p.salt++) {
            PN_CHECK(cache_run(&r, &p, 1, NULL, "a salt") == 0, "salt %u finds another's", (unsigned)p.salt);
            cold_settled(r.e);
            cold_drop(r.e);
        }
        PN_CHECK(cold_info(r.e).pages == 10, "%u pages", (unsigned)cold_info(r.e).pages);
        p.salt = 1;
        PN_CHECK(cache_run(&r, &p, 1, NULL, "a salt") == 4 * P, "salt 1 does not find its own");
        for (int again = 0; again < 2; again++) {
            pn_session *s = NULL;
            pn_generate_result g = {0};
            const pn_session_params q8 = {.n_ctx = 600, .by_turn = 1, .has_kv_type = 1, .kv_type = PN_DTYPE_Q8_0};
            p.salt = 0;
            PN_CHECK(pn_session_new(r.m, &q8, &s, &err) == PN_OK && pn_session_generate(s, &p, &g, &err) == PN_OK, "%s", err.text);
            PN_CHECK(g.n_cached == (again ? 4 * P : 0), "q8_0: %u cached", (unsigned)g.n_cached);
            pn_session_free(s);
            cold_settled(r.e);
            cold_drop(r.e);
        }
    }
    cache_close(&r);
}

/* The same model but for the last bytes of its last tensor. */
static void a_model_of_the_same_shape_is_another(void)
{
    char path[sizeof cold_dir + 32];
    size_t len = 0;
    cache_rig r;
    const pn_engine_params how = cold_params();
    char *bytes = pn_test_read_file(cold_models[0], &len);
    snprintf(path, sizeof path, "%s/../pn_cold_%ld.gguf", cold_dir, (long)getpid());
    FILE *f = bytes ? fopen(path, "wb") : NULL;
    if (!PN_CHECK(f != NULL, "cannot write %s", path))
        return;
    bytes[len - 8] ^= 1;
    PN_CHECK(fwrite(bytes, 1, len, f) == len && fclose(f) == 0);
    free(bytes);
    if (cache_open_with(&r, path, &how)) {
        const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT);
        PN_CHECK(cold_info(r.e).pages > 0 && cache_run(&r, &p, 1, NULL, "another model") == 0 && cold_info(r.e).restored == 0, "took another model's pages");
    }
    cache_close(&r);
    remove(path);
    cold_each(NULL, NULL);
}

/* ------------------------------------------------------------------------------------------
 * Trouble
 * ------------------------------------------------------------------------------------------ */

static int cold_break(const char *path, void *user)
{
    const char *how = user;
    struct stat st;
    if (how[0] == 's' && !strstr(path, "-81.pnkv"))             /* one page and a snapshot, which is the last block but one */
        return 0;
    FILE *f = stat(path, &st) == 0 ? fopen(path, "r+b") : NULL;
    if (!PN_CHECK(f != NULL, "cannot open %s", path))
        return 0;
    fseek(f, how[0] == 'h' ? 200 : how[0] == 'p' ? (long)st.st_size / 2 : (long)st.st_size - (how[0] == 's' ? 8000 : 4096), SEEK_SET);
    int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 4, f);
    fclose(f);
    if (how[0] == 'c')
        PN_CHECK(truncate(path, st.st_size - 4096) == 0);
    return how[0] == 'g';
}

static void a_broken_file_is_a_miss(const char *path)
{
    static const char *const ways[] = {"head", "payload", "foot", "cut", "gone", "state"};
    const size_t n_ways = sizeof ways / sizeof *ways - (path == cold_hybrid ? 0 : 1);
    cache_rig r;
    cache_said cold;
    const pn_engine_params how = cold_params();
    if (cache_open_with(&r, path, &how)) {
        cache_cold(&r, r.ids, CACHE_PROMPT, &cold);
        const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT);
        cache_run(&r, &p, 1, &cold, "fills it");
        for (size_t i = 0; i < n_ways; i++) {
            pn_cold_info before = cold_settled(r.e), after;
            cold_drop(r.e);
            PN_CHECK(before.pages == 5, "%u pages", (unsigned)before.pages);
            cold_each(cold_break, (void *)(uintptr_t)ways[i]);
            PN_CHECK(cache_run(&r, &p, 1, &cold, ways[i]) == 0, "%s: a broken page was taken", ways[i]);
            after = cold_settled(r.e);
            PN_CHECK(after.failed_damaged + after.failed_read + after.failed_stranger == before.failed_damaged + before.failed_read + before.failed_stranger + 1,
                     "%s: %u refused", ways[i], (unsigned)(after.failed_damaged + after.failed_read + after.failed_stranger));
            cold_drop(r.e);
            cold_each(NULL, NULL);                  /* all broken: find them so, and save them again */
            cache_close(&r);
            if (!cache_open_with(&r, path, &how))
                return;
            cache_run(&r, &p, 1, &cold, "fills it again");
        }
        free(cold.logits);
    }
    cache_close(&r);
    cold_each(NULL, NULL);
}

/* Fewer bytes than the conversations have: the oldest go. */
static void the_quota_is_kept(void)
{
    cache_rig r;
    pn_engine_params how = cold_params();
    how.session_quota = 1 << 20;
    if (cache_open_with(&r, cold_models[0], &how)) {
        for (int i = 0; i < 12; i++) {
            pn_token mine[CACHE_PROMPT];
            memcpy(mine, r.ids, sizeof mine);
            mine[0] = 10 + i;
            const pn_generate_params p = cache_ask(mine, CACHE_PROMPT);
            cache_run(&r, &p, 1, NULL, "fills it");
            pn_cold_info c = cold_settled(r.e);
            PN_CHECK(c.bytes <= c.bytes_max && c.bytes_max == 1 << 20 && (uint64_t)cold_files() == c.pages, "%u bytes", (unsigned)c.bytes);
        }
        PN_CHECK(cold_info(r.e).evicted > 20, "%u evicted", (unsigned)cold_info(r.e).evicted);
    }
    cache_close(&r);
    how.session_quota = 300000;
    if (cache_open_with(&r, cold_models[0], &how))
        PN_CHECK(cold_info(r.e).bytes <= 300000 && cold_info(r.e).pages > 0, "%u bytes", (unsigned)cold_info(r.e).bytes);
    cache_close(&r);
    cold_each(NULL, NULL);
}

/* Where nothing can be written, or there is no directory at all. */
static void a_directory_that_cannot_be_is_said(void)
{
    pn_engine *e = NULL;
    pn_err err = {0};
    char path[sizeof cold_dir + 16];
    snprintf(path, sizeof path, "%s/none/there", cold_dir);
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.session_dir = path}, &err) == PN_E_IO && strstr(err.text, path), "%s", err.text);
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.session_dir = cold_models[0]}, &err) == PN_E_INVALID && strstr(err.text, "directory"), "%s", err.text);
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.session_dir = ""}, &err) == PN_E_INVALID, "%s", err.text);
    if (PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text)) {
        pn_cold_info i = cold_info(e);
        PN_CHECK(!i.bytes_max && !i.pages, "there is something");
        pn_engine_close(e);
    }
}

/* Each allocation fails in turn: a request is answered or refused, and nothing is left. */
static void every_allocation_may_fail(const char *path)
{
    cache_rig r;
    pn_engine_params how = cold_params();
    long last = 0;
    if (!cache_open_with(&r, path, &how))
        return;
    const pn_generate_params fill = cache_ask(r.ids, CACHE_PROMPT);
    cache_run(&r, &fill, 1, NULL, "fills it");
    cache_close(&r);
    for (long k = 1; !last; k++) {
        api_heap heap = {.fail_at = 0};
        pn_generate_result g = {0};
        pn_engine *e = NULL;
        pn_model *m = NULL;
        pn_session *s = NULL;
        pn_err err = {0};
        how.allocator = (pn_allocator){api_heap_alloc, api_heap_free, &heap};
        heap.fail_at = k % 2 ? (k + 1) / 2 : 0;     /* opening; and then reading and saving, which the odd ones do not reach soon */
        pn_status st = pn_engine_open(&e, &how, &err);
        if (!st)
            st = pn_model_load(e, path, NULL, &m, &err);
        if (!st)
            st = pn_session_new(m, &(pn_session_params){.n_ctx = 600, .n_batch = 100, .by_turn = 1}, &s, &err);
        if (k % 2 == 0)
            heap.fail_at = heap.calls + k / 2;
        const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT);
        if (!st)
            st = pn_session_generate(s, &p, &g, &err);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM || st == PN_E_BUDGET, "allocation %ld: %s, %s", k, pn_status_name(st), err.text);
        PN_CHECK(st || g.n_cached % P == 0, "allocation %ld: %u cached", k, (unsigned)g.n_cached);
        last = k % 2 == 0 && heap.calls < heap.fail_at && (k > 400 || !st) ? k : 0;
        PN_CHECK(!last || g.n_cached == 4 * P, "%u cached at the end", (unsigned)g.n_cached);
        pn_session_free(s);
        pn_model_free(m);
        pn_engine_close(e);
        PN_CHECK(heap.out == 0, "allocation %ld: %ld blocks leak", k, heap.out);
    }
    PN_CHECK(last > 40, "%ld allocations", last);
    cold_each(NULL, NULL);
}

/* ------------------------------------------------------------------------------------------
 * Many conversations
 * ------------------------------------------------------------------------------------------ */

/* Each says something, is dropped, and goes on: what is computed then is what is new. */
static void a_thousand_conversations_are_put_away(const char *path, int n)
{
    enum { FIRST = 200, MORE = 30 };
    cache_rig r;
    pn_err err = {0};
    pn_engine_params how = cold_params();
    how.prefix_bytes = 4 << 20;
    uint64_t computed = 0, fresh = 0;
    if (cache_open_with(&r, path, &how)) {
        pn_token (*said)[FIRST + 8 + MORE] = malloc((size_t)n * sizeof *said);
        for (int turn = 0; turn < 2; turn++) {
            for (int i = 0; i < n; i++) {
                pn_session *s = cache_session(&r, 600, 1);
                pn_generate_result g = {0};
                uint64_t seed = (uint64_t)i + 1;
                for (int k = turn ? FIRST + 8 : 0; k < (turn ? FIRST + 8 + MORE : FIRST); k++)
                    said[i][k] = (pn_token)(pn_test_rand(&seed) % r.V);
                pn_generate_params p = cache_ask(said[i], turn ? FIRST + 8 + MORE : FIRST);
                p.max_tokens = 8;
                PN_CHECK(pn_session_generate(s, &p, &g, &err) == PN_OK, "%s", err.text);
                if (turn) {
                    uint32_t known = (FIRST + 8) / P * P;
                    PN_CHECK(g.n_cached == known, "conversation %d: %u of %u", i, (unsigned)g.n_cached, (unsigned)known);
                    computed += g.n_context - g.n_cached;
                    fresh += g.n_context - known;
                } else {
                    memcpy(said[i] + FIRST, pn_session_tokens(s) + FIRST, 8 * sizeof(pn_token));
                    if (i % 16 == 0)
                        cold_settled(r.e);
                }
                pn_session_free(s);
            }
            pn_cold_info c = cold_settled(r.e);
            PN_CHECK(c.not_saved_busy == 0 && c.failed_write == 0, "%u not saved", (unsigned)c.not_saved_busy);
            cold_drop(r.e);
        }
        pn_cold_info c = cold_info(r.e);
        printf("%d conversations: %u files, %u read, %u tokens computed in their second turns, %u new\n", n, (unsigned)c.pages, (unsigned)c.restored,
               (unsigned)computed, (unsigned)fresh);
        free(said);
    }
    cache_close(&r);
    cold_each(NULL, NULL);
}

int main(void)
{
    const char *many = getenv("PN_MANY");
    if (!cold_dir_make("/tmp")) {
        pn_test_skip("/tmp cannot be written");
        return pn_test_end();
    }
    what_was_dropped_comes_back_with_the_same_bits(cold_models[0], NULL);
    cold_dir_remove();
    if (!cold_dir_make("/dev/shm") && !cold_dir_make("/tmp"))       /* a disk has been seen: now what is quick */
        return pn_test_end();
    for (size_t i = 1; i < sizeof cold_models / sizeof *cold_models; i++)
        what_was_dropped_comes_back_with_the_same_bits(cold_models[i], NULL);
    what_was_dropped_comes_back_with_the_same_bits(cold_hybrid, NULL);
    what_was_dropped_comes_back_with_the_same_bits(cold_hybrid, "2");
    tenants_and_kinds_are_kept_apart();
    a_model_of_the_same_shape_is_another();
    a_broken_file_is_a_miss(cold_models[0]);
    a_broken_file_is_a_miss(cold_hybrid);
    the_quota_is_kept();
    a_directory_that_cannot_be_is_said();
    every_allocation_may_fail(cold_models[1]);
    every_allocation_may_fail(cold_hybrid);
    a_thousand_conversations_are_put_away(cold_models[1], many ? atoi(many) : 200);
    a_thousand_conversations_are_put_away(cold_hybrid, many ? atoi(many) : 100);
    cold_dir_remove();
    return pn_test_end();
}

#else
int main(void)
{
    pn_test_skip("no directories here");
    return pn_test_end();
}
#endif
