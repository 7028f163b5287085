/*
 * test_stop.c - where an answer ends, and what its tokens were worth: stop strings and
 * log-probabilities, exact whatever the cuts between tokens, and a session that agrees with what the
 * caller saw.
 *
 * A grammar of one literal forces the text; a wild temperature and a seed choose how it is cut into
 * tokens, bytes of a character included.  What should happen is computed from the whole text and the
 * tokens of a run without stop strings.
 */
#include "pantheon.h"
#include "pn_api_test.h"

enum { STOP_MAX = 256, STOP_TOP = 4 };

/* Overlaps itself, has characters of two to four bytes, and looks like markup. */
static const char stop_text[] = "Say aab aabaabc: h\xc3\xa9llo \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x99\x82 <tool> STSTOP";

/* Everywhere in a text, or where each path is to be seen: here and there. */
static size_t stop_stride(void) { return pn_test_quick() ? 5 : 1; }

typedef struct stop_rig {
    pn_engine *e;
    pn_model *m;
    pn_session *s, *cold;
    pn_grammar *g;
    pn_token prompt[240];
    size_t n_prompt;
} stop_rig;

/* root ::= "text" */
static pn_grammar *stop_literal(pn_engine *e, const char *text)
{
    char gbnf[1024];
    size_t n = (size_t)snprintf(gbnf, sizeof gbnf, "root ::= \"");
    pn_grammar *g = NULL;
    pn_err err = {0};
    for (; *text && n + 8 < sizeof gbnf; text++) {
        if (*text == '"' || *text == '\\')
            gbnf[n++] = '\\';
        if (*text == '\n')
            gbnf[n++] = '\\';
        gbnf[n++] = *text;
        if (*text == '\n')
            gbnf[n - 1] = 'n';
    }
    n += (size_t)snprintf(gbnf + n, sizeof gbnf - n, "\"\n");
    PN_CHECK(pn_grammar_gbnf(e, gbnf, n, &g, &err) == PN_OK, "%s", err.text);
    return g;
}

static int stop_open(stop_rig *r, const char *path, const char *text)
{
    pn_err err = {0};
    memset(r, 0, sizeof *r);
    if (!PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = 1}, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_model_load(r->e, path, NULL, &r->m, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = 512, .n_batch = 64}, &r->s, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = 512}, &r->cold, &err) == PN_OK, "%s", err.text))
        return 0;
    r->g = text ? stop_literal(r->e, text) : NULL;
    PN_CHECK(pn_tokenize(r->m, "Once upon a time", 16, PN_TOKENIZE_BOS, r->prompt, 32, &r->n_prompt, &err) == PN_OK, "%s",
             err.text);
    return text == NULL || r->g != NULL;
}

static void stop_close(stop_rig *r)
{
    pn_grammar_free(r->g);
    pn_session_free(r->s);
    pn_session_free(r->cold);
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

/* What one answer gave. */
typedef struct stop_entry {
    pn_token token, top[STOP_TOP];
    float logprob, top_lp[STOP_TOP];
    size_t begin, end;
    pn_text_part part;
} stop_entry;

typedef struct stop_run {
    char text[STOP_MAX], bytes[STOP_MAX];   /* delivered; of the tokens told */
    size_t len, n_bytes, stop_at;
    stop_entry entry[STOP_MAX];
    size_t n_entries;
    int late;                               /* text came before its token was told */
    pn_generate_result r;
} stop_run;

static int stop_hear_text(void *user, const char *text, size_t len, pn_token t)
{
    stop_run *x = user;
    (void)t;
    if (x->len + len < STOP_MAX)
        memcpy(x->text + x->len, text, len);
    x->len += len;
    x->late |= x->n_entries && x->n_bytes < x->len;
    return 0;
}

static int stop_hear_token(void *user, const pn_token_logprob *t)
{
    stop_run *x = user;
    if (x->n_entries == STOP_MAX || x->n_bytes + t->len >= STOP_MAX)
        return 1;
    stop_entry *e = &x->entry[x->n_entries++];
    *e = (stop_entry){.token = t->token, .logprob = t->logprob, .begin = x->n_bytes, .end = x->n_bytes + t->len, .part = t->part};
    memcpy(x->bytes + x->n_bytes, t->bytes, t->len);
    x->n_bytes += t->len;
    PN_CHECK(t->n_top <= STOP_TOP && (t->n_top == 0 || t->top != NULL), "%u alternatives", (unsigned)t->n_top);
    for (uint32_t i = 0; i < t->n_top; i++) {
        e->top[i] = t->top[i].token;
        e->top_lp[i] = t->top[i].logprob;
        PN_CHECK(t->top[i].bytes && t->top[i].top == NULL && t->top[i].n_top == 0, "an alternative has alternatives");
    }
    return x->stop_at && x->n_entries == x->stop_at;
}

static void stop_generate(stop_rig *r, const char *const *stop, size_t n, uint64_t seed, int logprobs, stop_run *x)
{
    pn_err err = {0};
    const pn_sampling wild = {.temperature = 4, .has_seed = 1, .seed = seed}, greedy = {0};
    pn_generate_params p = {.prompt = r->prompt, .n_prompt = r->n_prompt, .sampling = seed ? &wild : &greedy, .stop = stop,
                            .n_stop = n, .grammar = r->g, .on_text = stop_hear_text, .user = x, .max_tokens = r->g ? 0 : 40};
    size_t stop_at = x->stop_at;
    memset(x, 0, sizeof *x);
    x->stop_at = stop_at;
    if (logprobs) {
        p.on_logprob = stop_hear_token;
        p.logprob_user = x;
        p.n_top = STOP_TOP;
    }
    PN_CHECK(pn_session_truncate(r->s, 0, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_generate(r->s, &p, &x->r, &err) == PN_OK, "%s", err.text);
}

/* The slow way: the first place where a stop string stands, the longest there; the text is cut before
 * the character it begins in.  len when there is none. */
static size_t stop_expected(const char *text, size_t len, const char *const *stop, size_t n, int32_t *index)
{
    *index = -1;
    for (size_t at = 0; at < len; at++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++)
            if (strlen(stop[i]) > longest && strlen(stop[i]) <= len - at && memcmp(text + at, stop[i], strlen(stop[i])) == 0) {
                longest = strlen(stop[i]);
                *index = (int32_t)i;
            }
        if (longest) {
            while (at && ((unsigned char)text[at] & 0xc0) == 0x80)
                at--;
            return at;
        }
    }
    return len;
}

/* One answer with stop strings against `free`, the same answer without. */
static void stop_check(stop_rig *r, const stop_run *free, const char *const *stop, size_t n, uint64_t seed)
{
    static stop_run x;
    int32_t index;
    size_t cut = stop_expected(free->text, free->len, stop, n, &index), kept = 0, told = 0;
    stop_generate(r, stop, n, seed, 1, &x);
    PN_CHECK(x.len == cut && memcmp(x.text, free->text, cut) == 0, "seed %d, stop '%s': '%.*s', expected %zu bytes", (int)seed,
             stop[0], (int)x.len, x.text, cut);
    PN_CHECK(x.r.finish == PN_FINISH_STOP && x.r.stop_index == index, "stop '%s': finish %d by %d, expected %d", stop[0],
             (int)x.r.finish, (int)x.r.stop_index, (int)index);
    for (; kept < free->n_entries && free->entry[kept].end <= cut; kept++)
        ;
    for (; told < free->n_entries && (free->entry[told].end <= cut || free->entry[told].begin < cut); told++)
        ;
    PN_CHECK(x.n_entries == told && !x.late, "stop '%s': %zu tokens told, expected %zu%s", stop[0], x.n_entries, told,
             x.late ? ", late" : "");
    for (size_t i = 0; i < told && i < x.n_entries; i++)
        PN_CHECK(x.entry[i].token == free->entry[i].token && x.entry[i].logprob == free->entry[i].logprob, "token %zu differs", i);
    PN_CHECK(x.r.n_kept == kept && pn_session_length(r->s) == r->n_prompt + kept, "stop '%s': %u kept, session of %u, expected %zu",
             stop[0], (unsigned)x.r.n_kept, (unsigned)pn_session_length(r->s), kept);
    for (size_t i = 0; i < kept; i++)
        PN_CHECK(pn_session_tokens(r->s)[r->n_prompt + i] == free->entry[i].token, "token %zu of the session differs", i);
}

/* A later turn on the session gives the bits of a cold one with the same tokens. */
static void stop_check_session(pn_session *s, pn_session *cold, size_t V)
{
    pn_err err = {0};
    pn_token t[600];
    const pn_token more[] = {5, 6, 7};
    uint32_t n = pn_session_length(s);
    memcpy(t, pn_session_tokens(s), n * sizeof *t);
    memcpy(t + n, more, sizeof more);
    PN_CHECK(pn_session_eval(s, more, 3, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_truncate(cold, 0, &err) == PN_OK && pn_session_eval(cold, t, n + 3, &err) == PN_OK, "%s", err.text);
    PN_CHECK(memcmp(pn_session_logits(s), pn_session_logits(cold), V * sizeof(float)) == 0, "other bits after a stop at %u",
             (unsigned)n);
}

static void stop_strings_are_exact_wherever_tokens_end(void)
{
    stop_rig r;
    static stop_run free;
    const size_t len = sizeof stop_text - 1;
    size_t cuts = 0, halves = 0;
    if (stop_open(&r, "models/demo.gguf", stop_text))
        for (uint64_t seed = 0; seed < 3; seed++) {
            stop_generate(&r, NULL, 0, seed, 1, &free);
            PN_CHECK(free.len == len && memcmp(free.text, stop_text, len) == 0 && free.r.stop_index == -1, "'%.*s'",
                     (int)free.len, free.text);
            PN_CHECK(free.n_bytes == len && memcmp(free.bytes, stop_text, len) == 0 && free.n_entries == free.r.n_generated &&
                     free.r.n_kept == free.r.n_generated, "%zu tokens with %zu bytes", free.n_entries, free.n_bytes);
            cuts += free.n_entries;
            for (size_t i = 0; i < free.n_entries; i++)
                halves += ((unsigned char)stop_text[free.entry[i].begin] & 0xc0) == 0x80;
            for (size_t from = 0; from < len; from += stop_stride())
                for (size_t n = 1; from + n <= len; n = n < 3 ? n + 1 : n == len - from ? n + 1 : len - from) {
                    char stop[sizeof stop_text] = {0};
                    memcpy(stop, stop_text + from, n);
                    const char *const list[] = {stop};
                    stop_check(&r, &free, list, 1, seed);
                    if (n > 3 && from % 3 == 0)
                        stop_check_session(r.s, r.cold, pn_vocab_size(r.m));
                    if (from == 0 && n == len)      /* prefixes too */
                        for (size_t k = 4; k < len; k++) {
                            stop[k] = 0;
                            memcpy(stop, stop_text, k);
                            stop_check(&r, &free, list, 1, seed);
                        }
                }
        }
    PN_CHECK(cuts > 60 && halves >= 4, "%zu tokens, %zu begin inside a character", cuts, halves);
    stop_close(&r);
}

static void of_several_stop_strings_the_first_and_longest_counts(void)
{
    static const char *const sets[][4] = {
        {"aab", "aabaab", NULL}, {"aabaab", "aab", NULL}, {"aabaabX", "b", NULL}, {"ab aabaabX", "abc", "aaba", NULL},
        {"STOPPER", "TOP", "STOP", NULL}, {"ST", "STOP", NULL}, {"", "llo", NULL}, {"STOPS", "OPS", "P", NULL},
        {"\x99\x82 <tool>X", " <", NULL}, {"SS", "never", "TSTOP ", NULL}, {"Say", "S", "Say aab aabaabc!", NULL},
    };
    stop_rig r;
    static stop_run free, x;
    if (stop_open(&r, "models/demo.gguf", stop_text))
        for (uint64_t seed = 0; seed < 6; seed++) {
            stop_generate(&r, NULL, 0, seed, 1, &free);
            for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
                size_t n = 0;
                int32_t index;
                while (sets[i][n])
                    n++;
                if (stop_expected(free.text, free.len, sets[i], n, &index) < free.len)
                    stop_check(&r, &free, sets[i], n, seed);
                else {
                    stop_generate(&r, sets[i], n, seed, 0, &x);
                    PN_CHECK(x.len == free.len && x.r.stop_index == -1, "'%s' is not there", sets[i][0]);
                }
            }
            uint64_t rand = seed + 1;               /* pieces of the text, some a byte off */
            for (size_t i = 0; i < 40; i++) {
                char text[3][16] = {{0}};
                const char *const list[] = {text[0], text[1], text[2]};
                int32_t index;
                for (size_t k = 0; k < 3; k++) {
                    size_t n = 1 + pn_test_rand(&rand) % 9, at = pn_test_rand(&rand) % (free.len - n);
                    memcpy(text[k], stop_text + at, n);
                    if (pn_test_rand(&rand) % 2)
                        text[k][n - 1] ^= 1;
                }
                if (stop_expected(free.text, free.len, list, 3, &index) < free.len)
                    stop_check(&r, &free, list, 3, seed);
            }
        }
    stop_close(&r);
}

/* Where the window does not let the stop string's tokens go, they stay and the result says so. */
static void a_window_may_keep_what_a_stop_string_took(void)
{
    stop_rig r;
    static stop_run free, x;
    pn_err err = {0};
    size_t stuck = 0, gone = 0;
    if (stop_open(&r, "tests/vectors/golden/arch/gemma3.gguf", NULL))
        for (size_t k = 0; k < 36; k++) {
            r.n_prompt = 64 * (1 + k / 12) + 22 + k % 12;       /* ends a little behind a page boundary */
            for (size_t i = 0; i < r.n_prompt; i++)
                r.prompt[i] = (pn_token)(40 + i);
            stop_generate(&r, NULL, 0, 0, 1, &free);
            if (free.n_entries < 40)
                continue;
            char stop[STOP_MAX] = {0};
            size_t from = free.entry[1].begin, n = free.entry[39].end - from;
            memcpy(stop, free.bytes + from, n);
            const char *const list[] = {stop};
            if (strlen(stop) != n || n < 8)
                continue;
            stop_generate(&r, list, 1, 0, 1, &x);
            if (x.r.finish != PN_FINISH_STOP || x.r.stop_index != 0)
                continue;                           /* the text went on with half a character */
            uint32_t length = pn_session_length(r.s), want = (uint32_t)r.n_prompt + x.r.n_kept;
            PN_CHECK(length >= want, "%u tokens, %u belong to the text", (unsigned)length, (unsigned)want);
            if (length == want)
                gone++;
            else if (PN_CHECK(pn_session_truncate(r.s, want, &err) == PN_E_STATE, "it could have been truncated"))
                stuck++;
        }
    PN_CHECK(gone >= 2 && stuck >= 2, "%zu sessions truncated, %zu could not be", gone, stuck);
    stop_close(&r);
}

/* ---- log-probabilities ---- */

static void log_probabilities_are_those_of_the_raw_logits(void)
{
    stop_rig r;
    static stop_run x;
    pn_err err = {0};
    if (stop_open(&r, "models/demo.gguf", stop_text))
        for (uint64_t seed = 0; seed < 3; seed++) {
            pn_grammar *g = r.g;
            r.g = seed == 2 ? NULL : g;             /* free text too */
            stop_generate(&r, NULL, 0, seed, 1, &x);
            r.g = g;
            PN_CHECK(x.n_entries == x.r.n_generated && x.n_entries > 10, "%zu tokens told", x.n_entries);
            PN_CHECK(pn_session_truncate(r.cold, 0, &err) == PN_OK &&
                     pn_session_eval(r.cold, r.prompt, r.n_prompt, &err) == PN_OK, "%s", err.text);
            for (size_t i = 0; i < x.n_entries; i++) {
                const float *l = pn_session_logits(r.cold);
                const stop_entry *e = &x.entry[i];
                size_t V = pn_vocab_size(r.m);
                double max = -1e30, sum = 0;
                for (size_t t = 0; t < V; t++)
                    max = (double)l[t] > max ? (double)l[t] : max;
                for (size_t t = 0; t < V; t++)
                    sum += exp((double)l[t] - max);
                double all = max + log(sum);
                PN_CHECK(fabs((double)e->logprob - ((double)l[e->token] - all)) < 1e-4, "token %zu: %g, expected %g", i,
                         (double)e->logprob, (double)l[e->token] - all);
                for (size_t k = 0; k < STOP_TOP; k++) {
                    size_t above = 0;
                    pn_token t = e->top[k];
                    for (size_t o = 0; o < V; o++)
                        above += l[o] > l[t] || (l[o] == l[t] && o < (size_t)t);
                    PN_CHECK(above == k && fabs((double)e->top_lp[k] - ((double)l[t] - all)) < 1e-4,
                             "token %zu: alternative %zu has %zu above it and %g", i, k, above, (double)e->top_lp[k]);
                }
                PN_CHECK(pn_session_eval(r.cold, &e->token, 1, &err) == PN_OK, "%s", err.text);
            }
        }
    stop_close(&r);
}

static void log_probabilities_can_stop_and_be_wrong(void)
{
    stop_rig r;
    static stop_run x;
    pn_err err = {0};
    pn_session *tight = NULL, *wide;
    if (stop_open(&r, "models/demo.gguf", NULL)) {
        PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = 10}, &tight, &err) == PN_OK, "%s", err.text);
        wide = r.s;
        r.s = tight;
        stop_generate(&r, NULL, 0, 0, 1, &x);       /* the last token has no room in the session */
        r.s = wide;
        PN_CHECK(x.r.finish == PN_FINISH_CONTEXT && x.n_entries == x.r.n_generated && pn_session_length(tight) == 10 &&
                 r.n_prompt + x.r.n_kept == 10, "finish %d, %u of %u kept", (int)x.r.finish, (unsigned)x.r.n_kept,
                 (unsigned)x.r.n_generated);
        pn_session_free(tight);
        x.stop_at = 3;
        stop_generate(&r, NULL, 0, 0, 1, &x);
        PN_CHECK(x.r.finish == PN_FINISH_CALLBACK && x.n_entries == 3, "finish %d after %zu", (int)x.r.finish, x.n_entries);
        const pn_generate_params p = {.prompt = r.prompt, .n_prompt = r.n_prompt, .on_logprob = stop_hear_token, .logprob_user = &x,
                                      .n_top = pn_vocab_size(r.m) + 1};
        PN_CHECK(pn_session_generate(r.s, &p, NULL, &err) == PN_E_INVALID && strstr(err.text, "n_top"), "%s", err.text);
    }
    stop_close(&r);
}

/* ---- conversations ---- */

static const char stop_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}]";

typedef struct stop_talk {
    char text[5][STOP_MAX];     /* by kind */
    size_t len[5];
    stop_run tokens;
    int late;                   /* content came before its tokens were told */
    size_t before_call;         /* bytes of content when the first call began */
} stop_talk;

static int stop_hear_event(void *user, const pn_output_event *e)
{
    stop_talk *h = user;
    if (h->len[e->kind] + e->len < STOP_MAX) {
        memcpy(h->text[e->kind] + h->len[e->kind], e->text, e->len);
        h->len[e->kind] += e->len;
    }
    if (e->kind == PN_OUTPUT_CALL_BEGIN && e->call == 0)
        h->before_call = h->len[PN_OUTPUT_CONTENT];
    if (e->kind == PN_OUTPUT_CONTENT) {
        size_t told = 0;
        for (size_t i = 0; i < h->tokens.n_entries; i++)
            told += h->tokens.entry[i].part == PN_PART_CONTENT ? h->tokens.entry[i].end - h->tokens.entry[i].begin : 0;
        h->late |= told < h->len[PN_OUTPUT_CONTENT];
    }
    return 0;
}

static pn_status stop_reply(pn_chat *c, pn_grammar *g, const char *const *stop, size_t n, uint64_t seed, stop_talk *h)
{
    pn_err err = {0};
    const pn_sampling wild = {.temperature = 4, .has_seed = 1, .seed = seed};
    memset(h, 0, sizeof *h);
    const pn_chat_reply_params p = {.generate = &(pn_generate_params){.stop = stop, .n_stop = n, .grammar = g, .grammar_after = "", .sampling = &wild,
                                                 .max_tokens = g ? 0 : 1,
                                                 .on_logprob = stop_hear_token, .logprob_user = &h->tokens, .n_top = 2},
                                    .on_event = stop_hear_event, .user = h};
    pn_status st = pn_chat_reply(c, &p, &h->tokens.r, &err);
    PN_CHECK(st == PN_OK, "%s", err.text);
    return st;
}

/* The session's text without its last `drop` tokens. */
static size_t stop_session_text(stop_rig *r, size_t drop, char *text, size_t cap)
{
    size_t n = 0;
    pn_err err = {0};
    PN_CHECK(pn_detokenize(r->m, pn_session_tokens(r->s), pn_session_length(r->s) - drop, PN_TOKENIZE_SPECIAL, text, cap, &n,
                           &err) == PN_OK, "%s", err.text);
    return n;
}

static int stop_by_byte(const void *a, const void *b) { return *(const unsigned char *)a - *(const unsigned char *)b; }

/* Without what may be spelled otherwise: white space, an empty pair of reasoning markers that the prompt of
 * the answer wrote and the history leaves out, and whether text stands before a call or behind it. */
static size_t stop_squeeze(char *text, size_t n)
{
    static const char *const marks[] = {"<think>", "</think>"};
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        size_t skip = text[i] == ' ' || text[i] == '\n';
        for (size_t k = 0; k < 2 && !skip; k++)
            if (n - i >= strlen(marks[k]) && memcmp(text + i, marks[k], strlen(marks[k])) == 0)
                skip = strlen(marks[k]);
        if (skip)
            i += skip - 1;
        else
            text[out++] = text[i];
    }
    qsort(text, out, 1, stop_by_byte);
    return out;
}

/* What the model writes; reasoning and content stand in it, each in one piece. */
typedef struct stop_script {
    const char *raw, *tools, *reasoning, *content;
    const char *variables;      /* of the template; not NULL: it repeats an earlier answer as it was written */
} stop_script;

/* A turn later the prompt is the text that a new conversation of the same messages would have, and the
 * tokens that were kept are still there. */
static void stop_check_next_turn(stop_rig *r, stop_rig *other, pn_chat *c, const stop_script *script)
{
    static stop_talk h;
    char a[4096], b[4096];
    size_t len;
    pn_chat *fresh = NULL;
    pn_err err = {0};
    pn_token before[512];
    uint32_t n_before = pn_session_length(r->s);
    memcpy(before, pn_session_tokens(r->s), n_before * sizeof *before);
    PN_CHECK(pn_chat_say(c, "user", "Go on.", 0, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_chat_new(other->s, &(pn_chat_params){.tools = script->tools, .variables = script->variables}, &fresh, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_truncate(other->s, 0, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < pn_chat_length(c); i++) {
        const char *m = pn_chat_message(c, i, &len);
        PN_CHECK(pn_chat_add(fresh, m, len, &err) == PN_OK, "%s", err.text);
    }
    stop_reply(c, NULL, NULL, 0, 1, &h);
    PN_CHECK(!script->variables || (n_before <= pn_session_length(r->s) &&
             memcmp(before, pn_session_tokens(r->s), n_before * sizeof *before) == 0), "the tokens of the answer were not kept");
    size_t n = stop_session_text(r, h.tokens.r.n_generated, a, sizeof a);
    stop_reply(fresh, NULL, NULL, 0, 1, &h);
    size_t m = stop_session_text(other, h.tokens.r.n_generated, b, sizeof b);
    n = stop_squeeze(a, n);
    m = stop_squeeze(b, m);
    PN_CHECK(n == m && memcmp(a, b, n) == 0, "the session says\n%.*s\nand the messages\n%.*s", (int)n, a, (int)m, b);
    stop_check_session(r->s, r->cold, pn_vocab_size(r->m));
    pn_chat_free(fresh);
}

/* A new conversation in r->s, one answer. */
static pn_chat *stop_ask(stop_rig *r, const stop_script *t, const char *const *stop, size_t n, uint64_t seed, stop_talk *h)
{
    pn_chat *c = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_truncate(r->s, 0, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_chat_new(r->s, &(pn_chat_params){.tools = t->tools, .variables = t->variables}, &c, &err) == PN_OK, "%s", err.text);
    pn_chat_say(c, "user", "Hi", 0, NULL);
    stop_reply(c, r->g, stop, n, seed, h);
    return c;
}

/* All tokens are told, and what each is follows from where it stands. */
static void stop_check_parts(const stop_script *t, const stop_talk *h)
{
    size_t len = strlen(t->raw), content = (size_t)(strstr(t->raw, t->content) - t->raw);
    size_t thought = (size_t)(strstr(t->raw, t->reasoning) - t->raw);
    const char *call = strstr(t->raw, "{\"name\""), *call_end = strstr(t->raw, "}}");
    PN_CHECK(h->tokens.n_bytes == len && memcmp(h->tokens.bytes, t->raw, len) == 0, "'%.*s'", (int)h->tokens.n_bytes,
             h->tokens.bytes);
    uint32_t thoughts = 0;
    for (size_t i = 0; i < h->tokens.n_entries; i++) {
        const stop_entry *e = &h->tokens.entry[i];
        thoughts += e->part == PN_PART_REASONING;
        int is_content = e->begin < content + strlen(t->content) && e->end > content;
        int is_thought = *t->reasoning && e->begin < thought + strlen(t->reasoning) && e->end > thought;
        PN_CHECK((e->part == PN_PART_CONTENT) == is_content && (is_content || (e->part == PN_PART_REASONING) == is_thought),
                 "'%.*s' at %zu is part %d", (int)(e->end - e->begin), t->raw + e->begin, e->begin, (int)e->part);
        if (call && t->raw + e->begin >= call && t->raw + e->end <= call_end)
            PN_CHECK(e->part == PN_PART_CALL, "'%.*s' is part %d", (int)(e->end - e->begin), t->raw + e->begin, (int)e->part);
    }
    PN_CHECK(h->tokens.r.n_reasoning == thoughts && (!*t->reasoning || thoughts), "%u tokens of reasoning, told as such: %u",
             (unsigned)h->tokens.r.n_reasoning, (unsigned)thoughts);
}

/* One answer that stops, against `free`, the same without stop strings. */
static pn_chat *stop_check_answer(stop_rig *r, const stop_script *t, const stop_talk *free, const char *stop, uint64_t seed)
{
    static stop_talk h;
    const char *const list[] = {"\x01", stop};
    int32_t index;
    size_t kept = 0, told = 0, cut = stop_expected(t->content, strlen(t->content), list, 2, &index);
    size_t raw_cut = index < 0 ? strlen(t->raw) : (size_t)(strstr(t->raw, t->content) - t->raw) + cut;
    pn_chat *c = stop_ask(r, t, list, 2, seed, &h);
    PN_CHECK(h.len[PN_OUTPUT_CONTENT] == cut && memcmp(h.text[PN_OUTPUT_CONTENT], t->content, cut) == 0 && !h.late,
             "seed %d, stop '%s': '%.*s'%s", (int)seed, stop, (int)h.len[PN_OUTPUT_CONTENT], h.text[PN_OUTPUT_CONTENT],
             h.late ? ", late" : "");
    PN_CHECK(strcmp(h.text[PN_OUTPUT_REASONING], t->reasoning) == 0, "reasoning '%s'", h.text[PN_OUTPUT_REASONING]);
    PN_CHECK(h.tokens.r.stop_index == index && h.tokens.r.finish == PN_FINISH_STOP, "ended by %d, expected %d",
             (int)h.tokens.r.stop_index, (int)index);
    const stop_entry *e = free->tokens.entry;
    for (; kept < free->tokens.n_entries && e[kept].end <= raw_cut; kept++)
        ;
    for (; told < free->tokens.n_entries && (e[told].end <= raw_cut || e[told].begin < raw_cut); told++)
        ;
    PN_CHECK(h.tokens.n_entries == told && h.tokens.r.n_kept == kept, "stop '%s': %zu tokens told and %zu kept, expected %zu "
             "and %zu", stop, h.tokens.n_entries, (size_t)h.tokens.r.n_kept, told, kept);
    return c;
}

/* Every byte and every rest of the content as a stop string, and one that is not there. */
static void stop_check_talk(const stop_script *t)
{
    stop_rig r, other;
    static stop_talk free;
    size_t len = strlen(t->content);
    if (stop_open(&r, "models/demo.gguf", t->raw) && stop_open(&other, "models/demo.gguf", NULL))
        for (uint64_t seed = 1; seed <= 2; seed++) {
            pn_chat_free(stop_ask(&r, t, NULL, 0, seed, &free));
            stop_check_parts(t, &free);
            for (size_t from = 0; from <= len; from += stop_stride()) {
                char one[2] = {t->content[from], 0};
                pn_chat_free(stop_check_answer(&r, t, &free, from < len ? one : "never", seed));
                pn_chat *c = stop_check_answer(&r, t, &free, from < len ? t->content + from : "X", seed);
                if (seed == 1 || from % 5 == 0)
                    stop_check_next_turn(&r, &other, c, t);
                pn_chat_free(c);
            }
        }
    stop_close(&r);
    stop_close(&other);
}

static void conversations_stop_in_the_content_alone(void)
{
    static const stop_script scripts[] = {
        {"Hello w\xc3\xb6rld: ababac", NULL, "", "Hello w\xc3\xb6rld: ababac", NULL},
        {"<think>\nHi. Hel\n</think>\n\nHi. Hello world", NULL, "Hi. Hel", "Hi. Hello world", NULL},
        {"So, hm.\n</think>\n\nHi. Hello world", NULL, "So, hm.", "Hi. Hello world", "{\"enable_thinking\": true}"},
        {"a <thing> b<tool_calls", stop_tools, "", "a <thing> b<tool_calls", NULL},
        {"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"So\"}}\n</tool_call>\nSo said", stop_tools, "", "So said", NULL},
    };
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
        stop_check_talk(&scripts[i]);
}

/* A stop string in a call, and one that would reach across it. */
static void calls_do_not_stop(void)
{
    static const char raw[] = "See ST\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"STOP\"}}\n</tool_call>\nSo";
    static stop_talk h;
    stop_rig r;
    pn_err err = {0};
    pn_chat *c = NULL;
    const char *const list[] = {"STOP", "get_weather", "</tool_call>", "ST\n\nS"};
    if (stop_open(&r, "models/demo.gguf", raw)) {
        PN_CHECK(pn_chat_new(r.s, &(pn_chat_params){.tools = stop_tools}, &c, &err) == PN_OK, "%s", err.text);
        pn_chat_say(c, "user", "Hi", 0, NULL);
        stop_reply(c, r.g, list, 4, 1, &h);
        PN_CHECK(h.tokens.r.stop_index == -1 && strcmp(h.text[PN_OUTPUT_CONTENT], "See ST\n\nSo") == 0 && h.before_call == 6 &&
                 strcmp(h.text[PN_OUTPUT_ARGUMENTS], "{\"city\": \"STOP\"}") == 0, "%d: '%s', '%s'", (int)h.tokens.r.stop_index,
                 h.text[PN_OUTPUT_CONTENT], h.text[PN_OUTPUT_ARGUMENTS]);
        for (size_t i = 0; i < h.tokens.n_entries; i++) {
            const stop_entry *e = &h.tokens.entry[i];
            int inside = e->begin >= 7 && e->end <= (size_t)(strstr(raw, "}}") - raw);
            PN_CHECK(!inside || e->part == PN_PART_CALL, "'%.*s' is part %d", (int)(e->end - e->begin), raw + e->begin, (int)e->part);
        }
    }
    pn_chat_free(c);
    stop_close(&r);
}

/* ---- memory ---- */

static pn_status stop_life(pn_engine *e)
{
    static stop_talk h;
    static stop_run x;
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_chat *c = NULL;
    pn_grammar *g = NULL;
    const char *const list[] = {"lo w", "world"};
    const pn_token prompt[] = {5, 6};
    memset(&h, 0, sizeof h);
    memset(&x, 0, sizeof x);
    static const char gbnf[] = "root ::= \"<think>a</think>Hello world, hello\"";
    pn_status st = pn_model_load(e, "models/demo.gguf", NULL, &m, NULL);
    if (!st)
        st = pn_session_new(m, &(pn_session_params){.n_ctx = 256, .n_batch = 16}, &s, NULL);
    if (!st)
        st = pn_grammar_gbnf(e, gbnf, sizeof gbnf - 1, &g, NULL);
    const pn_generate_params p = {.prompt = prompt, .n_prompt = 2, .grammar = g, .stop = list, .n_stop = 2, .n_top = 3,
                                  .on_logprob = stop_hear_token, .logprob_user = &x};
    if (!st)
        st = pn_session_generate(s, &p, NULL, NULL);
    if (!st)
        st = pn_chat_new(s, NULL, &c, NULL);
    if (!st)
        st = pn_chat_say(c, "user", "Hi", 0, NULL);
    if (!st)
        st = pn_chat_reply(c, &(pn_chat_reply_params){.generate = &p, .on_event = stop_hear_event, .user = &h}, NULL, NULL);
    if (!st)
        PN_CHECK(strcmp(h.text[PN_OUTPUT_CONTENT], "Hel") == 0, "'%s'", h.text[PN_OUTPUT_CONTENT]);
    pn_chat_free(c);
    pn_grammar_free(g);
    pn_session_free(s);
    pn_model_free(m);
    return st;
}

static void every_allocation_may_fail(void)
{
    for (long k = 1, some = stop_stride() > 1 ? 10 : 100;; k += k < some ? 1 : 1 + 2 * k / some) {
        api_heap h = {.fail_at = k};
        pn_engine *e = NULL;
        pn_status st = pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .allocator = {api_heap_alloc, api_heap_free, &h}}, NULL);
        if (!st)
            st = stop_life(e);
        pn_engine_close(e);
        PN_CHECK(h.out == 0, "failing allocation %ld leaks %ld blocks", k, h.out);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "failing allocation %ld gives %s", k, pn_status_name(st));
        if (h.calls < k) {
            PN_CHECK(st == PN_OK, "%s", pn_status_name(st));
            break;
        }
    }
}

int main(void)
{
    stop_strings_are_exact_wherever_tokens_end();
    of_several_stop_strings_the_first_and_longest_counts();
    a_window_may_keep_what_a_stop_string_took();
    log_probabilities_are_those_of_the_raw_logits();
    log_probabilities_can_stop_and_be_wrong();
    conversations_stop_in_the_content_alone();
    calls_do_not_stop();
    every_allocation_may_fail();
    return pn_test_end();
}
