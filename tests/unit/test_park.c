/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_park.c - sequences that step aside between steps go on as if nothing had been, and give back what they held.
 */
#include "pn_test.h"

#if PN_ENABLE_FILES && defined(__linux__)

#include "engine/pn_cache.h"
#include "engine/pn_park.h"
#include "pread_faults.h"

#include <dirent.h>
#include <sys/stat.h>

enum { PARK_PROMPT = 150, PARK_NEW = 60, PARK_SAID = PARK_PROMPT + PARK_NEW };

static char dir[200];

/* full attention; a window of 32; recurrent layers */
static const char *const park_models[] = {"models/demo.gguf", "tests/vectors/golden/arch/gemma3.gguf", "tests/vectors/golden/arch/lfm2.gguf"};

static const pn_sampling greedy = {.size = sizeof greedy, .ignore_eos = 1};
static const pn_sampling seeded = {.size = sizeof seeded, .ignore_eos = 1, .temperature = 0.9f, .has_seed = 1, .seed = 3, .repeat_penalty = 1.1f,
                                   .repeat_last_n = -1};

typedef struct rig {
    pn_engine *e;
    pn_model *m;
    pn_token ids[PARK_PROMPT];
} rig;

static bool rig_open_on(rig *r, const char *path, const char *sim)
{
    static const uint32_t both[] = {0, 1};
    pn_err err = {0};
    uint64_t seed = 99;
    memset(r, 0, sizeof *r);
    if (!PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = 1, .session_dir = dir, .session_always = 1, .sim_dies = sim}, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_model_load(r->e, path, &(pn_model_params){.dies = both, .n_dies = sim ? 2 : 0}, &r->m, &err) == PN_OK, "%s", err.text))
        return false;
    for (size_t i = 0; i < PARK_PROMPT; i++)
        r->ids[i] = (pn_token)(pn_test_rand(&seed) % pn_vocab_size(r->m));
    return true;
}

static bool rig_open(rig *r, const char *path) { return rig_open_on(r, path, NULL); }

static void rig_close(rig *r)
{
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

static pn_session *rig_session(rig *r)
{
    pn_session *s = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = 400, .n_batch = 40, .by_turn = 1}, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

static pn_request *rig_ask(rig *r, pn_session *s, const pn_sampling *how, int no_cache)
{
    const pn_generate_params p = {.prompt = r->ids, .n_prompt = PARK_PROMPT, .max_tokens = PARK_NEW, .sampling = how, .no_cache = no_cache};
    pn_request *q = NULL;
    pn_err err = {0};
    PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
    return q;
}

static uint64_t rig_used(rig *r, bool pages)
{
    pn_mem_info i;
    pn_engine_memory(r->e, &i);
    return pages ? i.used[PN_ACCT_KV] + i.used[PN_ACCT_KV_RESERVE] : i.total_used;
}

/* The store's own thread gives back what it has written: not while bytes are compared. */
static void rig_settle(rig *r)
{
    pn_cold_info i;
    for (pn_engine_cold(r->e, &i); i.queued_bytes; pn_engine_cold(r->e, &i))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* The session as it was before it was parked, and as it is after. */
static void parked_once(rig *r, pn_session *s, bool converted)
{
    pn_err err = {0};
    uint64_t freed = 0, total, least = 0;
    rig_settle(r);
    uint32_t reserved = s->kv.reserved, length = s->kv.length, own[PN_MAX_GROUPS], turns = atomic_load(&r->e->n_turns);
    if (converted)
        pn_session_requant(s, PN_DTYPE_Q8_0, true, pn_os_now() + 1);
    total = rig_used(r, false);
    for (uint32_t g = 0; g < s->kv.spec->n_groups; g++)
        own[g] = s->kv.group[g].n_pages;
    PN_CHECK(pn_session_park(s, &freed, &err) == PN_OK && pn_session_park(s, NULL, &err) == PN_E_STATE, "%s", err.text);
    for (uint32_t g = 0; g < s->kv.spec->n_groups; g++) {
        PN_CHECK(s->kv.group[g].n_pages == 0 && s->kv.group[g].n_free == 0, "pages stay");
        least += own[g] * pn_kv_page_cost(s->kv.spec, g, PN_DTYPE_Q8_0);
    }
    uint64_t records = total - rig_used(r, false) - freed;       /* negative: they were taken meanwhile */
    PN_CHECK(freed >= least && (int64_t)records <= 0 && (int64_t)records > -4096, "%u bytes back of %u", (unsigned)freed, (unsigned)least);
    PN_CHECK(s->kv.length == length && s->kv.reserved == reserved && atomic_load(&r->e->n_turns) == turns - 1 && pn_session_parked_bytes(s) >= least, "state");
    PN_CHECK(pn_session_unpark(s, &err) == PN_OK && !s->parked && pn_session_unpark(s, &err) == PN_OK, "%s", err.text);
    PN_CHECK(s->kv.length == length && s->kv.reserved == reserved && atomic_load(&r->e->n_turns) == turns, "state");
    PN_CHECK(!converted || length <= 2 * PN_KV_PAGE_TOKENS || pn_kv_smallest(&s->kv) == PN_DTYPE_Q8_0, "no page is smaller");
}

typedef struct said {
    pn_token tokens[PARK_SAID];
    float *logits;
} said;

/* every: steps between two times aside; 0: none. */
static void rig_run(rig *r, const pn_sampling *how, int every, bool converted, said *out)
{
    pn_err err = {0};
    pn_session *s = rig_session(r);
    pn_request *q = rig_ask(r, s, how, every % 2);      /* what is shared goes, too */
    pn_generate_result g = {0};
    uint32_t active = 1;
    for (int step = 1; active; step++) {
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK, "%s", err.text);
        if (active && every && step % every == 0)
            parked_once(r, s, converted);
    }
    PN_CHECK(pn_request_result(q, &g, &err) == PN_OK && g.n_generated == PARK_NEW && s->kv.length == PARK_SAID, "%s", err.text);
    memcpy(out->tokens, pn_session_tokens(s), sizeof out->tokens);
    out->logits = malloc(pn_vocab_size(r->m) * sizeof(float));
    memcpy(out->logits, pn_session_logits(s), pn_vocab_size(r->m) * sizeof(float));
    pn_request_free(q);
    pn_session_free(s);
}

static void it_goes_on_with_the_same_bits(const char *path, const char *sim)
{
    static const pn_sampling *const ways[] = {&greedy, &seeded};
    rig r;
    if (rig_open_on(&r, path, sim))
        for (size_t w = 0; w < PN_COUNT_OF(ways); w++) {
            said alone, aside;
            rig_run(&r, ways[w], 0, false, &alone);
            for (int every = 1; every <= 9; every += 2 + every / 5) {
                rig_run(&r, ways[w], every, false, &aside);
                PN_CHECK(memcmp(aside.tokens, alone.tokens, sizeof alone.tokens) == 0, "%s, every %d: other tokens", path, every);
                PN_CHECK(memcmp(aside.logits, alone.logits, pn_vocab_size(r.m) * sizeof(float)) == 0, "%s, every %d: other bits", path, every);
                free(aside.logits);
            }
            free(alone.logits);
        }
    rig_close(&r);
}

/* Pages that pressure made smaller come back as they were: smaller. */
static void converted_pages_stay_converted(void)
{
    rig r;
    said out;
    if (rig_open(&r, park_models[0])) {
        rig_run(&r, &greedy, 7, true, &out);
        free(out.logits);
    }
    rig_close(&r);
}

/* Where there is no memory for it, it stays aside; where the file cannot be read, it fails, and nothing else does. */
static void trouble_is_told(void)
{
    rig r;
    pn_err err = {0};
    uint32_t active = 1;
    if (rig_open(&r, park_models[0])) {
        pn_session *s = rig_session(&r), *t = rig_session(&r), *whole = NULL;
        pn_request *q = rig_ask(&r, s, &greedy, 1), *other = rig_ask(&r, t, &greedy, 1);
        pn_generate_result g = {0};
        for (int i = 0; i < 20; i++)
            PN_CHECK(pn_engine_step(r.e, 0, &active, &err) == PN_OK, "%s", err.text);
        pn_request_pause(q, 1);
        PN_CHECK(pn_session_park(s, NULL, &err) == PN_OK, "%s", err.text);
        pn_mem_info i;
        pn_engine_memory(r.e, &i);
        PN_CHECK(pn_mem_limit(r.e, -1, (int64_t)i.total_used + 300000, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_session_unpark(s, &err) == PN_E_BUDGET && s->parked && s->kv.group[0].n_pages == 0, "%s", err.text);
        PN_CHECK(pn_mem_limit(r.e, -1, 0, &err) == PN_OK, "%s", err.text);
        while (pn_engine_step(r.e, 0, &active, &err) == PN_OK && !pn_request_done(other))
            ;
        PN_CHECK(pn_request_result(other, &g, &err) == PN_OK && g.n_generated == PARK_NEW, "a neighbour: %s", err.text);
        faults_clear();
        atomic_store(&faults.fail_errno, EIO);
        atomic_store(&faults.fail_at, 2);
        pn_status st = pn_session_unpark(s, &err);
        faults_clear();
        PN_CHECK(!PREAD_FAULTS || (st == PN_E_IO && !s->parked && s->kv.length == 0 && pn_session_logits(s) == NULL), "%s", err.text);
        pn_request_free(q);
        pn_request_free(other);
        PN_CHECK(rig_used(&r, true) < i.total_used && atomic_load(&r.e->n_turns) == 0, "%u turns", (unsigned)atomic_load(&r.e->n_turns));
        PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = 200}, &whole, &err) == PN_OK && pn_session_park(whole, NULL, &err) == PN_E_UNSUPPORTED, "%s",
                 err.text);
        pn_session_free(whole);
        pn_session_free(s);
        pn_session_free(t);
    }
    rig_close(&r);
}

/* Cancelled, freed, or gone on with by its owner while it is aside. */
static void a_parked_session_may_be_used(void)
{
    rig r;
    pn_err err = {0};
    uint32_t active = 1;
    if (rig_open(&r, park_models[0]))
        for (int how = 0; how < 4; how++) {
            pn_session *s = rig_session(&r);
            pn_request *q = rig_ask(&r, s, &greedy, how % 2);
            for (int i = 0; i < 12; i++)
                PN_CHECK(pn_engine_step(r.e, 0, &active, &err) == PN_OK, "%s", err.text);
            PN_CHECK(pn_session_park(s, NULL, &err) == PN_OK, "%s", err.text);
            pn_request_free(q);
            uint32_t length = pn_session_length(s);
            PN_CHECK(length > PARK_PROMPT && s->parked, "%u tokens", (unsigned)length);
            if (how == 1)
                PN_CHECK(pn_session_eval(s, r.ids, 3, &err) == PN_OK && pn_session_length(s) == length + 3 && !s->parked, "%s", err.text);
            if (how == 2)
                PN_CHECK(pn_session_truncate(s, PARK_PROMPT, &err) == PN_OK && pn_session_length(s) == PARK_PROMPT && !s->parked, "%s", err.text);
            if (how == 3)
                PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK && pn_session_eval(s, r.ids, 3, &err) == PN_OK, "%s", err.text);
            pn_session_free(s);
            PN_CHECK(atomic_load(&r.e->n_turns) == 0, "%u turns", (unsigned)atomic_load(&r.e->n_turns));
        }
    rig_close(&r);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/dev/shm/pn_park_%ld", (long)getpid());
    if (mkdir(dir, 0700) != 0)
        snprintf(dir, sizeof dir, "/tmp/pn_park_%ld", (long)getpid());
    faults_clear();
    for (size_t i = 0; i < PN_COUNT_OF(park_models); i++)
        it_goes_on_with_the_same_bits(park_models[i], NULL);
    it_goes_on_with_the_same_bits(park_models[2], "2");
    converted_pages_stay_converted();
    trouble_is_told();
    a_parked_session_may_be_used();
    DIR *d = opendir(dir);
    char path[sizeof dir + 300];
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        PN_CHECK(!strstr(e->d_name, "parked"), "%s is left", e->d_name);
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
    pn_test_skip("no files, or not Linux");
    return pn_test_end();
}
#endif
