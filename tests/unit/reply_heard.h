/*
 * reply_heard.h - for tests of replies: one answer to tell, and what came out of it, parsed.
 */
#ifndef REPLY_HEARD_H
#define REPLY_HEARD_H

#include "pn_test.h"

#include <math.h>

#include "serve/pn_reply.h"

#define HEARD_MAX 96

typedef struct heard {
    pn_mem mem;
    pn_json_doc doc[HEARD_MAX];
    char event[HEARD_MAX][56];
    int n, stop_after;          /* stop_after 0: never */
    pn_str all;                 /* the texts, a line each */
} heard;

static inline void heard_init(heard *h)
{
    memset(h, 0, sizeof *h);
    pn_mem_init_libc(&h->mem);
    pn_str_init(&h->all, &h->mem, PN_ACCT_MISC);
}

static inline void heard_fini(heard *h)
{
    for (int i = 0; i < h->n; i++)
        pn_json_fini(&h->doc[i]);
    pn_str_fini(&h->all);
    h->n = 0;
}

static inline int heard_emit(void *user, const char *event, const char *json, size_t len)
{
    heard *h = user;
    if (!PN_CHECK(h->n < HEARD_MAX))
        return 1;
    pn_status st = pn_json_parse(&h->doc[h->n], &h->mem, PN_ACCT_MISC, json, len, &(pn_json_params){.unique_keys = true}, NULL);
    PN_CHECK(st == PN_OK && !memchr(json, '\n', len), "not JSON in one line: %.*s", (int)len, json);
    snprintf(h->event[h->n], sizeof h->event[0], "%s", event ? event : "");
    pn_str_add(&h->all, json, len);
    pn_str_addc(&h->all, '\n');
    return ++h->n == h->stop_after;
}

/* "choices.0.delta.content": keys and indices; PN_JSON_NONE when there is no such thing. */
static inline uint32_t heard_at(const pn_json_doc *d, const char *path)
{
    uint32_t node = PN_JSON_ROOT;
    while (*path && node != PN_JSON_NONE) {
        size_t n = strcspn(path, ".");
        if (pn_json_type_of(d, node) == PN_JSON_ARRAY) {
            long i = atol(path);
            for (node = pn_json_first(d, node); i > 0; i--)
                node = pn_json_next(d, node);
        } else {
            node = pn_json_find(d, node, path, n);
        }
        path += path[n] ? n + 1 : n;
    }
    return node;
}

/* The value as text without quotes, "-" when absent; valid until the next few calls. */
static inline const char *heard_doc_value(const pn_json_doc *d, const char *path)
{
    static char texts[8][1024];
    static int turn;
    char *out = texts[turn++ % 8];
    uint32_t node = heard_at(d, path);
    pn_bytes b;
    pn_str s;
    pn_mem mem;
    if (node == PN_JSON_NONE)
        return "-";
    if (pn_json_str(d, node, &b)) {
        snprintf(out, sizeof texts[0], "%.*s", (int)b.len, b.data);
        return out;
    }
    pn_mem_init_libc(&mem);
    pn_str_init(&s, &mem, PN_ACCT_MISC);
    pn_json_write_node(&s, d, node);
    snprintf(out, sizeof texts[0], "%s", pn_str_cstr(&s));
    pn_str_fini(&s);
    return out;
}

static inline const char *heard_value(const heard *h, int i, const char *path) { return i < h->n ? heard_doc_value(&h->doc[i], path) : "-"; }

#define HEARD_IS(h, i, path, want) PN_CHECK(strcmp(heard_value(h, i, path), want) == 0, "%d %s: '%s', expected '%s'", i, path, heard_value(h, i, path), want)

/* What all events say at `path` put together, as clients do; absent and null are nothing. */
static inline const char *heard_sum(const heard *h, const char *path)
{
    static char texts[4][4096];
    static int turn;
    char *out = texts[turn++ % 4];
    out[0] = 0;
    for (int i = 0; i < h->n; i++) {
        pn_bytes b;
        if (pn_json_str(&h->doc[i], heard_at(&h->doc[i], path), &b))
            snprintf(out + strlen(out), sizeof texts[0] - strlen(out), "%.*s", (int)b.len, b.data);
    }
    return out;
}

/* How many events have something other than null there. */
static inline int heard_count(const heard *h, const char *path)
{
    int n = 0;
    for (int i = 0; i < h->n; i++)
        n += pn_json_type_of(&h->doc[i], heard_at(&h->doc[i], path)) > PN_JSON_NULL;
    return n;
}

static const pn_oai_usage heard_usage = {10, 4, 7, 2};

static inline pn_output_event heard_event(pn_output_kind kind, const char *text)
{
    return (pn_output_event){.kind = kind, .text = text, .len = strlen(text), .id = "", .complete = 1};
}

static inline pn_reply_params heard_params(heard *h, pn_mem *mem, bool stream, uint32_t n_choices)
{
    return (pn_reply_params){.mem = mem, .id = "abcdefghijklmnopqrstuvwx", .model = "m\"", .fingerprint = "fp", .created = 1700000000,
                             .n_choices = n_choices, .stream = stream, .report = "\"ignored_params\":[\"user\"]", .emit = heard_emit, .user = h};
}

typedef enum heard_talk { HEARD_TEXT = 1, HEARD_REASONING = 2, HEARD_CALLS = 4 } heard_talk;

/* To each choice: reasoning "hm", text "He" "llo \"\n", calls f({"a":1}) and g({}) with the id abc. */
static inline bool heard_tell_choice(pn_reply *r, uint32_t choice, unsigned what, pn_reply_finish finish)
{
    const pn_token_logprob top[2] = {{.bytes = "He", .len = 2, .logprob = -0.5f}, {.bytes = "\xC3", .len = 1, .logprob = -(float)INFINITY}};
    const pn_token_logprob t = {.bytes = "He", .len = 2, .logprob = -0.5f, .part = PN_PART_CONTENT, .top = top, .n_top = 2};
    const pn_token_logprob other = {.bytes = "x", .len = 1, .logprob = -1, .part = PN_PART_REASONING};
    const unsigned kinds[] = {HEARD_REASONING, HEARD_TEXT, HEARD_TEXT, HEARD_CALLS, HEARD_CALLS, HEARD_CALLS, HEARD_CALLS, HEARD_CALLS, HEARD_CALLS,
                              HEARD_CALLS};
    pn_output_event e[] = {heard_event(PN_OUTPUT_REASONING, "hm"), heard_event(PN_OUTPUT_CONTENT, "He"), heard_event(PN_OUTPUT_CONTENT, "llo \"\n"),
                           heard_event(PN_OUTPUT_CALL_BEGIN, "f"), heard_event(PN_OUTPUT_ARGUMENTS, "{\"a\":"), heard_event(PN_OUTPUT_ARGUMENTS, "1}"),
                           heard_event(PN_OUTPUT_CALL_END, ""), heard_event(PN_OUTPUT_CALL_BEGIN, "g"), heard_event(PN_OUTPUT_ARGUMENTS, "{}"),
                           heard_event(PN_OUTPUT_CALL_END, "")};
    e[7].call = e[8].call = e[9].call = 1;
    e[7].id = "abc";
    e[7].id_len = 3;
    bool ok = r->ops->logprob(r, choice, &other);
    for (size_t i = 0; ok && i < PN_COUNT_OF(e); i++) {
        if (!(what & kinds[i]))
            continue;
        if (i == 1)
            ok = r->ops->logprob(r, choice, &t);
        ok = ok && r->ops->event(r, choice, &e[i]);
    }
    return ok && r->ops->choice_end(r, choice, &finish);
}

static inline bool heard_tell(pn_reply *r, unsigned what, pn_finish why)
{
    const pn_reply_finish finish = {why, {NULL, 0}};
    bool ok = r->ops->begin(r, &(pn_oai_usage){.prompt = 10, .cached = 4});
    for (uint32_t i = 0; ok && i < r->p.n_choices; i++)
        ok = heard_tell_choice(r, i, what, finish);
    return ok && r->ops->end(r, &heard_usage);
}

/* Each allocation failing in turn, and a receiver that stops: false, and nothing is left behind. */
typedef pn_status (*heard_make)(pn_reply **out, const pn_reply_params *p, pn_err *err);

static inline void heard_failures(heard_make make, bool stream)
{
    for (long k = 1; k < 400; k++) {
        pn_test_mem mem;
        heard h;
        pn_reply *r = NULL;
        heard_init(&h);
        pn_test_mem_init(&mem, k);
        const pn_reply_params p = heard_params(&h, &mem.mem, stream, 1);
        bool ok = make(&r, &p, NULL) == PN_OK;
        bool told = ok && heard_tell(r, HEARD_TEXT | HEARD_REASONING | HEARD_CALLS, PN_FINISH_STOP);
        if (ok)
            pn_reply_free(r);
        PN_CHECK(mem.outstanding == 0, "allocation %ld failing leaks %ld blocks", k, mem.outstanding);
        PN_CHECK(told == (mem.n_calls < k), "allocation %ld failed unseen", k);
        heard_fini(&h);
        if (told)
            break;
    }
    for (int stop = 1; stop < 4 && stream; stop++) {
        heard h;
        pn_reply *r;
        heard_init(&h);
        h.stop_after = stop;
        const pn_reply_params p = heard_params(&h, &h.mem, stream, 1);
        if (PN_CHECK(make(&r, &p, NULL) == PN_OK)) {
            PN_CHECK(!heard_tell(r, HEARD_TEXT | HEARD_REASONING | HEARD_CALLS, PN_FINISH_STOP) && h.n == stop, "%d events", h.n);
            PN_CHECK(!r->ops->end(r, &heard_usage) && h.n == stop);
            pn_reply_free(r);
        }
        heard_fini(&h);
    }
}

#endif /* REPLY_HEARD_H */
