/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_lend.c - free memory holds weights that would be read again, and whoever needs it has it at once: turns, sessions, loads, a
 * machine that becomes smaller.
 */
#include "engine/pn_engine_int.h"

#include "pn_test.h"

#if PN_ENABLE_FILES && defined(__linux__)

#include <time.h>
#include <unistd.h>

static const char model_path[] = "models/demo.gguf";
static double now;

enum { LEND_LIMIT = 4500 << 10, LEND_NEW = 24 };
static const pn_token lend_prompt[] = {5, 17, 230, 41, 8, 9, 77, 500};

static double test_clock(void *user)
{
    (void)user;
    return now;
}

typedef struct lend_rig {
    pn_engine *e;
    pn_model *m;
} lend_rig;

/* The machine has too little for mapped weights, and from the first second on so much that the limit alone counts. */
static bool lend_open(lend_rig *r, const pn_model_params *how)
{
    char path[64];
    pn_err err = {0};
    *r = (lend_rig){NULL, NULL};
    snprintf(path, sizeof path, "/tmp/pn_lend_%ld", (long)getpid());
    FILE *f = fopen(path, "w");
    if (!PN_CHECK(f != NULL, "%s cannot be written", path))
        return false;
    fputs("budget 64M\n0 4200K\n1 64M\n", f);
    fclose(f);
    now = 100;
    PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = 1, .pressure_script = path, .clock = test_clock, .mem_limit = LEND_LIMIT}, &err) == PN_OK, "%s",
             err.text);
    remove(path);
    return PN_CHECK(r->e && pn_model_load(r->e, model_path, how, &r->m, &err) == PN_OK, "%s", err.text) && PN_CHECK(r->m->store.stream != NULL, "mapped: the test is void");
}

static void lend_close(lend_rig *r)
{
    pn_model_free(r->m);
    PN_CHECK(!r->e || atomic_load(&r->e->lent) == 0, "lent to nobody");
    pn_engine_close(r->e);
}

static const pn_model_params lend_auto = {.stream_block = 64 << 10, .stream_depth = 2, .floor_tokens = 1};

static pn_mem_state lend_state(const lend_rig *r)
{
    pn_mem_state s = {0};
    PN_CHECK(pn_mem_get(r->e, 0, &s) == PN_OK, "no state");
    return s;
}

static uint64_t lend_free(const lend_rig *r) { return LEND_LIMIT - atomic_load(&r->e->ledger.total); }

/* What is to be pinned has been read. */
static bool lend_settled(const lend_rig *r)
{
    bool failed;
    pn_stream *s = r->m->store.stream;
    pn_mutex_lock(&s->reads.lock);
    bool is = pn_ring_filling(&s->ring, &failed) == 0;
    pn_mutex_unlock(&s->reads.lock);
    return is;
}

static void lend_poll(const lend_rig *r)
{
    pn_mem_poll(r->e);
    for (int i = 0; i < 5000 && !lend_settled(r); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    PN_CHECK(lend_settled(r), "the disk gives nothing");
}

static void lend_wait(const lend_rig *r, double seconds)
{
    for (double end = now + seconds; now < end; now += 0.25)
        lend_poll(r);
}

/* What holds whenever nobody is at it. */
static void lend_adds_up(const lend_rig *r, const char *when)
{
    pn_residency_info i;
    const pn_mem_state s = lend_state(r);
    pn_model_residency(r->m, &i);
    PN_CHECK(i.mode == PN_RESIDENCY_STREAM && i.lent_bytes == s.lent && i.pinned_bytes == r->m->pin_kept + s.lent, "%s: %" PRIu64 " pinned, %" PRIu64 " kept, %" PRIu64 " lent", when,
             i.pinned_bytes, r->m->pin_kept, s.lent);
    PN_CHECK(s.soft == lend_free(r) + s.lent, "%s: %" PRIu64 " available, %" PRIu64 " free, %" PRIu64 " lent", when, s.soft,
             lend_free(r), s.lent);
    PN_CHECK(lend_free(r) >= s.watch || !s.lent, "%s: %" PRIu64 " free", when, lend_free(r));
}

static pn_session *lend_session(const lend_rig *r, uint32_t n_ctx)
{
    pn_session *s = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = n_ctx, .n_batch = 16, .by_turn = 1}, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

static pn_status lend_say(pn_session *s, uint32_t reserve, pn_token said[sizeof lend_prompt / sizeof *lend_prompt + LEND_NEW])
{
    static const pn_sampling greedy = {.size = sizeof greedy, .ignore_eos = 1};
    const pn_generate_params p = {.prompt = lend_prompt, .n_prompt = PN_COUNT_OF(lend_prompt), .max_tokens = LEND_NEW, .sampling = &greedy, .no_cache = 1};
    pn_err err = {0};
    pn_status st = reserve ? pn_session_reserve(s, reserve, &err) : PN_OK;
    st = st ? st : pn_session_generate(s, &p, NULL, &err);
    PN_CHECK(st == PN_OK, "%s", err.text);
    memcpy(said, pn_session_tokens(s), pn_session_length(s) * sizeof *said);
    return st;
}

/* All that is free but what WATCH begins at, and a tenth; and of nothing else. */
static void free_memory_is_lent(void)
{
    lend_rig r;
    if (lend_open(&r, &lend_auto)) {
        now += 2;
        lend_wait(&r, 2);
        lend_adds_up(&r, "loaded");
        const pn_mem_state s = lend_state(&r);
        uint64_t mark = s.watch + s.watch / 10, step = r.m->desc.weight_bytes / 50 + (64 << 10);
        PN_CHECK(s.lent > 0 && s.level == PN_LEVEL_OK, "%" PRIu64 " lent, level %d", s.lent, (int)s.level);
        PN_CHECK(lend_free(&r) >= mark && (lend_free(&r) < mark + step || r.m->store.stream->ring.n_pinned == r.m->store.stream->ring.n_spans), "%" PRIu64 " free, %" PRIu64 " are to be",
                 lend_free(&r), mark);
    }
    lend_close(&r);
}

/* Who asked for so much has so much. */
static void a_wish_is_kept(void)
{
    static const pn_model_params asked[] = {
        {.residency = PN_RESIDENCY_STREAM, .stream_block = 64 << 10, .stream_depth = 2, .pin_bytes = 400 << 10},
        {.stream_block = 64 << 10, .stream_depth = 2, .pin_bytes = 400 << 10},
    };
    for (size_t i = 0; i < PN_COUNT_OF(asked); i++) {
        lend_rig r;
        if (lend_open(&r, &asked[i])) {
            now += 2;
            lend_wait(&r, 20);
            lend_adds_up(&r, "asked for");
            PN_CHECK(lend_state(&r).lent == 0 && r.m->pin_kept > 0 && r.m->pin_kept <= 400 << 10, "%" PRIu64 " lent, %" PRIu64 " kept", lend_state(&r).lent, r.m->pin_kept);
        }
        lend_close(&r);
    }
}

/* A turn that does not fit beside what is lent takes it; its tokens are the same; ten seconds after it is over it is lent again. */
static void a_turn_takes_it(void)
{
    lend_rig r;
    pn_token said[PN_COUNT_OF(lend_prompt) + LEND_NEW], alone[PN_COUNT_OF(lend_prompt) + LEND_NEW] = {0};
    if (lend_open(&r, &lend_auto)) {
        pn_session *s = lend_session(&r, 2048);
        now += 2;
        lend_wait(&r, 2);
        const pn_mem_state before = lend_state(&r);
        lend_say(s, 0, alone);
        lend_poll(&r);
        lend_adds_up(&r, "a short turn");
        PN_CHECK(lend_state(&r).lent + (256 << 10) > before.lent, "a short turn took %" PRIu64, before.lent - lend_state(&r).lent);
        PN_CHECK(pn_session_truncate(s, 0, NULL) == PN_OK, "truncate");
        uint32_t n = (uint32_t)(pn_govern_room_free(r.e, true) / pn_kv_bytes_per_token(&r.m->desc.state, s->kv_type)) + 128;
        lend_say(s, PN_MIN(n, s->n_ctx), said);
        PN_CHECK(memcmp(said, alone, sizeof said) == 0, "other tokens with fewer weights in memory");
        PN_CHECK(lend_state(&r).lent < before.lent && lend_free(&r) <= LEND_LIMIT, "nothing was taken of %" PRIu64, before.lent);
        pn_session_free(s);
        uint64_t least = lend_state(&r).lent;
        lend_wait(&r, 9);
        PN_CHECK(lend_state(&r).lent <= least, "lent again before its time");
        lend_wait(&r, 3);
        PN_CHECK(lend_state(&r).lent > least, "not lent again");
        lend_adds_up(&r, "again");
    }
    lend_close(&r);
}

/* The numbers of a refusal count it: at max_context_now a turn is admitted, a page more is refused, whatever is lent. */
static void refusals_count_it(void)
{
    for (int late = 0; late < 2; late++) {
        lend_rig r;
        pn_err err = {0};
        if (lend_open(&r, &lend_auto)) {
            pn_session *s = lend_session(&r, 2048);
            now += 2;
            lend_wait(&r, late ? 2 : 0.25);
            void *more = pn_mem_alloc(pn_engine_mem(r.e), PN_ACCT_MISC, 64 << 10);
            PN_CHECK(pn_session_reserve(s, 2048, &err) == PN_E_BUDGET, "2,048 tokens fit: the test is void");
            uint32_t n = s->budget.max_context_now;
            PN_CHECK(n > 512 && n % PN_KV_PAGE_TOKENS == 0 && s->budget.max_context_alone >= n && s->budget.max_context_unpressured >= s->budget.max_context_alone,
                     "now %u, alone %u, unpressured %u", (unsigned)n, (unsigned)s->budget.max_context_alone, (unsigned)s->budget.max_context_unpressured);
            uint64_t lent = lend_state(&r).lent;
            PN_CHECK(pn_session_reserve(s, n + 1, &err) == PN_E_BUDGET && lend_state(&r).lent == lent, "refused, and %" PRIu64 " of %" PRIu64 " lent", lend_state(&r).lent, lent);
            PN_CHECK(pn_session_reserve(s, n, &err) == PN_OK, "%u: %s", (unsigned)n, err.text);
            PN_CHECK(atomic_load(&r.e->ledger.total) <= LEND_LIMIT && lend_state(&r).lent < lent, "%" PRIu64 " bytes", (uint64_t)atomic_load(&r.e->ledger.total));
            pn_session_end_turn(s);
            pn_mem_free(pn_engine_mem(r.e), PN_ACCT_MISC, more, 64 << 10);
            pn_session_free(s);
        }
        lend_close(&r);
    }
}

/* A session of its own pages, the host program, another model. */
static void others_take_it(void)
{
    lend_rig r;
    pn_err err = {0};
    if (lend_open(&r, &lend_auto)) {
        pn_session *s = NULL;
        pn_model *second = NULL;
        now += 2;
        lend_wait(&r, 2);
        uint64_t before = lend_state(&r).lent, n = pn_govern_room_free(r.e, true) / pn_kv_bytes_per_token(&r.m->desc.state, PN_DTYPE_F16) + 64;
        PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = (uint32_t)PN_MIN(n, UINT64_C(2048)), .n_batch = 16}, &s, &err) == PN_OK, "%s", err.text);
        PN_CHECK(lend_state(&r).lent < before, "the session took nothing of it");
        lend_wait(&r, 1);
        lend_adds_up(&r, "a session");
        pn_session_free(s);
        lend_wait(&r, 12);
        PN_CHECK(lend_state(&r).lent > 0, "not lent again");
        uint64_t free_before = lend_free(&r), freed = 0;
        pn_mem_release(r.e, 100 << 10, &freed);
        PN_CHECK(freed >= 100 << 10 && lend_free(&r) == free_before + freed, "the host program asked for 100 KiB and got %" PRIu64, freed);
        PN_CHECK(pn_model_load(r.e, model_path, &(pn_model_params){.residency = PN_RESIDENCY_STREAM, .stream_block = 64 << 10, .stream_depth = 2}, &second, &err) == PN_OK, "%s", err.text);
        PN_CHECK(lend_state(&r).lent == 0, "%" PRIu64 " lent while another model was loaded", lend_state(&r).lent);
        pn_model_free(second);
    }
    lend_close(&r);
}

/* Any level but OK: all of it goes, before anything else has to. */
static void pressure_takes_it(void)
{
    static const pn_level levels[] = {PN_LEVEL_WATCH, PN_LEVEL_TIGHT, PN_LEVEL_CRITICAL};
    for (size_t i = 0; i < PN_COUNT_OF(levels); i++) {
        lend_rig r;
        if (lend_open(&r, &lend_auto)) {
            now += 2;
            lend_wait(&r, 2);
            uint64_t before = lend_state(&r).lent;
            pn_mem_hint(r.e, levels[i]);
            for (int n = 0; n < 40 && lend_state(&r).lent; n++)
                lend_poll(&r);
            PN_CHECK(before > 0 && lend_state(&r).lent == 0, "%s: %" PRIu64 " of %" PRIu64 " are lent", pn_level_name(levels[i]), lend_state(&r).lent, before);
            PN_CHECK(lend_free(&r) + r.m->desc.weight_bytes / 2 > before, "nothing came of it");
        }
        lend_close(&r);
    }
}

/* Less is free than WATCH begins at, though the level is OK for all that is lent: so much goes as makes it 1.1 times that. */
static void what_is_free_stays(void)
{
    lend_rig r;
    if (lend_open(&r, &lend_auto)) {
        now += 2;
        lend_wait(&r, 2);
        const pn_mem_state before = lend_state(&r);
        size_t n = (size_t)(lend_free(&r) - before.watch / 4 * 3);
        void *hog = pn_mem_alloc(pn_engine_mem(r.e), PN_ACCT_MISC, n);
        PN_CHECK(hog && lend_free(&r) < before.watch, "%" PRIu64 " free", lend_free(&r));
        for (int k = 0; k < 20; k++)
            lend_poll(&r);
        const pn_mem_state after = lend_state(&r);
        PN_CHECK(lend_free(&r) >= after.watch + after.watch / 10 && after.lent < before.lent, "%" PRIu64 " free, %" PRIu64 " lent", lend_free(&r), after.lent);
        PN_CHECK(after.lent > 0 || after.level > PN_LEVEL_OK, "more than was asked for");
        pn_mem_free(pn_engine_mem(r.e), PN_ACCT_MISC, hog, n);
    }
    lend_close(&r);
}

/* A soft limit below what is used: caches would shrink at each request for memory, so nothing is lent up to it. */
static void a_soft_limit_is_none_to_fill(void)
{
    lend_rig r;
    pn_err err = {0};
    if (lend_open(&r, &lend_auto)) {
        now += 2;
        lend_wait(&r, 2);
        uint64_t soft = atomic_load(&r.e->ledger.total);
        PN_CHECK(lend_state(&r).lent > 0 && pn_mem_limit(r.e, (int64_t)soft, -1, &err) == PN_OK, "%s", err.text);
        lend_wait(&r, 30);
        uint64_t below = pn_sub_sat(soft, atomic_load(&r.e->ledger.total));
        PN_CHECK(below >= lend_state(&r).watch || (below > 0 && lend_state(&r).lent == 0), "%" PRIu64 " below it, %" PRIu64 " lent", below, lend_state(&r).lent);
        PN_CHECK(pn_mem_limit(r.e, 0, -1, &err) == PN_OK, "%s", err.text);
        lend_wait(&r, 12);
        PN_CHECK(atomic_load(&r.e->ledger.total) + (256 << 10) > soft, "not lent again");
    }
    lend_close(&r);
}

int main(void)
{
    free_memory_is_lent();
    a_soft_limit_is_none_to_fill();
    a_wish_is_kept();
    a_turn_takes_it();
    refusals_count_it();
    others_take_it();
    pressure_takes_it();
    what_is_free_stays();
    return pn_test_end();
}

#else

int main(void)
{
    pn_test_skip("a script of memory is a file, and is read where the system is Linux");
    return pn_test_end();
}

#endif
