/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_oai_reply.c - chunks and bodies of chat completions: what adds up to the answer, and what clients trip
 * over.
 */
#include "reply_heard.h"

#include "serve/pn_oai_reply.h"

enum { ALL = HEARD_TEXT | HEARD_REASONING | HEARD_CALLS };

static bool talk(heard *h, bool stream, uint32_t n, bool usage, bool logprobs, unsigned what, pn_finish why)
{
    pn_reply *r;
    const pn_reply_params p = heard_params(h, &h->mem, stream, n);
    if (!PN_CHECK(pn_oai_chat_reply_new(&r, &p, usage, logprobs, NULL) == PN_OK))
        return false;
    PN_CHECK(r->ops->done_marker);
    bool ok = heard_tell(r, what, why);
    pn_reply_free(r);
    return ok;
}

/* What holds for every chunk: SDKs fail on anything else. */
static void chunks_are_as_clients_want_them(const heard *h)
{
    for (int i = 0; i < h->n; i++) {
        const pn_json_doc *d = &h->doc[i];
        uint32_t choices = heard_at(d, "choices");
        HEARD_IS(h, i, "id", "chatcmpl-abcdefghijklmnopqrstuvwx");
        HEARD_IS(h, i, "object", "chat.completion.chunk");
        HEARD_IS(h, i, "created", "1700000000");
        HEARD_IS(h, i, "model", "m\"");
        HEARD_IS(h, i, "system_fingerprint", "fp");
        PN_CHECK(pn_json_type_of(d, choices) == PN_JSON_ARRAY && h->event[i][0] == 0);
        for (uint32_t c = pn_json_first(d, choices); c != PN_JSON_NONE; c = pn_json_next(d, c))
            PN_CHECK(pn_json_type_of(d, pn_json_get(d, c, "delta")) == PN_JSON_OBJECT &&
                     pn_json_type_of(d, pn_json_get(d, c, "index")) == PN_JSON_NUMBER && pn_json_get(d, c, "logprobs") != PN_JSON_NONE &&
                     pn_json_get(d, c, "finish_reason") != PN_JSON_NONE);
    }
}

static void a_stream_in_order(void)
{
    static const struct { const char *path, *want; } chunks[] = {
        {"choices.0.delta", "{\"role\":\"assistant\",\"content\":\"\"}"}, {"choices.0.delta", "{\"reasoning_content\":\"hm\"}"},
        {"choices.0.delta", "{\"content\":\"He\"}"}, {"choices.0.delta", "{\"content\":\"llo \\\"\\n\"}"},
        {"choices.0.delta.tool_calls.0.function", "{\"name\":\"f\",\"arguments\":\"\"}"},
        {"choices.0.delta", "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\":\"}}]}"},
        {"choices.0.delta", "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"1}\"}}]}"},
        {"choices.0.delta", "{\"tool_calls\":[{\"index\":1,\"id\":\"abc\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]}"},
        {"choices.0.delta", "{\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"{}\"}}]}"},
        {"choices.0.delta", "{}"}, {"choices", "[]"},
    };
    heard h;
    heard_init(&h);
    PN_CHECK(talk(&h, true, 1, true, true, ALL, PN_FINISH_STOP));
    PN_CHECK(h.n == (int)PN_COUNT_OF(chunks), "%d chunks", h.n);
    chunks_are_as_clients_want_them(&h);
    for (int i = 0; i < h.n; i++) {
        HEARD_IS(&h, i, chunks[i].path, chunks[i].want);
        HEARD_IS(&h, i, "choices.0.finish_reason", i == 9 ? "tool_calls" : i == 10 ? "-" : "null");
        PN_CHECK((strcmp(heard_value(&h, i, "usage"), "null") == 0) == (i != 10) && (heard_at(&h.doc[i], "pantheon") != PN_JSON_NONE) == (i == 10));
    }
    HEARD_IS(&h, 2, "choices.0.logprobs", "{\"content\":[{\"token\":\"He\",\"logprob\":-0.5,\"bytes\":[72,101],\"top_logprobs\":["
             "{\"token\":\"He\",\"logprob\":-0.5,\"bytes\":[72,101]},{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-9999,\"bytes\":[195]}]}],\"refusal\":null}");
    PN_CHECK(heard_count(&h, "choices.0.logprobs") == 1);
    PN_CHECK(strncmp(heard_value(&h, 4, "choices.0.delta.tool_calls.0.id"), "call_", 5) == 0);
    HEARD_IS(&h, 4, "choices.0.delta.tool_calls.0.type", "function");
    HEARD_IS(&h, 10, "usage", "{\"prompt_tokens\":10,\"completion_tokens\":7,\"total_tokens\":17,\"prompt_tokens_details\":{\"cached_tokens\":4},"
             "\"completion_tokens_details\":{\"reasoning_tokens\":2}}");
    HEARD_IS(&h, 10, "pantheon", "{\"ignored_params\":[\"user\"]}");
    heard_fini(&h);
}

/* Without a chunk for the usage the report is in the last one there is. */
static void choices_have_each_their_own(void)
{
    heard h;
    heard_init(&h);
    PN_CHECK(talk(&h, true, 2, false, false, ALL, PN_FINISH_LENGTH));
    chunks_are_as_clients_want_them(&h);
    PN_CHECK(h.n == 20 && heard_count(&h, "pantheon") == 1 && heard_count(&h, "usage") == 0, "%d chunks", h.n);
    HEARD_IS(&h, 19, "pantheon.ignored_params.0", "user");
    HEARD_IS(&h, 0, "choices.0.index", "0");
    HEARD_IS(&h, 1, "choices.0.index", "1");
    PN_CHECK(strcmp(heard_sum(&h, "choices.0.delta.role"), "assistantassistant") == 0);
    HEARD_IS(&h, 10, "choices.0.finish_reason", "length");
    HEARD_IS(&h, 19, "choices.0.finish_reason", "length");
    PN_CHECK(strcmp(heard_value(&h, 5, "choices.0.delta.tool_calls.0.id"), heard_value(&h, 14, "choices.0.delta.tool_calls.0.id")) != 0, "ids repeat");
    heard_fini(&h);
}

static void a_body_has_what_the_stream_adds_up_to(void)
{
    heard s, h;
    heard_init(&s);
    heard_init(&h);
    PN_CHECK(talk(&s, true, 1, false, true, ALL, PN_FINISH_STOP) && talk(&h, false, 2, false, true, ALL, PN_FINISH_STOP) && h.n == 1);
    HEARD_IS(&h, 0, "object", "chat.completion");
    HEARD_IS(&h, 0, "choices.0.message.content", heard_sum(&s, "choices.0.delta.content"));
    HEARD_IS(&h, 0, "choices.0.message.reasoning_content", heard_sum(&s, "choices.0.delta.reasoning_content"));
    HEARD_IS(&h, 0, "choices.0.message.tool_calls.0.id", heard_value(&s, 4, "choices.0.delta.tool_calls.0.id"));
    HEARD_IS(&h, 0, "choices.0.message.tool_calls.0.function", "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}");
    HEARD_IS(&h, 0, "choices.0.message.tool_calls.1", "{\"id\":\"abc\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}");
    HEARD_IS(&h, 0, "choices.0.logprobs", heard_value(&s, 2, "choices.0.logprobs"));
    HEARD_IS(&h, 0, "choices.1.index", "1");
    HEARD_IS(&h, 0, "choices.1.message.refusal", "null");
    HEARD_IS(&h, 0, "choices.1.finish_reason", "tool_calls");
    HEARD_IS(&h, 0, "usage.total_tokens", "17");
    HEARD_IS(&h, 0, "pantheon", "{\"ignored_params\":[\"user\"]}");
    heard_fini(&s);
    heard_fini(&h);
}

static void what_is_not_there_is_null_or_left_out(void)
{
    heard h;
    heard_init(&h);
    PN_CHECK(talk(&h, false, 1, false, false, HEARD_CALLS, PN_FINISH_STOP) && talk(&h, false, 1, false, false, 0, PN_FINISH_CONTEXT));
    HEARD_IS(&h, 0, "choices.0.message.content", "null");
    HEARD_IS(&h, 0, "choices.0.message.reasoning_content", "-");
    HEARD_IS(&h, 1, "choices.0.message", "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null}");
    HEARD_IS(&h, 1, "choices.0.logprobs", "null");
    HEARD_IS(&h, 1, "choices.0.finish_reason", "length");
    heard_fini(&h);
}

/* An error ends a stream: no finish_reason comes behind it. */
static void an_error_in_the_middle(void)
{
    heard h;
    pn_reply *r;
    pn_oai_error e;
    heard_init(&h);
    const pn_reply_params p = heard_params(&h, &h.mem, true, 1);
    pn_oai_error_status(&e, PN_E_NUMERIC, "no finite logit");
    if (PN_CHECK(pn_oai_chat_reply_new(&r, &p, false, false, NULL) == PN_OK)) {
        PN_CHECK(r->ops->begin(r, &heard_usage) && r->ops->fail(r, &e) && h.n == 2);
        HEARD_IS(&h, 1, "error", "{\"message\":\"no finite logit\",\"type\":\"server_error\",\"param\":null,\"code\":null}");
        pn_reply_free(r);
    }
    heard_fini(&h);
}

static pn_status make(pn_reply **out, const pn_reply_params *p, pn_err *err) { return pn_oai_chat_reply_new(out, p, true, true, err); }

int main(void)
{
    a_stream_in_order();
    choices_have_each_their_own();
    a_body_has_what_the_stream_adds_up_to();
    what_is_not_there_is_null_or_left_out();
    an_error_in_the_middle();
    heard_failures(make, true);
    heard_failures(make, false);
    return pn_test_end();
}
