/*
 * test_requests.c - many answers at once: together they are what each is alone, to the bit of its logits;
 * they come and go, are cancelled and fail one by one; steps may be cut into slices.
 */
#include "pantheon.h"
#include "pn_api_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { N_TEXTS = 8, TEXT_MAX = 4096, N_NEW = 24 };

static const char *const prompts[N_TEXTS] = {
    "Once upon a time", "The capital of France is", "One, two, three,", "My name is Ada and I",
    "In a deep forest there lived a fox who", "2 + 2 =", "a",
    "Once upon a time there was a small house at the edge of the forest. In the house lived an old woman and her cat. Every morning the "
    "old woman went to the well, and every morning the cat went with her. One day the well was empty. The old woman looked at the cat, and "
    "the cat looked at the old woman. Then they heard a small voice from below: please do not be afraid, it said, I am only very thirsty.",
};

typedef struct req_text {
    char text[TEXT_MAX];
    size_t len;
    pn_generate_result r;
    pn_status st;
    float *logits;              /* owned: after the last token */
    pn_token tokens[1024];
    uint32_t n_tokens;
} req_text;

typedef struct req_rig {
    pn_engine *e;
    pn_model *m;
    uint32_t V;
    req_text alone[N_TEXTS];
} req_rig;

static int req_hear(void *user, const char *text, size_t len, pn_token token)
{
    req_text *t = user;
    (void)token;
    if (t->len + len < sizeof t->text) {
        memcpy(t->text + t->len, text, len);
        t->len += len;
    }
    return 0;
}

static pn_session *req_session(req_rig *r, uint32_t n_ctx, uint32_t n_batch)
{
    pn_session *s = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = n_ctx, .n_batch = n_batch}, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

/* What is asked of text i: greedy or sampled, long or short. */
static pn_generate_params req_ask(req_rig *r, size_t i, pn_token *ids, pn_sampling *how, req_text *t)
{
    pn_err err = {0};
    size_t n = 0;
    PN_CHECK(pn_tokenize(r->m, prompts[i], strlen(prompts[i]), PN_TOKENIZE_BOS, ids, 512, &n, &err) == PN_OK, "%s", err.text);
    memset(t, 0, sizeof *t);
    *how = (pn_sampling){.temperature = i % 2 ? 0.9f : 0.0f, .top_k = 30, .has_seed = 1, .seed = i, .ignore_eos = 1};
    return (pn_generate_params){.prompt = ids, .n_prompt = n, .max_tokens = N_NEW + (uint32_t)i, .sampling = how, .on_text = req_hear, .user = t};
}

static void req_keep(req_rig *r, pn_session *s, req_text *t)
{
    t->n_tokens = pn_session_length(s);
    PN_CHECK(t->n_tokens < 1024);
    memcpy(t->tokens, pn_session_tokens(s), t->n_tokens * sizeof *t->tokens);
    t->logits = malloc(r->V * sizeof *t->logits);
    PN_CHECK(pn_session_logits(s) != NULL);
    if (pn_session_logits(s))
        memcpy(t->logits, pn_session_logits(s), r->V * sizeof *t->logits);
}

static void req_same(const req_rig *r, const req_text *t, size_t i, const char *how)
{
    const req_text *a = &r->alone[i];
    PN_CHECK(t->st == a->st && t->r.finish == a->r.finish && t->r.n_generated == a->r.n_generated, "%s, text %zu: %s, %u tokens", how, i,
             pn_status_name(t->st), (unsigned)t->r.n_generated);
    PN_CHECK(t->len == a->len && memcmp(t->text, a->text, t->len) == 0, "%s, text %zu: '%.*s', alone '%.*s'", how, i, (int)t->len, t->text,
             (int)a->len, a->text);
    PN_CHECK(t->n_tokens == a->n_tokens && memcmp(t->tokens, a->tokens, t->n_tokens * sizeof *t->tokens) == 0, "%s, text %zu: tokens", how, i);
    PN_CHECK(t->logits && memcmp(t->logits, a->logits, r->V * sizeof *t->logits) == 0, "%s, text %zu: other bits", how, i);
}

static void req_alone(req_rig *r)
{
    for (size_t i = 0; i < N_TEXTS; i++) {
        pn_token ids[512];
        pn_sampling how;
        pn_err err = {0};
        pn_session *s = req_session(r, 512, 64);
        pn_generate_params p = req_ask(r, i, ids, &how, &r->alone[i]);
        r->alone[i].st = pn_session_generate(s, &p, &r->alone[i].r, &err);
        PN_CHECK(r->alone[i].st == PN_OK && r->alone[i].len > 10, "%s", err.text);
        req_keep(r, s, &r->alone[i]);
        pn_session_free(s);
    }
}

/* ------------------------------------------------------------------------------------------
 * Together
 * ------------------------------------------------------------------------------------------ */

/* all at once, or one more every second step; in slices of so many seconds; with sessions of other shapes. */
static void together(req_rig *r, const char *name, int staggered, double slice, int shapes)
{
    static req_text t[N_TEXTS];
    pn_session *s[N_TEXTS] = {0};
    pn_request *q[N_TEXTS] = {0};
    pn_err err = {0};
    uint32_t active = 1, begun = 0;
    for (uint32_t step = 0; active || begun < N_TEXTS; step++) {
        for (; begun < N_TEXTS && (!staggered || begun * 2 <= step); begun++) {
            pn_token ids[512];
            pn_sampling how;
            s[begun] = req_session(r, shapes && begun % 3 == 0 ? 1024 : 512, shapes ? 16u << begun % 4 : 64);
            pn_generate_params p = req_ask(r, begun, ids, &how, &t[begun]);
            PN_CHECK(pn_request_new(s[begun], &p, &q[begun], &err) == PN_OK, "%s", err.text);
        }
        if (!PN_CHECK(pn_engine_step(r->e, slice, &active, &err) == PN_OK, "%s", err.text) || !PN_CHECK(step < 2000000))
            break;
    }
    for (size_t i = 0; i < N_TEXTS; i++) {
        PN_CHECK(pn_request_done(q[i]));
        t[i].st = pn_request_result(q[i], &t[i].r, &err);
        req_keep(r, s[i], &t[i]);
        req_same(r, &t[i], i, name);
        free(t[i].logits);
        pn_request_free(q[i]);
        pn_session_free(s[i]);
    }
}

/* Between two slices somebody else uses the engine. */
static void a_step_in_the_middle_makes_way(req_rig *r)
{
    static req_text t;
    pn_token ids[512];
    pn_sampling how;
    pn_request *q = NULL;
    pn_err err = {0};
    pn_session *s = req_session(r, 512, 64), *other = req_session(r, 512, 64);
    pn_generate_params p = req_ask(r, 7, ids, &how, &t);
    uint32_t active = 1;
    PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
    for (int i = 0; active; i++) {
        PN_CHECK(pn_engine_step(r->e, 1e-7, &active, &err) == PN_OK, "%s", err.text);
        if (i % 50 == 0) {
            pn_session *more = req_session(r, 256, 64);
            PN_CHECK(pn_session_truncate(other, 0, &err) == PN_OK && pn_session_eval(other, ids, 20, &err) == PN_OK, "%s", err.text);
            pn_session_free(more);
        }
    }
    t.st = pn_request_result(q, &t.r, &err);
    req_keep(r, s, &t);
    req_same(r, &t, 7, "with others between");
    free(t.logits);
    pn_request_free(q);
    pn_session_free(other);
    pn_session_free(s);
}

/* ------------------------------------------------------------------------------------------
 * One by one
 * ------------------------------------------------------------------------------------------ */

static int req_stop_after(void *user, const char *text, size_t len, pn_token token)
{
    (void)text;
    (void)len;
    (void)token;
    return --*(int *)user == 0;
}

typedef struct req_free_in {
    pn_request *self, *other;
    int left;
    pn_engine *e;
    pn_status inner;
} req_free_in;

static int req_free_now(void *user, const char *text, size_t len, pn_token token)
{
    req_free_in *f = user;
    (void)text;
    (void)len;
    (void)token;
    if (--f->left == 0) {
        f->inner = pn_engine_step(f->e, 0, NULL, NULL);
        pn_request_free(f->other);
        pn_request_free(f->self);
    }
    return 0;
}

static void what_ends_one_leaves_the_others(req_rig *r)
{
    static req_text t;
    pn_session *s[5];
    pn_request *q[5] = {0};
    pn_err err = {0};
    pn_generate_result g;
    pn_token ids[512], one[] = {5};
    pn_sampling how;
    int left = 3;
    uint32_t active = 1;
    req_free_in f = {.left = 4, .e = r->e};
    for (int i = 0; i < 5; i++)
        s[i] = req_session(r, i == 1 ? 16 : 512, 16);
    pn_generate_params p = req_ask(r, 4, ids, &how, &t);
    PN_CHECK(pn_request_new(s[0], &p, &q[0], &err) == PN_OK, "%s", err.text);
    const pn_sampling on = {.ignore_eos = 1};
    PN_CHECK(pn_request_new(s[1], &(pn_generate_params){.prompt = one, .n_prompt = 1, .sampling = &on}, &q[1], &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_request_new(s[2], &(pn_generate_params){.prompt = one, .n_prompt = 1, .sampling = &on, .on_text = req_stop_after, .user = &left}, &q[2], &err) ==
             PN_OK, "%s", err.text);
    PN_CHECK(pn_request_new(s[3], &(pn_generate_params){.prompt = one, .n_prompt = 1, .sampling = &on}, &q[3], &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_request_new(s[4], &(pn_generate_params){.prompt = one, .n_prompt = 1, .sampling = &on, .on_text = req_free_now, .user = &f},
                            &q[4], &err) == PN_OK, "%s", err.text);
    f.self = q[4];
    f.other = q[3];
    PN_CHECK(pn_request_result(q[0], &g, &err) == PN_E_STATE && strstr(err.text, "not done"), "%s", err.text);
    for (int i = 0; active; i++)
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK && i < 1000, "%s", err.text);
    t.st = pn_request_result(q[0], &t.r, &err);
    req_keep(r, s[0], &t);
    req_same(r, &t, 4, "among the doomed");
    free(t.logits);
    PN_CHECK(pn_request_result(q[1], &g, &err) == PN_OK && g.finish == PN_FINISH_CONTEXT && pn_session_length(s[1]) == 16, "finish %d", (int)g.finish);
    PN_CHECK(pn_request_result(q[2], &g, &err) == PN_OK && g.finish == PN_FINISH_CALLBACK && g.n_generated == 3, "finish %d", (int)g.finish);
    PN_CHECK(f.inner == PN_E_STATE, "a step inside a step: %s", pn_status_name(f.inner));
    PN_CHECK(pn_session_length(s[4]) >= 4 && pn_session_eval(s[3], one, 1, &err) == PN_OK && pn_session_eval(s[4], one, 1, &err) == PN_OK,
             "%s", err.text);
    for (int i = 0; i < 3; i++)
        pn_request_free(q[i]);
    for (int i = 0; i < 5; i++)
        pn_session_free(s[i]);
}

static void a_cancelled_request_ends_with_its_step(req_rig *r)
{
    pn_err err = {0};
    pn_generate_result g;
    pn_token ids[512];
    pn_sampling how;
    static req_text t;
    uint32_t active = 0;
    for (int when = 0; when < 3; when++) {
        pn_session *s = req_session(r, 512, 16);
        pn_request *q = NULL;
        pn_generate_params p = req_ask(r, 7, ids, &how, &t);
        PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
        for (int i = 0; i < when * 6; i++)
            pn_engine_step(r->e, 0, &active, &err);
        if (when == 1)
            pn_engine_step(r->e, 1e-9, &active, &err);      /* in the middle of one */
        pn_request_cancel(q);
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK && active == 0 && pn_request_done(q), "%u active", (unsigned)active);
        PN_CHECK(pn_request_result(q, &g, &err) == PN_OK && g.finish == PN_FINISH_CANCELLED, "finish %d", (int)g.finish);
        pn_request_free(q);
        PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
        pn_request_free(q);                                 /* never stepped */
        PN_CHECK(pn_session_eval(s, ids, 3, &err) == PN_OK, "%s", err.text);
        pn_session_free(s);
    }
}

static void a_busy_session_says_so(req_rig *r)
{
    pn_err err = {0};
    pn_token one[] = {5}, far[] = {1 << 30};
    pn_session *s = req_session(r, 64, 16);
    pn_request *q = NULL, *second = NULL;
    pn_chat *c = NULL;
    PN_CHECK(pn_chat_new(s, NULL, &c, &err) == PN_OK, "%s", err.text);
    const pn_generate_params p = {.prompt = one, .n_prompt = 1, .max_tokens = 2}, wrong = {.prompt = far, .n_prompt = 1};
    PN_CHECK(pn_request_new(s, &wrong, &q, &err) == PN_E_INVALID && strstr(err.text, "vocabulary"), "%s", err.text);
    PN_CHECK(pn_request_new(s, &(pn_generate_params){0}, &q, &err) == PN_E_STATE, "%s", err.text);
    PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_request_new(s, &p, &second, &err) == PN_E_STATE && pn_session_eval(s, one, 1, &err) == PN_E_STATE &&
             pn_session_generate(s, &p, NULL, &err) == PN_E_STATE && pn_session_truncate(s, 0, &err) == PN_E_STATE &&
             pn_chat_say(c, "user", "Hi", 0, &err) == PN_E_STATE && pn_chat_reply(c, NULL, NULL, &err) == PN_E_STATE &&
             strstr(err.text, "a request works on the session"), "%s", err.text);
    pn_request_free(q);
    PN_CHECK(pn_chat_say(c, "user", "Hi", 0, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_engine_step(r->e, -1, NULL, &err) == PN_E_INVALID && pn_engine_step(NULL, 0, NULL, &err) == PN_E_INVALID);
    pn_chat_free(c);
    pn_session_free(s);
}

/* ------------------------------------------------------------------------------------------
 * Conversations, models, threads
 * ------------------------------------------------------------------------------------------ */

static void conversations_answer_together(req_rig *r)
{
    static const char *const lines[][2] = {{"My name is Ada.", "What is my name?"}, {"Count to five.", "Tell me a story about a fox."}};
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
                                "{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}]";
    static char said[2][2][3][4096];
    const pn_sampling how = {.temperature = 0};
    for (int together = 0; together < 2; together++) {
        pn_session *s[3];
        pn_chat *c[3];
        pn_err err = {0};
        const pn_generate_params g = {.max_tokens = 40, .sampling = &how};
        const pn_chat_reply_params p = {.generate = &g};
        for (int i = 0; i < 3; i++) {
            s[i] = req_session(r, 1024, 64);
            PN_CHECK(pn_chat_new(s[i], &(pn_chat_params){.tools = i == 2 ? tools : NULL}, &c[i], &err) == PN_OK, "%s", err.text);
        }
        for (int turn = 0; turn < 2; turn++) {
            pn_request *q[3] = {0};
            uint32_t active = 1;
            for (int i = 0; i < 3; i++) {
                PN_CHECK(pn_chat_say(c[i], "user", i == 2 ? "What is the weather in Paris?" : lines[i][turn], 0, &err) == PN_OK, "%s", err.text);
                PN_CHECK((together ? pn_request_chat(c[i], &p, &q[i], &err) : pn_chat_reply(c[i], &p, NULL, &err)) == PN_OK, "%s", err.text);
            }
            while (together && active)
                PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK, "%s", err.text);
            for (int i = 0; i < 3; i++) {
                size_t len = 0;
                if (together)
                    PN_CHECK(pn_request_result(q[i], NULL, &err) == PN_OK, "%s", err.text);
                pn_request_free(q[i]);
                const char *m = pn_chat_message(c[i], pn_chat_length(c[i]) - 1, &len);
                snprintf(said[together][turn][i], sizeof said[0][0][0], "%.*s", (int)len, m ? m : "");
                if (together)
                    PN_CHECK(strcmp(said[0][turn][i], said[1][turn][i]) == 0 && strstr(said[1][turn][i], "assistant"), "alone %s, together %s",
                             said[0][turn][i], said[1][turn][i]);
            }
        }
        for (int i = 0; i < 3; i++) {
            pn_chat_free(c[i]);
            pn_session_free(s[i]);
        }
    }
}

static void models_take_turns(req_rig *r)
{
    pn_model *m = NULL;
    pn_err err = {0};
    pn_token one[] = {5};
    const pn_sampling on = {.ignore_eos = 1};
    pn_session *a = req_session(r, 256, 16), *b = NULL;
    pn_request *q = NULL, *w = NULL;
    uint32_t active = 1;
    if (PN_CHECK(pn_model_load(r->e, "models/demo.gguf", NULL, &m, &err) == PN_OK, "%s", err.text) &&
        PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 256}, &b, &err) == PN_OK, "%s", err.text)) {
        const pn_generate_params p = {.prompt = one, .n_prompt = 1, .max_tokens = 40, .sampling = &on};
        PN_CHECK(pn_request_new(a, &p, &q, &err) == PN_OK && pn_request_new(b, &p, &w, &err) == PN_OK, "%s", err.text);
        for (int i = 0; i < 30; i++)
            pn_engine_step(r->e, 0, &active, &err);
        /* turns are by time taken, so one slow step here buys the other many */
        PN_CHECK(pn_session_length(a) > 1 && pn_session_length(b) > 1, "%u and %u tokens", (unsigned)pn_session_length(a),
                 (unsigned)pn_session_length(b));
        while (active)
            pn_engine_step(r->e, 0, &active, &err);
        PN_CHECK(memcmp(pn_session_logits(a), pn_session_logits(b), r->V * sizeof(float)) == 0, "one model twice, two results");
    }
    pn_request_free(q);
    pn_request_free(w);
    pn_session_free(a);
    pn_session_free(b);
    pn_model_free(m);
}

/* Contexts on both sides of what a model was trained for have a plan each, whose rows cannot share a step. */
static void plans_take_turns(req_rig *r)
{
    enum { N = 6, NEW = 24, PROMPT = 30 };
    pn_model *m = NULL;
    pn_err err = {0};
    if (!PN_CHECK(pn_model_load(r->e, "tests/vectors/golden/arch/phi3_longrope.gguf", NULL, &m, &err) == PN_OK, "%s", err.text))
        return;
    const size_t V = pn_vocab_size(m);
    const pn_sampling on = {.ignore_eos = 1};
    pn_token ids[PROMPT];
    pn_session *s[N];
    pn_request *q[N] = {0};
    float *alone = malloc(N * V * sizeof *alone);
    uint32_t active = 1, least = UINT32_MAX;
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < N; i++) {
            PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = i % 2 ? 512 : 256, .n_batch = 16}, &s[i], &err) == PN_OK, "%s", err.text);
            for (uint32_t t = 0; t < PROMPT; t++)
                ids[t] = (pn_token)((t * 37 + i / 2 * 11 + 3) % V);        /* the same for two sessions of either kind */
            const pn_generate_params p = {.prompt = ids, .n_prompt = PROMPT, .max_tokens = NEW, .sampling = &on};
            if (round == 0)
                PN_CHECK(pn_session_generate(s[i], &p, NULL, &err) == PN_OK, "%s", err.text);
            else
                PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
            if (round == 0) {
                memcpy(alone + i * V, pn_session_logits(s[i]), V * sizeof *alone);
                pn_session_free(s[i]);
            }
        }
    }
    for (bool any = false; active && !any;) {
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK, "%s", err.text);
        for (uint32_t i = 0; i < N; i++)
            any = any || pn_request_done(q[i]);
    }
    for (uint32_t i = 0; i < N; i++)
        least = pn_session_length(s[i]) < least ? pn_session_length(s[i]) : least;
    PN_CHECK(least > PROMPT, "the first is done, and one of the others has %u tokens", (unsigned)least);
    while (active)
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK, "%s", err.text);
    for (uint32_t i = 0; i < N; i++) {
        PN_CHECK(memcmp(pn_session_logits(s[i]), alone + i * V, V * sizeof *alone) == 0, "session %u: other bits than alone", (unsigned)i);
        PN_CHECK(i % 2 == 0 || memcmp(alone + i * V, alone + (i - 1) * V, V * sizeof *alone) != 0, "both contexts have one table");
        pn_request_free(q[i]);
        pn_session_free(s[i]);
    }
    free(alone);
    pn_model_free(m);
}

typedef struct req_driver {
    req_rig *r;
    int stop;
} req_driver;

static void *req_drive(void *user)
{
    req_driver *d = user;
    while (!__atomic_load_n(&d->stop, __ATOMIC_ACQUIRE))
        pn_engine_step(d->r->e, 0, NULL, NULL);
    return NULL;
}

/* One thread drives, this one asks, waits, cancels and uses a session of its own. */
static void requests_come_from_other_threads(req_rig *r)
{
    static req_text t[4];
    req_driver d = {.r = r};
    pthread_t driver;
    pn_err err = {0};
    pn_session *own = req_session(r, 256, 16);
    if (!PN_CHECK(pthread_create(&driver, NULL, req_drive, &d) == 0))
        return;
    for (int round = 0; round < 3; round++) {
        pn_session *s[4];
        pn_request *q[4];
        for (size_t i = 0; i < 4; i++) {
            pn_token ids[512];
            pn_sampling how;
            s[i] = req_session(r, 512, 64);
            pn_generate_params p = req_ask(r, i, ids, &how, &t[i]);
            PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
            PN_CHECK(pn_session_eval(own, ids, 3, &err) == PN_OK, "%s", err.text);
        }
        if (round == 1)
            pn_request_cancel(q[3]);
        for (size_t i = 0; i < 4; i++)
            while (!pn_request_done(q[i]))
                sched_yield();
        for (size_t i = 0; i < 4; i++) {
            t[i].st = pn_request_result(q[i], &t[i].r, &err);
            if (t[i].r.finish != PN_FINISH_CANCELLED) {
                req_keep(r, s[i], &t[i]);
                req_same(r, &t[i], i, "from another thread");
                free(t[i].logits);
            }
            pn_request_free(q[i]);
            pn_session_free(s[i]);
        }
    }
    __atomic_store_n(&d.stop, 1, __ATOMIC_RELEASE);
    pthread_join(driver, NULL);
    pn_session_free(own);
}

/* The engine's own thread; stopped and started again in the middle. */
static void the_engine_drives_itself(req_rig *r)
{
    static req_text t[4];
    pn_session *s[4];
    pn_request *q[4];
    pn_err err = {0};
    PN_CHECK(pn_engine_start(r->e, &err) == PN_OK && pn_engine_start(r->e, &err) == PN_E_STATE, "%s", err.text);
    for (size_t i = 0; i < 4; i++) {
        pn_token ids[512];
        pn_sampling how;
        s[i] = req_session(r, 512, 64);
        pn_generate_params p = req_ask(r, i, ids, &how, &t[i]);
        PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
        if (i == 2) {
            pn_engine_stop(r->e);
            PN_CHECK(pn_engine_start(r->e, &err) == PN_OK, "%s", err.text);
        }
    }
    for (size_t i = 0; i < 4; i++) {
        while (!pn_request_done(q[i]))
            sched_yield();
        t[i].st = pn_request_result(q[i], &t[i].r, &err);
    }
    pn_engine_stop(r->e);
    pn_engine_stop(r->e);
    for (size_t i = 0; i < 4; i++) {
        req_keep(r, s[i], &t[i]);
        req_same(r, &t[i], i, "driven by the engine");
        free(t[i].logits);
        pn_request_free(q[i]);
        pn_session_free(s[i]);
    }
}

/* Begun, working or over: freed by a thread that drives nothing, and no callback comes after that. */
typedef struct req_ear {
    atomic_int heard, late;
    atomic_bool freed;
} req_ear;

static int req_listen(void *user, const char *text, size_t len, pn_token token)
{
    req_ear *e = user;
    (void)text, (void)len, (void)token;
    atomic_fetch_add(atomic_load(&e->freed) ? &e->late : &e->heard, 1);
    return 0;
}

static void freed_by_another_thread(req_rig *r)
{
    enum { N = 3, ROUNDS = 40 };
    static req_ear ear[ROUNDS][N];
    pn_session *s[N];
    pn_request *q[N];
    pn_err err = {0};
    PN_CHECK(pn_engine_start(r->e, &err) == PN_OK, "%s", err.text);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < N; i++) {
            const pn_token hello[] = {5, 6, 7};
            const pn_sampling on = {.size = sizeof on, .ignore_eos = 1};
            const pn_generate_params p = {.size = sizeof p, .prompt = hello, .n_prompt = 3, .sampling = &on,
                                          .max_tokens = i == 0 ? 2 : 0, .on_text = req_listen, .user = &ear[round][i]};
            s[i] = req_session(r, 256, 16);
            PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
        }
        while (atomic_load(&ear[round][N - 1].heard) < round % 4)
            sched_yield();
        for (size_t i = 0; i < N; i++) {
            pn_request_free(q[i]);
            atomic_store(&ear[round][i].freed, true);
            pn_session_free(s[i]);
        }
    }
    pn_engine_stop(r->e);
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < N; i++)
            PN_CHECK(!ear[round][i].late, "round %d, request %zu: %d callbacks after pn_request_free", round, i, ear[round][i].late);
}

typedef struct req_pauser {
    pn_request *q;
    int heard;
} req_pauser;

static int req_pause_at_three(void *user, const char *text, size_t len, pn_token token)
{
    req_pauser *p = user;
    (void)text, (void)len, (void)token;
    if (++p->heard == 3)
        pn_request_pause(p->q, 1);
    return 0;
}

/* Paused in a callback, then from outside; others take its place, and its answer is what it would have been. */
static void paused_and_gone_on(req_rig *r)
{
    req_pauser ear = {0};
    static req_text t;
    pn_session *s = req_session(r, 512, 64), *other = req_session(r, 512, 64);
    pn_request *more;
    pn_token ids[512], hello[] = {5, 6, 7};
    pn_sampling how;
    pn_err err = {0};
    uint32_t active = 0;
    const pn_sampling on = {.size = sizeof on, .ignore_eos = 1};
    const pn_model_caps one = {.size = sizeof one, .concurrent = 1}, none = {.size = sizeof none};
    pn_generate_params p = {.size = sizeof p, .prompt = hello, .n_prompt = 3, .sampling = &on, .max_tokens = 6,
                            .on_text = req_pause_at_three, .user = &ear};
    PN_CHECK(pn_model_cap(r->m, &one, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_request_new(s, &p, &ear.q, &err) == PN_OK, "%s", err.text);
    for (int i = 0; i < 20; i++)
        pn_engine_step(r->e, 0, &active, &err);
    PN_CHECK(ear.heard == 3 && active == 1 && !pn_request_done(ear.q), "%d heard, %u active", ear.heard, active);
    pn_generate_params b = req_ask(r, 1, ids, &how, &t);
    PN_CHECK(pn_request_new(other, &b, &more, &err) == PN_OK, "%s", err.text);
    for (int i = 0; i < 2000 && !pn_request_done(more); i++)
        pn_engine_step(r->e, 0, &active, &err);
    PN_CHECK(pn_request_done(more) && ear.heard == 3 && active == 1, "%d heard, %u active", ear.heard, active);
    t.st = pn_request_result(more, &t.r, &err);
    req_keep(r, other, &t);
    req_same(r, &t, 1, "beside a paused one");
    free(t.logits);
    pn_request_free(more);
    pn_request_pause(ear.q, 0);
    do
        pn_engine_step(r->e, 0, &active, &err);
    while (active);
    PN_CHECK(pn_request_done(ear.q) && ear.heard == 6, "%d heard", ear.heard);
    pn_request_free(ear.q);
    PN_CHECK(pn_model_cap(r->m, &none, &err) == PN_OK, "%s", err.text);

    /* The engine's own thread sleeps meanwhile; a cancelled request ends all the same. */
    pn_session_truncate(s, 0, &err);
    ear.heard = 0;
    PN_CHECK(pn_request_new(s, &p, &ear.q, &err) == PN_OK, "%s", err.text);
    pn_request_pause(ear.q, 1);
    PN_CHECK(pn_engine_start(r->e, &err) == PN_OK, "%s", err.text);
    pn_request_cancel(ear.q);
    while (!pn_request_done(ear.q))
        sched_yield();
    pn_engine_stop(r->e);
    PN_CHECK(ear.heard == 0);
    pn_request_free(ear.q);

    /* And one whose session is, as from a signal handler: nobody is woken. */
    PN_CHECK(pn_engine_start(r->e, &err) == PN_OK, "%s", err.text);
    for (int round = 0; round < 3; round++) {
        PN_CHECK(pn_request_new(s, &p, &ear.q, &err) == PN_OK, "%s", err.text);
        pn_request_pause(ear.q, 1);
        for (int i = 0; i < 1000 * round; i++)
            sched_yield();
        pn_session_cancel(s);
        while (!pn_request_done(ear.q))
            sched_yield();
        pn_request_free(ear.q);
    }
    pn_engine_stop(r->e);
    pn_session_free(s);
    pn_session_free(other);
}

/* What on_done found. */
typedef struct req_end {
    pn_request *q;
    atomic_int calls, tokens, early;        /* early: a callback came after it, or the request was not done */
    int free_it;
    pn_status st;
    pn_generate_result r;
} req_end;

static int req_end_text(void *user, const char *text, size_t len, pn_token token)
{
    req_end *e = user;
    (void)text, (void)len, (void)token;
    atomic_fetch_add(&e->tokens, 1);
    atomic_fetch_add(&e->early, atomic_load(&e->calls));
    return 0;
}

static void req_end_done(void *user)
{
    req_end *e = user;
    if (e->q) {
        atomic_fetch_add(&e->early, !pn_request_done(e->q));
        e->st = pn_request_result(e->q, &e->r, NULL);
        if (e->free_it)
            pn_request_free(e->q);
    }
    atomic_fetch_add(&e->calls, 1);
}

static pn_generate_params req_end_ask(req_end *e, const pn_token *prompt, size_t n, uint32_t max_tokens)
{
    static const pn_sampling on = {.size = sizeof on, .ignore_eos = 1};
    return (pn_generate_params){.prompt = prompt, .n_prompt = n, .max_tokens = max_tokens, .sampling = &on, .on_text = req_end_text, .user = e,
                                .on_done = req_end_done, .done_user = e};
}

static void the_end_is_told_once_and_last(req_rig *r)
{
    static const pn_token many[16] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
    req_end e[4] = {{.free_it = 1}, {0}, {0}, {0}};
    pn_session *s[4];
    pn_err err = {0};
    uint32_t active = 1, n_prompt = 0, n_cached = 9;
    for (int i = 0; i < 4; i++)
        s[i] = req_session(r, i == 3 ? 16 : 64, 16);
    for (int i = 0; i < 3; i++) {
        const pn_generate_params p = req_end_ask(&e[i], many, 3, 4);
        PN_CHECK(pn_request_new(s[i], &p, &e[i].q, &err) == PN_OK, "%s", err.text);
    }
    pn_request_prompt(e[0].q, &n_prompt, &n_cached);
    PN_CHECK(n_prompt == 3 && n_cached == 0, "%u tokens, %u of them cached", (unsigned)n_prompt, (unsigned)n_cached);
    pn_engine_step(r->e, 0, &active, &err);
    pn_request_free(e[2].q);
    while (active)
        pn_engine_step(r->e, 0, &active, &err);
    for (int i = 0; i < 2; i++)
        PN_CHECK(atomic_load(&e[i].calls) == 1 && !e[i].early && e[i].st == PN_OK && e[i].r.n_generated == 4 && atomic_load(&e[i].tokens) >= 4,
                 "request %d: %d calls, %u tokens", i, atomic_load(&e[i].calls), (unsigned)e[i].r.n_generated);
    PN_CHECK(atomic_load(&e[2].calls) == 0, "freed before its end, and told of it");
    pn_request_free(e[1].q);

    /* Nothing to compute: the context is full, and there are logits. */
    const pn_generate_params p = req_end_ask(&e[3], NULL, 0, 4);
    pn_request *q = NULL;
    PN_CHECK(pn_session_eval(s[3], many, 16, &err) == PN_OK && pn_request_new(s[3], &p, &q, &err) == PN_OK, "%s", err.text);
    PN_CHECK(atomic_load(&e[3].calls) == 1 && pn_request_done(q), "%d calls", atomic_load(&e[3].calls));
    pn_request_prompt(q, &n_prompt, &n_cached);
    PN_CHECK(n_prompt == 16 && n_cached == 16, "%u tokens, %u of them cached", (unsigned)n_prompt, (unsigned)n_cached);
    pn_request_free(q);
    for (int i = 0; i < 4; i++)
        pn_session_free(s[i]);
}

/* Freed by this thread as soon as it is done, or before, while the engine's thread may be telling; what on_done
 * is given is gone after pn_request_free. */
static void freed_while_its_end_is_told(req_rig *r)
{
    static const pn_token hello[] = {5, 6, 7};
    pn_err err = {0};
    pn_session *s = req_session(r, 64, 16);
    PN_CHECK(pn_engine_start(r->e, &err) == PN_OK, "%s", err.text);
    for (int round = 0; round < 60; round++) {
        req_end *e = calloc(1, sizeof *e);
        pn_request *q = NULL;
        const pn_generate_params p = req_end_ask(e, hello, 3, 2);
        PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK && pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
        while (round % 3 && !pn_request_done(q))
            sched_yield();
        pn_request_free(q);
        PN_CHECK(atomic_load(&e->calls) == (round % 3 ? 1 : 0) || round % 3 == 0, "round %d: %d calls", round, atomic_load(&e->calls));
        free(e);
    }
    pn_engine_stop(r->e);
    pn_session_free(s);
}

static int req_first(void *user, const char *text, size_t len, pn_token token)
{
    (void)text;
    (void)len;
    (void)token;
    **(int **)user += 1;
    return 0;
}

/* Two at once; client 7 has asked for four before client 8 asks for one. */
static void caps_hold_and_clients_take_turns(req_rig *r)
{
    pn_session *s[5];
    pn_request *q[5];
    pn_err err = {0};
    pn_token one[] = {5};
    const pn_sampling on = {.ignore_eos = 1};
    int heard[5] = {0};
    int *where[5];
    uint32_t active = 1;
    for (int i = 0; i < 5; i++)
        s[i] = req_session(r, 128, 16);
    PN_CHECK(pn_model_cap(r->m, &(pn_model_caps){.ctx = 256, .sessions = 5, .concurrent = 2}, &err) == PN_OK, "%s", err.text);
    pn_session *more = NULL;
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = 64}, &more, &err) == PN_E_BUDGET && strstr(err.text, "5 sessions"), "%s", err.text);
    for (int i = 0; i < 5; i++) {
        where[i] = &heard[i];
        const pn_generate_params p = {.prompt = one, .n_prompt = 1, .max_tokens = 10, .sampling = &on, .on_text = req_first, .user = &where[i],
                                      .client = i < 4 ? 7 : 8};
        PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
    }
    for (int i = 0; i < 5; i++)
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK && active == 5);
    /* the first of client 7 and, before its second, the one of client 8 */
    PN_CHECK(heard[0] > 0 && heard[4] > 0 && !heard[1] && !heard[2] && !heard[3], "%d %d %d %d %d tokens", heard[0], heard[1], heard[2], heard[3],
             heard[4]);
    while (active) {
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK, "%s", err.text);
        int under_way = 0;
        for (int i = 0; i < 5; i++)
            under_way += heard[i] > 0 && !pn_request_done(q[i]);
        PN_CHECK(under_way <= 2, "%d at once", under_way);
    }
    for (int i = 0; i < 5; i++) {
        PN_CHECK(heard[i] >= 10, "%d tokens of request %d", heard[i], i);
        pn_request_free(q[i]);
        pn_session_free(s[i]);
    }
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = 512}, &more, &err) == PN_E_BUDGET && strstr(err.text, "may have 256"), "%s", err.text);
    PN_CHECK(pn_session_new(r->m, NULL, &more, &err) == PN_OK && pn_session_capacity(more) == 256, "%s", err.text);
    pn_session_free(more);
    PN_CHECK(pn_model_cap(r->m, &(pn_model_caps){0}, &err) == PN_OK && pn_model_cap(r->m, NULL, &err) == PN_E_INVALID);
}

/* Many wait: of five clients, some paused for a while, some freed; no more than the cap are under way. */
static void a_long_queue_comes_to_its_end(req_rig *r)
{
    enum { N = 200, CAP = 3 };
    static int heard[N], *where[N];
    pn_session *s[N];
    pn_request *q[N];
    pn_err err = {0};
    pn_token one[] = {5};
    uint64_t seed = 11;
    uint32_t active = 1;
    const pn_sampling on = {.ignore_eos = 1};
    PN_CHECK(pn_model_cap(r->m, &(pn_model_caps){.concurrent = CAP}, &err) == PN_OK, "%s", err.text);
    for (int i = 0; i < N; i++) {
        PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = 64, .n_batch = 16, .by_turn = 1}, &s[i], &err) == PN_OK, "%s", err.text);
        where[i] = &heard[i];
        const pn_generate_params p = {.prompt = one, .n_prompt = 1, .max_tokens = 2, .sampling = &on, .on_text = req_first, .user = &where[i],
                                      .client = (uint64_t)(i % 7 ? i % 5 : 9)};
        PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
    }
    for (int step = 0; active && step < 5000; step++) {
        int under_way = 0, i = (int)(pn_test_rand(&seed) % N);
        if (q[i])
            pn_request_pause(q[i], step < 200 && step % 3);
        if (step % 40 == 7) {
            pn_request_free(q[i]);
            q[i] = NULL;
        }
        for (int k = 0; step == 200 && k < N; k++)
            if (q[k])
                pn_request_pause(q[k], 0);
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK, "%s", err.text);
        for (int k = 0; k < N; k++)
            under_way += q[k] && heard[k] == 1 && !pn_request_done(q[k]);
        PN_CHECK(under_way <= CAP || step < 210, "step %d: %d at once", step, under_way);
    }
    PN_CHECK(active == 0, "%u never end", (unsigned)active);
    for (int i = 0; i < N; i++) {
        PN_CHECK(!q[i] || (pn_request_done(q[i]) && heard[i] >= 2), "request %d: %d tokens", i, heard[i]);
        pn_request_free(q[i]);
        pn_session_free(s[i]);
    }
    PN_CHECK(pn_model_cap(r->m, &(pn_model_caps){0}, &err) == PN_OK, "%s", err.text);
}

/* Four sessions at once take what the plan says, to the byte. */
static void the_plan_knows_what_steps_take(void)
{
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_err err = {0};
    pn_session *s[4];
    pn_request *q[4];
    pn_token one[] = {5, 6};
    uint32_t active = 1;
    pn_plan_info four, alone;
    pn_mem_info before, after;
    if (!PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = 2}, &err) == PN_OK) ||
        !PN_CHECK(pn_model_load(e, "models/demo.gguf", NULL, &m, &err) == PN_OK, "%s", err.text))
        return;
    pn_file *f = NULL;
    PN_CHECK(pn_file_open(e, "models/demo.gguf", &f, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_file_plan(f, &(pn_plan_params){.n_ctx = 128, .n_batch = 16, .n_sessions = 4}, &four, &err) == PN_OK &&
             pn_file_plan(f, &(pn_plan_params){.n_ctx = 128, .n_batch = 16}, &alone, &err) == PN_OK, "%s", err.text);
    for (int i = 0; i < 4; i++)
        PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 128, .n_batch = 16}, &s[i], &err) == PN_OK, "%s", err.text);
    pn_engine_memory(e, &before);
    for (int i = 0; i < 4; i++)
        PN_CHECK(pn_request_new(s[i], &(pn_generate_params){.prompt = one, .n_prompt = 2, .max_tokens = 3}, &q[i], &err) == PN_OK, "%s", err.text);
    while (active)
        pn_engine_step(e, 0, &active, &err);
    pn_engine_memory(e, &after);
    uint64_t steps = after.used[PN_ACCT_SCRATCH] - before.used[PN_ACCT_SCRATCH];
    uint64_t per_session = pn_vocab_size(m) * sizeof(float) + 4;
    PN_CHECK(steps == 4 * per_session + 16 * sizeof(pn_token), "%u bytes", (unsigned)steps);
    PN_CHECK(four.scratch_bytes > alone.scratch_bytes + steps && four.anon_bytes - four.kv_bytes == alone.anon_bytes - alone.kv_bytes +
             (four.scratch_bytes - alone.scratch_bytes), "the plan's sums disagree");
    for (int i = 0; i < 4; i++) {
        pn_request_free(q[i]);
        pn_session_free(s[i]);
    }
    pn_file_close(f);
    pn_model_free(m);
    pn_engine_close(e);
}

/* More than a step has runs for: nobody waits for the end of another. */
static void a_crowd_goes_on_together(req_rig *r)
{
    enum { N = 90, TOKENS = 10 };
    static int heard[N], *where[N];
    pn_session *s[N];
    pn_request *q[N];
    pn_err err = {0};
    pn_token one[] = {5};
    uint32_t active = 1;
    const pn_sampling on = {.ignore_eos = 1};
    for (int i = 0; i < N; i++) {
        PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = 64, .n_batch = 96}, &s[i], &err) == PN_OK, "%s", err.text);
        where[i] = &heard[i];
        const pn_generate_params p = {.prompt = one, .n_prompt = 1, .max_tokens = TOKENS, .sampling = &on, .on_text = req_first, .user = &where[i]};
        PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
    }
    for (bool ended = false; active && !ended;) {
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK, "%s", err.text);
        for (int i = 0; i < N; i++)
            ended = ended || pn_request_done(q[i]);
    }
    for (int i = 0; i < N; i++)
        PN_CHECK(heard[i] >= TOKENS - 4, "when the first is done, request %d has %d tokens", i, heard[i]);
    while (active)
        PN_CHECK(pn_engine_step(r->e, 0, &active, &err) == PN_OK, "%s", err.text);
    for (int i = 0; i < N; i++) {
        PN_CHECK(pn_request_result(q[i], NULL, &err) == PN_OK, "%s", err.text);
        pn_request_free(q[i]);
        pn_session_free(s[i]);
    }
}

/* A short prompt does not wait for the end of a long one. */
static void a_long_prompt_shares_its_steps(req_rig *r)
{
    pn_session *a = req_session(r, 1024, 64), *b = req_session(r, 1024, 64);
    pn_request *q = NULL, *w = NULL;
    static pn_token many[900];
    pn_err err = {0};
    uint32_t active = 1, steps = 0;
    for (size_t i = 0; i < 900; i++)
        many[i] = (pn_token)(5 + i % 200);
    const pn_generate_params p = {.prompt = many, .n_prompt = 900, .max_tokens = 1}, small = {.prompt = many, .n_prompt = 20, .max_tokens = 1};
    PN_CHECK(pn_request_new(a, &p, &q, &err) == PN_OK && pn_request_new(b, &small, &w, &err) == PN_OK, "%s", err.text);
    for (; active && !pn_request_done(w); steps++)
        pn_engine_step(r->e, 0, &active, &err);
    PN_CHECK(steps <= 3 && !pn_request_done(q), "%u steps", (unsigned)steps);
    while (active)
        pn_engine_step(r->e, 0, &active, &err);
    PN_CHECK(pn_request_result(q, NULL, &err) == PN_OK, "%s", err.text);
    pn_request_free(q);
    pn_request_free(w);
    pn_session_free(a);
    pn_session_free(b);
}

/* ------------------------------------------------------------------------------------------
 * No memory
 * ------------------------------------------------------------------------------------------ */

static pn_status req_life(pn_engine *e)
{
    pn_model *m = NULL;
    pn_session *s[3] = {0};
    pn_request *q[3] = {0};
    pn_chat *c = NULL;
    pn_token one[] = {5, 6, 7};
    uint32_t active = 1;
    pn_err err = {0};
    const pn_generate_params p = {.prompt = one, .n_prompt = 3, .max_tokens = 3};
    pn_status st = pn_model_load(e, "models/demo.gguf", NULL, &m, NULL);
    for (int i = 0; i < 3 && !st; i++)
        st = pn_session_new(m, &(pn_session_params){.n_ctx = 64, .n_batch = 8}, &s[i], NULL);
    if (!st)
        st = pn_chat_new(s[2], NULL, &c, NULL);
    if (!st)
        st = pn_chat_say(c, "user", "Hi", 0, NULL);
    for (int i = 0; i < 2 && !st; i++)
        st = pn_request_new(s[i], &p, &q[i], NULL);
    if (!st)
        st = pn_request_chat(c, &(pn_chat_reply_params){.generate = &p}, &q[2], NULL);
    while (!st && active)
        st = pn_engine_step(e, 0, &active, &err);
    for (int i = 0; i < 3; i++) {
        pn_generate_result g;
        pn_status one_st = st ? st : pn_request_result(q[i], &g, &err);
        st = st ? st : one_st;
        pn_request_free(q[i]);
    }
    pn_chat_free(c);
    for (int i = 0; i < 3; i++)
        pn_session_free(s[i]);
    pn_model_free(m);
    return st;
}

static void every_allocation_may_fail(void)
{
    for (long k = 1;; k += k < 60 ? 1 : 1 + k / 40) {
        api_heap h = {.fail_at = k};
        pn_engine *e = NULL;
        pn_status st = pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .allocator = {api_heap_alloc, api_heap_free, &h}}, NULL);
        if (!st)
            st = req_life(e);
        pn_engine_close(e);
        PN_CHECK(h.out == 0, "failing allocation %ld leaks %ld blocks", k, h.out);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "failing allocation %ld gives %s", k, pn_status_name(st));
        if (h.calls < k)
            break;
    }
}

/* The same texts with weights that are read in every step; in slices a step is left in the middle of a read. */
static void streamed_weights_say_the_same(req_rig *r)
{
    pn_model *whole = r->m;
    pn_err err = {0};
    const pn_model_params mp = {.residency = PN_RESIDENCY_STREAM, .stream_block = 300000, .stream_depth = 3, .pin_bytes = 1000000};
    if (PN_CHECK(pn_model_load(r->e, "models/demo.gguf", &mp, &r->m, &err) == PN_OK, "%s", err.text)) {
        together(r, "streamed", 0, 0, 0);
        together(r, "streamed, in slices", 1, 1e-3, 1);
    }
    pn_model_free(r->m);
    r->m = whole;
}

int main(void)
{
    static req_rig r;
    pn_err err = {0};
    if (PN_CHECK(pn_engine_open(&r.e, &(pn_engine_params){.n_threads = 2}, &err) == PN_OK, "%s", err.text) &&
        PN_CHECK(pn_model_load(r.e, "models/demo.gguf", NULL, &r.m, &err) == PN_OK, "%s", err.text)) {
        r.V = pn_vocab_size(r.m);
        req_alone(&r);
        together(&r, "all at once", 0, 0, 0);
        together(&r, "one after another", 1, 0, 0);
        together(&r, "in slices", 1, 1e-5, 0);
        together(&r, "other shapes", 1, 0, 1);
        streamed_weights_say_the_same(&r);
        a_step_in_the_middle_makes_way(&r);
        what_ends_one_leaves_the_others(&r);
        a_cancelled_request_ends_with_its_step(&r);
        a_busy_session_says_so(&r);
        conversations_answer_together(&r);
        models_take_turns(&r);
        plans_take_turns(&r);
        requests_come_from_other_threads(&r);
        the_engine_drives_itself(&r);
        freed_by_another_thread(&r);
        paused_and_gone_on(&r);
        the_end_is_told_once_and_last(&r);
        freed_while_its_end_is_told(&r);
        caps_hold_and_clients_take_turns(&r);
        a_long_queue_comes_to_its_end(&r);
        a_crowd_goes_on_together(&r);
        a_long_prompt_shares_its_steps(&r);
        for (size_t i = 0; i < N_TEXTS; i++)
            free(r.alone[i].logits);
    }
    pn_model_free(r.m);
    pn_engine_close(r.e);
    the_plan_knows_what_steps_take();
    every_allocation_may_fail();
    return pn_test_end();
}
