/*
 * test_faults.c - every allocation may fail, once or from then on, whatever the engine is doing with memory.
 *
 *     for each scenario, for k = 1, 2, ... until no request for memory was refused:
 *         prepare (nothing fails)   act (the k-th fails, or it and all later)   undo (nothing fails)
 *
 * Afterwards the status is one that is documented, the ledger says what it said before, a reference request in the same
 * engine has the same tokens, and when the engine is closed every block has come back.
 */
#define _XOPEN_SOURCE 700       /* getpid */
#include "pantheon.h"
#include "pn_api_test.h"

#include <time.h>
#include <unistd.h>

static const char fault_demo[] = "models/demo.gguf", fault_tiny[] = "tests/vectors/golden/arch/qwen3.gguf", fault_folder[] = "tests/vectors/hf/mixtral_f32";
static char fault_script[64], fault_large[64];
static double fault_time;

static double fault_clock(void *user)
{
    (void)user;
    return fault_time;
}

/* --- an engine that is asked the same again and again ---------------------------------------- */

enum { FAULT_PROMPT = 150, FAULT_MANY = 3 };

typedef struct fault_rig {
    api_heap h;
    pn_engine *e;
    pn_model *m;
    const char *path;
    pn_session *s[FAULT_MANY + 1];
    pn_request *q[FAULT_MANY];
    pn_chat *c;
    pn_file *f;
    pn_model *other;
    pn_grammar *g[2];
    pn_token ids[FAULT_PROMPT];
} fault_rig;

static const pn_sampling fault_on = {.size = sizeof fault_on, .ignore_eos = 1};

static pn_generate_params fault_ask(const fault_rig *r, size_t n, uint32_t more)
{
    return (pn_generate_params){.prompt = r->ids, .n_prompt = n, .max_tokens = more, .sampling = &fault_on};
}

static int fault_engine(fault_rig *r)
{
    pn_err err = {0};
    fault_time = 100;
    const pn_engine_params p = {.n_threads = 1, .allocator = {api_heap_alloc, api_heap_free, &r->h}, .pressure_script = fault_script, .clock = fault_clock};
    return PN_CHECK(pn_engine_open(&r->e, &p, &err) == PN_OK, "%s", err.text);
}

static int fault_open(fault_rig *r, const char *path)
{
    pn_err err = {0};
    uint64_t seed = 3;
    *r = (fault_rig){.path = path};
    if (!fault_engine(r) || !PN_CHECK(pn_model_load(r->e, path, &(pn_model_params){.residency = PN_RESIDENCY_MAP}, &r->m, &err) == PN_OK, "%s", err.text))
        return 0;
    for (size_t i = 0; i < FAULT_PROMPT; i++)
        r->ids[i] = (pn_token)(pn_test_rand(&seed) % pn_vocab_size(r->m));
    return 1;
}

static void fault_undo(fault_rig *r)
{
    for (int i = 0; i < FAULT_MANY; i++) {
        pn_request_free(r->q[i]);
        r->q[i] = NULL;
    }
    pn_chat_free(r->c);
    for (int i = 0; i <= FAULT_MANY; i++) {
        pn_session_free(r->s[i]);
        r->s[i] = NULL;
    }
    for (int i = 0; i < 2; i++) {
        pn_grammar_free(r->g[i]);
        r->g[i] = NULL;
    }
    pn_model_free(r->other);
    pn_file_close(r->f);
    r->c = NULL;
    r->other = NULL;
    r->f = NULL;
}

static pn_status fault_session(fault_rig *r, int i, int by_turn)
{
    return pn_session_new(r->m, &(pn_session_params){.n_ctx = 256, .n_batch = 50, .by_turn = by_turn}, &r->s[i], NULL);
}

/* Time passes; somebody looks. */
static void fault_pass(fault_rig *r, double seconds)
{
    for (double end = fault_time + seconds; fault_time < end;) {
        fault_time += 0.25;
        pn_mem_poll(r->e);
    }
}

/* --- what is done ---------------------------------------------------------------------------- */

typedef struct fault_case {
    const char *name, *path;
    pn_status (*prepare)(fault_rig *r);         /* NULL: nothing */
    pn_status (*act)(fault_rig *r);
    int from;                                   /* steps of k grow from here on; 0: 30 */
    int fresh;                                  /* an engine for each k: what is kept for later (plans, trees) is not there yet */
} fault_case;

static pn_status fault_plan(fault_rig *r)
{
    static const pn_residency how[] = {PN_RESIDENCY_AUTO, PN_RESIDENCY_STREAM};
    pn_plan_info i;
    pn_status st = pn_file_open(r->e, r->path, &r->f, NULL);
    for (size_t k = 0; k < 2 && !st; k++)
        st = pn_file_plan(r->f, &(pn_plan_params){.n_ctx = 256, .residency = how[k], .stream_block = 1 << 16, .n_sessions = 2}, &i, NULL);
    return st;
}

static pn_status fault_load(fault_rig *r, const pn_model_params *p)
{
    pn_status st = pn_model_load(r->e, r->path, p, &r->other, NULL);
    if (!st)
        st = pn_session_new(r->other, &(pn_session_params){.n_ctx = 128, .by_turn = 1}, &r->s[0], NULL);
    if (!st) {
        const pn_generate_params ask = fault_ask(r, 40, 3);
        st = pn_session_generate(r->s[0], &ask, NULL, NULL);
    }
    return st;
}

static pn_status fault_load_auto(fault_rig *r) { return fault_load(r, NULL); }
static pn_status fault_load_map(fault_rig *r) { return fault_load(r, &(pn_model_params){.residency = PN_RESIDENCY_MAP}); }
static pn_status fault_load_anon(fault_rig *r) { return fault_load(r, &(pn_model_params){.residency = PN_RESIDENCY_ANON}); }
static pn_status fault_load_floor(fault_rig *r) { return fault_load(r, &(pn_model_params){.residency = PN_RESIDENCY_MAP, .floor_tokens = 512}); }

static pn_status fault_load_stream(fault_rig *r)
{
    return fault_load(r, &(pn_model_params){.residency = PN_RESIDENCY_STREAM, .stream_block = 1 << 16, .stream_depth = 2, .pin_bytes = 1 << 16});
}

static pn_status fault_tokenise(fault_rig *r)
{
    static const char text[] = "The quick brown fox, 12 345 times \xf0\x9f\xa6\x8a over a lazy dog; and so on.";
    pn_token out[200];
    char back[400];
    size_t n = 0, len;
    pn_status st = pn_tokenize(r->m, text, sizeof text - 1, PN_TOKENIZE_BOS | PN_TOKENIZE_SPECIAL, out, 200, &n, NULL);
    return st ? st : pn_detokenize(r->m, out, n, 1, back, sizeof back, &len, NULL);
}

static pn_status fault_grammars(fault_rig *r)
{
    static const char gbnf[] = "root ::= (\"yes\" | \"no\") [a-z]{2,5}", schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}";
    pn_status st = pn_grammar_gbnf(r->e, gbnf, sizeof gbnf - 1, &r->g[0], NULL);
    return st ? st : pn_grammar_json_schema(r->e, schema, sizeof schema - 1, &r->g[1], NULL);
}

static pn_status fault_grammar_answer(fault_rig *r)
{
    pn_status st = fault_grammars(r);
    if (!st)
        st = fault_session(r, 0, 1);
    pn_generate_params p = fault_ask(r, 20, 12);
    p.grammar = r->g[0];
    return st ? st : pn_session_generate(r->s[0], &p, NULL, NULL);
}

static pn_status fault_sessions(fault_rig *r)
{
    pn_status st = fault_session(r, 0, 0);
    return st ? st : fault_session(r, 1, 1);
}

/* By the turn, with grants, a second turn, one that may shrink. */
static pn_status fault_turn(fault_rig *r)
{
    pn_status st = fault_session(r, 0, 1);
    pn_generate_params p = fault_ask(r, 100, 30);
    p.grant = 8;
    if (!st)
        st = pn_session_generate(r->s[0], &p, NULL, NULL);
    p = fault_ask(r, 10, 1000);
    p.may_shrink = 1;
    return st ? st : pn_session_generate(r->s[0], &p, NULL, NULL);
}

static pn_status fault_reply(fault_rig *r)
{
    const pn_generate_params p = {.max_tokens = 4};
    pn_status st = fault_session(r, 0, 1);
    if (!st)
        st = pn_chat_new(r->s[0], NULL, &r->c, NULL);
    if (!st)
        st = pn_chat_say(r->c, "user", "Hi", 0, NULL);
    return st ? st : pn_chat_reply(r->c, &(pn_chat_reply_params){.generate = &p}, NULL, NULL);
}

static pn_status fault_drive(fault_rig *r, double seconds)
{
    for (int k = 0; k < 500; k++) {
        int done = 1;
        for (int i = 0; i < FAULT_MANY; i++)
            done = done && (!r->q[i] || pn_request_done(r->q[i]));
        if (done)
            break;
        fault_time += seconds;
        if (pn_engine_step(r->e, 0, NULL, NULL) != PN_OK)
            return PN_E_INTERNAL;
    }
    for (int i = 0; i < FAULT_MANY; i++) {
        pn_status st = r->q[i] ? pn_request_result(r->q[i], NULL, NULL) : PN_OK;
        if (st)
            return st;
    }
    return PN_OK;
}

static pn_status fault_ask_many(fault_rig *r, uint32_t more)
{
    pn_status st = PN_OK;
    for (int i = 0; i < FAULT_MANY && !st; i++) {
        const pn_generate_params p = fault_ask(r, 70 + 30 * (size_t)i % FAULT_PROMPT, more);
        st = fault_session(r, i, 1);
        if (!st)
            st = pn_request_new(r->s[i], &p, &r->q[i], NULL);
    }
    return st;
}

static pn_status fault_requests(fault_rig *r)
{
    pn_status st = fault_ask_many(r, 12);
    return st ? st : fault_drive(r, 0);
}

/* Somebody has kept the beginning: two more have the same, and part inside a page. */
static pn_status fault_shared_before(fault_rig *r)
{
    const pn_generate_params p = fault_ask(r, 140, 2);
    pn_status st = fault_session(r, 0, 1);
    return st ? st : pn_session_generate(r->s[0], &p, NULL, NULL);
}

static pn_status fault_shared(fault_rig *r)
{
    pn_status st = PN_OK;
    for (int i = 1; i < FAULT_MANY && !st; i++) {
        const pn_generate_params p = fault_ask(r, 135 + (size_t)i, 30);
        st = fault_session(r, i, 1);
        if (!st)
            st = pn_session_generate(r->s[i], &p, NULL, NULL);
        if (!st)
            st = pn_session_truncate(r->s[i], 100, NULL);
        if (!st)
            st = pn_session_eval(r->s[i], r->ids, 20, NULL);
    }
    return st;
}

static pn_status fault_gate_type(fault_rig *r, pn_dtype type)
{
    static const pn_kv_gate_params any = {.max_kl = 1e9, .min_top1 = 1e-9};
    pn_kv_gate g;
    return pn_model_kv_gate(r->m, type, &any, &g, NULL);
}

static pn_status fault_gate(fault_rig *r) { return fault_gate_type(r, PN_DTYPE_Q8_0); }

/* The gate is known; a session is at rest, others are worked on. */
static pn_status fault_requant_before(fault_rig *r)
{
    pn_status st = fault_gate_type(r, PN_DTYPE_Q8_0);
    pn_generate_params p = fault_ask(r, 140, 100);
    p.no_cache = 1;                             /* pages with two holders stay as they are */
    if (!st)
        st = fault_session(r, 0, 1);
    if (!st)
        st = pn_session_generate(r->s[0], &p, NULL, NULL);
    for (int i = 1; i < FAULT_MANY && !st; i++) {
        st = fault_session(r, i, 1);
        if (!st)
            st = pn_request_new(r->s[i], &p, &r->q[i], NULL);
    }
    for (int k = 0; k < 80 && !st; k++)
        st = pn_engine_step(r->e, 0, NULL, NULL);
    return st;
}

/* Their pages become smaller ones. */
static pn_status fault_requant(fault_rig *r)
{
    pn_mem_hint(r->e, PN_LEVEL_WATCH);
    fault_pass(r, 3);
    return fault_drive(r, 0.05);
}

/* A session whose type is ours to choose begins anew while types are smaller. */
static pn_status fault_smaller_before(fault_rig *r)
{
    pn_status st = fault_requant_before(r);
    if (!st)
        st = fault_requant(r);
    return st ? st : pn_session_truncate(r->s[0], 0, NULL);
}

static pn_status fault_smaller(fault_rig *r)
{
    const pn_generate_params p = fault_ask(r, 100, 8);
    pn_status st = pn_session_generate(r->s[0], &p, NULL, NULL);
    if (st == PN_E_NOMEM)                       /* it is there, and can be asked again */
        st = pn_session_truncate(r->s[0], 0, NULL) || !pn_session_capacity(r->s[0]) ? PN_E_INTERNAL : st;
    return st;
}

/* Down to CRITICAL with work under way, and up again: prefixes, slots, rows, mapped weights to streamed ones and back. */
static pn_status fault_ladder_before(fault_rig *r)
{
    pn_status st = fault_ask_many(r, 8);
    for (int k = 0; k < 3 && !st; k++)
        st = pn_engine_step(r->e, 0, NULL, NULL);
    return st;
}

static pn_status fault_ladder(fault_rig *r)
{
    pn_mem_hint(r->e, PN_LEVEL_CRITICAL);
    fault_pass(r, 3);
    if (pn_engine_step(r->e, 0, NULL, NULL) != PN_OK)
        return PN_E_INTERNAL;
    fault_pass(r, 60);
    return fault_drive(r, 0.05);
}

/* Nothing that goes needs memory. */
static pn_status fault_unload_before(fault_rig *r)
{
    const pn_session_params p = {.n_ctx = 128};
    pn_status st = pn_model_load(r->e, r->path, &(pn_model_params){.floor_tokens = 512}, &r->other, NULL);
    if (!st)
        st = fault_ask_many(r, 5);
    return st ? st : pn_session_new(r->other, &p, &r->s[FAULT_MANY], NULL);
}

static pn_status fault_unload(fault_rig *r)
{
    fault_undo(r);
    return PN_OK;
}

static const fault_case fault_cases[] = {
    {"plan", fault_demo, NULL, fault_plan, 20, 0},
    {"load by itself", fault_tiny, NULL, fault_load_auto, 0, 0},
    {"load mapped", fault_tiny, NULL, fault_load_map, 0, 0},
    {"load copied", fault_tiny, NULL, fault_load_anon, 0, 0},
    {"load streamed", fault_tiny, NULL, fault_load_stream, 0, 0},
    {"plan a folder", fault_folder, NULL, fault_plan, 20, 0},
    {"load a folder mapped", fault_folder, NULL, fault_load_map, 0, 0},
    {"load a folder copied", fault_folder, NULL, fault_load_anon, 0, 0},
    {"load a folder streamed", fault_folder, NULL, fault_load_stream, 0, 0},
    {"load with a floor", fault_tiny, NULL, fault_load_floor, 0, 0},
    {"tokenise", fault_demo, NULL, fault_tokenise, 0, 0},
    {"grammars", fault_demo, NULL, fault_grammars, 0, 0},
    {"an answer by grammar", fault_demo, NULL, fault_grammar_answer, 40, 1},
    {"sessions", fault_demo, NULL, fault_sessions, 0, 1},
    {"turns", fault_demo, NULL, fault_turn, 0, 1},
    {"turns again", fault_demo, NULL, fault_turn, 0, 0},
    {"reply", fault_demo, NULL, fault_reply, 30, 0},
    {"requests", fault_demo, NULL, fault_requests, 0, 1},
    {"requests again", fault_demo, NULL, fault_requests, 0, 0},
    {"a shared beginning", fault_demo, fault_shared_before, fault_shared, 0, 1},
    {"the gate", fault_tiny, NULL, fault_gate, 0, 1},
    {"smaller keys and values", fault_demo, fault_requant_before, fault_requant, 0, 0},
    {"a sequence of a smaller type", fault_demo, fault_smaller_before, fault_smaller, 8, 0},
    {"the ladder", fault_large, fault_ladder_before, fault_ladder, 10, 0},
    {"unload", fault_tiny, fault_unload_before, fault_unload, 0, 0},
};

/* --- what is looked at ----------------------------------------------------------------------- */

enum { FAULT_SAID = 12 };

/* Tokens of a turn of its own, without cache.  When pressure is on, of the type that was asked for. */
static pn_status fault_reference(fault_rig *r, pn_token said[FAULT_SAID], pn_err *err)
{
    pn_session *s = NULL;
    pn_generate_params p = fault_ask(r, 30, FAULT_SAID);
    p.no_cache = 1;
    pn_status st = pn_session_new(r->m, &(pn_session_params){.n_ctx = 128, .n_batch = 20, .by_turn = 1, .has_kv_type = 1, .kv_type = PN_DTYPE_F16}, &s, err);
    if (!st)
        st = pn_session_generate(s, &p, NULL, err);
    if (!st)
        memcpy(said, pn_session_tokens(s) + 30, FAULT_SAID * sizeof *said);
    pn_session_free(s);
    return st;
}

/* The accounts of what nobody is to have kept: but a step's working memory may have become smaller, and a model that
 * nobody uses may count its page cache or not. */
static void fault_ledger(fault_rig *r, uint64_t out[PN_ACCT_COUNT])
{
    pn_mem_info i;
    fault_pass(r, pn_mem_level(r->e) > PN_LEVEL_OK ? 60 : 0);
    pn_mem_release(r->e, UINT64_MAX, NULL);
    pn_engine_memory(r->e, &i);
    memcpy(out, i.used, sizeof i.used);
    out[PN_ACCT_SCRATCH] = out[PN_ACCT_WEIGHTS_MAP] = 0;
}

static int fault_documented(pn_status st) { return st == PN_OK || st == PN_E_NOMEM || st == PN_E_BUDGET; }

typedef struct fault_seen {
    long tried, failed;
} fault_seen;

/* One k: false when nothing was refused. */
static int fault_one(const fault_case *c, fault_rig *r, long k, int on, const pn_token want[FAULT_SAID], fault_seen *seen)
{
    uint64_t before[PN_ACCT_COUNT], after[PN_ACCT_COUNT];
    pn_token said[FAULT_SAID] = {0};
    pn_err err = {0};
    fault_ledger(r, before);
    pn_status st = c->prepare ? c->prepare(r) : PN_OK;
    PN_CHECK(st == PN_OK, "%s: prepared with %s", c->name, pn_status_name(st));
    r->h.fail_on = on;
    r->h.fail_at = r->h.calls + k;
    st = c->act(r);
    int refused = r->h.calls >= r->h.fail_at;
    r->h.fail_at = 0;
    PN_CHECK(fault_documented(st), "%s, allocation %ld%s: %s", c->name, k, on ? " and later" : "", pn_status_name(st));
    PN_CHECK(refused || st == PN_OK, "%s: %s though nothing failed", c->name, pn_status_name(st));
    fault_undo(r);
    st = fault_reference(r, said, &err);
    PN_CHECK(st == PN_OK && memcmp(said, want, sizeof said) == 0, "%s, allocation %ld%s: a reference request, %s", c->name, k, on ? " and later" : "",
             st ? err.text : "other tokens");
    fault_ledger(r, after);
    for (int a = 0; a < PN_ACCT_COUNT && !c->fresh; a++)
        PN_CHECK(before[a] == after[a], "%s, allocation %ld%s: %s had %llu bytes, has %llu", c->name, k, on ? " and later" : "",
                 pn_account_name((pn_account)a), (unsigned long long)before[a], (unsigned long long)after[a]);
    seen->tried++;
    seen->failed += refused;
    return refused;
}

static void fault_close(const fault_case *c, fault_rig *r, long k)
{
    pn_model_free(r->m);
    pn_engine_close(r->e);
    PN_CHECK(r->h.out == 0, "%s, allocation %ld leaks %ld blocks", c->name, k, r->h.out);
}

static double fault_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void fault_run(const fault_case *c)
{
    fault_rig r;
    fault_seen seen = {0};
    pn_token want[FAULT_SAID];
    long from = pn_test_quick() ? 2 : c->from ? (c->from + 1) / 2 : 12;      /* the first so many one by one */
    double began = fault_seconds();
    for (int on = 0; on < 2; on++) {
        int more = fault_open(&r, c->path) && PN_CHECK(fault_reference(&r, want, NULL) == PN_OK, "%s", c->name);
        if (more && !c->fresh) {                /* once without, so that all that is made on first use is there */
            PN_CHECK(!c->prepare || c->prepare(&r) == PN_OK, "%s", c->name);
            PN_CHECK(c->act(&r) == PN_OK, "%s", c->name);
            fault_undo(&r);
        }
        for (long k = 1; more && k < 100000; k += k < from ? 1 : 1 + k / from) {
            more = fault_one(c, &r, k, on, want, &seen);
            if (c->fresh && more) {
                fault_close(c, &r, k);
                more = fault_open(&r, c->path);
            }
        }
        fault_close(c, &r, 0);
    }
    PN_CHECK(seen.failed >= 4 || c->act == fault_unload, "%s: nothing was refused", c->name);
    if (getenv("PANTHEON_TIMES"))
        printf("%-32s %5ld runs, %5ld with a fault, %.2f s\n", c->name, seen.tried, seen.failed, fault_seconds() - began);
}

/* The engine itself, with a script. */
static void an_engine_may_not_open(void)
{
    for (int on = 0; on < 2; on++)
        for (long k = 1, more = 1; more; k++) {
            api_heap h = {.fail_at = k, .fail_on = on};
            pn_engine *e = NULL;
            const pn_engine_params p = {.n_threads = 2, .allocator = {api_heap_alloc, api_heap_free, &h}, .pressure_script = fault_script, .clock = fault_clock,
                                        .sim_dies = k % 2 ? "2;bytes=16M" : NULL};
            pn_status st = pn_engine_open(&e, &p, NULL);
            pn_engine_close(e);
            more = h.calls >= k || k % 2;
            PN_CHECK(h.out == 0 && (st == PN_E_NOMEM || (st == PN_OK && h.calls < k)), "allocation %ld: %s, %ld blocks", k, pn_status_name(st), h.out);
        }
}

/* --- steps that ask for nothing --------------------------------------------------------------- */

enum { FAULT_LONG = 1040, FAULT_WARM = 20 };

typedef struct fault_count {
    api_heap *h;
    long at, n, asked;          /* requests for memory before this token; tokens; requests in between */
} fault_count;

static int fault_counted(void *user, const char *text, size_t len, pn_token t)
{
    fault_count *c = user;
    (void)text, (void)len, (void)t;
    if (c->n++ >= FAULT_WARM)
        c->asked += c->h->calls - c->at;
    c->at = c->h->calls;
    return 0;
}

/* A thousand tokens, by a generation and by requests; without looks at memory, which are no part of a step. */
static void a_step_asks_for_no_memory(pn_residency how, pn_dtype type)
{
    fault_rig r = {.path = fault_demo};
    pn_err err = {0};
    if (!fault_engine(&r) ||
        !PN_CHECK(pn_model_load(r.e, fault_demo, &(pn_model_params){.residency = how, .stream_block = 1 << 18, .stream_depth = 2}, &r.m, &err) == PN_OK, "%s", err.text))
        return;
    for (uint32_t many = 0; many <= 4; many += many ? 3 : 1) {      /* 0: a generation, then 1 and 4 requests */
        fault_count c = {.h = &r.h};
        pn_session *s[4] = {NULL};
        pn_request *q[4] = {NULL};
        pn_generate_params p = {.prompt = (const pn_token[]){5, 6, 7}, .n_prompt = 3, .max_tokens = FAULT_LONG, .sampling = &fault_on, .no_cache = 1,
                                .on_text = fault_counted, .user = &c};
        for (uint32_t i = 0; i < (many ? many : 1); i++)
            PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = 1100, .n_batch = 20, .by_turn = 1, .has_kv_type = 1, .kv_type = type}, &s[i], &err) == PN_OK, "%s", err.text);
        for (uint32_t i = 0; i < many; i++) {
            PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
            p.on_text = NULL;
        }
        if (!many)
            PN_CHECK(pn_session_generate(s[0], &p, NULL, &err) == PN_OK, "%s", err.text);
        for (int k = 0; k < 2 * FAULT_LONG && many && !pn_request_done(q[0]); k++)
            PN_CHECK(pn_engine_step(r.e, 0, NULL, &err) == PN_OK, "%s", err.text);
        PN_CHECK(c.n >= FAULT_LONG && c.asked == 0, "residency %d, %s, %u requests: %ld tokens asked for memory %ld times", (int)how, pn_kv_type_name(type), (unsigned)many,
                 c.n, c.asked);
        for (int i = 0; i < 4; i++) {
            pn_request_free(q[i]);
            pn_session_free(s[i]);
        }
    }
    pn_model_free(r.m);
    pn_engine_close(r.e);
}

static int fault_files(void)
{
    pn_engine *e = NULL;
    pn_err err = {0};
    snprintf(fault_script, sizeof fault_script, "/tmp/pn_faults_%ld.txt", (long)getpid());
    snprintf(fault_large, sizeof fault_large, "/tmp/pn_faults_%ld.gguf", (long)getpid());
    FILE *f = fopen(fault_script, "w");
    if (!PN_CHECK(f != NULL, "%s cannot be written", fault_script))
        return 0;
    fputs("budget 100M\n0 80M\n", f);
    fclose(f);
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text);
    int ok = PN_CHECK(pn_synth(e, fault_large, &(pn_synth_params){.shape = "tiny", .type = "F32", .n_vocab = 30000, .seed = 5}, &err) == PN_OK, "%s", err.text);
    pn_engine_close(e);
    return ok;
}

int main(int argc, char **argv)
{
    if (fault_files()) {
        an_engine_may_not_open();
        if (argc < 2 && !pn_test_quick()) {
            a_step_asks_for_no_memory(PN_RESIDENCY_MAP, PN_DTYPE_F16);
            a_step_asks_for_no_memory(PN_RESIDENCY_ANON, PN_DTYPE_F16);
            a_step_asks_for_no_memory(PN_RESIDENCY_STREAM, PN_DTYPE_F16);
            a_step_asks_for_no_memory(PN_RESIDENCY_MAP, PN_DTYPE_Q8_0);
        }
        for (size_t i = 0; i < sizeof fault_cases / sizeof *fault_cases; i++)
            if (argc < 2 || strstr(fault_cases[i].name, argv[1]))
                fault_run(&fault_cases[i]);
    }
    remove(fault_script);
    remove(fault_large);
    return pn_test_end();
}
