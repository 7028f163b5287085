/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_oai_reply.c - chunks and bodies of chat completions: what adds up to the answer, and what clients trip
 * over.
 */
#include "pn_test.h"

#include "serve/pn_oai_reply.h"

#include <math.h>

static pn_mem libc_mem;

typedef struct heard {
    pn_str all;                 /* chunks, a line each */
    pn_json_doc last;
    int n, stop_after;
} heard;

static int hear(void *user, const char *json, size_t len)
{
    heard *h = user;
    pn_json_doc d;
    PN_CHECK(pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, json, len, NULL, NULL) == PN_OK, "not JSON: %.*s", (int)len, json);
    PN_CHECK(pn_json_type_of(&d, pn_json_get(&d, 0, "choices")) == PN_JSON_ARRAY && !memchr(json, '\n', len), "%.*s", (int)len, json);
    pn_json_fini(&d);
    pn_str_add(&h->all, json, len);
    pn_str_addc(&h->all, '\n');
    return ++h->n == h->stop_after;
}

static const pn_oai_usage usage = {10, 4, 7, 2};

static pn_output_event event(pn_output_kind kind, const char *text)
{
    return (pn_output_event){.kind = kind, .text = text, .len = strlen(text), .id = "", .complete = 1};
}

/* Reasoning, text, two calls. */
static bool talk(heard *h, pn_mem *mem, pn_oai_reply_params p, pn_finish finish, bool calls)
{
    pn_oai_reply r;
    const pn_token_logprob top[2] = {{.bytes = "He", .len = 2, .logprob = -0.5f}, {.bytes = "\xC3", .len = 1, .logprob = -(float)INFINITY}};
    const pn_token_logprob t = {.bytes = "He", .len = 2, .logprob = -0.5f, .part = PN_PART_CONTENT, .top = top, .n_top = 2};
    const pn_token_logprob other = {.bytes = "x", .len = 1, .logprob = -1, .part = PN_PART_REASONING};
    p.id = "chatcmpl-1";
    p.model = "m\"";
    p.fingerprint = "fp";
    p.created = 1700000000;
    p.ignored = "\"user\"";
    p.emit = hear;
    p.user = h;
    pn_oai_reply_init(&r, mem, &p);
    pn_output_event e[] = {event(PN_OUTPUT_REASONING, "hm"), event(PN_OUTPUT_CONTENT, "He"), event(PN_OUTPUT_CONTENT, "llo \"\n"),
                           event(PN_OUTPUT_CALL_BEGIN, "f"), event(PN_OUTPUT_ARGUMENTS, "{\"a\":"), event(PN_OUTPUT_ARGUMENTS, "1}"),
                           event(PN_OUTPUT_CALL_END, ""), event(PN_OUTPUT_CALL_BEGIN, "g"), event(PN_OUTPUT_ARGUMENTS, "{}"), event(PN_OUTPUT_CALL_END, "")};
    e[7].call = 1;
    e[7].id = "abc";
    e[7].id_len = 3;
    bool ok = pn_oai_reply_begin(&r);
    ok = ok && pn_oai_reply_logprob(&r, &other);
    for (size_t i = 0; ok && i < (calls ? PN_COUNT_OF(e) : 3); i++) {
        if (i == 1)
            ok = pn_oai_reply_logprob(&r, &t);
        ok = ok && pn_oai_reply_event(&r, &e[i]);
    }
    ok = ok && pn_oai_reply_end(&r, finish, &usage);
    pn_oai_reply_fini(&r);
    return ok;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (; (text = strstr(text, what)) != NULL; text += strlen(what))
        n++;
    return n;
}

static void a_stream_adds_up(void)
{
    heard h = {0};
    pn_str_init(&h.all, &libc_mem, PN_ACCT_MISC);
    PN_CHECK(talk(&h, &libc_mem, (pn_oai_reply_params){.stream = true, .include_usage = true, .logprobs = true}, PN_FINISH_STOP, true));
    const char *s = pn_str_cstr(&h.all);
    PN_CHECK(h.n == 11, "%d chunks", h.n);
    PN_CHECK(count(s, "\"role\":") == 1 && strstr(s, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}"), "%s", s);
    PN_CHECK(strstr(s, "\"delta\":{\"reasoning_content\":\"hm\"},\"logprobs\":null") && strstr(s, "\"delta\":{\"content\":\"llo \\\"\\n\"}"), "%s", s);
    PN_CHECK(strstr(s, "\"delta\":{\"content\":\"He\"},\"logprobs\":{\"content\":[{\"token\":\"He\",\"logprob\":-0.5,\"bytes\":[72,101],\"top_logprobs\":["
                       "{\"token\":\"He\",\"logprob\":-0.5,\"bytes\":[72,101]},{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-9999,\"bytes\":[195]}]}],"
                       "\"refusal\":null}"), "%s", s);
    PN_CHECK(count(s, "\"type\":\"function\"") == 2 && count(s, "\"name\":") == 2 && count(s, "\"id\":\"call_") == 1 && count(s, "\"id\":\"abc\"") == 1, "%s", s);
    PN_CHECK(strstr(s, "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\":\"}}]") &&
             strstr(s, "\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"{}\"}}]"), "%s", s);
    PN_CHECK(count(s, "\"finish_reason\":\"tool_calls\"") == 1 && count(s, "\"delta\":{},") == 1 && count(s, "\"finish_reason\":null") == 9, "%s", s);
    PN_CHECK(count(s, "\"usage\":null") == 10 && count(s, "\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":7,\"total_tokens\":17,"
             "\"prompt_tokens_details\":{\"cached_tokens\":4},\"completion_tokens_details\":{\"reasoning_tokens\":2}},\"pantheon\":{\"ignored_params\":"
             "[\"user\"]}}") == 1, "%s", s);
    PN_CHECK(count(s, "\"model\":\"m\\\"\"") == 11 && count(s, "\"object\":\"chat.completion.chunk\"") == 11, "%s", s);
    pn_str_fini(&h.all);
}

static void a_body_has_it_all(void)
{
    heard h = {0};
    pn_str_init(&h.all, &libc_mem, PN_ACCT_MISC);
    PN_CHECK(talk(&h, &libc_mem, (pn_oai_reply_params){.logprobs = true, .choice = 1}, PN_FINISH_LENGTH, true) && h.n == 1);
    const char *s = pn_str_cstr(&h.all);
    PN_CHECK(strstr(s, "\"object\":\"chat.completion\"") && strstr(s, "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"Hello \\\"\\n\",\"refusal\":null,"
             "\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"call_") && strstr(s, "\"arguments\":\"{\\\"a\\\":1}\"}},{\"id\":\"abc\",\"type\":\"function\","
             "\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]}") && strstr(s, "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":10"), "%s", s);
    PN_CHECK(count(s, "\"top_logprobs\"") == 1, "%s", s);
    pn_str_clear(&h.all);
    PN_CHECK(talk(&h, &libc_mem, (pn_oai_reply_params){0}, PN_FINISH_STOP, false));
    s = pn_str_cstr(&h.all);
    PN_CHECK(strstr(s, "\"logprobs\":null,\"finish_reason\":\"stop\"") && !strstr(s, "tool_calls"), "%s", s);
    pn_str_fini(&h.all);
}

static void a_receiver_may_stop_and_memory_may_run_out(void)
{
    heard h = {.stop_after = 3};
    pn_str_init(&h.all, &libc_mem, PN_ACCT_MISC);
    PN_CHECK(!talk(&h, &libc_mem, (pn_oai_reply_params){.stream = true}, PN_FINISH_STOP, true) && h.n == 3, "%d chunks", h.n);
    for (long k = 1; k < 300; k++) {
        pn_test_mem mem;
        h.stop_after = h.n = 0;
        pn_test_mem_init(&mem, k);
        bool ok = talk(&h, &mem.mem, (pn_oai_reply_params){.stream = k & 1, .logprobs = true, .include_usage = true}, PN_FINISH_STOP, true);
        PN_CHECK(mem.outstanding == 0, "allocation %ld failing leaks", k);
        if (ok && mem.n_calls < k)
            break;
        PN_CHECK(!ok || mem.n_calls < k, "allocation %ld failed unseen", k);
    }
    pn_str_fini(&h.all);
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    a_stream_adds_up();
    a_body_has_it_all();
    a_receiver_may_stop_and_memory_may_run_out();
    return pn_test_end();
}
