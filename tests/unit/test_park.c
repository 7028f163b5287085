/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_park.c - sequences that step aside between steps go on as if nothing had been, and give back what they held.
 */
#include "pn_test.h"

#if PN_ENABLE_FILES && defined(__linux__)

#include "engine/pn_cache.h"
#include "engine/pn_park.h"
#include "engine/pn_sched.h"
#include "pread_faults.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { PARK_PROMPT = 150, PARK_NEW = 60, PARK_SAID = PARK_PROMPT + PARK_NEW };

static char dir[200];

/* full attention; a window of 32; recurrent layers */
static const char *const park_models[] = {"models/demo.gguf", "tests/vectors/golden/arch/gemma3.gguf", "tests/vectors/golden/arch/lfm2.gguf"};

static const pn_sampling greedy = {.size = sizeof greedy, .ignore_eos = 1};
static const pn_sampling seeded = {.size = sizeof seeded, .ignore_eos = 1, .temperature = 0.9f, .has_seed = 1, .seed = 3, .repeat_penalty = 1.1f,
                                   .repeat_last_n = -1};

/* Memory of which the k-th piece is not there, or none from then on. */
static long mem_left;
static bool mem_stays_gone;

static void *mem_take(void *user, size_t size, size_t align)
{
    (void)user;
    if (mem_left > 0 && --mem_left == 0) {
        mem_left = mem_stays_gone;
        return NULL;
    }
    return aligned_alloc(align, (size + align - 1) / align * align);
}

static void mem_give(void *user, void *p, size_t size)
{
    (void)user, (void)size;
    free(p);
}

typedef struct rig {
    pn_engine *e;
    pn_model *m;
    pn_token ids[PARK_PROMPT];
} rig;

static const double past = 1e-9;        /* a deadline that has passed: one unit */
static _Atomic double now = 100;        /* the governor's: it looks at memory when this moves on */
static const char *script;              /* readings; NULL: the machine's */

static double test_clock(void *user)
{
    (void)user;
    return atomic_load(&now);
}

static bool rig_open_as(rig *r, const char *path, const char *sim, int exact)
{
    static const uint32_t both[] = {0, 1};
    pn_err err = {0};
    uint64_t seed = 99;
    memset(r, 0, sizeof *r);
    if (!PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = 1, .session_dir = dir, .session_always = 1, .sim_dies = sim, .clock = test_clock, .pressure_script = script, .allocator = {mem_take, mem_give, NULL}}, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_model_load(r->e, path, &(pn_model_params){.dies = both, .n_dies = sim ? 2 : 0, .exact = exact}, &r->m, &err) == PN_OK, "%s", err.text))
        return false;
    for (size_t i = 0; i < PARK_PROMPT; i++)
        r->ids[i] = (pn_token)(pn_test_rand(&seed) % pn_vocab_size(r->m));
    return true;
}

static bool rig_open_on(rig *r, const char *path, const char *sim) { return rig_open_as(r, path, sim, 0); }
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
    PN_CHECK(pn_session_park(s, 0, &freed, &err) == PN_OK && pn_session_park(s, 0, NULL, &err) == PN_E_STATE, "%s", err.text);
    for (uint32_t g = 0; g < s->kv.spec->n_groups; g++) {
        PN_CHECK(s->kv.group[g].n_pages == 0 && s->kv.group[g].n_free == 0, "pages stay");
        least += own[g] * pn_kv_page_cost(s->kv.spec, g, PN_DTYPE_Q8_0);
    }
    uint64_t records = total - rig_used(r, false) - freed;       /* negative: they were taken meanwhile */
    PN_CHECK(freed >= least && (int64_t)records <= 0 && (int64_t)records > -4096, "%u bytes back of %u", (unsigned)freed, (unsigned)least);
    PN_CHECK(s->kv.length == length && s->kv.reserved == reserved && atomic_load(&r->e->n_turns) == turns - 1 && pn_session_parked_bytes(s) >= least, "state");
    PN_CHECK(pn_session_unpark(s, 0, &err) == PN_OK && !s->parked && pn_session_unpark(s, 0, &err) == PN_OK, "%s", err.text);
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
        PN_CHECK(pn_session_park(s, 0, NULL, &err) == PN_OK, "%s", err.text);
        pn_mem_info i;
        pn_engine_memory(r.e, &i);
        PN_CHECK(pn_mem_limit(r.e, -1, (int64_t)i.total_used + 300000, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_session_unpark(s, 0, &err) == PN_E_BUDGET && s->parked && s->kv.group[0].n_pages == 0, "%s", err.text);
        PN_CHECK(pn_mem_limit(r.e, -1, 0, &err) == PN_OK, "%s", err.text);
        while (pn_engine_step(r.e, 0, &active, &err) == PN_OK && !pn_request_done(other))
            ;
        PN_CHECK(pn_request_result(other, &g, &err) == PN_OK && g.n_generated == PARK_NEW, "a neighbour: %s", err.text);
        faults_clear();
        atomic_store(&faults.fail_errno, EIO);
        atomic_store(&faults.fail_at, 2);
        pn_status st = pn_session_unpark(s, 0, &err);
        faults_clear();
        PN_CHECK(!PREAD_FAULTS || (st == PN_E_IO && !s->parked && s->kv.length == 0 && pn_session_logits(s) == NULL), "%s", err.text);
        pn_request_free(q);
        pn_request_free(other);
        PN_CHECK(rig_used(&r, true) < i.total_used && atomic_load(&r.e->n_turns) == 0, "%u turns", (unsigned)atomic_load(&r.e->n_turns));
        PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = 200}, &whole, &err) == PN_OK && pn_session_park(whole, 0, NULL, &err) == PN_E_UNSUPPORTED, "%s",
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
            PN_CHECK(pn_session_park(s, 0, NULL, &err) == PN_OK, "%s", err.text);
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

/* ------------------------------------------------------------------------------------------
 * In slices
 * ------------------------------------------------------------------------------------------ */

enum { PIECE = 128 << 10 };

static void rig_steps(rig *r, uint32_t n)
{
    pn_err err = {0};
    for (uint32_t i = 0, active; i < n; i++)
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK, "%s", err.text);
}

static void rig_finish(rig *r, const pn_request *q)
{
    for (int i = 0; i < 4000 && !pn_request_done(q); i++, atomic_store(&now, atomic_load(&now) + 0.3))
        rig_steps(r, 1);
}

/* Pages and pieces that a session has. */
static void rig_units(const pn_session *s, uint32_t *pages, uint32_t *pieces)
{
    const pn_kv *kv = &s->kv;
    *pages = *pieces = 0;
    for (uint32_t g = 0; g < kv->spec->n_groups; g++)
        for (uint32_t i = 0; i < kv->group[g].n_table; i++) {
            const pn_kv_page *p = kv->group[g].table[i];
            *pages += p != NULL;
            *pieces += p ? (uint32_t)((pn_kv_page_bytes(&kv->spec->group[g], p->k_type, p->v_type) + PIECE - 1) / PIECE) : 0;
        }
    *pieces += kv->state.in ? (kv->state.slot_second < kv->state.slot_bytes) + (kv->state.slot_second > 0) : 0;
}

/* Away and back, a unit a call: nothing goes before all is written, each page goes by itself, all memory is there before
 * anything is read, and is promised until it is.  Left in the middle, it is where it takes no disk to be.  Same bits. */
static void a_slice_is_one_unit(const char *path, const char *sim, int exact)
{
    rig r;
    pn_err err = {0};
    if (rig_open_as(&r, path, sim, exact)) {
        said alone;
        rig_run(&r, &greedy, 0, false, &alone);
        pn_session *s = rig_session(&r);
        pn_request *q = rig_ask(&r, s, &greedy, 1);
        uint32_t pages, pieces, n, leave = 0;
        rig_steps(&r, 30);
        for (int at = 0; at < 8; at++) {
            uint64_t kv = rig_used(&r, true), had = rig_used(&r, false), freed = 0, turns = atomic_load(&r.e->n_turns);
            rig_units(s, &pages, &pieces);
            for (n = 0; pn_session_park_stage(s) < PN_PARK_GOING; n++)
                PN_CHECK(pn_session_park(s, past, &freed, &err) == PN_OK && freed == 0 && rig_used(&r, true) == kv, "piece %u: %s", (unsigned)n, err.text);
            PN_CHECK(n == pieces && pages > 2 && pieces >= pages && (!exact || pieces == 2 * pages), "%u calls for %u pieces", (unsigned)n, (unsigned)pieces);
            for (n = 0; pn_session_park_stage(s) == PN_PARK_GOING; n++) {
                uint64_t before = freed;
                PN_CHECK(pn_session_park(s, past, &freed, &err) == PN_OK && freed > before && atomic_load(&r.e->n_turns) == turns - (n == pages - 1), "page %u: %s", (unsigned)n,
                         err.text);
            }
            PN_CHECK(n == pages && pn_session_park_stage(s) == PN_PARK_THERE && s->kv.group[0].n_pages == 0 && pn_session_park(s, past, NULL, &err) == PN_E_STATE,
                     "%u calls for %u pages", (unsigned)n, (unsigned)pages);
            PN_CHECK(had - rig_used(&r, false) < freed && had - rig_used(&r, false) + 4096 > freed, "freed %u", (unsigned)freed);
            leave = (uint32_t)at % pieces + 1;
            for (n = 0; n < leave && s->parked; n++) {
                PN_CHECK(pn_session_unpark(s, past, &err) == PN_OK && rig_used(&r, true) == kv && atomic_load(&r.e->n_turns) == turns, "%s", err.text);
                if (s->parked)
                    PN_CHECK(pn_session_park_stage(s) == PN_PARK_BACK && s->in_turn, "stage %d", (int)pn_session_park_stage(s));
            }
            uint64_t again = 0;
            if (s->parked) {                    /* given up half way: there again, at once, and back with one call */
                if (at & 1)
                    PN_CHECK(pn_session_park(s, past, &again, &err) == PN_OK && again > 0, "%s", err.text);
                else
                    pn_session_park_stop(s);
                PN_CHECK(pn_session_park_stage(s) == PN_PARK_THERE && atomic_load(&r.e->n_turns) == turns - 1 && rig_used(&r, true) < kv, "not there");
                for (n = 0; s->parked; n++)
                    PN_CHECK(pn_session_unpark(s, at & 1 ? 0 : past, &err) == PN_OK, "%s", err.text);
                PN_CHECK(n == (at & 1 ? 1 : pieces), "%u calls for %u pieces", (unsigned)n, (unsigned)pieces);
            }
            PN_CHECK(rig_used(&r, true) == kv && rig_used(&r, false) == had, "%u bytes, %u before", (unsigned)rig_used(&r, false), (unsigned)had);
            rig_steps(&r, 1);
            for (n = 0; n < (uint32_t)at && pn_session_park_stage(s) != PN_PARK_THERE; n++)        /* stopped on the way there */
                PN_CHECK(pn_session_park(s, past, NULL, &err) == PN_OK, "%s", err.text);
            if (at & 1)
                pn_session_park_stop(s);
            PN_CHECK(pn_session_unpark(s, 0, &err) == PN_OK && !s->parked, "%s", err.text);
            rig_steps(&r, 1);
        }
        rig_finish(&r, q);
        PN_CHECK(s->kv.length == PARK_SAID && memcmp(pn_session_tokens(s), alone.tokens, sizeof alone.tokens) == 0 &&
                 memcmp(pn_session_logits(s), alone.logits, pn_vocab_size(r.m) * sizeof(float)) == 0, "%s: other bits", path);
        pn_request_free(q);
        pn_session_free(s);
        free(alone.logits);
    }
    rig_close(&r);
}

/* Whichever memory is not there on the way, away or back: told, and nothing is lost. */
static void every_allocation_may_fail(const char *path)
{
    rig r;
    pn_err err = {0};
    int failed = 0;
    if (rig_open(&r, path)) {
        said alone;
        rig_run(&r, &greedy, 0, false, &alone);
        pn_session *s = rig_session(&r);
        pn_request *q = rig_ask(&r, s, &greedy, 1);
        rig_steps(&r, 14);
        rig_settle(&r);
        pn_cache_give_all(r.e, UINT64_MAX);     /* else it gives way first */
        for (int stays = 0; stays < 2; stays++)
            for (long k = 1, left = 0; !left; k++) {
                uint64_t had = rig_used(&r, false), turns = atomic_load(&r.e->n_turns);
                pn_status st = PN_OK;
                mem_left = k;
                mem_stays_gone = stays;
                while (!st && pn_session_park_stage(s) != PN_PARK_THERE)
                    st = pn_session_park(s, past, NULL, &err);
                PN_CHECK(st == PN_OK || (st == PN_E_NOMEM && !s->parked), "%ld: %s", k, err.text);
                if (!st)
                    do
                        st = pn_session_unpark(s, past, &err);
                    while (!st && s->parked);
                PN_CHECK(st == PN_OK || !s->parked || ((st == PN_E_NOMEM || st == PN_E_BUDGET) && pn_session_park_stage(s) == PN_PARK_THERE && rig_used(&r, true) < had / 2), "%ld: %s", k,
                         err.text);
                failed += st != PN_OK;
                left = st == PN_OK ? mem_left : 0;
                mem_left = 0;
                PN_CHECK(pn_session_unpark(s, 0, &err) == PN_OK && rig_used(&r, false) == had && atomic_load(&r.e->n_turns) == turns, "%ld: %u bytes, %u before, %s", k,
                         (unsigned)rig_used(&r, false), (unsigned)had, err.text);
            }
        rig_finish(&r, q);
        PN_CHECK(failed > 8 && memcmp(pn_session_tokens(s), alone.tokens, sizeof alone.tokens) == 0 &&
                 memcmp(pn_session_logits(s), alone.logits, pn_vocab_size(r.m) * sizeof(float)) == 0, "%d failed; other bits", failed);
        pn_request_free(q);
        pn_session_free(s);
        free(alone.logits);
    }
    rig_close(&r);
}

/* What rung 17 would convert if Q8_0 passed. */
static uint64_t lossy_gain(rig *r)
{
    const pn_ladder *l = &r->e->govern.ladder;
    r->m->gate[PN_DTYPE_Q8_0] = (pn_kv_gate){.n_positions = 1024, .top1 = 1};
    for (uint32_t i = 0; i < l->n; i++)
        if (l->rung[i].rank == 17)
            return l->rung[i].gain(l->rung[i].user, 0);
    return 0;
}

/* What becomes of the one that is put aside while it is on its way. */
typedef enum aside_end { ASIDE_BACK, ASIDE_CANCEL, ASIDE_FREE, ASIDE_FULL, ASIDE_EIO, ASIDE_DAMAGE, ASIDE_ENDS } aside_end;

/* The last byte of the file that has no name. */
static bool damage_parked(void)
{
    char path[64], to[400];
    for (int fd = 3; fd < 200; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, to, sizeof to - 1);
        to[PN_MAX(n, 0)] = 0;
        if (!strstr(to, ".parked"))
            continue;
        FILE *f = fopen(path, "r+b");
        bool ok = f && fseek(f, -1, SEEK_END) == 0 && fputc(0x55, f) != EOF;
        return f ? fclose(f) == 0 && ok : false;
    }
    return false;
}

static void files_to(uint64_t bytes)
{
    struct rlimit l;
    getrlimit(RLIMIT_FSIZE, &l);
    l.rlim_cur = bytes == UINT64_MAX ? l.rlim_max : (rlim_t)bytes;
    setrlimit(RLIMIT_FSIZE, &l);
}

/* Two answer; the ladder puts the newer aside, a slice between two steps: the other's tokens go on, one a step, from the first
 * slice to the last, away and back.  `end` happens after so many slices; it is nobody else's affair. */
static bool neighbours_go_on(const char *path, aside_end end, uint32_t after, bool on_way_back)
{
    rig r;
    pn_err err = {0};
    bool reached = false;
    if (rig_open(&r, path)) {
        said alone;
        uint64_t freed = 0;
        rig_run(&r, &greedy, 0, false, &alone);
        pn_session *s = rig_session(&r), *t = rig_session(&r);
        pn_request *q = rig_ask(&r, s, &greedy, 1), *p = rig_ask(&r, t, &greedy, 1);
        pn_generate_result g = {0};
        rig_steps(&r, 14);
        uint32_t n = 0, was = s->kv.length, stays = t->kv.length;
        PN_CHECK(was > PARK_PROMPT && stays > PARK_PROMPT && pn_sched_parkable(r.e) > 0, "they do not answer yet");
        uint64_t lossy = lossy_gain(&r);
        for (bool back = false, more = true; more && !reached;) {
            bool ends = end != ASIDE_BACK && n == after && back == on_way_back;
            if (ends && end == ASIDE_CANCEL)
                pn_request_cancel(p);
            if (ends && end == ASIDE_FREE) {
                pn_request_free(p);
                p = NULL;
            }
            if (ends && end == ASIDE_FULL)
                files_to(100000);
            faults_clear();
            if (ends && end == ASIDE_EIO) {
                atomic_store(&faults.fail_errno, EIO);
                atomic_store(&faults.fail_at, 1);
            }
            if (ends && end == ASIDE_DAMAGE)
                PN_CHECK(damage_parked(), "no file");
            reached = ends;
            if (!(ends && (end == ASIDE_CANCEL || end == ASIDE_FREE))) {
                if (!back)
                    more = pn_sched_park(r.e, past, &freed);
                else
                    (void)pn_sched_resume(r.e, false, false, past);
            }
            files_to(UINT64_MAX);
            if (n == 0 && !reached)             /* pages that are being moved are not converted */
                PN_CHECK((lossy > 0) == pn_kv_type_fits(&t->kv.spec->group[0], PN_DTYPE_Q8_0) && lossy_gain(&r) <= (back ? lossy : lossy / 2), "%u of %u bytes", (unsigned)lossy_gain(&r), (unsigned)lossy);
            if (!reached) {
                PN_CHECK(pn_request_parked(p) == (!back || pn_session_park_stage(t) != PN_PARK_NONE), "%d, slice %u: held", back, (unsigned)n);
                atomic_store(&r.e->govern.returning, false);            /* the governor would go on with it */
                rig_steps(&r, 1);
                PN_CHECK(s->kv.length == was + 1 && (t->kv.length == stays || !pn_request_parked(p)), "%d, slice %u: %u tokens, %u before", back, (unsigned)n,
                         (unsigned)s->kv.length, (unsigned)was);
                was = s->kv.length;
                if (back)
                    more = pn_session_park_stage(t) != PN_PARK_NONE;
                else if (!more && freed)
                    back = more = true, n = UINT32_MAX;
            }
            n++;
        }
        faults_clear();
        PN_CHECK(freed > 0 || reached, "nothing came back");
        rig_finish(&r, q);
        PN_CHECK(pn_request_result(q, &g, &err) == PN_OK && g.n_generated == PARK_NEW && memcmp(pn_session_tokens(s), alone.tokens, sizeof alone.tokens) == 0 &&
                 memcmp(pn_session_logits(s), alone.logits, pn_vocab_size(r.m) * sizeof(float)) == 0, "the neighbour: %s", err.text);
        bool lost = reached && (end == ASIDE_EIO || end == ASIDE_DAMAGE);
        if (p) {
            rig_finish(&r, p);
            pn_status st = pn_request_result(p, &g, &err);
            if (reached && end == ASIDE_CANCEL)
                PN_CHECK(st == PN_OK && g.finish == PN_FINISH_CANCELLED, "cancelled: %s", err.text);
            else if (lost)
                PN_CHECK(st == PN_E_IO && pn_session_length(t) == 0, "%d: %s", (int)st, err.text);
            else
                PN_CHECK(st == PN_OK && g.n_generated == PARK_NEW && g.parked_seconds >= 0 && memcmp(pn_session_tokens(t), alone.tokens, sizeof alone.tokens) == 0 &&
                         memcmp(pn_session_logits(t), alone.logits, pn_vocab_size(r.m) * sizeof(float)) == 0, "the one put aside: %s", err.text);
            pn_request_free(p);
        }
        /* The session is good for more, wherever its pages were. */
        uint32_t length = pn_session_length(t);
        PN_CHECK(atomic_load(&r.e->n_turns) == 0 && pn_session_eval(t, r.ids, 2, &err) == PN_OK && pn_session_length(t) == length + 2 && !t->parked, "%s", err.text);
        pn_request_free(q);
        pn_session_free(s);
        pn_session_free(t);
        free(alone.logits);
        pn_cache_give_all(r.e, UINT64_MAX);
        PN_CHECK(rig_used(&r, true) == 0 && atomic_load(&r.e->n_turns) == 0, "%u bytes stay", (unsigned)rig_used(&r, true));
    }
    rig_close(&r);
    return reached;
}

static void whatever_happens_on_the_way(const char *path)
{
    for (aside_end end = ASIDE_BACK; end < ASIDE_ENDS; end++) {
        bool back_only = end == ASIDE_EIO || end == ASIDE_DAMAGE, away_only = end == ASIDE_FULL;
        if (back_only && !PREAD_FAULTS && end == ASIDE_EIO)
            continue;
        for (int back = back_only; back <= !away_only; back++) {
            uint32_t n = 0;
            while (neighbours_go_on(path, end, n, back) && n < 40)
                n += 1 + n / 3;
            PN_CHECK(end == ASIDE_BACK || n > 2 || end == ASIDE_DAMAGE, "%d, %d: %u slices", (int)end, back, (unsigned)n);
            if (end == ASIDE_BACK)
                break;
        }
    }
}

static void pass_1ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    atomic_store(&now, atomic_load(&now) + 0.2);
}

/* A thread that steps, memory that comes and goes, and an owner who cancels and frees at any time. */
static void threads_meet_on_the_way(void)
{
    enum { MANY = 4, WAVES = 6 };
    char path[64];
    rig r;
    said alone;
    pn_err err = {0};
    uint64_t seed = 5;
    uint32_t parked = 0, whole = 0;
    snprintf(path, sizeof path, "/tmp/pn_park_script_%ld", (long)getpid());
    FILE *f = fopen(path, "w");
    if (!PN_CHECK(f != NULL, "%s cannot be written", path))
        return;
    fprintf(f, "budget 200M\n0 150M\n");
    for (int t = 2; t < 4000; t += 20)
        fprintf(f, "%d 6M\n%d 150M\n", t, t + 6);
    fclose(f);
    script = path;
    if (rig_open(&r, park_models[0])) {
        rig_run(&r, &greedy, 0, false, &alone);
        PN_CHECK(pn_engine_start(r.e, &err) == PN_OK, "%s", err.text);
        for (int wave = 0; wave < WAVES; wave++) {
            pn_session *s[MANY];
            pn_request *q[MANY];
            int left = 0;
            while (pn_mem_level(r.e) != PN_LEVEL_OK)
                pass_1ms();
            for (int i = 0; i < MANY; i++) {
                s[i] = rig_session(&r);
                q[i] = rig_ask(&r, s[i], &greedy, 1);
                left += q[i] != NULL;
            }
            for (int ms = 0; left && ms < 20000; ms++) {
                pass_1ms();
                for (int i = 0; i < MANY; i++) {
                    pn_generate_result g = {0};
                    if (!q[i])
                        continue;
                    parked += (uint32_t)pn_request_parked(q[i]);
                    bool done = pn_request_done(q[i]), away = pn_test_rand(&seed) % 200 == 0 && wave % 2;
                    if (!done && !away)
                        continue;
                    if (!done && pn_test_rand(&seed) % 2) {
                        pn_request_cancel(q[i]);
                        continue;
                    }
                    if (done && PN_CHECK(pn_request_result(q[i], &g, &err) == PN_OK, "%s", err.text) && g.finish != PN_FINISH_CANCELLED) {
                        PN_CHECK(memcmp(pn_session_tokens(s[i]), alone.tokens, sizeof alone.tokens) == 0, "other tokens");
                        whole++;
                    }
                    pn_request_free(q[i]);
                    q[i] = NULL;
                    pn_session_free(s[i]);
                    left--;
                }
                if (ms == 19999)
                    PN_CHECK(left == 0, "%d do not end", left);
            }
        }
        pn_engine_stop(r.e);
        PN_CHECK(parked > 0 && whole > WAVES && atomic_load(&r.e->n_turns) == 0, "%u looks found one aside, %u were whole", (unsigned)parked, (unsigned)whole);
        printf("%u looks found one aside, %u answers of %d were whole\n", (unsigned)parked, (unsigned)whole, MANY * WAVES);
        free(alone.logits);
    }
    rig_close(&r);
    script = NULL;
    remove(path);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/dev/shm/pn_park_%ld", (long)getpid());
    if (mkdir(dir, 0700) != 0)
        snprintf(dir, sizeof dir, "/tmp/pn_park_%ld", (long)getpid());
    faults_clear();
    threads_meet_on_the_way();
    for (size_t i = 0; i < PN_COUNT_OF(park_models); i++)
        it_goes_on_with_the_same_bits(park_models[i], NULL);
    it_goes_on_with_the_same_bits(park_models[2], "2");
    converted_pages_stay_converted();
    trouble_is_told();
    a_parked_session_may_be_used();
    signal(SIGXFSZ, SIG_IGN);
    a_slice_is_one_unit(park_models[0], NULL, 0);
    a_slice_is_one_unit(park_models[0], NULL, 1);
    a_slice_is_one_unit(park_models[0], "2", 0);
    a_slice_is_one_unit(park_models[2], NULL, 0);
    a_slice_is_one_unit(park_models[2], "2", 0);
    every_allocation_may_fail(park_models[0]);
    every_allocation_may_fail(park_models[2]);
    whatever_happens_on_the_way(park_models[0]);
    whatever_happens_on_the_way(park_models[2]);
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
