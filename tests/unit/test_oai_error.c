/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_oai_error.c - errors: the status that clients act on, and the words they look for.
 */
#include "pn_test.h"

#include "base/pn_json.h"
#include "serve/pn_oai_error.h"

static pn_mem libc_mem;

static pn_bytes bytes(const char *text) { return (pn_bytes){text, strlen(text)}; }

/* All four members are there, whatever the error. */
static void check(const pn_oai_error *e, int status, const char *type, const char *code, const char *words)
{
    pn_json_doc d;
    pn_str s;
    pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
    pn_oai_error_json(e, &s);
    if (PN_CHECK(pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, pn_str_cstr(&s), s.len, NULL, NULL) == PN_OK, "%s", pn_str_cstr(&s))) {
        uint32_t error = pn_json_get(&d, 0, "error");
        PN_CHECK(pn_json_get(&d, error, "message") != PN_JSON_NONE && pn_json_get(&d, error, "type") != PN_JSON_NONE &&
                 pn_json_get(&d, error, "param") != PN_JSON_NONE && pn_json_get(&d, error, "code") != PN_JSON_NONE, "%s", pn_str_cstr(&s));
        pn_json_fini(&d);
    }
    PN_CHECK(e->status == status && strcmp(e->type, type) == 0 && (code ? e->code && strcmp(e->code, code) == 0 : !e->code), "%d %s %s", e->status,
             e->type, e->code ? e->code : "-");
    PN_CHECK(strstr(e->message, words), "%s", e->message);
    PN_CHECK(e->status < 500 || e->retry_ms || e->no_retry || strcmp(e->code, "cancelled") == 0, "%s: shall it be tried again?", e->message);
    pn_str_fini(&s);
}

static void where_requests_go(void)
{
    const char *const served[] = {"one", "two"};
    pn_oai_error e;
    pn_oai_error_model(&e, bytes("gpt-4\"x"), served, 2);
    check(&e, 404, "invalid_request_error", "model_not_found", "the model 'gpt-4\"x' does not exist; this server has one, two");
    pn_oai_error_model(&e, (pn_bytes){NULL, 0}, NULL, 0);
    check(&e, 404, "invalid_request_error", "model_not_found", "has none");
    pn_oai_error_route(&e, bytes("/v2"));
    check(&e, 404, "invalid_request_error", "not_found", "'/v2'");
    pn_oai_error_method(&e, bytes("PUT"), "POST");
    check(&e, 405, "invalid_request_error", "method_not_allowed", "POST, found 'PUT'");
    PN_CHECK(strcmp(e.allow, "POST") == 0);
    pn_oai_error_key(&e, false);
    check(&e, 401, "authentication_error", "invalid_api_key", "Bearer");
    pn_oai_error_key(&e, true);
    check(&e, 401, "authentication_error", "invalid_api_key", "not one");
}

/* However many models there are, and however long a text from outside is. */
static void messages_are_cut_to_fit(void)
{
    char name[600];
    const char *many[64];
    pn_oai_error e;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    for (size_t i = 0; i < PN_COUNT_OF(many); i++)
        many[i] = "a-model-with-a-name";
    pn_oai_error_model(&e, bytes(name), many, PN_COUNT_OF(many));
    check(&e, 404, "invalid_request_error", "model_not_found", "a-model-with-a-name, and more");
    pn_oai_error_route(&e, bytes(name));
    pn_oai_error_status(&e, PN_E_INVALID, name);
    check(&e, 400, "invalid_request_error", "invalid_value", "nnnn");
}

static void what_the_server_cannot_do_now(void)
{
    pn_oai_error e;
    pn_oai_error_queue(&e, 12, 1500);
    check(&e, 429, "rate_limit_error", "queue_full", "12 requests are waiting");
    PN_CHECK(e.retry_ms == 1500);
    pn_oai_error_loading(&e, "the model m is loading", 2000);
    check(&e, 503, "unavailable_error", "loading", "m is loading");
    pn_oai_error_memory(&e, "3 MiB of 2 MiB", true, 500);
    check(&e, 429, "memory_busy", "insufficient_memory", "3 MiB of 2 MiB");
    pn_oai_error_memory(&e, "3 GiB of 2 GiB", false, 500);
    check(&e, 400, "context_over_budget", "context_length_exceeded", "exceeds the available context size");
    PN_CHECK(e.retry_ms == 0);
}

/* What the patterns of agents match, and what must not be there. */
static void an_overflow_is_recognised(void)
{
    static const char *const words[] = {"maximum context length is 4096 tokens", "exceeds the available context size", "prompt is too long",
                                        "reduce the length of the messages", "5000", "300 tokens of output"};
    static const char *const never[] = {"rate limit", "too many requests"};
    pn_oai_error e;
    pn_str s;
    pn_budget_info b = {.size = sizeof b, .requested_tokens = 5300, .prompt_tokens = 5000, .max_new_tokens = 300, .ctx_cap = 4096, .die = -1};
    pn_oai_error_budget(&e, &b, false, 0);
    for (size_t i = 0; i < PN_COUNT_OF(words); i++)
        check(&e, 400, "context_over_budget", "context_length_exceeded", words[i]);
    for (size_t i = 0; i < PN_COUNT_OF(never); i++)
        PN_CHECK(!strcasestr(e.message, never[i]));
    pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
    pn_oai_error_json(&e, &s);
    PN_CHECK(strstr(pn_str_cstr(&s), ",\"code\":\"context_length_exceeded\",\"requested_tokens\":5300,") && strstr(pn_str_cstr(&s), "\"n_prompt_tokens\":5000,") &&
             strstr(pn_str_cstr(&s), "\"n_ctx\":4096,") && strstr(pn_str_cstr(&s), "\"limited_by\":\"context\"") && e.no_retry, "%s", pn_str_cstr(&s));
    pn_str_fini(&s);
    b = (pn_budget_info){.size = sizeof b, .requested_tokens = UINT32_MAX, .prompt_tokens = UINT32_MAX, .max_new_tokens = UINT32_MAX, .ctx_cap = UINT32_MAX,
                         .max_context_now = UINT32_MAX, .max_context_alone = UINT32_MAX, .max_context_unpressured = UINT32_MAX,
                         .kv_bytes_per_token = UINT64_MAX, .kv_bytes_needed = UINT64_MAX, .kv_bytes_available = UINT64_MAX,
                         .fixed_bytes_needed = UINT64_MAX, .available = UINT64_MAX, .budget = UINT64_MAX, .level = PN_LEVEL_CRITICAL,
                         .kv_type = PN_DTYPE_Q4_0, .limited_by = PN_BY_DEVICE, .die = 7, .suggestion = PN_SUGGEST_FEWER_TOKENS};
    pn_oai_error_budget(&e, &b, false, 0);
    PN_CHECK(strstr(e.message, "length of the messages") && strstr(e.extra, "\"suggestion\":\"lower_max_tokens\""), "%s %s", e.message, e.extra);
    pn_oai_error_budget(&e, &b, true, UINT32_MAX);
    PN_CHECK(e.status == 429 && strcmp(e.type, "memory_busy") == 0 && strstr(e.extra, "\"retry_after_ms\":4294967295") && strstr(e.extra, "\"suggestion\":"),
             "%s %s", e.message, e.extra);
    b.max_new_tokens = 0;
    pn_oai_error_budget(&e, &b, false, 0);
    PN_CHECK(!strstr(e.message, "output"), "%s", e.message);
}

/* What is wrong with a request is never a 5xx: SDKs would send it again. */
static void what_the_library_says(void)
{
    static const struct { pn_status st; int status; const char *type, *code; } cases[] = {
        {PN_E_INVALID, 400, "invalid_request_error", "invalid_value"}, {PN_E_FORMAT, 400, "invalid_request_error", "invalid_value"},
        {PN_E_UNSUPPORTED, 400, "invalid_request_error", "invalid_value"}, {PN_E_CONTEXT, 400, "context_over_budget", "context_length_exceeded"},
        {PN_E_BUDGET, 429, "memory_busy", "insufficient_memory"}, {PN_E_NOMEM, 503, "unavailable_error", "insufficient_memory"},
        {PN_E_CANCELLED, 503, "unavailable_error", "cancelled"}, {PN_E_INTERNAL, 500, "server_error", NULL}, {PN_E_IO, 500, "server_error", NULL},
        {PN_E_NUMERIC, 500, "server_error", NULL}, {PN_E_STATE, 500, "server_error", NULL},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_oai_error e;
        pn_oai_error_status(&e, cases[i].st, "the text");
        check(&e, cases[i].status, cases[i].type, cases[i].code, "the text");
        PN_CHECK(e.no_retry == (e.status == 500));
    }
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    where_requests_go();
    messages_are_cut_to_fit();
    what_the_server_cannot_do_now();
    an_overflow_is_recognised();
    what_the_library_says();
    return pn_test_end();
}
