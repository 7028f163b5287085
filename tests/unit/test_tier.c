/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_tier.c - between the prefix cache and the disk: what the rung gives back, how much comes up, whom it keeps waiting.
 */
#include "pn_test.h"

#if PN_ENABLE_FILES && PN_ENABLE_THREADS && defined(__linux__)

#include "engine/pn_cache.h"
#include "engine/pn_tier.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TIER_PROMPT = 300, TIER_NEW = 40 };

/* The program's pread comes before libc's: a slow disk for the thread that says so, and for no other, for the engine
 * reads the system's numbers the same way. */
static _Thread_local long slow_ms;
#if defined(SYS_pread64) && defined(__LP64__)
#define SLOW_PREAD 1
ssize_t pread(int fd, void *dst, size_t n, off_t offset)
{
    if (slow_ms)
        nanosleep(&(struct timespec){.tv_nsec = slow_ms * 1000000}, NULL);
    return syscall(SYS_pread64, fd, dst, n, offset);
}
#else
#define SLOW_PREAD 0
#endif

static char dir[200];
static pn_token ids[2][TIER_PROMPT];

typedef struct rig {
    pn_engine *e;
    pn_model *m;
} rig;

static bool rig_open(rig *r, uint64_t prefix_bytes)
{
    pn_err err = {0};
    uint64_t seed = 99;
    const pn_engine_params p = {.n_threads = 1, .session_dir = dir, .prefix_bytes = prefix_bytes};
    memset(r, 0, sizeof *r);
    if (!PN_CHECK(pn_engine_open(&r->e, &p, &err) == PN_OK && pn_model_load(r->e, "models/demo.gguf", NULL, &r->m, &err) == PN_OK, "%s", err.text))
        return false;
    for (int i = 0; i < 2 * TIER_PROMPT; i++)
        ids[i / TIER_PROMPT][i % TIER_PROMPT] = (pn_token)(pn_test_rand(&seed) % pn_vocab_size(r->m));
    return true;
}

static void rig_close(rig *r)
{
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

static pn_session *rig_session(rig *r)
{
    pn_session *s = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = 600, .n_batch = 100, .by_turn = 1}, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

static pn_generate_params rig_how(int which, int n)
{
    static const pn_sampling greedy = {.size = sizeof greedy, .ignore_eos = 1};
    return (pn_generate_params){.prompt = ids[which], .n_prompt = TIER_PROMPT, .max_tokens = (uint32_t)n, .sampling = &greedy};
}

/* Tokens that were cached; the answer into out[4], if that is wanted. */
static uint32_t rig_say(rig *r, int which, pn_token *out)
{
    pn_session *s = rig_session(r);
    pn_generate_result g = {0};
    pn_err err = {0};
    const pn_generate_params p = rig_how(which, 4);
    PN_CHECK(pn_session_generate(s, &p, &g, &err) == PN_OK, "%s", err.text);
    if (out)
        memcpy(out, pn_session_tokens(s) + TIER_PROMPT, 4 * sizeof *out);
    pn_session_free(s);
    return g.n_cached;
}

static pn_cold_info rig_settled(rig *r)
{
    pn_cold_info i;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pn_engine_cold(r->e, &i);
    } while (i.queued_bytes);
    return i;
}

static uint64_t rig_pages(rig *r)
{
    pn_prefix_info i;
    pn_engine_prefix(r->e, &i);
    return i.pages;
}

/* One conversation is on disk, the other was not worth it: the rung takes the first, and what it says is what the
 * ledger says. */
static void the_rung_gives_back_what_is_on_disk(void)
{
    rig r;
    if (rig_open(&r, 0)) {
        rig_say(&r, 0, NULL);
        PN_CHECK(rig_settled(&r).pages == 4 && rig_pages(&r) == 4, "nothing was saved");
        atomic_store(&r.m->prefill_rate, 1000000000u);
        rig_say(&r, 1, NULL);
        pn_cold_info i = rig_settled(&r);
        PN_CHECK(i.pages == 4 && i.not_saved_slow && rig_pages(&r) == 8, "%u pages on disk", (unsigned)i.pages);
        uint64_t gain = pn_tier_gain(r.e, 0), freed = 0, before = pn_mem_used(r.e), page = gain / 4;
        PN_CHECK(gain && pn_tier_gain(r.e, 5) == 0, "nothing to gain");
        PN_CHECK(pn_tier_apply(r.e, 0, page, 0, &freed) == PN_RUNG_DONE && freed == page && before - pn_mem_used(r.e) == freed, "%u of %u", (unsigned)freed,
                 (unsigned)page);
        freed = 0;
        before = pn_mem_used(r.e);
        PN_CHECK(pn_tier_apply(r.e, 0, UINT64_MAX, 0, &freed) == PN_RUNG_DONE && freed == 3 * page && before - pn_mem_used(r.e) == freed &&
                 pn_tier_gain(r.e, 0) == 0 && rig_pages(&r) == 4, "%u of %u", (unsigned)freed, (unsigned)(3 * page));
        pn_mem_rung rungs[24];
        size_t n = pn_mem_rungs(r.e, rungs, PN_COUNT_OF(rungs)), cold = 0;
        for (size_t k = 0; k < n; k++)
            cold += rungs[k].rank == 9 && strcmp(rungs[k].name, "cold") == 0;
        PN_CHECK(cold == 1, "the rung is not there");
    }
    rig_close(&r);
}

/* A cache that may hold two pages gets two, and the rest is computed. */
static void no_more_comes_up_than_the_cache_may_hold(void)
{
    rig r;
    pn_token whole[4], part[4];
    if (rig_open(&r, 0))
        PN_CHECK(rig_say(&r, 0, whole) == 4 * PN_KV_PAGE_TOKENS, "not what is on disk");
    rig_close(&r);
    if (rig_open(&r, 300000)) {
        PN_CHECK(rig_say(&r, 0, part) == 2 * PN_KV_PAGE_TOKENS && memcmp(whole, part, sizeof part) == 0, "not two pages");
        pn_prefix_info i;
        pn_engine_prefix(r.e, &i);
        PN_CHECK(i.bytes <= 300000, "%u bytes", (unsigned)i.bytes);
    }
    rig_close(&r);
}

/* ------------------------------------------------------------------------------------------
 * A slow disk
 * ------------------------------------------------------------------------------------------ */

typedef struct slow {
    pn_session *s;
    pn_request *q;
    double took;
    atomic_bool done;
} slow;

static void slow_open(void *user)
{
    slow *w = user;
    const pn_generate_params p = rig_how(0, 4);
    double since = pn_os_now();
    pn_err err = {0};
    slow_ms = 50;
    PN_CHECK(pn_request_new(w->s, &p, &w->q, &err) == PN_OK, "%s", err.text);
    w->took = pn_os_now() - since;
    atomic_store(&w->done, true);
}

/* While a request is being opened from a disk that takes its time, another one's steps go on. */
static void a_neighbour_does_not_wait(void)
{
    rig r;
    pn_err err = {0};
    uint32_t active = 1;
    double worst = 0;
    if (!SLOW_PREAD) {
        pn_test_skip("no pread of our own");
        return;
    }
    if (rig_open(&r, 0)) {
        pn_session *s = rig_session(&r);
        const pn_generate_params p = rig_how(1, TIER_NEW * 5);
        pn_request *q = NULL;
        pn_thread t;
        slow w = {.s = rig_session(&r)};
        PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
        for (int i = 0; i < 5; i++)
            PN_CHECK(pn_engine_step(r.e, 0, &active, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_thread_start(&t, slow_open, &w));
        while (!atomic_load(&w.done)) {
            double since = pn_os_now();
            if (!pn_request_done(q))
                PN_CHECK(pn_engine_step(r.e, 0, &active, &err) == PN_OK, "%s", err.text);
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            worst = PN_MAX(worst, pn_os_now() - since);
        }
        pn_thread_join(&t);
        uint32_t cached = 0;
        pn_request_prompt(w.q, NULL, &cached);
        printf("a restore of %.0f ms, a neighbour's longest step %.0f ms\n", w.took * 1e3, worst * 1e3);
        PN_CHECK(cached == 4 * PN_KV_PAGE_TOKENS && w.took > 0.5 && worst < w.took / 2, "%.0f ms of %.0f", worst * 1e3, w.took * 1e3);
        pn_request_free(q);
        pn_request_free(w.q);
        pn_session_free(s);
        pn_session_free(w.s);
    }
    rig_close(&r);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/dev/shm/pn_tier_%ld", (long)getpid());
    if (mkdir(dir, 0700) != 0)
        snprintf(dir, sizeof dir, "/tmp/pn_tier_%ld", (long)getpid());
    the_rung_gives_back_what_is_on_disk();
    no_more_comes_up_than_the_cache_may_hold();
    a_neighbour_does_not_wait();
    DIR *d = opendir(dir);
    char path[sizeof dir + 300];
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.')
            remove(path);
    }
    if (d)
        closedir(d);
    PN_CHECK(rmdir(dir) == 0);
    return pn_test_end();
}

#else
int main(void)
{
    pn_test_skip("no files, no threads, or not Linux");
    return pn_test_end();
}
#endif
