/*
 * test_weather.c - what memory may do to many at once, at random: turns come, end, are paused and cancelled, models come
 * and go, readings rise and fall, limits move, and after every event what always holds is looked at.
 *
 *     what is in use and promised is within the limit                          (I1 of docs/memory.md)
 *     who was admitted never fails for memory                                  (I3)
 *     where nothing lossy is allowed every answer is what it would have been   (I4)
 *     what rungs say they gave back is what the ledger has less                (I8)
 *     when all is over and memory is back, so is everything that was given up  (I9)
 *     no rung turns round twice in 10 s                                        (I10)
 *
 * PANTHEON_WEATHER=n: so many schedules instead of the usual; PANTHEON_SEED=x: this one alone.
 */
#define _XOPEN_SOURCE 700       /* getpid, nanosleep */
#include "pantheon.h"
#include "pn_api_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { WX_MODELS = 3, WX_PROMPTS = 6, WX_LONGEST = 220, WX_MOST = 90, WX_SLOTS = 6, WX_EVENTS = 60 };

static const char *const wx_paths[WX_MODELS] = {"models/demo.gguf", "tests/vectors/golden/arch/qwen3.gguf", "tests/vectors/golden/arch/lfm2.gguf"};
static const pn_sampling wx_how = {.size = sizeof wx_how, .ignore_eos = 1, .temperature = 0.8f, .has_seed = 1, .seed = 11};

/* --- what each prompt is answered with ------------------------------------------------------- */

typedef struct wx_said {
    pn_token prompt[WX_LONGEST], tokens[WX_LONGEST + WX_MOST];
    size_t n_prompt;
} wx_said;

static wx_said wx_want[WX_MODELS][WX_PROMPTS];

static void wx_learn(void)
{
    static const size_t lengths[WX_PROMPTS] = {1, 30, 64, 100, 150, WX_LONGEST};
    pn_engine *e = NULL;
    pn_err err = {0};
    uint64_t seed = 17;
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .no_prefix = 1}, &err) == PN_OK, "%s", err.text);
    for (int k = 0; k < WX_MODELS; k++) {
        pn_model *m = NULL;
        PN_CHECK(pn_model_load(e, wx_paths[k], NULL, &m, &err) == PN_OK, "%s", err.text);
        for (int i = 0; i < WX_PROMPTS; i++) {
            wx_said *w = &wx_want[k][i];
            pn_session *s = NULL;
            w->n_prompt = lengths[i];
            for (size_t t = 0; t < w->n_prompt; t++)    /* half of them begin alike */
                w->prompt[t] = i % 2 && t < 130 && i > 1 ? wx_want[k][1].prompt[t % 30] : (pn_token)(pn_test_rand(&seed) % pn_vocab_size(m));
            const pn_generate_params p = {.prompt = w->prompt, .n_prompt = w->n_prompt, .max_tokens = WX_MOST, .sampling = &wx_how};
            PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 400, .n_batch = 60}, &s, &err) == PN_OK &&
                     pn_session_generate(s, &p, NULL, &err) == PN_OK, "%s", err.text);
            memcpy(w->tokens, pn_session_tokens(s), (w->n_prompt + WX_MOST) * sizeof(pn_token));
            pn_session_free(s);
        }
        pn_model_free(m);
    }
    pn_engine_close(e);
}

/* --- the machine ----------------------------------------------------------------------------- */

static atomic_llong wx_ms;

static double wx_clock(void *user)
{
    (void)user;
    return 100 + (double)atomic_load(&wx_ms) / 1000;
}

typedef struct wx_turn {
    pn_session *s;
    pn_request *q;
    int model, prompt, cancelled, paused;
    uint32_t more, grant;
} wx_turn;

enum { WX_RUNGS = 24 };

typedef struct wx_rig {
    api_heap h;
    uint64_t seed, first_seed;
    pn_engine *e;
    pn_model *m[WX_MODELS];
    wx_turn turn[WX_SLOTS];
    char script[64];
    uint64_t limit;
    int limited;                /* hard or soft */
    const char *event;
    uint64_t freed, n_undone;   /* since it was cleared */
    double turned[WX_RUNGS];    /* when a rung changed direction last; 0: never */
    int direction[WX_RUNGS];
    unsigned long n_done, n_refused, n_rungs, n_other;
    } wx_rig;

static uint32_t wx_rand(wx_rig *r, uint32_t n) { return (uint32_t)(pn_test_rand(&r->seed) % n); }

#define WX_CHECK(r, cond, ...) wx_check(r, (cond) ? 1 : 0, __LINE__, #cond, "" __VA_ARGS__)

PN_CHECK_FORMAT(5, 6) static int wx_check(wx_rig *r, int ok, int line, const char *what, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return pn_test_check(ok, __FILE__, line, what, "PANTHEON_SEED=%llu, %s: %s", (unsigned long long)r->first_seed, r->event, text);
}

static void wx_on_event(void *user, const pn_mem_event *ev)
{
    wx_rig *r = user;
    WX_CHECK(r, ev->kind != PN_MEM_BUG, "%s", ev->what);
    if (ev->kind != PN_MEM_RUNG || ev->rank >= WX_RUNGS)
        return;
    int way = ev->undone ? -1 : 1;
    if (r->direction[ev->rank] && r->direction[ev->rank] != way) {
        WX_CHECK(r, !r->turned[ev->rank] || ev->seconds - r->turned[ev->rank] >= 10, "rung %u, %s, turns round again after %.2f s", (unsigned)ev->rank, ev->what,
                 ev->seconds - r->turned[ev->rank]);
        r->turned[ev->rank] = ev->seconds;
    }
    r->direction[ev->rank] = way;
    r->freed += ev->bytes;
    r->n_undone += ev->undone != 0;
    r->n_rungs++;
}

/* Ramps, steps and spikes of what is there, for two minutes; then plenty. */
static int wx_write_script(wx_rig *r)
{
    snprintf(r->script, sizeof r->script, "/tmp/pn_weather_%ld", (long)getpid());
    FILE *f = fopen(r->script, "w");
    if (!f)
        return 0;
    fprintf(f, "budget 100M\n0 80M\n");
    for (uint32_t t = 1 + wx_rand(r, 5); t < 120; t += 1 + wx_rand(r, 15))
        fprintf(f, "%u %uK\n", (unsigned)t, (unsigned)(wx_rand(r, 3) ? wx_rand(r, 30) * 1024 + 300 : 30000 + wx_rand(r, 50000)));
    fprintf(f, "120 80M\n");
    fclose(f);
    return 1;
}

static int wx_load(wx_rig *r, int k)
{
    pn_err err = {0};
    pn_status st = pn_model_load(r->e, wx_paths[k], &(pn_model_params){.residency = PN_RESIDENCY_MAP, .floor_tokens = k ? wx_rand(r, 2) * 512 : 0}, &r->m[k], &err);
    return WX_CHECK(r, st == PN_OK || st == PN_E_BUDGET || st == PN_E_NOMEM, "%s", err.text) && st == PN_OK;
}

static int wx_open(wx_rig *r, uint64_t seed)
{
    pn_err err = {0};
    *r = (wx_rig){.seed = seed, .first_seed = seed, .event = "opening"};
    wx_rand(r, 2);
    atomic_store(&wx_ms, 0);
    if (!WX_CHECK(r, wx_write_script(r), "no script"))
        return 0;
    const pn_engine_params p = {.n_threads = 1, .allocator = {api_heap_alloc, api_heap_free, &r->h}, .pressure_script = r->script, .clock = wx_clock,
                                .kv_min_type = PN_DTYPE_F16, .prefix_bytes = 2 << 20};
    if (!WX_CHECK(r, pn_engine_open(&r->e, &p, &err) == PN_OK, "%s", err.text))
        return 0;
    pn_mem_on_event(r->e, wx_on_event, r);
    return WX_CHECK(r, wx_load(r, 0), "the first model");
}

/* --- what always holds ----------------------------------------------------------------------- */

static uint64_t wx_held(pn_engine *e)
{
    pn_mem_info i;
    pn_engine_memory(e, &i);
    return i.total_used + i.used[PN_ACCT_WEIGHTS_MAP];
}

static void wx_always(wx_rig *r)
{
    pn_mem_info i;
    uint64_t sum = 0;
    pn_engine_memory(r->e, &i);
    for (int a = 0; a < PN_ACCT_COUNT; a++) {
        WX_CHECK(r, i.used[a] < UINT64_C(1) << 40, "%s is %llu", pn_account_name((pn_account)a), (unsigned long long)i.used[a]);
        sum += a == PN_ACCT_WEIGHTS_MAP ? 0 : i.used[a];
    }
    WX_CHECK(r, sum == i.total_used, "accounts sum to %llu, not %llu", (unsigned long long)sum, (unsigned long long)i.total_used);
    WX_CHECK(r, !r->limit || i.total_used <= r->limit, "%llu of %llu bytes", (unsigned long long)i.total_used, (unsigned long long)r->limit);
}

static void wx_answer(wx_rig *r, const wx_turn *t)
{
    const wx_said *w = &wx_want[t->model][t->prompt];
    pn_generate_result a;
    pn_err err = {0};
    pn_status st = pn_request_result(t->q, &a, &err);
    uint32_t n = pn_session_length(t->s);
    if (!WX_CHECK(r, st == PN_OK, "an admitted turn: %s", err.text))
        return;
    WX_CHECK(r, a.finish == PN_FINISH_LENGTH || (t->cancelled && a.finish == PN_FINISH_CANCELLED), "it finished by %d", (int)a.finish);
    WX_CHECK(r, t->cancelled || a.n_generated == a.max_tokens || (t->grant && a.stopped_by_memory), "%u of %u tokens", (unsigned)a.n_generated,
             (unsigned)a.max_tokens);
    WX_CHECK(r, !a.kv_degraded, "keys and values are smaller");
    WX_CHECK(r, n <= w->n_prompt + WX_MOST && memcmp(pn_session_tokens(t->s), w->tokens, n * sizeof(pn_token)) == 0, "other tokens");
    r->n_done++;
}

static void wx_drop(wx_turn *t)
{
    pn_request_free(t->q);
    pn_session_free(t->s);
    *t = (wx_turn){0};
}

static void wx_reap(wx_rig *r)
{
    for (int i = 0; i < WX_SLOTS; i++)
        if (r->turn[i].q && pn_request_done(r->turn[i].q)) {
            wx_answer(r, &r->turn[i]);
            wx_drop(&r->turn[i]);
        }
}

/* --- what happens ---------------------------------------------------------------------------- */

static int wx_nothing(void *user, const char *text, size_t n, pn_token t)
{
    (void)user, (void)text, (void)n, (void)t;
    return 0;
}

/* False: refused, as it may be. */
static int wx_begin(wx_rig *r, wx_turn *t, pn_model *m)
{
    const wx_said *w = &wx_want[t->model][t->prompt];
    pn_err err = {0};
    t->more = 1 + wx_rand(r, wx_rand(r, 3) ? 20 : WX_MOST);
    t->grant = wx_rand(r, 3) ? 0 : 1 + wx_rand(r, 30);
    const pn_generate_params p = {.prompt = w->prompt, .n_prompt = w->n_prompt, .max_tokens = t->more, .sampling = &wx_how, .grant = t->grant,
                                  .may_shrink = wx_rand(r, 2) == 0, .on_text = wx_nothing, .no_cache = wx_rand(r, 4) == 0, .client = wx_rand(r, 3)};
    const pn_session_params sp = {.n_ctx = 320 + 64 * wx_rand(r, 3), .n_batch = 16 + wx_rand(r, 100), .by_turn = 1};
    pn_status st = pn_session_new(m, &sp, &t->s, &err);
    if (!st)
        st = pn_request_new(t->s, &p, &t->q, &err);
    WX_CHECK(r, st == PN_OK || st == PN_E_BUDGET || st == PN_E_NOMEM, "%s", err.text);
    if (!st)
        return 1;
    r->n_refused++;
    wx_drop(t);
    return 0;
}

static void wx_admit(wx_rig *r, uint32_t i)
{
    r->event = "a turn";
    if (r->turn[i].q)
        return;
    r->turn[i] = (wx_turn){.model = (int)wx_rand(r, WX_MODELS), .prompt = (int)wx_rand(r, WX_PROMPTS)};
    if (r->m[r->turn[i].model])
        wx_begin(r, &r->turn[i], r->m[r->turn[i].model]);
}

static void wx_step(wx_rig *r, uint32_t n)
{
    pn_err err = {0};
    r->event = "steps";
    while (n--) {
        atomic_fetch_add(&wx_ms, 20 + wx_rand(r, 100));
        WX_CHECK(r, pn_engine_step(r->e, 0, NULL, &err) == PN_OK, "%s", err.text);
    }
}

/* Somebody looks while nothing else moves: what rungs gave is what the ledger has less. */
static void wx_poll(wx_rig *r, uint32_t ms)
{
    r->event = "time";
    atomic_fetch_add(&wx_ms, ms);
    uint64_t before = wx_held(r->e);
    r->freed = r->n_undone = 0;
    pn_mem_poll(r->e);
    uint64_t after = wx_held(r->e);
    /* Where a limit is reached, looking at what a rung would give may cost a page of the cache. */
    WX_CHECK(r, r->n_undone || before - after == r->freed || (r->limited && before - after > r->freed), "rungs gave %llu bytes, the ledger has %lld less", (unsigned long long)r->freed,
             (long long)(before - after));
}

static void wx_limit(wx_rig *r)
{
    static const uint32_t more[] = {0, 100, 20000, 300000, 2000000};
    uint64_t hard = wx_rand(r, 3) ? pn_mem_used(r->e) + more[wx_rand(r, 5)] - (wx_rand(r, 4) ? 0 : 4000) : 0;
    uint64_t soft = wx_rand(r, 4) ? 0 : pn_mem_used(r->e) / 2;
    r->event = "a limit";
    pn_status st = pn_mem_limit(r->e, (int64_t)soft, (int64_t)hard, NULL);
    WX_CHECK(r, st == PN_OK || st == PN_E_BUDGET, "%s", pn_status_name(st));
    if (!st)
        r->limit = hard;
    r->limited = r->limit || soft;
}

static void wx_model(wx_rig *r)
{
    r->event = "a model";
    if (!r->m[1]) {
        wx_load(r, 1);
        return;
    }
    for (int i = 0; i < WX_SLOTS; i++)
        if (r->turn[i].model == 1)
            return;
    pn_model_free(r->m[1]);
    r->m[1] = NULL;
}

static void wx_happen(wx_rig *r)
{
    wx_turn *t = &r->turn[wx_rand(r, WX_SLOTS)];
    switch (wx_rand(r, 14)) {
    case 0: case 1: case 2: wx_admit(r, wx_rand(r, WX_SLOTS)); break;
    case 3: case 4: case 5: case 6: wx_step(r, 1 + wx_rand(r, 6)); break;
    case 7: case 8: wx_poll(r, 200 + wx_rand(r, 3000)); break;
    case 9:
        r->event = "a pause";
        if (t->q)
            pn_request_pause(t->q, t->paused = !t->paused);
        break;
    case 10:
        r->event = "a cancel";
        if (t->q && wx_rand(r, 2)) {
            pn_request_cancel(t->q);
            t->cancelled = 1;
        } else {
            wx_drop(t);
        }
        break;
    case 11:
        r->event = "a hint";
        pn_mem_hint(r->e, (pn_level)wx_rand(r, 4));
        break;
    case 12: wx_limit(r); break;
    case 13: wx_model(r); break;
    }
    wx_reap(r);
    wx_always(r);
}

/* All turns end, memory comes back, and everything is as it was. */
static void wx_end(wx_rig *r)
{
    pn_mem_rung rungs[64];
    pn_mem_info i;
    for (int k = 0; k < WX_SLOTS; k++)
        if (r->turn[k].q && r->turn[k].paused)
            pn_request_pause(r->turn[k].q, 0);
    for (int n = 0, left = 1; n < 3000 && left; n++) {
        wx_step(r, 1);
        wx_reap(r);
        left = 0;
        for (int k = 0; k < WX_SLOTS; k++)
            left += r->turn[k].q != NULL;
        if (n == 2999)
            WX_CHECK(r, !left, "%d turns do not end", left);
    }
    wx_always(r);
    r->event = "the end";
    for (int k = 0; k < WX_SLOTS; k++)
        wx_drop(&r->turn[k]);
    pn_mem_limit(r->e, 0, 0, NULL);
    atomic_store(&wx_ms, 125000 > atomic_load(&wx_ms) ? 125000 : atomic_load(&wx_ms));
    for (int n = 0; n < 400; n++) {
        atomic_fetch_add(&wx_ms, 500);
        pn_mem_poll(r->e);
    }
    WX_CHECK(r, pn_mem_level(r->e) == PN_LEVEL_OK, "level %d", (int)pn_mem_level(r->e));
    size_t n = pn_mem_rungs(r->e, rungs, 64);
    for (size_t k = 0; k < n && k < 64; k++)
        WX_CHECK(r, !rungs[k].in_force, "%s is in force", rungs[k].name);
    for (int k = 0; k < WX_MODELS; k++)
        pn_model_free(r->m[k]);
    pn_mem_release(r->e, UINT64_MAX, NULL);
    pn_engine_memory(r->e, &i);
    static const pn_account gone[] = {PN_ACCT_WEIGHTS, PN_ACCT_WEIGHTS_MAP, PN_ACCT_VOCAB, PN_ACCT_KV, PN_ACCT_KV_RESERVE, PN_ACCT_STAGE, PN_ACCT_GRAMMAR};
    for (size_t k = 0; k < sizeof gone / sizeof *gone; k++)
        WX_CHECK(r, i.used[gone[k]] == 0, "%llu bytes of %s", (unsigned long long)i.used[gone[k]], pn_account_name(gone[k]));
    pn_engine_close(r->e);
    WX_CHECK(r, r->h.out == 0, "%ld blocks leak", r->h.out);
    remove(r->script);
}

static void wx_day(uint64_t seed, unsigned long totals[3])
{
    wx_rig r;
    if (!wx_open(&r, seed))
        return;
    for (int i = 0; i < WX_EVENTS; i++)
        wx_happen(&r);
    wx_end(&r);
    totals[0] += r.n_done;
    totals[1] += r.n_refused;
    totals[2] += r.n_rungs;
}

static void random_days(void)
{
    const char *one = getenv("PANTHEON_SEED"), *many = getenv("PANTHEON_WEATHER");
    unsigned long totals[3] = {0};
    long n = many ? strtol(many, NULL, 10) : 200;
    if (one) {
        wx_day(strtoull(one, NULL, 10), totals);
        return;
    }
    for (long i = 0; i < n && pn_test_failed < 20; i++)
        wx_day(1000 + (uint64_t)i * 7919, totals);
    PN_CHECK(totals[0] > (unsigned long)n && totals[1] > 0 && totals[2] > (unsigned long)n, "%lu turns ended, %lu were refused, %lu rungs moved", totals[0],
             totals[1], totals[2]);
    if (getenv("PANTHEON_TIMES"))
        printf("%ld days: %lu turns ended, %lu were refused, %lu rungs moved\n", n, totals[0], totals[1], totals[2]);
}

/* --- with threads ---------------------------------------------------------------------------- */

enum { WX_CLIENTS = 3, WX_ROUNDS = 12 };

typedef struct wx_client {
    wx_rig *r;
    uint64_t seed;
    int model;                  /* 1: loads its own */
    int hurry;
    unsigned long n_done;
} wx_client;

static atomic_int wx_over;
static pthread_mutex_t wx_telling = PTHREAD_MUTEX_INITIALIZER;

/* PN_CHECK from several threads. */
#define WX_TELL(cond, ...)                          \
    do {                                            \
        int ok_ = (cond) ? 1 : 0;                   \
        pthread_mutex_lock(&wx_telling);            \
        PN_CHECK(ok_, #cond ": " __VA_ARGS__);      \
        pthread_mutex_unlock(&wx_telling);          \
    } while (0)

static void wx_sleep(long us) { nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL); }

/* One turn, from one thread while the engine's own steps. */
static void wx_client_turn(wx_client *c, pn_model *m, int model)
{
    const wx_said *w = &wx_want[model][pn_test_rand(&c->seed) % WX_PROMPTS];
    pn_session *s = NULL;
    pn_request *q = NULL;
    pn_generate_result a;
    pn_err err = {0};
    const pn_generate_params p = {.prompt = w->prompt, .n_prompt = w->n_prompt, .max_tokens = 1 + (uint32_t)(pn_test_rand(&c->seed) % 30), .sampling = &wx_how};
    int leave = pn_test_rand(&c->seed) % 4 == 0, by_hand = pn_test_rand(&c->seed) % 4 == 0;
    pn_status st = pn_session_new(m, &(pn_session_params){.n_ctx = 400, .n_batch = 60, .by_turn = 1}, &s, &err);
    if (!st && by_hand)
        st = pn_session_generate(s, &p, NULL, &err);
    else if (!st)
        st = pn_request_new(s, &p, &q, &err);
    for (int n = 0; q && !pn_request_done(q) && !(leave && n > 20); n++)
        wx_sleep(200);
    if (q && pn_request_done(q))
        st = pn_request_result(q, &a, &err);
    WX_TELL(st == PN_OK || st == PN_E_BUDGET, "a client's turn: %s", err.text);
    if (!st && (by_hand || (q && pn_request_done(q)))) {
        uint32_t n = pn_session_length(s);
        WX_TELL(n == w->n_prompt + p.max_tokens && memcmp(pn_session_tokens(s), w->tokens, n * sizeof(pn_token)) == 0, "a client's turn: other tokens");
        c->n_done++;
    }
    pn_request_free(q);
    pn_session_free(s);
}

static void *wx_client_run(void *user)
{
    wx_client *c = user;
    for (int i = 0; i < WX_ROUNDS; i++) {
        pn_model *m = c->r->m[0];
        pn_err err = {0};
        pn_status st = c->model ? pn_model_load(c->r->e, wx_paths[1], &(pn_model_params){.residency = PN_RESIDENCY_MAP, .floor_tokens = 512}, &m, &err) : PN_OK;
        WX_TELL(st == PN_OK || st == PN_E_BUDGET, "%s", err.text);
        if (st)
            continue;
        for (int k = 0; k < 2; k++)
            wx_client_turn(c, m, c->model);
        if (c->model)
            pn_model_free(m);
    }
    return NULL;
}

/* Looks, and makes weather. */
static void *wx_watch(void *user)
{
    wx_client *c = user;
    pn_engine *e = c->r->e;
    while (!atomic_load(&wx_over)) {
        pn_mem_state s;
        pn_mem_event ev[8];
        pn_mem_rung rungs[8];
        pn_residency_info i;
        atomic_fetch_add(&wx_ms, c->hurry ? 2 : 100 + (long long)(pn_test_rand(&c->seed) % 400));
        switch (pn_test_rand(&c->seed) % 6) {
        case 0: pn_mem_hint(e, (pn_level)(pn_test_rand(&c->seed) % 4)); break;
        case 1: pn_mem_release(e, 1 << 16, NULL); break;
        case 2: pn_mem_limit(e, pn_test_rand(&c->seed) % 2 ? 1 << 20 : 0, -1, NULL); break;
        default: pn_mem_poll(e); break;
        }
        pn_mem_get(e, 0, &s);
        pn_mem_events(e, ev, 8);
        pn_mem_rungs(e, rungs, 8);
        pn_model_residency(c->r->m[0], &i);
        wx_sleep(c->hurry ? 1 : 500);
    }
    return NULL;
}

static void wx_quiet(void *user, const pn_mem_event *ev) { (void)user, (void)ev; }

/* own: the engine's thread steps; else this one does, and is never told that somebody else does. */
static void many_threads(int own)
{
    wx_rig r;
    wx_client c[WX_CLIENTS + 2];
    pthread_t t[WX_CLIENTS + 2];
    pn_err err = {0};
    if (!wx_open(&r, 77 + (uint64_t)own))
        return;
    pn_mem_on_event(r.e, wx_quiet, NULL);
    atomic_store(&wx_over, 0);
    WX_TELL(!own || pn_engine_start(r.e, &err) == PN_OK, "%s", err.text);
    for (int i = 0; i < WX_CLIENTS + 2; i++) {
        c[i] = (wx_client){.r = &r, .seed = 5 + (uint64_t)i, .model = i == WX_CLIENTS - 1, .hurry = !own};
        pthread_create(&t[i], NULL, i < WX_CLIENTS ? wx_client_run : wx_watch, &c[i]);
    }
    if (own)
        for (int i = 0; i < WX_CLIENTS; i++)
            pthread_join(t[i], NULL);
    else
        for (int n = 0; n < 4000; n++) {
            WX_TELL(pn_engine_step(r.e, 0, NULL, &err) == PN_OK, "%s", err.text);
        }
    atomic_store(&wx_over, own);
    if (!own) {
        WX_TELL(pn_engine_start(r.e, &err) == PN_OK, "%s", err.text);
        for (int i = 0; i < WX_CLIENTS; i++)
            pthread_join(t[i], NULL);
        atomic_store(&wx_over, 1);
    }
    for (int i = WX_CLIENTS; i < WX_CLIENTS + 2; i++)
        pthread_join(t[i], NULL);
    pn_engine_stop(r.e);
    WX_TELL(c[0].n_done + c[1].n_done > 0, "no client had an answer");
    r.event = "threads";
    wx_end(&r);
}

int main(void)
{
    wx_learn();
    many_threads(1);
    many_threads(0);
    if (!getenv("PANTHEON_THREADS"))            /* set: these alone, for the thread sanitizer */
        random_days();
    return pn_test_end();
}
