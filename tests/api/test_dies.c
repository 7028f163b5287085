/*
 * test_dies.c - engines with several dies, simulated ones: what a text may say, whose memory is full, which
 * allocation fails, that dies run at the same time (by their clocks), with the same bits, and leave each other alone;
 * and one model on two of them.
 */
#include "pantheon.h"
#include "pn_api_test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { DIES_MODELS = 3, DIES_TEXTS = 4, DIES_NEW = 20, DIES_CTX = 512 };

static const char *const prompts[DIES_TEXTS] = {
    "Once upon a time", "The capital of France is", "In a deep forest there lived a fox who",
    "Once upon a time there was a small house at the edge of the forest. In the house lived an old woman and her cat. Every morning the "
    "old woman went to the well, and every morning the cat went with her. One day the well was empty. The old woman looked at the cat, and "
    "the cat looked at the old woman. Then they heard a small voice from below: please do not be afraid, it said, I am only very thirsty.",
};

static const char *dies_model_path = "models/demo.gguf";

/* --- an allocator that counts -------------------------------------------------------------------- */

static atomic_long dies_out;

static void *dies_alloc(void *user, size_t size, size_t align)
{
    (void)user;
    void *p = aligned_alloc(align, (size + align) / align * align);
    if (p)
        atomic_fetch_add(&dies_out, 1);
    return p;
}

static void dies_free(void *user, void *p, size_t size)
{
    (void)user, (void)size;
    atomic_fetch_sub(&dies_out, 1);
    free(p);
}

/* --- an engine ------------------------------------------------------------------------------------ */

typedef struct dies_rig {
    pn_engine *e;
    pn_model *m[DIES_MODELS];
} dies_rig;

static pn_engine *dies_engine(const char *sim)
{
    const pn_engine_params p = {.n_threads = sim ? 1 : 2, .sim_dies = sim, .allocator = {dies_alloc, dies_free, NULL}};
    pn_engine *e = NULL;
    pn_err err = {0};
    PN_CHECK(pn_engine_open(&e, &p, &err) == PN_OK, "%s: %s", sim ? sim : "the CPU", err.text);
    return e;
}

static pn_status dies_load(dies_rig *r, size_t i, const uint32_t *dies, size_t n, pn_err *err)
{
    return pn_model_load(r->e, dies_model_path, &(pn_model_params){.dies = dies, .n_dies = n}, &r->m[i], err);
}

/* Models on these dies, one each. */
static dies_rig dies_open(const char *sim, size_t n, const uint32_t *where)
{
    dies_rig r = {.e = dies_engine(sim)};
    pn_err err = {0};
    for (size_t i = 0; i < n; i++)
        PN_CHECK(dies_load(&r, i, where ? &where[i] : NULL, where != NULL, &err) == PN_OK, "%s", err.text);
    return r;
}

static void dies_close(dies_rig *r)
{
    for (size_t i = 0; i < DIES_MODELS; i++)
        pn_model_free(r->m[i]);
    pn_engine_close(r->e);
    PN_CHECK(atomic_load(&dies_out) == 0, "%ld blocks were not given back", atomic_load(&dies_out));
}

static pn_die_info dies_info(const dies_rig *r, uint32_t i)
{
    pn_die_info d = {.n_models = 999};
    PN_CHECK(pn_engine_die(r->e, i, &d) == PN_OK, "die %u", (unsigned)i);
    return d;
}

/* --- texts ---------------------------------------------------------------------------------------- */

typedef struct dies_text {
    char text[4096];
    size_t len;
    pn_generate_result r;
    pn_status st;
    pn_token tokens[DIES_CTX];
    uint32_t n_tokens;
    float logits[1024];
    pn_session *s;
    pn_request *q;
    pn_token ids[DIES_CTX];
    pn_sampling how;
    atomic_int done;
} dies_text;

static int dies_hear(void *user, const char *text, size_t len, pn_token token)
{
    dies_text *t = user;
    (void)token;
    if (t->len + len < sizeof t->text)
        memcpy(t->text + t->len, text, len);
    t->len += len;
    return 0;
}

static void dies_done(void *user) { atomic_store(&((dies_text *)user)->done, 1); }

/* Text i in a session of its own, of the model; as a request, begun. */
static pn_status dies_begin(pn_model *m, size_t i, uint32_t n_batch, dies_text *t, pn_err *err)
{
    size_t n = 0;
    memset(t, 0, sizeof *t);
    t->how = (pn_sampling){.temperature = i % 2 ? 0.9f : 0.0f, .top_k = 30, .has_seed = 1, .seed = i, .ignore_eos = 1};
    pn_status st = pn_tokenize(m, prompts[i], strlen(prompts[i]), 0, t->ids, DIES_CTX, &n, err);
    if (!st)
        st = pn_session_new(m, &(pn_session_params){.n_ctx = DIES_CTX, .n_batch = n_batch, .by_turn = 1}, &t->s, err);
    const pn_generate_params p = {.prompt = t->ids, .n_prompt = n, .max_tokens = DIES_NEW, .sampling = &t->how, .on_text = dies_hear, .user = t,
                                  .on_done = dies_done, .done_user = t};
    return st ? st : pn_request_new(t->s, &p, &t->q, err);
}

static void dies_end(dies_text *t)
{
    pn_err err = {0};
    t->st = pn_request_result(t->q, &t->r, &err);
    t->n_tokens = pn_session_length(t->s);
    memcpy(t->tokens, pn_session_tokens(t->s), t->n_tokens * sizeof *t->tokens);
    if (PN_CHECK(pn_session_logits(t->s) != NULL, "no logits: %s", err.text))
        memcpy(t->logits, pn_session_logits(t->s), sizeof t->logits);
    pn_request_free(t->q);
    pn_session_free(t->s);
}

static void dies_run(pn_engine *e, double slice)
{
    pn_err err = {0};
    uint32_t active = 1;
    for (int i = 0; active && PN_CHECK(i < 2000000, "it does not end"); i++)
        if (!PN_CHECK(pn_engine_step(e, slice, &active, &err) == PN_OK, "%s", err.text))
            break;
}

static void dies_same(const dies_text *t, const dies_text *want, const char *name)
{
    PN_CHECK(t->st == PN_OK && want->st == PN_OK && t->r.n_generated == DIES_NEW, "%s: %s", name, pn_status_name(t->st));
    PN_CHECK(t->len == want->len && memcmp(t->text, want->text, t->len) == 0, "%s: another text: %.*s", name, (int)t->len, t->text);
    PN_CHECK(t->n_tokens == want->n_tokens && memcmp(t->tokens, want->tokens, t->n_tokens * sizeof *t->tokens) == 0, "%s: other tokens", name);
    PN_CHECK(memcmp(t->logits, want->logits, sizeof t->logits) == 0, "%s: other bits", name);
}

/* What the CPU says. */
static dies_text want[DIES_TEXTS];

static void dies_want(void)
{
    dies_rig r = dies_open(NULL, 1, NULL);
    pn_err err = {0};
    for (size_t i = 0; i < DIES_TEXTS; i++) {
        PN_CHECK(dies_begin(r.m[0], i, 64, &want[i], &err) == PN_OK, "%s", err.text);
        dies_run(r.e, 0);
        dies_end(&want[i]);
    }
    const pn_die_info d = dies_info(&r, 0);
    PN_CHECK(pn_engine_die_count(r.e) == 1 && strcmp(d.kind, "cpu") == 0 && d.name[0] && d.clock_seconds == 0 && d.n_models == 1, "die 0: %s, %u models",
             d.kind, (unsigned)d.n_models);
    const uint32_t one = 1, zero = 0;
    PN_CHECK(dies_load(&r, 1, &one, 1, &err) == PN_E_INVALID && strstr(err.text, "die 1") && strstr(err.text, "die 0 (the CPU)"), "%s", err.text);
    PN_CHECK(dies_load(&r, 1, &zero, 1, &err) == PN_OK && dies_info(&r, 0).n_models == 2, "%s", err.text);
    PN_CHECK(pn_engine_die(r.e, 1, &(pn_die_info){0}) == PN_E_INVALID, "die 1 of one");
    dies_close(&r);
}

/* ------------------------------------------------------------------------------------------
 * What the text may say
 * ------------------------------------------------------------------------------------------ */

static void the_text_is_read_strictly(void)
{
    static const struct { const char *text, *word; } wrong[] = {
        {"", "number"}, {"0", "'0'"}, {"17", "'17'"}, {"two", "'two'"}, {"2 ", "'2 '"}, {";tps=1", "number"}, {"2;", "KEY=VALUE"}, {"2;;tps=1", "KEY=VALUE"},
        {"2;tps=1;", "KEY=VALUE"}, {"2;tps", "'tps'"}, {"2;bytes=", "bytes"}, {"2;bytes=0", "bytes: '0'"}, {"2;bytes=many", "bytes: 'many'"},
        {"2;bytes=-1", "bytes: '-1'"}, {"2;tps=0", "tps: '0'"}, {"2;tps=-3", "tps: '-3'"}, {"2;tps=1x", "tps: '1x'"}, {"2;tps=1e99", "tps: '1e99'"},
        {"2;fail_alloc=x", "fail_alloc: 'x'"}, {"2;fail_alloc=-1", "fail_alloc: '-1'"}, {"2;frob=1", "frob"}, {"2;die2.tps=1", "die2.tps"},
        {"2;die.tps=1", "die.tps"}, {"2;diex.tps=1", "diex.tps"}, {"2;die1.frob=1", "die1.frob"}, {"2;die1.tps=0", "die1.tps: '0'"},
        {"2;die99999999999.tps=1", "die99999999999"},
        {"2;bytes=1111111111111111111111111111111111111111111111111111111111111111111111111111111111", "too long"},
    };
    pn_err err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        pn_engine *e = NULL;
        pn_status st = pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .sim_dies = wrong[i].text}, &err);
        PN_CHECK(st == PN_E_INVALID && !e && strstr(err.text, wrong[i].word), "'%s': %s %s", wrong[i].text, pn_status_name(st), st ? err.text : "");
        pn_engine_close(e);
    }
    dies_rig r = {.e = dies_engine("3;die1.bytes=64M;bytes=512M;tps=2.5;fail_alloc=0")};
    PN_CHECK(pn_engine_die_count(r.e) == 3, "%u dies", (unsigned)pn_engine_die_count(r.e));
    for (uint32_t i = 0; i < 3; i++) {
        const pn_die_info d = dies_info(&r, i);
        uint64_t bytes = i == 1 ? 64u << 20 : 512u << 20;
        PN_CHECK(strcmp(d.kind, "sim") == 0 && d.total_bytes == bytes && d.free_bytes == bytes && d.n_models == 0 && d.clock_seconds == 0, "die %u: %s",
                 (unsigned)i, d.kind);
    }
    dies_close(&r);
}

/* ------------------------------------------------------------------------------------------
 * Memory
 * ------------------------------------------------------------------------------------------ */

static void a_die_says_when_it_is_full(void)
{
    static dies_text t;
    const uint32_t two = 2, one = 1, twice[] = {1, 1}, three[] = {0, 1, 0};
    pn_err err = {0};
    pn_session *s = NULL;
    dies_rig r = {.e = dies_engine("2;bytes=16M;die1.bytes=2M")};
    PN_CHECK(dies_load(&r, 0, &two, 1, &err) == PN_E_INVALID && strstr(err.text, "no die 2") && strstr(err.text, "0 to 1"), "%s", err.text);
    PN_CHECK(dies_load(&r, 0, twice, 2, &err) == PN_E_INVALID && strstr(err.text, "twice"), "%s", err.text);
    PN_CHECK(dies_load(&r, 0, three, 3, &err) == PN_E_UNSUPPORTED && strstr(err.text, "at most 2"), "%s", err.text);
    PN_CHECK(dies_load(&r, 0, &one, 1, &err) == PN_E_BUDGET && strstr(err.text, "die 1") && strstr(err.text, "2097152"), "%s", err.text);
    PN_CHECK(dies_info(&r, 1).free_bytes == 2u << 20 && dies_info(&r, 1).n_models == 0, "a load that was refused holds memory");
    PN_CHECK(dies_load(&r, 0, NULL, 0, &err) == PN_OK && dies_info(&r, 0).n_models == 1, "%s", err.text);      /* the emptier one */
    uint64_t left = dies_info(&r, 0).free_bytes;
    PN_CHECK(left < 14u << 20 && left > 12u << 20, "%llu bytes left", (unsigned long long)left);
    PN_CHECK(pn_session_new(r.m[0], &(pn_session_params){.n_ctx = 65536}, &s, &err) == PN_E_BUDGET && strstr(err.text, "on die 0") && strstr(err.text, "16777216"),
             "%s", err.text);
    PN_CHECK(pn_session_new(r.m[0], NULL, &s, &err) == PN_OK && pn_session_capacity(s) == 2048, "%s", err.text);
    uint64_t with = dies_info(&r, 0).free_bytes;
    PN_CHECK(left - with > 4u << 20, "%llu bytes for a session", (unsigned long long)(left - with));
    pn_session_free(s);
    /* Pages of a turn, and the prefix cache gives way. */
    for (size_t i = 0; i < DIES_TEXTS; i++) {
        PN_CHECK(dies_begin(r.m[0], i, 64, &t, &err) == PN_OK, "%s", err.text);
        dies_run(r.e, 0);
        dies_end(&t);
        dies_same(&t, &want[i], "on a small die");
    }
    pn_prefix_info kept;
    pn_engine_prefix(r.e, &kept);
    PN_CHECK(kept.bytes > 0 && kept.bytes <= (16u << 20) / 10, "%llu bytes kept", (unsigned long long)kept.bytes);
    pn_session *many[64];
    size_t n = 0;
    while (n < 64 && pn_session_new(r.m[0], &(pn_session_params){.n_ctx = 128, .n_batch = 16}, &many[n], &err) == PN_OK)
        n++;
    uint64_t before = kept.bytes;
    pn_engine_prefix(r.e, &kept);
    PN_CHECK(n > 2 && n < 64 && err.status == PN_E_BUDGET && strstr(err.text, "on die 0") && kept.bytes < before, "%zu sessions, %s", n, err.text);
    while (n)
        pn_session_free(many[--n]);
    pn_plan_info plan;
    pn_file *f = NULL;
    PN_CHECK(pn_file_open(r.e, dies_model_path, &f, &err) == PN_OK && pn_file_plan(f, &(pn_plan_params){.dies = &one, .n_dies = 1}, &plan, &err) == PN_OK &&
             plan.available_bytes == 2u << 20 && !plan.fits && pn_file_plan(f, &(pn_plan_params){.dies = &two, .n_dies = 1}, &plan, &err) == PN_E_INVALID,
             "%s", err.text);
    pn_file_close(f);
    pn_model_free(r.m[0]);
    r.m[0] = NULL;
    uint64_t end = dies_info(&r, 0).free_bytes;
    PN_CHECK(end > (16u << 20) - (5u << 20), "%llu bytes free at the end", (unsigned long long)end);     /* working memory stays */
    dies_close(&r);
}

/* The first allocation on the die fails, the second, ...: a status, nothing lost, and the other die goes on. */
static void each_allocation_on_a_die_fails_in_turn(void)
{
    static dies_text t[2];
    const uint32_t where[] = {0, 1};
    int good = 0, bad = 0;
    for (int at = 1; at < 200 && good < 2; at++) {
        char sim[64];
        pn_err err = {0};
        snprintf(sim, sizeof sim, "2;die0.fail_alloc=%d", at);
        dies_rig r = {.e = dies_engine(sim)};
        pn_status st = dies_load(&r, 0, &where[0], 1, &err), other = dies_load(&r, 1, &where[1], 1, NULL);
        PN_CHECK(other == PN_OK && dies_begin(r.m[1], 3, 64, &t[1], &err) == PN_OK, "the other die: %s", err.text);
        if (!st)
            st = dies_begin(r.m[0], 3, 64, &t[0], &err);
        dies_run(r.e, 0);
        dies_end(&t[1]);
        dies_same(&t[1], &want[3], "beside a die that fails");
        if (!st) {
            dies_end(&t[0]);
            dies_same(&t[0], &want[3], "an allocation that is not needed fails");
            good++;
        } else {
            PN_CHECK((st == PN_E_NOMEM || st == PN_E_BUDGET) && err.text[0], "%d: %s %s", at, pn_status_name(st), err.text);
            pn_session_free(r.m[0] ? t[0].s : NULL);
            bad++;
        }
        dies_close(&r);
    }
    PN_CHECK(bad > 5 && good == 2, "%d failed, %d did not", bad, good);
}

/* ------------------------------------------------------------------------------------------
 * Time
 * ------------------------------------------------------------------------------------------ */

/* Text 3 with each of n models at once; the clocks of dies 0 and 1 come to clock[2]. */
static void dies_time(const char *sim, size_t n, const uint32_t *where, double slice, double clock[2])
{
    static dies_text t[DIES_MODELS];
    pn_err err = {0};
    dies_rig r = dies_open(sim, n, where);
    for (size_t i = 0; i < n; i++)
        PN_CHECK(dies_begin(r.m[i], 3, 64, &t[i], &err) == PN_OK, "%s", err.text);
    dies_run(r.e, slice);
    for (size_t i = 0; i < n; i++) {
        dies_end(&t[i]);
        dies_same(&t[i], &want[3], sim);
    }
    for (uint32_t i = 0; i < 2; i++)
        clock[i] = i < pn_engine_die_count(r.e) ? dies_info(&r, i).clock_seconds : 0;
    dies_close(&r);
}

static bool dies_near(double a, double b) { return a > b - 1e-9 && a < b + 1e-9; }

static void two_dies_run_at_the_same_time(void)
{
    const uint32_t apart[] = {0, 1}, together[] = {0, 0}, alone[] = {0};
    double solo[2], both[2], sum[2], slow[2];
    dies_time("2;tps=100", 1, alone, 0, solo);
    PN_CHECK(solo[0] > 0.2 && solo[1] == 0, "alone: %g and %g s", solo[0], solo[1]);
    static const double slices[] = {0, 1e-7, 0.001};
    for (size_t i = 0; i < 3; i++) {
        dies_time("2;tps=100", 2, apart, slices[i], both);
        PN_CHECK(dies_near(both[0], solo[0]) && dies_near(both[1], solo[0]), "on two dies: %g and %g s, alone %g s", both[0], both[1], solo[0]);
        dies_time("2;tps=100", 2, together, slices[i], sum);
        PN_CHECK(dies_near(sum[0], 2 * solo[0]) && sum[1] == 0, "on one die: %g s, alone %g s", sum[0], solo[0]);
    }
    dies_time("2;tps=100;die1.tps=50", 2, apart, 0, slow);
    PN_CHECK(dies_near(slow[0], solo[0]) && dies_near(slow[1], 2 * solo[0]), "a slow die: %g and %g s", slow[0], slow[1]);
}

/* Work that comes later does not begin earlier. */
static void work_begins_when_it_is_handed_over(void)
{
    static dies_text t[2];
    const uint32_t where[] = {0, 1};
    pn_err err = {0};
    uint32_t active = 1;
    dies_rig r = dies_open("2;tps=100", 2, where);
    PN_CHECK(dies_begin(r.m[0], 3, 64, &t[0], &err) == PN_OK, "%s", err.text);
    for (int i = 0; i < 5; i++)
        pn_engine_step(r.e, 0, &active, &err);
    double then = dies_info(&r, 0).clock_seconds;
    PN_CHECK(then > 0 && dies_info(&r, 1).clock_seconds == 0, "%g s", then);
    PN_CHECK(dies_begin(r.m[1], 0, 64, &t[1], &err) == PN_OK && dies_near(dies_info(&r, 1).clock_seconds, then), "%g s, handed over at %g s",
             dies_info(&r, 1).clock_seconds, then);
    dies_run(r.e, 0);
    double end = dies_info(&r, 0).clock_seconds;
    PN_CHECK(dies_info(&r, 1).clock_seconds > then, "die 1 stands still");
    for (int i = 0; i < 2; i++)
        dies_end(&t[i]);
    PN_CHECK(dies_begin(r.m[1], 0, 64, &t[1], &err) == PN_OK && dies_info(&r, 1).clock_seconds >= end, "all is idle: now is when the last one ended");
    pn_request_free(t[1].q);
    pn_session_free(t[1].s);
    dies_close(&r);
}

/* ------------------------------------------------------------------------------------------
 * One leaves the other alone
 * ------------------------------------------------------------------------------------------ */

static dies_text *dies_other;

/* From a callback on one die: a request on the other is freed, another session computes there. */
static int dies_meddle(void *user, const char *text, size_t len, pn_token token)
{
    int *left = user;
    (void)text, (void)len, (void)token;
    if (--*left == 0) {
        pn_session *s = NULL;
        pn_err err = {0};
        static const pn_token some[] = {5, 6, 7};
        pn_request_free(dies_other->q);
        dies_other->q = NULL;
        pn_status st = pn_session_new(*(pn_model **)(void *)(left + 2), &(pn_session_params){.n_ctx = 64, .n_batch = 16}, &s, &err);
        PN_CHECK(!st && pn_session_eval(s, some, 3, &err) == PN_OK, "in a callback: %s", err.text);
        pn_session_free(s);
    }
    return 0;
}

static void what_ends_on_one_die_leaves_the_other(double slice)
{
    static dies_text t[4];
    const uint32_t where[] = {0, 1};
    pn_err err = {0};
    uint32_t active = 1;
    dies_rig r = dies_open("2", 2, where);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < 4; i++)
            PN_CHECK(dies_begin(r.m[i % 2], 3, 16, &t[i], &err) == PN_OK, "%s", err.text);
        for (int i = 0; i < 5 + round; i++)
            pn_engine_step(r.e, slice, &active, &err);
        if (round % 2)
            pn_request_cancel(t[1].q);
        else
            pn_request_free(t[1].q);
        pn_request_pause(t[3].q, 1);
        for (int i = 0; i < 20; i++)
            pn_engine_step(r.e, slice, &active, &err);
        pn_request_pause(t[3].q, 0);
        if (round == 3)
            pn_request_free(t[2].q);
        dies_run(r.e, slice);
        if (round % 2) {
            pn_generate_result g;
            PN_CHECK(pn_request_result(t[1].q, &g, &err) == PN_OK && g.finish == PN_FINISH_CANCELLED, "finish %d", (int)g.finish);
            pn_request_free(t[1].q);
        }
        pn_session_free(t[1].s);
        for (size_t i = 0; i < 4; i++)
            if (i == 2 && round == 3) {
                pn_session_free(t[2].s);
            } else if (i != 1) {
                dies_end(&t[i]);
                dies_same(&t[i], &want[3], "while others end");
            }
    }
    struct { int left, pad; pn_model *m; } meddler = {6, 0, r.m[1]};
    static const pn_token one[] = {5};
    static const pn_sampling on = {.ignore_eos = 1};
    pn_session *s = NULL;
    pn_request *q = NULL;
    PN_CHECK(dies_begin(r.m[1], 3, 16, &t[0], &err) == PN_OK && dies_begin(r.m[1], 3, 16, &t[1], &err) == PN_OK, "%s", err.text);
    dies_other = &t[1];
    PN_CHECK(pn_session_new(r.m[0], &(pn_session_params){.n_ctx = 64}, &s, &err) == PN_OK &&
             pn_request_new(s, &(pn_generate_params){.prompt = one, .n_prompt = 1, .max_tokens = 12, .sampling = &on, .on_text = dies_meddle, .user = &meddler},
                            &q, &err) == PN_OK, "%s", err.text);
    dies_run(r.e, slice);
    PN_CHECK(meddler.left < 0 && !t[1].q, "the callback did not come");
    pn_session_free(t[1].s);
    dies_end(&t[0]);
    dies_same(&t[0], &want[3], "while a callback meddles");
    pn_request_free(q);
    pn_session_free(s);
    dies_close(&r);
}

/* The engine's own thread, and one for each die that asks, frees and evaluates. */
typedef struct dies_client {
    pn_model *m;
    pthread_t thread;
    int failed;
} dies_client;

static void *dies_ask(void *user)
{
    dies_client *c = user;
    dies_text *t = calloc(1, sizeof *t);
    pn_session *s = NULL;
    static const pn_token some[] = {5, 6, 7, 8};
    for (size_t k = 0; k < 8 && t; k++) {
        pn_err err = {0};
        if (dies_begin(c->m, k % DIES_TEXTS, 32, t, &err) != PN_OK) {
            c->failed++;
            break;
        }
        if (k % 4 == 3) {                       /* given up in the middle */
            for (int i = 0; i < 20; i++)
                sched_yield();
            pn_request_free(t->q);
            pn_session_free(t->s);
        } else {
            c->failed += pn_session_new(c->m, &(pn_session_params){.n_ctx = 64, .n_batch = 16}, &s, &err) || pn_session_eval(s, some, 4, &err);
            pn_session_free(s);
            while (!atomic_load(&t->done))
                sched_yield();
            t->st = pn_request_result(t->q, &t->r, &err);
            c->failed += t->st != PN_OK || t->len != want[k % DIES_TEXTS].len || memcmp(t->text, want[k % DIES_TEXTS].text, t->len) != 0;
            pn_request_free(t->q);
            pn_session_free(t->s);
        }
    }
    free(t);
    return NULL;
}

static void threads_on_all_dies(void)
{
    const uint32_t both[] = {1, 0}, one[] = {0}, two[] = {1};
    pn_err err = {0};
    dies_rig r = {.e = dies_engine("2")};
    dies_client c[DIES_MODELS] = {{0}};
    PN_CHECK(dies_load(&r, 0, one, 1, &err) == PN_OK && dies_load(&r, 1, two, 1, &err) == PN_OK && dies_load(&r, 2, both, 2, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_engine_start(r.e, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < DIES_MODELS; i++) {
        c[i].m = r.m[i];
        pthread_create(&c[i].thread, NULL, dies_ask, &c[i]);
    }
    for (size_t i = 0; i < DIES_MODELS; i++) {
        pthread_join(c[i].thread, NULL);
        PN_CHECK(c[i].failed == 0, "client %zu: %d failed", i, c[i].failed);
    }
    pn_engine_stop(r.e);
    dies_close(&r);
}

/* ------------------------------------------------------------------------------------------
 * One model on two dies
 * ------------------------------------------------------------------------------------------ */

static void a_split_model_has_the_same_bits(const uint32_t *where, double slice)
{
    static dies_text t[DIES_TEXTS];
    pn_err err = {0};
    dies_rig r = {.e = dies_engine("2;bytes=64M")};
    PN_CHECK(dies_load(&r, 0, where, 2, &err) == PN_OK, "%s", err.text);
    const pn_die_info a = dies_info(&r, 0), b = dies_info(&r, 1);
    pn_model_info m;
    pn_model_describe(r.m[0], &m);
    uint64_t on_a = a.total_bytes - a.free_bytes, on_b = b.total_bytes - b.free_bytes;
    PN_CHECK(a.n_models == 1 && b.n_models == 1 && on_a > m.weight_bytes / 4 && on_b > m.weight_bytes / 4 && on_a + on_b >= m.weight_bytes &&
             on_a + on_b < m.weight_bytes * 3 / 2, "%llu and %llu of %llu bytes", (unsigned long long)on_a, (unsigned long long)on_b,
             (unsigned long long)m.weight_bytes);
    for (size_t i = 0; i < DIES_TEXTS; i++)                         /* alone, in other chunks */
        for (uint32_t batch = 1; batch <= 256; batch *= 16) {
            PN_CHECK(dies_begin(r.m[0], i, batch, &t[i], &err) == PN_OK, "%s", err.text);
            dies_run(r.e, slice);
            PN_CHECK(dies_near(dies_info(&r, 0).clock_seconds, dies_info(&r, 1).clock_seconds), "the clocks of a split model differ");
            dies_end(&t[i]);
            dies_same(&t[i], &want[i], "split, alone");
        }
    for (size_t i = 0; i < DIES_TEXTS; i++)                         /* together */
        PN_CHECK(dies_begin(r.m[0], i, 64, &t[i], &err) == PN_OK, "%s", err.text);
    PN_CHECK(dies_info(&r, 0).free_bytes < a.free_bytes && dies_info(&r, 1).free_bytes < b.free_bytes, "keys and values are on both");
    dies_run(r.e, slice);
    for (size_t i = 0; i < DIES_TEXTS; i++) {
        dies_end(&t[i]);
        dies_same(&t[i], &want[i], "split, together");
    }
    PN_CHECK(t[3].r.n_cached >= 64, "the second time %u tokens are known", (unsigned)t[3].r.n_cached);
    dies_close(&r);
}

static void a_split_model_fits_where_none_has_room(void)
{
    static dies_text t[2];
    static float hidden[2][256];
    const uint32_t both[] = {0, 1}, one[] = {0};
    const pn_token some[] = {5, 6, 7};
    pn_err err = {0};
    dies_rig r = {.e = dies_engine("2;bytes=2300K")};
    PN_CHECK(dies_load(&r, 0, one, 1, &err) == PN_E_BUDGET, "%s", err.text);
    PN_CHECK(dies_load(&r, 0, both, 2, &err) == PN_OK, "%s", err.text);
    pn_session *s = NULL;
    PN_CHECK(pn_session_new(r.m[0], &(pn_session_params){.n_ctx = 2048}, &s, &err) == PN_E_BUDGET && strstr(err.text, "on die "), "%s", err.text);
    PN_CHECK(pn_session_new(r.m[0], &(pn_session_params){.n_ctx = 128, .n_batch = 4}, &s, &err) == PN_OK && pn_session_eval(s, some, 3, &err) == PN_OK, "%s",
             err.text);
    pn_session_free(s);
    dies_close(&r);

    /* Uneven dies: the layers go where there is room.  Others on the same dies, and embeddings. */
    r.e = dies_engine("2;bytes=64M;die1.bytes=16M");
    memset(r.m, 0, sizeof r.m);
    PN_CHECK(dies_load(&r, 0, both, 2, &err) == PN_OK && dies_load(&r, 1, &both[1], 1, &err) == PN_OK && dies_load(&r, 2, one, 1, &err) == PN_OK, "%s", err.text);
    for (int i = 0; i < 2; i++)
        PN_CHECK(dies_begin(r.m[i], 3, 64, &t[i], &err) == PN_OK, "%s", err.text);
    dies_run(r.e, 0);
    for (int i = 0; i < 2; i++) {
        dies_end(&t[i]);
        dies_same(&t[i], &want[3], "split, beside another");
        PN_CHECK(pn_session_new(r.m[i], &(pn_session_params){.n_ctx = 128, .n_batch = 8}, &s, &err) == PN_OK &&
                 pn_session_embed(s, t[0].ids, 40, PN_POOLING_MEAN, 1, hidden[i], &err) == PN_OK, "%s", err.text);
        pn_session_free(s);
    }
    PN_CHECK(memcmp(hidden[0], hidden[1], sizeof hidden[0]) == 0, "an embedding has other bits");
    dies_close(&r);
}

/* Every family is cut where a layer begins: logits of all tokens, in one go and one by one. */
static void every_family_is_cut(void)
{
    static const char *const names[] = {"gemma2", "gemma3", "lfm2", "llama_gqa_tied", "llama_moe", "mistral3", "phi3", "phi3_longrope", "qwen2", "qwen2moe",
                                        "qwen3", "qwen3moe"};
    const uint32_t both[] = {0, 1};
    enum { N = 48 };
    for (size_t i = 0; i < sizeof names / sizeof *names; i += pn_test_quick() ? 2 : 1) {
        char path[80];
        pn_token tokens[N];
        float *logits[3] = {NULL};
        uint32_t n_vocab = 0;
        snprintf(path, sizeof path, "tests/vectors/golden/arch/%s.gguf", names[i]);
        for (int how = 0; how < 3; how++) {             /* whole, split, split token by token */
            dies_rig r = {.e = dies_engine(how ? "2" : NULL)};
            pn_session *s = NULL;
            pn_err err = {0};
            pn_model_info m;
            if (PN_CHECK(pn_model_load(r.e, path, &(pn_model_params){.dies = how ? both : NULL, .n_dies = how ? 2 : 0}, &r.m[0], &err) == PN_OK, "%s", err.text)) {
                pn_model_describe(r.m[0], &m);
                n_vocab = m.n_vocab;
                for (uint32_t k = 0; k < N; k++)
                    tokens[k] = (pn_token)((k * 37 + 11) % n_vocab);
                logits[how] = calloc((size_t)N * n_vocab, sizeof(float));
                PN_CHECK(pn_session_new(r.m[0], &(pn_session_params){.n_ctx = 64, .n_batch = how == 2 ? 1 : 32}, &s, &err) == PN_OK &&
                         pn_session_eval_all(s, tokens, N, logits[how], &err) == PN_OK, "%s: %s", path, err.text);
                pn_session_free(s);
            }
            dies_close(&r);
        }
        for (int how = 1; how < 3 && logits[0]; how++)
            PN_CHECK(logits[how] && memcmp(logits[0], logits[how], (size_t)N * n_vocab * sizeof(float)) == 0, "%s: other bits when split", names[i]);
        for (int how = 0; how < 3; how++)
            free(logits[how]);
    }
}

int main(void)
{
    const uint32_t forth[] = {0, 1}, back[] = {1, 0};
    the_text_is_read_strictly();
    dies_want();
    a_die_says_when_it_is_full();
    each_allocation_on_a_die_fails_in_turn();
    two_dies_run_at_the_same_time();
    work_begins_when_it_is_handed_over();
    if (!pn_test_quick())
        what_ends_on_one_die_leaves_the_other(0);
    what_ends_on_one_die_leaves_the_other(1e-7);
    threads_on_all_dies();
    a_split_model_has_the_same_bits(back, 1e-7);
    if (!pn_test_quick())
        a_split_model_has_the_same_bits(forth, 0);
    a_split_model_fits_where_none_has_room();
    every_family_is_cut();
    return pn_test_end();
}
