/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_serve.c - any bytes as what a client sends to the whole server: sockets, routes, parsing of bodies, templates,
 * grammars, sessions, the engine and the answers.  One thread (inline_work), the demo model, tokens by the handful.
 *
 *     first byte   0x80 and more: the rest goes to the socket as it is (hostile HTTP)
 *                  else: the rest is the body of a request to endpoint (byte % 16), bit 4: as a stream of three pieces,
 *                  bit 5: the client goes away early, bit 6: the request is sent twice in one go
 *
 * Under libFuzzer the mutator keeps bodies valid JSON half of the time and changes their shape: a value becomes one of
 * another type, moves, doubles, or an object gets a member that means something.
 *
 * What must hold
 *   1. An answer is HTTP; a status is never 500; its JSON can be parsed, and so can each event of a stream.
 *   2. When the client has gone, so have connection, request and keys and values, and the server still answers.
 */
#define FUZZ_MUTATIONS 16      /* requests are answered, which takes its time */
#include "pn_fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "serve/pn_server_int.h"

enum { FUZZ_SERVE_ENDPOINTS = 16, FUZZ_SERVE_PATIENCE = 100000, FUZZ_SERVE_OUT = 4 << 20 };

static const char *const fuzz_serve_paths[FUZZ_SERVE_ENDPOINTS] = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/tokenize", "/detokenize", "/apply-template",
    "/v1/chat/completions/input_tokens", "/v1/responses/input_tokens", "/v1/messages/count_tokens", "/admin/models/load", "/admin/models/unload",
    "/v1/chat/completions", "/v1/completions", "/v1/messages",
};

static struct {
    pn_engine *e;
    pn_server *s;
    char dir[64], path[96];
    pn_mem_info before;
    char out[FUZZ_SERVE_OUT];           /* what came back, [n_out] */
    size_t n_out;
} fuzz_serve;

static void fuzz_serve_die(const char *what)
{
    fprintf(stderr, "ERROR: fuzz_serve: %s\n%.2000s\n", what, fuzz_serve.out);
    abort();
}

/* ------------------------------------------------------------------------------------------
 * The server
 * ------------------------------------------------------------------------------------------ */

static void fuzz_serve_poll(void)
{
    pn_err err;
    if (pn_server_poll(fuzz_serve.s, 0, &err) != PN_OK)
        fuzz_serve_die(err.text);
}

static void fuzz_serve_load(void)
{
    const pn_server_model m = {.path = "models/demo.gguf", .name = "m", .ctx_cap = 192, .max_concurrent = 4};
    pn_err err;
    if (pn_server_load(fuzz_serve.s, &m, &err) != PN_OK)
        fuzz_serve_die(err.text);
    while (pn_server_ready(fuzz_serve.s, &err) == PN_E_STATE)
        fuzz_serve_poll();
    if (pn_server_ready(fuzz_serve.s, &err) != PN_OK)
        fuzz_serve_die(err.text);
}

static void fuzz_serve_end(void)
{
    pn_server_free(fuzz_serve.s);
    pn_engine_close(fuzz_serve.e);
    rmdir(fuzz_serve.dir);
}

/* Once; inputs share it, as clients do. */
static void fuzz_serve_open(void)
{
    const pn_engine_params ep = {.n_threads = 1};
    const pn_server_params sp = {.inline_work = 1, .queue = 2, .default_max_new = 4, .max_body = 64u << 10, .max_connections = 8};
    pn_err err;
    snprintf(fuzz_serve.dir, sizeof fuzz_serve.dir, "/tmp/pn-fuzz-serve-XXXXXX");
    if (!mkdtemp(fuzz_serve.dir))
        fuzz_serve_die("no folder for the socket");
    snprintf(fuzz_serve.path, sizeof fuzz_serve.path, "%s/s", fuzz_serve.dir);
    char address[120];
    snprintf(address, sizeof address, "unix:%s", fuzz_serve.path);
    if (pn_engine_open(&fuzz_serve.e, &ep, &err) || pn_server_new(fuzz_serve.e, &sp, &fuzz_serve.s, &err) ||
        pn_server_listen(fuzz_serve.s, address, NULL, 0, &err))
        fuzz_serve_die(err.text);
    fuzz_serve_load();
    atexit(fuzz_serve_end);
}

static bool fuzz_serve_settled(const serve_replica *r) { return r->state == SERVE_MODEL_READY || r->state == SERVE_FAILED; }

/* Is something coming or going? */
static bool fuzz_serve_moving(void)
{
    for (const serve_model *m = fuzz_serve.s->models; m; m = m->next)
        for (const serve_replica *r = m->replicas; r; r = r->next)
            if (!fuzz_serve_settled(r))
                return true;
    return false;
}

/* Models that the input loaded go, and the one it unloaded comes back. */
static void fuzz_serve_models(void)
{
    pn_server *s = fuzz_serve.s;
    for (int i = 0; fuzz_serve_moving() && i < FUZZ_SERVE_PATIENCE; i++)
        fuzz_serve_poll();
    for (serve_model *m = s->models, *next; m; m = next) {
        next = m->next;
        for (serve_replica *r = m->replicas, *other; r && strcmp(m->name, "m") != 0; r = other) {
            other = r->next;
            serve_replica_unload(r, NULL);
        }
    }
    for (int i = 0; fuzz_serve_moving() && i < FUZZ_SERVE_PATIENCE; i++)
        fuzz_serve_poll();
    if (!s->models)
        fuzz_serve_load();
    if (fuzz_serve_moving() || s->models->next || s->models->replicas->next || s->models->replicas->state != SERVE_MODEL_READY)
        fuzz_serve_die("a model does not come or go");
}

/* ------------------------------------------------------------------------------------------
 * The client
 * ------------------------------------------------------------------------------------------ */

static int fuzz_serve_connect(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, fuzz_serve.path, strlen(fuzz_serve.path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        fuzz_serve_die("cannot connect");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    fuzz_serve.n_out = 0;
    fuzz_serve.out[0] = 0;
    return fd;
}

/* False: the server has closed. */
static bool fuzz_serve_recv(int fd, bool *some)
{
    for (;;) {
        size_t room = FUZZ_SERVE_OUT - 1 - fuzz_serve.n_out;
        ssize_t k = recv(fd, fuzz_serve.out + fuzz_serve.n_out, room, 0);
        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (k < 0)
            return true;
        fuzz_serve.n_out += (size_t)k;
        fuzz_serve.out[fuzz_serve.n_out] = 0;
        *some = true;
        if (fuzz_serve.n_out == FUZZ_SERVE_OUT - 1)
            fuzz_serve_die("4 MiB of answers to one input");
    }
}

/* Until nothing moves any more, at most `turns` turns; false: closed. */
static bool fuzz_serve_until_still(int fd, int turns)
{
    int still = 0;
    for (int i = 0; i < turns && still < 4; i++) {
        bool some = false;
        fuzz_serve_poll();
        if (!fuzz_serve_recv(fd, &some))
            return false;
        bool busy = some || fuzz_serve.s->n_asks != 0 || fuzz_serve_moving();
        still = busy ? 0 : still + 1;
    }
    if (still < 4 && turns == FUZZ_SERVE_PATIENCE)
        fuzz_serve_die("a request does not come to its end");
    return true;
}

static void fuzz_serve_send(int fd, const void *data, size_t n)
{
    const char *p = data;
    for (int i = 0; n && i < FUZZ_SERVE_PATIENCE; i++) {
        bool some;
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno != EAGAIN)
            return;                     /* refused before the end */
        p += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
        fuzz_serve_poll();
        if (!fuzz_serve_recv(fd, &some))
            return;
    }
}

static void fuzz_serve_leave(int fd)
{
    pn_mem_info now;
    pn_server *s = fuzz_serve.s;
    close(fd);
    for (int i = 0; (s->n_conns || s->n_asks) && i < FUZZ_SERVE_PATIENCE; i++)
        fuzz_serve_poll();
    if (s->n_conns || s->n_asks || s->n_running)
        fuzz_serve_die("a connection or a request stays when its client has gone");
    fuzz_serve_models();
    pn_engine_memory(fuzz_serve.e, &now);
    if (!fuzz_serve.before.used[PN_ACCT_CONN])
        fuzz_serve.before = now;
    if (now.used[PN_ACCT_KV] > fuzz_serve.before.used[PN_ACCT_KV] || now.used[PN_ACCT_GRAMMAR] > fuzz_serve.before.used[PN_ACCT_GRAMMAR])
        fuzz_serve_die("keys and values or a grammar stay when their client has gone");
    if (now.used[PN_ACCT_CONN] > fuzz_serve.before.used[PN_ACCT_CONN] + (256u << 10))    /* names in the metrics stay */
        fuzz_serve_die("the server's memory grows");
}

/* ------------------------------------------------------------------------------------------
 * Answers
 * ------------------------------------------------------------------------------------------ */

static void fuzz_serve_json(const char *text, size_t n)
{
    pn_mem libc;
    pn_json_doc doc;
    pn_err err;
    pn_mem_init_libc(&libc);
    if (pn_json_parse(&doc, &libc, PN_ACCT_MISC, text, n, NULL, &err) != PN_OK)
        fuzz_serve_die(err.text);
    pn_json_fini(&doc);
}

/* The first answer of a connection, if all of it is there: chunked streams, bodies with a length. */
static void fuzz_serve_judge(bool whole)
{
    const char *head = fuzz_serve.out, *end = strstr(head, "\r\n\r\n"), *length = strstr(head, "\r\nContent-Length: ");
    int status = 0;
    if (!fuzz_serve.n_out) {
        if (whole)
            fuzz_serve_die("no answer");
        return;
    }
    if (sscanf(head, "HTTP/1.1 %d ", &status) != 1 || status < 100 || status > 599 || status == 500 || status == 502)
        fuzz_serve_die("no status that there should be");
    if (!end || status == 100)
        return;
    const char *type = strstr(head, "\r\nContent-Type: ");
    size_t n = length && length < end ? strtoul(length + 18, NULL, 10) : 0;
    if (type && type < end && strncmp(type + 16, "application/json", 16) == 0 && n && fuzz_serve.out + fuzz_serve.n_out - end - 4 >= (ptrdiff_t)n)
        fuzz_serve_json(end + 4, n);
    if (type && type < end && strncmp(type + 16, "text/event-stream", 17) == 0)
        for (const char *at = strstr(end, "data: "), *eol; at && (eol = strchr(at, '\n')) != NULL; at = strstr(eol, "data: "))
            if (strncmp(at, "data: [DONE]", 12) != 0)
                fuzz_serve_json(at + 6, (size_t)(eol - at - 6));
}

static void fuzz_serve_alive(void)
{
    int fd = fuzz_serve_connect();
    static const char ask[] = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    fuzz_serve_send(fd, ask, sizeof ask - 1);
    while (fuzz_serve_until_still(fd, 100))
        continue;
    if (!strstr(fuzz_serve.out, "{\"status\":\"ok\"}"))
        fuzz_serve_die("the server does not answer any more");
    fuzz_serve_leave(fd);
}

/* ------------------------------------------------------------------------------------------
 * Inputs
 * ------------------------------------------------------------------------------------------ */

static void fuzz_serve_raw(const uint8_t *data, size_t size)
{
    int fd = fuzz_serve_connect();
    fuzz_serve_send(fd, data, size);
    fuzz_serve_until_still(fd, FUZZ_SERVE_PATIENCE);
    fuzz_serve_judge(false);
    fuzz_serve_leave(fd);
}

static void fuzz_serve_body(unsigned how, const uint8_t *body, size_t size)
{
    bool early = how & 32, twice = how & 64;
    int fd = fuzz_serve_connect();
    pn_mem libc;
    pn_str all;
    pn_mem_init_libc(&libc);
    pn_str_init(&all, &libc, PN_ACCT_MISC);
    for (int i = 0; i <= twice; i++) {
        pn_str_addf(&all, "POST %s HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n%sContent-Length: %zu\r\n\r\n", fuzz_serve_paths[how % FUZZ_SERVE_ENDPOINTS],
                    i < twice ? "" : "Connection: close\r\n", size);
        pn_str_add(&all, body, size);
    }
    size_t cut = how & 16 ? all.len / 3 + 1 : all.len;
    for (size_t at = 0; at < all.len; at += cut)
        fuzz_serve_send(fd, all.data + at, PN_MIN(cut, all.len - at));
    pn_str_fini(&all);
    fuzz_serve_until_still(fd, early ? (int)(size % 8) : FUZZ_SERVE_PATIENCE);
    fuzz_serve_judge(!early);
    fuzz_serve_leave(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char first[] = "{\"prompt\":\"a\",\"max_tokens\":2,\"grammar\":\"root ::= [a-z]+\"}";   /* what grammars need of the vocabulary stays */
    static unsigned n;
    if (!fuzz_serve.s) {
        fuzz_serve_open();
        fuzz_serve_body(1, (const uint8_t *)first, sizeof first - 1);
    }
    if (!size)
        return 0;
    if (data[0] & 128)
        fuzz_serve_raw(data + 1, size - 1);
    else
        fuzz_serve_body(data[0], data + 1, size - 1);
    if (n++ % 64 == 0)
        fuzz_serve_alive();
    return 0;
}

/* ------------------------------------------------------------------------------------------
 * Valid JSON of a wrong shape
 * ------------------------------------------------------------------------------------------ */

#ifdef PN_LIBFUZZER
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

static const char *const fuzz_serve_values[] = {
    "null", "true", "false", "0", "-1", "1", "2", "0.5", "1e999", "9007199254740993", "-0", "\"\"", "\"x\"", "\"\\u0000\"", "\"\\ud800\"", "[]", "{}",
    "[[]]", "[null]", "[{}]", "{\"\":{}}", "\"m\"", "\"auto\"", "\"required\"", "\"none\"", "\"user\"", "\"assistant\"", "\"tool\"", "\"system\"",
    "{\"type\":\"json_object\"}", "{\"type\":\"text\",\"text\":\"a\"}", "[{\"role\":\"user\",\"content\":\"Hi\"}]", "[1,2,3]", "[[1],\"a\"]",
    "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}}}",
    "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\",\"schema\":{\"type\":\"array\",\"items\":{\"enum\":[1,\"a\",null]}}}}",
    "{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}", "{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":\"a\"}",
    "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}", "[{\"id\":null,\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]",
};

static const char *const fuzz_serve_keys[] = {
    "model", "messages", "prompt", "input", "max_tokens", "max_completion_tokens", "max_output_tokens", "stream", "stream_options", "include_usage", "n",
    "stop", "seed", "temperature", "top_p", "top_k", "min_p", "logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty",
    "response_format", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "reasoning", "grammar", "echo", "suffix", "best_of", "content",
    "role", "tool_calls", "tool_call_id", "name", "reasoning_content", "type", "text", "json_schema", "schema", "function", "parameters", "strict",
    "encoding_format", "dimensions", "pooling", "add_special", "with_pieces", "tokens", "system", "thinking", "stop_sequences", "metadata", "instructions",
    "previous_response_id", "ignore_eos", "chat_template_kwargs", "add_generation_prompt", "session_id", "path", "wait", "dies", "ctx_cap",
};

typedef struct fuzz_serve_span { size_t at, n; } fuzz_serve_span;

/* The end of the value that begins at `at`, roughly: strings and brackets are respected. */
static size_t fuzz_serve_value_end(const char *t, size_t n, size_t at)
{
    int depth = 0;
    for (bool text = false; at < n; at++) {
        char c = t[at];
        if (text) {
            at += c == '\\';
            text = c != '"';
            if (!text && !depth)
                return PN_MIN(at + 1, n);
            continue;
        }
        if (c == '"')
            text = true;
        else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth <= 0)
            return depth < 0 ? at : at + 1;
        else if (c == ',' && !depth)
            return at;
    }
    return n;
}

/* A value of the text: what follows a random ':', '[' or ','. */
static fuzz_serve_span fuzz_serve_pick(const char *t, size_t n, uint64_t *seed)
{
    size_t from = n ? (size_t)(pn_test_rand(seed) % n) : 0;
    for (size_t i = 0; i < n; i++) {
        size_t at = (from + i) % n;
        if ((t[at] == ':' || t[at] == '[') && at + 1 < n)
            return (fuzz_serve_span){at + 1, fuzz_serve_value_end(t, n, at + 1) - at - 1};
    }
    return (fuzz_serve_span){0, n};
}

static size_t fuzz_serve_splice(char *t, size_t n, size_t max, fuzz_serve_span where, const char *with, size_t len)
{
    char copy[4096];
    if (len > sizeof copy || n - where.n + len > max)
        return n;
    memcpy(copy, with, len);            /* it may be a part of t */
    memmove(t + where.at + len, t + where.at + where.n, n - where.at - where.n);
    memcpy(t + where.at, copy, len);
    return n - where.n + len;
}

static size_t fuzz_serve_reshape(char *t, size_t n, size_t max, uint64_t *seed)
{
    fuzz_serve_span to = fuzz_serve_pick(t, n, seed), from = fuzz_serve_pick(t, n, seed);
    const char *value = fuzz_serve_values[pn_test_rand(seed) % PN_COUNT_OF(fuzz_serve_values)];
    char member[600];
    switch (pn_test_rand(seed) % 4) {
    case 0: return fuzz_serve_splice(t, n, max, to, t + from.at, from.n);
    case 1: return fuzz_serve_splice(t, n, max, to, value, strlen(value));
    default: break;
    }
    size_t start = n ? (size_t)(pn_test_rand(seed) % n) : 0;
    for (size_t i = 0; i < n; i++) {
        size_t at = (start + i) % n;
        if (t[at] != '{')
            continue;
        bool empty = at + 1 < n && t[at + 1] == '}';
        snprintf(member, sizeof member, "\"%s\":%s%s", fuzz_serve_keys[pn_test_rand(seed) % PN_COUNT_OF(fuzz_serve_keys)], value, empty ? "" : ",");
        return fuzz_serve_splice(t, n, max, (fuzz_serve_span){at + 1, 0}, member, strlen(member));
    }
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    uint64_t s = seed | (uint64_t)1 << 40;
    if (size < 3 || data[0] & 128 || pn_test_rand(&s) % 3 == 0)
        return LLVMFuzzerMutate(data, size, max);
    if (pn_test_rand(&s) % 8 == 0)
        data[0] = (uint8_t)(pn_test_rand(&s) & 127);
    for (unsigned i = (unsigned)(pn_test_rand(&s) % 3); ; i--) {
        size = 1 + fuzz_serve_reshape((char *)data + 1, size - 1, max - 1, &s);
        if (!i)
            return size;
    }
}
#endif
