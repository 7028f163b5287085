/*
 * test_memory.c - memory under pressure, played from a script on a clock of our own: levels, what is given up and taken
 * back, what is promised, and that none of it changes an answer.
 */
#include "pantheon.h"
#include "pn_api_test.h"

#include <unistd.h>

#include "cache_rig.h"

static const char memory_model[] = "models/demo.gguf";

/* --- a machine made of text ----------------------------------------------------------------- */

static double memory_time;

static double memory_clock(void *user)
{
    (void)user;
    return memory_time;
}

enum { MEMORY_EVENTS = 400 };

typedef struct memory_rig {
    cache_rig r;
    char script[64];
    pn_mem_event seen[MEMORY_EVENTS];
    size_t n_seen;
} memory_rig;

static void memory_event(void *user, const pn_mem_event *ev)
{
    memory_rig *g = user;
    if (g->n_seen < MEMORY_EVENTS)
        g->seen[g->n_seen++] = *ev;
}

static int memory_open(memory_rig *g, const char *script, pn_engine_params p)
{
    memset(g, 0, sizeof *g);
    memory_time = 100;
    if (script) {
        snprintf(g->script, sizeof g->script, "/tmp/pn_memory_%ld", (long)getpid());
        FILE *f = fopen(g->script, "w");
        if (!PN_CHECK(f != NULL, "%s cannot be written", g->script))
            return 0;
        fputs(script, f);
        fclose(f);
        p.pressure_script = g->script;
        p.clock = memory_clock;
    }
    p.n_threads = p.n_threads ? p.n_threads : 1;
    if (!cache_open_with(&g->r, memory_model, &p))
        return 0;
    pn_mem_on_event(g->r.e, memory_event, g);
    return 1;
}

static void memory_close(memory_rig *g)
{
    cache_close(&g->r);
    if (g->script[0])
        remove(g->script);
}

/* Time passes, and the engine looks at it as it would. */
static void memory_pass(memory_rig *g, double seconds)
{
    for (double end = memory_time + seconds; memory_time < end;) {
        memory_time += 0.25;
        pn_mem_poll(g->r.e);
    }
}

static const pn_mem_event *memory_find(const memory_rig *g, pn_mem_event_kind kind, const char *what, int undone)
{
    for (size_t i = 0; i < g->n_seen; i++)
        if (g->seen[i].kind == kind && strcmp(g->seen[i].what, what) == 0 && g->seen[i].undone == undone)
            return &g->seen[i];
    return NULL;
}

static pn_mem_rung memory_rung(pn_engine *e, uint32_t rank)
{
    pn_mem_rung all[64], none = {0};
    size_t n = pn_mem_rungs(e, all, 64);
    for (size_t i = 0; i < n && i < 64; i++)
        if (all[i].rank == rank && all[i].resource == 0)
            return all[i];
    return none;
}

static uint64_t memory_used(pn_engine *e, pn_account a)
{
    pn_mem_info i;
    pn_engine_memory(e, &i);
    return i.used[a];
}

/* --- levels ---------------------------------------------------------------------------------- */

/* 8 GiB: WATCH below 1,638.4 MiB, TIGHT below 819.2, CRITICAL below 327.68 (memory sheet 5). */
static void levels_follow_the_readings(void)
{
    memory_rig g;
    pn_mem_state s;
    if (!memory_open(&g, "budget 8G\n0 6G\n2 1200M\n6 700M\n10 100M\n14 6G\n", (pn_engine_params){0}))
        return;
    PN_CHECK(pn_mem_get(g.r.e, 0, &s) == PN_OK && s.level == PN_LEVEL_OK && s.budget == UINT64_C(8) << 30, "level %d of %llu", (int)s.level,
             (unsigned long long)s.budget);
    PN_CHECK(s.watch == UINT64_C(8589934592) / 5 && s.watch > s.tight && s.tight > s.critical && strcmp(s.name, "host") == 0, "thresholds");
    PN_CHECK(pn_mem_get(g.r.e, 1, &s) == PN_E_INVALID, "the CPU has no memory of its own");
    memory_pass(&g, 3);
    PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_WATCH, "level %d", (int)pn_mem_level(g.r.e));
    memory_pass(&g, 4);
    PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_TIGHT, "level %d", (int)pn_mem_level(g.r.e));
    memory_pass(&g, 4);
    PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_CRITICAL, "level %d", (int)pn_mem_level(g.r.e));
    memory_pass(&g, 25);
    PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_OK, "level %d", (int)pn_mem_level(g.r.e));
    size_t n = 0;
    for (size_t i = 0; i < g.n_seen; i++)
        if (g.seen[i].kind == PN_MEM_LEVEL) {
            static const pn_level to[] = {PN_LEVEL_WATCH, PN_LEVEL_TIGHT, PN_LEVEL_CRITICAL, PN_LEVEL_TIGHT, PN_LEVEL_WATCH, PN_LEVEL_OK};
            PN_CHECK(n < 6 && g.seen[i].level == to[n] && g.seen[i].resource == 0 && g.seen[i].budget == UINT64_C(8) << 30, "event %zu", n);
            n++;
        }
    PN_CHECK(n == 6, "%zu changes of level", n);
    pn_mem_event last[4];
    PN_CHECK(pn_mem_events(g.r.e, last, 4) == 4 && last[3].seconds >= last[0].seconds, "the last events");
    memory_close(&g);
}

static void a_hint_counts_for_five_seconds(void)
{
    memory_rig g;
    if (!memory_open(&g, "budget 8G\n0 6G\n", (pn_engine_params){0}))
        return;
    pn_mem_hint(g.r.e, PN_LEVEL_CRITICAL);
    memory_pass(&g, 1);
    PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_CRITICAL, "level %d", (int)pn_mem_level(g.r.e));
    memory_pass(&g, 30);
    PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_OK, "level %d", (int)pn_mem_level(g.r.e));
    memory_close(&g);
}

static void a_script_that_is_none_is_refused(void)
{
    memory_rig g = {0};
    pn_engine *e = NULL;
    pn_err err = {0};
    snprintf(g.script, sizeof g.script, "/tmp/pn_memory_%ld", (long)getpid());
    FILE *f = fopen(g.script, "w");
    fputs("budget 8G\n0 a lot\n", f);
    fclose(f);
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.pressure_script = g.script}, &err) != PN_OK && strstr(err.text, "2"), "%s", err.text);
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.pressure_script = "/tmp/there/is/none"}, &err) == PN_E_IO, "%s", err.text);
    remove(g.script);
}

/* --- the ladder ------------------------------------------------------------------------------ */

static void the_prefix_cache_goes_first_and_answers_stay_the_same(void)
{
    memory_rig g;
    cache_said cold;
    if (!memory_open(&g, "budget 200M\n0 150M\n2 39M\n20 150M\n", (pn_engine_params){0}))
        return;
    cache_cold(&g.r, g.r.ids, 300, &cold);
    const pn_generate_params p = cache_ask(g.r.ids, 300);
    cache_run(&g.r, &p, 1, &cold, "cold");
    PN_CHECK(cache_run(&g.r, &p, 1, &cold, "warm") == 256, "nothing was kept");
    uint64_t had = memory_used(g.r.e, PN_ACCT_PREFIX), total = pn_mem_used(g.r.e);
    memory_pass(&g, 6);
    const pn_mem_event *ev = memory_find(&g, PN_MEM_RUNG, "prefix_cache", 0);
    uint64_t freed = 0;
    for (size_t i = 0; i < g.n_seen; i++)
        freed += g.seen[i].kind == PN_MEM_RUNG && !g.seen[i].undone ? g.seen[i].bytes : 0;
    PN_CHECK(ev && ev->rank == 2 && ev->level == PN_LEVEL_WATCH, "the cache was left");
    PN_CHECK(had > 0 && memory_used(g.r.e, PN_ACCT_PREFIX) < had && cache_info(g.r.e).pages == 0, "%llu bytes stay",
             (unsigned long long)memory_used(g.r.e, PN_ACCT_PREFIX));
    PN_CHECK(total - pn_mem_used(g.r.e) == freed, "events say %llu, the ledger %llu", (unsigned long long)freed,
             (unsigned long long)(total - pn_mem_used(g.r.e)));
    PN_CHECK(memory_rung(g.r.e, 2).in_force, "not in force");
    cache_run(&g.r, &p, 1, &cold, "under pressure");
    PN_CHECK(cache_run(&g.r, &p, 1, &cold, "under pressure, again") == 0, "the cache grew");
    memory_pass(&g, 40);
    PN_CHECK(memory_find(&g, PN_MEM_RUNG, "prefix_cache", 1) && !memory_rung(g.r.e, 2).in_force, "not taken back");
    cache_run(&g.r, &p, 1, &cold, "afterwards");
    PN_CHECK(cache_run(&g.r, &p, 1, &cold, "afterwards, again") == 256, "nothing is kept any more");
    free(cold.logits);
    memory_close(&g);
}

enum { MEMORY_MANY = 4, MEMORY_SHORT = 40 };

static void memory_many(memory_rig *g, pn_session *s[], pn_request *q[], const pn_generate_params *p)
{
    pn_err err = {0};
    for (size_t i = 0; i < MEMORY_MANY; i++) {
        s[i] = cache_session(&g->r, 600, 1);
        PN_CHECK(pn_request_new(s[i], &p[i], &q[i], &err) == PN_OK, "%s", err.text);
    }
}

/* So many steps, a quarter of a second each; how many requests grew. */
static uint32_t memory_step(memory_rig *g, pn_session *s[], uint32_t steps)
{
    uint32_t was[MEMORY_MANY], grew = 0;
    pn_err err = {0};
    for (size_t i = 0; i < MEMORY_MANY; i++)
        was[i] = s[i] ? pn_session_length(s[i]) : 0;
    for (uint32_t i = 0; i < steps; i++) {
        memory_time += 0.25;
        PN_CHECK(pn_engine_step(g->r.e, 0, NULL, &err) == PN_OK, "%s", err.text);
    }
    for (size_t i = 0; i < MEMORY_MANY; i++)
        grew += s[i] && pn_session_length(s[i]) > was[i];
    return grew;
}

/* OK, TIGHT, OK: half of them wait, steps become smaller, nobody fails, all is taken back within 30 s, and every answer has
 * the bits of one that was alone. */
static void fewer_at_once_and_back_with_the_same_bits(void)
{
    memory_rig g;
    cache_said alone[MEMORY_MANY];
    pn_session *s[MEMORY_MANY];
    pn_request *q[MEMORY_MANY];
    pn_generate_params p[MEMORY_MANY];
    pn_err err = {0};
    if (!memory_open(&g, "budget 200M\n0 150M\n4 15M\n14 150M\n", (pn_engine_params){.no_prefix = 1}))
        return;
    for (uint32_t i = 0; i < MEMORY_MANY; i++) {
        p[i] = cache_ask(i & 1 ? g.r.ids : g.r.other, MEMORY_SHORT + 30 * i);
        p[i].max_tokens = 260;
        pn_session *t = cache_session(&g.r, 600, 0);
        PN_CHECK(pn_session_generate(t, &p[i], NULL, &err) == PN_OK, "%s", err.text);
        cache_keep(&g.r, t, &alone[i]);
        pn_session_free(t);
    }
    memory_many(&g, s, q, p);
    uint64_t scratch = memory_used(g.r.e, PN_ACCT_SCRATCH);
    PN_CHECK(memory_step(&g, s, 8) == MEMORY_MANY, "not all at work");
    memory_step(&g, s, 20);                     /* 7 s: TIGHT since 4 */
    PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_TIGHT, "level %d", (int)pn_mem_level(g.r.e));
    PN_CHECK(memory_rung(g.r.e, 10).in_force && memory_rung(g.r.e, 11).in_force, "slots or rows were left");
    PN_CHECK(memory_used(g.r.e, PN_ACCT_SCRATCH) < scratch, "%llu bytes of scratch, %llu before",
             (unsigned long long)memory_used(g.r.e, PN_ACCT_SCRATCH), (unsigned long long)scratch);
    memory_step(&g, s, 4);
    uint32_t grew = memory_step(&g, s, 8);
    PN_CHECK(grew == 2 || grew == MEMORY_MANY, "%u go on", (unsigned)grew);
    for (double end = 100 + 14 + 45; memory_time < end;)
        memory_step(&g, s, 1);
    PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_OK && !memory_rung(g.r.e, 10).in_force && !memory_rung(g.r.e, 11).in_force, "not taken back");
    for (size_t i = 0; i < MEMORY_MANY; i++) {
        pn_generate_result a;
        for (int k = 0; k < 2000 && !pn_request_done(q[i]); k++)
            memory_step(&g, s, 1);
        PN_CHECK(pn_request_result(q[i], &a, &err) == PN_OK && a.n_generated == 260 && a.level_max == PN_LEVEL_TIGHT, "%s", err.text);
        cache_same(&g.r, s[i], &alone[i], "disturbed");
        pn_request_free(q[i]);
        pn_session_free(s[i]);
        s[i] = NULL;
        free(alone[i].logits);
    }
    double last[64] = {0};
    int turned[64] = {0}, was[64] = {0};
    for (size_t i = 0; i < g.n_seen; i++) {     /* no rung turns round twice in 10 s */
        const pn_mem_event *ev = &g.seen[i];
        if (ev->kind != PN_MEM_RUNG)
            continue;
        int dir = ev->undone ? -1 : 1;
        if (was[ev->rank] && was[ev->rank] != dir) {
            turned[ev->rank] += ev->seconds - last[ev->rank] < 10;
            last[ev->rank] = ev->seconds;
        }
        was[ev->rank] = dir;
    }
    PN_CHECK(turned[2] + turned[10] + turned[11] == 0, "to and fro");
    memory_close(&g);
}

/* CRITICAL: all but one stand aside, their keys and values on disk; then they go on, and nobody can tell. */
static void one_at_a_time_and_back_with_the_same_bits(void)
{
    memory_rig g;
    cache_said alone[MEMORY_MANY];
    pn_session *s[MEMORY_MANY];
    pn_request *q[MEMORY_MANY];
    pn_generate_params p[MEMORY_MANY];
    pn_err err = {0};
    char dir[64];
    snprintf(dir, sizeof dir, "/tmp/pn_memory_dir_%ld", (long)getpid());
    if (!memory_open(&g, "budget 200M\n0 150M\n4 6M\n9 150M\n", (pn_engine_params){.session_dir = dir}))
        return;
    for (uint32_t i = 0; i < MEMORY_MANY; i++) {
        p[i] = cache_ask(i & 1 ? g.r.ids : g.r.other, 200 + 30 * i);
        p[i].max_tokens = 200;
        p[i].no_cache = 1;
        pn_session *t = cache_session(&g.r, 600, 0);
        PN_CHECK(pn_session_generate(t, &p[i], NULL, &err) == PN_OK, "%s", err.text);
        cache_keep(&g.r, t, &alone[i]);
        pn_session_free(t);
    }
    memory_many(&g, s, q, p);
    memory_step(&g, s, 24);                     /* 6 s: CRITICAL since 4 */
    PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_CRITICAL && memory_rung(g.r.e, 15).in_force, "nobody stands aside");
    uint64_t freed = memory_rung(g.r.e, 15).freed;
    PN_CHECK(freed > 3 * 100000, "%llu bytes", (unsigned long long)freed);
    PN_CHECK(memory_step(&g, s, 4) == 1, "more than one goes on");
    double parked = 0;
    for (size_t i = 0; i < MEMORY_MANY; i++) {
        pn_generate_result a;
        for (int k = 0; k < 4000 && !pn_request_done(q[i]); k++)
            memory_step(&g, s, 1);
        PN_CHECK(pn_request_result(q[i], &a, &err) == PN_OK && a.n_generated == 200 && !a.kv_degraded && a.level_max == PN_LEVEL_CRITICAL, "%s", err.text);
        cache_same(&g.r, s[i], &alone[i], "after it stood aside");
        parked += a.parked_seconds > 0;
        pn_request_free(q[i]);
        pn_session_free(s[i]);
        s[i] = NULL;
        free(alone[i].logits);
    }
    PN_CHECK(parked == MEMORY_MANY - 1, "%.0f stood aside", parked);
    memory_close(&g);
    rmdir(dir);
}

/* A step that was formed while rows were few, and a session opened then, are like any other. */
static void small_steps_have_the_same_bits(void)
{
    memory_rig g;
    cache_said cold;
    if (!memory_open(&g, "budget 200M\n0 150M\n2 15M\n", (pn_engine_params){.no_prefix = 1}))
        return;
    cache_cold(&g.r, g.r.ids, 300, &cold);
    pn_session *held = cache_session(&g.r, 600, 0);
    memory_pass(&g, 8);
    PN_CHECK(memory_rung(g.r.e, 11).in_force && pn_mem_level(g.r.e) == PN_LEVEL_TIGHT, "rows were left");
    uint64_t small = memory_used(g.r.e, PN_ACCT_SCRATCH);
    const pn_generate_params p = cache_ask(g.r.ids, 300);
    cache_run(&g.r, &p, 0, &cold, "in steps of 16");
    PN_CHECK(memory_used(g.r.e, PN_ACCT_SCRATCH) <= small, "the working memory grew");
    pn_session_free(held);
    free(cold.logits);
    memory_close(&g);
}

/* Keys and values become smaller where the gate allows it and nobody asked for their type; who is hit is told. */
static void keys_and_values_become_smaller_if_the_gate_lets_them(void)
{
    const int quick = pn_test_quick();
    for (int allowed = quick; allowed < 3 - quick; allowed++) {         /* nobody has probed; probed; probed, and forbidden */
        memory_rig g;
        pn_session *s[MEMORY_MANY];
        pn_request *q[MEMORY_MANY];
        pn_generate_params p[MEMORY_MANY];
        cache_said alone;
        pn_err err = {0};
        pn_kv_gate gate;
        if (!memory_open(&g, "budget 200M\n0 150M\n4 38M\n30 150M\n", (pn_engine_params){.no_prefix = 1, .kv_min_type = allowed == 2 ? PN_DTYPE_F16 : 0}))
            return;
        if (allowed)
            PN_CHECK(pn_model_kv_gate(g.r.m, PN_DTYPE_Q8_0, NULL, &gate, &err) == PN_OK && gate.eligible, "%s", err.text);
        cache_cold(&g.r, g.r.ids, 300, &alone);
        for (uint32_t i = 0; i < MEMORY_MANY; i++) {
            p[i] = cache_ask(g.r.ids, 300);
            p[i].max_tokens = 150;
        }
        memory_many(&g, s, q, p);
        memory_step(&g, s, 30);                 /* WATCH since 4 s */
        PN_CHECK(pn_mem_level(g.r.e) == PN_LEVEL_WATCH, "level %d", (int)pn_mem_level(g.r.e));
        const pn_mem_event *live = memory_find(&g, PN_MEM_RUNG, "kv_live_smaller", 0);
        PN_CHECK((allowed == 1) == (live != NULL) && (allowed == 1) == memory_rung(g.r.e, 6).in_force, "the gate: %d", allowed);
        PN_CHECK(!live || live->bytes > 100000, "%llu bytes", (unsigned long long)(live ? live->bytes : 0));
        for (size_t i = 0; i < MEMORY_MANY; i++) {
            pn_generate_result a;
            for (int k = 0; k < 2000 && !pn_request_done(q[i]); k++)
                PN_CHECK(pn_engine_step(g.r.e, 0, NULL, &err) == PN_OK, "%s", err.text);
            PN_CHECK(pn_request_result(q[i], &a, &err) == PN_OK && a.n_generated == 150 && a.kv_type == PN_DTYPE_F16 && a.kv_degraded == (allowed == 1),
                     "%s: degraded %d", err.text, a.kv_degraded);
            pn_request_free(q[i]);
            pn_session_free(s[i]);
        }
        pn_generate_result a;
        pn_session *t = cache_session(&g.r, 600, 1);
        const pn_generate_params again = cache_ask(g.r.ids, 300);
        PN_CHECK(pn_session_generate(t, &again, &a, &err) == PN_OK && a.kv_type == (allowed == 1 ? PN_DTYPE_Q8_0 : PN_DTYPE_F16) &&
                 a.kv_degraded == (allowed == 1), "a new one: %s", err.text);
        if (allowed != 1)
            cache_same(&g.r, t, &alone, "where nothing may be lost");
        pn_session_free(t);
        memory_pass(&g, 60);
        PN_CHECK(!memory_rung(g.r.e, 6).in_force, "not taken back");
        t = cache_session(&g.r, 600, 1);
        PN_CHECK(pn_session_generate(t, &again, &a, &err) == PN_OK && a.kv_type == PN_DTYPE_F16 && !a.kv_degraded, "afterwards: %s", err.text);
        cache_same(&g.r, t, &alone, "afterwards");
        pn_session_free(t);
        free(alone.logits);
        memory_close(&g);
    }
}

/* --- promises -------------------------------------------------------------------------------- */

static pn_session *memory_session(memory_rig *g, uint32_t n_ctx)
{
    pn_session *s = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_new(g->r.m, &(pn_session_params){.n_ctx = n_ctx, .n_batch = 50, .by_turn = 1}, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

/* What a turn of one token leaves, and `more` bytes. */
static int memory_open_tight(memory_rig *g, uint64_t more)
{
    pn_mem_info i;
    pn_err err = {0};
    if (!memory_open(g, NULL, (pn_engine_params){.no_prefix = 1}))
        return 0;
    pn_session *s = memory_session(g, 8192);
    const pn_generate_params one = {.prompt = g->r.ids, .n_prompt = 1, .max_tokens = 1};
    PN_CHECK(pn_session_generate(s, &one, NULL, &err) == PN_OK, "%s", err.text);
    pn_session_free(s);
    pn_engine_memory(g->r.e, &i);
    memory_close(g);
    return memory_open(g, NULL, (pn_engine_params){.no_prefix = 1, .mem_limit = i.total_peak + more});
}

/* A hundred requests that do not fit: each as long as it was told fits, each a page longer does not. */
static void a_refusal_tells_what_fits(void)
{
    memory_rig g;
    uint64_t seed = 5;
    if (!memory_open_tight(&g, 3 << 20))
        return;
    for (int i = 0; i < 100; i++) {
        pn_err err = {0};
        pn_budget_info b = {0};
        pn_request *q = NULL;
        pn_session *s = memory_session(&g, 8192);
        uint32_t prompt = 1 + (uint32_t)(pn_test_rand(&seed) % 200);
        pn_generate_params p = {.prompt = g.r.ids, .n_prompt = prompt, .max_tokens = 5000 + (uint32_t)(pn_test_rand(&seed) % 2000)};
        PN_CHECK(pn_last_budget(s, &b) == PN_E_STATE, "numbers of no refusal");
        PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_E_BUDGET && pn_last_budget(s, &b) == PN_OK, "%s", err.text);
        PN_CHECK(b.prompt_tokens == prompt && b.requested_tokens == prompt + p.max_tokens && b.max_context_now % 64 == 0 && b.max_context_now > prompt &&
                 b.max_context_now == b.max_context_alone && !b.retryable && b.ctx_cap == 8192 && b.limited_by == PN_BY_HOST && b.die == -1 &&
                 b.kv_bytes_needed > b.kv_bytes_available && b.suggestion == PN_SUGGEST_FEWER_TOKENS, "%u of %u tokens fit",
                 (unsigned)b.max_context_now, (unsigned)b.requested_tokens);
        p.max_tokens = b.max_context_now + 64 - prompt;
        PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_E_BUDGET, "a page more than fits was admitted");
        p.max_tokens = b.max_context_now - prompt;
        if (PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK, "%u tokens: %s", (unsigned)b.max_context_now, err.text))
            pn_request_free(q);
        pn_session_free(s);
    }
    memory_close(&g);
}

static void who_waits_for_others_is_told_so(void)
{
    memory_rig g;
    pn_err err = {0};
    pn_budget_info b = {0};
    pn_request *q = NULL, *w = NULL;
    if (!memory_open_tight(&g, 3 << 20))
        return;
    pn_session *a = memory_session(&g, 8192), *s = memory_session(&g, 8192);
    pn_generate_params p = {.prompt = g.r.ids, .n_prompt = 10, .max_tokens = 7000};
    PN_CHECK(pn_request_new(a, &p, &q, &err) == PN_E_BUDGET && pn_last_budget(a, &b) == PN_OK, "%s", err.text);
    p.max_tokens = b.max_context_alone - 10;
    PN_CHECK(pn_request_new(a, &p, &q, &err) == PN_OK, "%s", err.text);
    PN_CHECK(memory_used(g.r.e, PN_ACCT_KV_RESERVE) > 2 << 20 && memory_used(g.r.e, PN_ACCT_KV) < 1 << 20, "promises are not told from use");
    PN_CHECK(pn_request_new(s, &p, &w, &err) == PN_E_BUDGET && pn_last_budget(s, &b) == PN_OK, "%s", err.text);
    PN_CHECK(b.retryable && b.suggestion == PN_SUGGEST_LATER && b.max_context_now < b.requested_tokens && b.max_context_alone >= b.requested_tokens,
             "%u now, %u alone", (unsigned)b.max_context_now, (unsigned)b.max_context_alone);
    pn_request_free(q);
    PN_CHECK(pn_request_new(s, &p, &w, &err) == PN_OK, "%s", err.text);
    pn_request_free(w);
    p.n_prompt = 300;
    pn_session *small = memory_session(&g, 200);
    PN_CHECK(pn_request_new(small, &p, &w, &err) == PN_E_CONTEXT && pn_last_budget(small, &b) == PN_OK && b.limited_by == PN_BY_CONTEXT &&
             b.ctx_cap == 200 && b.prompt_tokens == 300, "%s", err.text);
    pn_session_free(small);
    pn_session_free(a);
    pn_session_free(s);
    memory_close(&g);
}

/* What is kept for a turn is no less than it would be on a machine of its own; nor is a context that does not fit told less. */
static void without_pressure_no_less_fits(void)
{
    memory_rig g;
    pn_budget_info b = {0};
    pn_err err = {0};
    if (!memory_open(&g, "budget 24M\n0 22M\n", (pn_engine_params){0}))
        return;
    pn_session *s = memory_session(&g, 8192);
    pn_generate_params p = {.prompt = g.r.ids, .n_prompt = 100, .max_tokens = 20000, .may_shrink = -1};
    PN_CHECK(pn_session_generate(s, &p, NULL, &err) == PN_E_CONTEXT && pn_last_budget(s, &b) == PN_OK && b.limited_by == PN_BY_CONTEXT, "%s", err.text);
    PN_CHECK(b.max_context_now && b.max_context_now <= b.max_context_alone && b.max_context_alone <= b.max_context_unpressured, "%u now, %u alone, %u unpressured",
             (unsigned)b.max_context_now, (unsigned)b.max_context_alone, (unsigned)b.max_context_unpressured);
    pn_session_free(s);
    memory_close(&g);
}

static void an_answer_may_shrink_or_grow_by_grants(void)
{
    memory_rig g;
    pn_err err = {0};
    pn_generate_result a;
    if (!memory_open_tight(&g, 3 << 20))
        return;
    pn_session *s = memory_session(&g, 8192);
    pn_generate_params p = {.prompt = g.r.ids, .n_prompt = 100, .max_tokens = 7000, .sampling = &cache_how, .may_shrink = 1};
    PN_CHECK(pn_session_generate(s, &p, &a, &err) == PN_OK, "%s", err.text);
    PN_CHECK(a.finish == PN_FINISH_LENGTH && a.n_generated == a.max_tokens && a.max_tokens < 7000 && a.max_tokens > 100 && !a.stopped_by_memory,
             "%u tokens of %u", (unsigned)a.n_generated, (unsigned)a.max_tokens);
    uint32_t all = a.max_tokens;
    PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK, "%s", err.text);
    p.may_shrink = 0;
    p.grant = 64;
    PN_CHECK(pn_session_generate(s, &p, &a, &err) == PN_OK, "%s", err.text);
    PN_CHECK(a.finish == PN_FINISH_LENGTH && a.stopped_by_memory && a.n_generated > 64 && a.n_generated <= all, "%u tokens by grants",
             (unsigned)a.n_generated);
    PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK, "%s", err.text);
    p.max_tokens = 300;
    p.grant = 10;
    PN_CHECK(pn_session_generate(s, &p, &a, &err) == PN_OK && a.finish == PN_FINISH_LENGTH && !a.stopped_by_memory && a.n_generated == 300 &&
             a.max_tokens == 300, "%s", err.text);
    pn_session_free(s);
    memory_close(&g);
}

/* --- limits ---------------------------------------------------------------------------------- */

static void limits_can_be_moved(void)
{
    memory_rig g;
    cache_said cold;
    pn_err err = {0};
    if (!memory_open(&g, NULL, (pn_engine_params){0}))
        return;
    cache_cold(&g.r, g.r.ids, 300, &cold);
    const pn_generate_params p = cache_ask(g.r.ids, 300);
    cache_run(&g.r, &p, 1, &cold, "cold");
    uint64_t used = pn_mem_used(g.r.e), kept = memory_used(g.r.e, PN_ACCT_PREFIX), freed = 0;
    PN_CHECK(kept > 0 && pn_mem_highwater(g.r.e, 1) >= used && pn_mem_highwater(g.r.e, 0) == used, "the high-water mark");
    PN_CHECK(pn_mem_limit(g.r.e, -1, (int64_t)(used - kept) / 2, &err) == PN_E_BUDGET && strstr(err.text, "in use"), "%s", err.text);
    cache_run(&g.r, &p, 1, &cold, "again");
    pn_mem_release(g.r.e, 1 << 30, &freed);
    PN_CHECK(freed > 0 && cache_info(g.r.e).pages == 0, "%llu bytes released", (unsigned long long)freed);
    cache_run(&g.r, &p, 1, &cold, "and again");
    PN_CHECK(pn_mem_limit(g.r.e, 1, -1, &err) == PN_OK && cache_info(g.r.e).pages == 0, "a soft limit leaves the cache");
    PN_CHECK(pn_mem_limit(g.r.e, 0, (int64_t)pn_mem_used(g.r.e) + 1000, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_alloc(g.r.e, PN_ACCT_MISC, 4000) == NULL, "more than the limit");
    PN_CHECK(pn_mem_limit(g.r.e, 0, 0, &err) == PN_OK, "%s", err.text);
    cache_run(&g.r, &p, 1, &cold, "without limits");
    free(cold.logits);
    memory_close(&g);
}

/* Three dies, one of which fills up: its rungs alone move. */
static void a_full_die_is_its_own_affair(void)
{
    memory_rig g;
    pn_err err = {0};
    uint32_t two = 2;
    pn_model *m = NULL;
    pn_session *s = NULL;
    if (!memory_open(&g, "budget 8G\n0 6G\n", (pn_engine_params){.sim_dies = "3;bytes=16M;die2.bytes=8M"}))
        return;
    PN_CHECK(pn_model_load(g.r.e, memory_model, &(pn_model_params){.dies = &two, .n_dies = 1}, &m, &err) == PN_OK, "%s", err.text);
    const pn_generate_params p = cache_ask(g.r.ids, 300);
    PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 600, .by_turn = 1}, &s, &err) == PN_OK && pn_session_generate(s, &p, NULL, &err) == PN_OK,
             "%s", err.text);
    pn_session_free(s);
    pn_mem_state st;
    PN_CHECK(pn_mem_get(g.r.e, 3, &st) == PN_OK && st.budget == 8 << 20, "die 2 has %llu", (unsigned long long)st.budget);
    uint32_t n_ctx = 8192;
    for (s = NULL; n_ctx > 512 && pn_session_new(m, &(pn_session_params){.n_ctx = n_ctx}, &s, &err) != PN_OK; n_ctx -= 64)
        ;
    PN_CHECK(s != NULL, "%s", err.text);
    memory_pass(&g, 5);
    PN_CHECK(pn_mem_get(g.r.e, 3, &st) == PN_OK && st.level > PN_LEVEL_OK, "level %d with %llu free", (int)st.level, (unsigned long long)st.soft);
    PN_CHECK(pn_mem_get(g.r.e, 0, &st) == PN_OK && st.level == PN_LEVEL_OK, "the host's level");
    PN_CHECK(pn_mem_get(g.r.e, 1, &st) == PN_OK && st.level == PN_LEVEL_OK, "die 0's level");
    for (size_t i = 0; i < g.n_seen; i++)
        PN_CHECK(g.seen[i].kind == PN_MEM_ADMIT || g.seen[i].resource == 3, "an event of resource %u", (unsigned)g.seen[i].resource);
    pn_session_free(s);
    pn_model_free(m);
    memory_close(&g);
}

int main(void)
{
    levels_follow_the_readings();
    a_hint_counts_for_five_seconds();
    a_script_that_is_none_is_refused();
    the_prefix_cache_goes_first_and_answers_stay_the_same();
    fewer_at_once_and_back_with_the_same_bits();
    one_at_a_time_and_back_with_the_same_bits();
    small_steps_have_the_same_bits();
    keys_and_values_become_smaller_if_the_gate_lets_them();
    a_refusal_tells_what_fits();
    who_waits_for_others_is_told_so();
    without_pressure_no_less_fits();
    an_answer_may_shrink_or_grow_by_grants();
    limits_can_be_moved();
    a_full_die_is_its_own_affair();
    return pn_test_end();
}
