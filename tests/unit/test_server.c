/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_server.c - the server in a program's own loop: one thread, real sockets on loopback, the demo model.
 *
 * With inline_work nothing happens but in pn_server_poll, so what memory fails, who aborts when and what is under
 * way at the end can be chosen exactly.
 */
#include "base/pn_os.h"
#include "pn_test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *model_path = "models/demo.gguf";

/* --- an allocator that fails --------------------------------------------------------------------- */

static struct { atomic_long calls, fail_at, out; } heap;      /* the server's threads allocate, too */

static void *heap_alloc(void *user, size_t size, size_t align)
{
    void *p = NULL;
    (void)user;
    if (++heap.calls == heap.fail_at || posix_memalign(&p, align < sizeof p ? sizeof p : align, size ? size : 1) != 0)
        return NULL;
    heap.out++;
    return p;
}

static void heap_free(void *user, void *p, size_t size)
{
    (void)user;
    (void)size;
    heap.out--;
    free(p);
}

/* --- a server and its clients --------------------------------------------------------------------- */

typedef struct host {
    pn_engine *e;
    pn_server *s;
    int port;
    pn_err err;
} host;

static pn_status host_open(host *h, const pn_server_params *params, const pn_server_model *model)
{
    const pn_engine_params ep = {.allocator = {heap_alloc, heap_free, NULL}, .n_threads = 1};
    char bound[64] = "";
    memset(h, 0, sizeof *h);
    pn_status st = pn_engine_open(&h->e, &ep, &h->err);
    if (!st)
        st = pn_server_new(h->e, params, &h->s, &h->err);
    if (!st)
        st = pn_server_listen(h->s, "127.0.0.1:0", bound, sizeof bound, &h->err);
    if (!st)
        st = pn_server_load(h->s, model, &h->err);
    for (int i = 0; !st && i < 10000 && (st = pn_server_ready(h->s, &h->err)) == PN_E_STATE; i++)
        st = pn_server_poll(h->s, 1, &h->err);
    h->port = st ? 0 : atoi(strrchr(bound, ':') + 1);
    return st;
}

static void host_close(host *h)
{
    pn_server_free(h->s);
    pn_engine_close(h->e);
}

static int client_open(const host *h)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)h->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        PN_CHECK(0, "cannot connect");
        return -1;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void client_send(int fd, const char *method, const char *path, const char *fields, const char *body)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", method, path, fields, strlen(body), body);
    PN_CHECK(send(fd, text, (size_t)n, MSG_NOSIGNAL) == n, "the request did not go out");
}

/* Poll until the server has closed the connection or `until` has come; the text, or NULL at the end of patience. */
static const char *client_read(host *h, int fd, const char *until)
{
    static char got[4 << 20];
    size_t n = 0;
    for (int i = 0; i < 20000; i++) {           /* a millisecond at most, when nothing is due */
        pn_server_poll(h->s, 1, &h->err);
        ssize_t k = recv(fd, got + n, sizeof got - 1 - n, 0);
        n += k > 0 ? (size_t)k : 0;
        got[n] = 0;
        if (k == 0 || (until && strstr(got, until)))
            return got;
    }
    return NULL;
}

static const char *ask(host *h, const char *method, const char *path, const char *fields, const char *body)
{
    char all[512];
    int fd = client_open(h);
    snprintf(all, sizeof all, "Connection: close\r\n%s", fields);
    client_send(fd, method, path, all, body);
    const char *got = client_read(h, fd, NULL);
    close(fd);
    return got ? got : "(nothing came)";
}

static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story\"}],\"max_tokens\":12,\"temperature\":0}";
static const char chat_stream[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story\"}],\"max_tokens\":400,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}";

static bool has(const char *text, const char *what) { return strstr(text, what) != NULL; }

/* ------------------------------------------------------------------------------------------
 * What must hold
 * ------------------------------------------------------------------------------------------ */

static void own_route(void *user, const pn_server_request *q, pn_server_response *r)
{
    static char text[200];
    const char *field = pn_server_field(q, "x-test");
    ++*(int *)user;
    snprintf(text, sizeof text, "%s %s ?%s %.*s %s", q->method, q->path, q->query, (int)q->body_len, q->body, field ? field : "-");
    r->status = 201;
    r->content_type = "text/plain";
    r->body = text;
    r->body_len = strlen(text);
}

static void test_a_program_drives_the_server_itself(void)
{
    host h;
    int calls = 0;
    const pn_server_params p = {.inline_work = 1, .api_keys = "secret\n"};
    const pn_server_model m = {.path = model_path};
    const char key[] = "Authorization: Bearer secret\r\n";
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    PN_CHECK(pn_server_fd(h.s) >= 0 && pn_server_running(h.s), "it runs, and can be waited for");
    PN_CHECK(pn_server_handle(h.s, "POST", "/mine", 0, own_route, &calls, &h.err) == PN_OK, "%s", h.err.text);
    PN_CHECK(pn_server_handle(h.s, "GET", "/open", 1, own_route, &calls, &h.err) == PN_OK, "%s", h.err.text);
    PN_CHECK(pn_server_handle(h.s, "BREW", "/pot", 1, own_route, &calls, &h.err) == PN_E_INVALID, "a method nobody knows");
    PN_CHECK(has(ask(&h, "POST", "/mine?a=b", "X-Test: yes\r\n", "text"), " 401 ") && calls == 0, "keys count for own routes");
    char with[200];
    snprintf(with, sizeof with, "X-Test: yes\r\n%s", key);
    PN_CHECK(has(ask(&h, "POST", "/mine?a=b", with, "text"), "POST /mine ?a=b text yes") && calls == 1, "method, path, query, body, field");
    PN_CHECK(has(ask(&h, "GET", "/open", "", ""), " 201 ") && calls == 2, "open to all");
    PN_CHECK(has(ask(&h, "GET", "/v1/models", "", ""), " 401 "), "ours need the key, too");
    PN_CHECK(has(ask(&h, "GET", "/health", "", ""), " 200 "), "but health does not");
    PN_CHECK(has(ask(&h, "GET", "/admin/models", "Origin: http://page.example\r\n", ""), " 403 "), "a page administers nothing");
    const char *got = ask(&h, "POST", "/v1/chat/completions", key, chat);
    PN_CHECK(has(got, " 200 ") && has(got, "\"completion_tokens\":12"), "%.300s", got);
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

static void test_aborted_requests_leave_nothing(void)
{
    host h;
    pn_mem_info before, after;
    const pn_server_params p = {.inline_work = 1};
    const pn_server_model m = {.path = model_path, .max_concurrent = 2};
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    ask(&h, "POST", "/v1/chat/completions", "", chat);
    pn_engine_memory(h.e, &before);
    for (int i = 0; i < 300; i++) {
        int fd = client_open(&h);
        client_send(fd, "POST", "/v1/chat/completions", "", i % 3 ? chat_stream : chat);
        for (int k = 0; k < i % 7; k++)
            pn_server_poll(h.s, 0, &h.err);
        close(fd);
    }
    for (int i = 0; i < 2000 && !has(ask(&h, "GET", "/admin/models", "", ""), "\"running\":0,\"queued\":0"); i++)
        pn_server_poll(h.s, 0, &h.err);
    for (int i = 0; i < 10; i++)
        pn_server_poll(h.s, 0, &h.err);
    pn_engine_memory(h.e, &after);
    PN_CHECK(after.used[PN_ACCT_CONN] <= before.used[PN_ACCT_CONN] + 64, "%" PRIu64 " bytes of connections, before %" PRIu64, after.used[PN_ACCT_CONN],
             before.used[PN_ACCT_CONN]);
    PN_CHECK(after.used[PN_ACCT_KV] == before.used[PN_ACCT_KV], "%" PRIu64 " bytes of KV", after.used[PN_ACCT_KV]);
    PN_CHECK(has(ask(&h, "POST", "/v1/chat/completions", "", chat), " 200 "), "and it still answers");
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

static void test_a_full_queue_says_when_to_come_back(void)
{
    host h;
    const pn_server_params p = {.inline_work = 1, .queue = 1};
    const pn_server_model m = {.path = model_path, .max_concurrent = 1};
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    int running = client_open(&h), waiting = client_open(&h);
    client_send(running, "POST", "/v1/chat/completions", "", chat_stream);
    PN_CHECK(client_read(&h, running, "\"content\":\"") != NULL, "the first one runs");
    client_send(waiting, "POST", "/v1/chat/completions", "", chat);
    for (int i = 0; i < 1000 && !has(ask(&h, "GET", "/admin/models", "", ""), "\"queued\":1"); i++)
        continue;
    const char *got = ask(&h, "POST", "/v1/chat/completions", "", chat);
    PN_CHECK(has(got, " 429 ") && has(got, "Retry-After: ") && has(got, "queue_full"), "%.300s", got);
    close(running);
    got = client_read(&h, waiting, "\"usage\"");
    PN_CHECK(got && has(got, " 200 "), "who waited has the place now");
    close(waiting);
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

/* Who does not read is not computed for, and others are. */
static void test_a_stalled_reader_stalls_nobody(void)
{
    host h;
    int small = 1 << 16;
    pn_mem_info info;
    const pn_server_params p = {.inline_work = 1};
    const pn_server_model m = {.path = model_path};
    static const char endless[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story\"}],\"max_tokens\":1900,\"ignore_eos\":true,\"stream\":true,"
                                  "\"logprobs\":true,\"top_logprobs\":20}";
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    int fd = client_open(&h);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    client_send(fd, "POST", "/v1/chat/completions", "", endless);
    for (int i = 0; i < 3000; i++)
        pn_server_poll(h.s, 0, &h.err);
    pn_engine_memory(h.e, &info);
    PN_CHECK(info.used[PN_ACCT_CONN] < 4u << 20, "%" PRIu64 " bytes wait for somebody who does not read", info.used[PN_ACCT_CONN]);
    PN_CHECK(has(ask(&h, "POST", "/v1/chat/completions", "", chat), "\"completion_tokens\":12"), "others have their answer");
    PN_CHECK(has(ask(&h, "GET", "/admin/models", "", ""), "\"running\":1"), "the stalled one is still there");
    size_t n = 0;
    char buf[65536], tail[16] = "";
    /* The longer nothing was read, the later the system asks whether there is room again. */
    for (double end = pn_os_now() + 240; pn_os_now() < end && !has(tail, "[DONE]");) {
        pn_server_poll(h.s, 0, &h.err);
        ssize_t k = recv(fd, buf, sizeof buf - 1, 0);
        if (k <= 0)
            continue;
        n += (size_t)k;
        buf[k] = 0;
        if (strstr(buf, "[DONE]"))
            snprintf(tail, sizeof tail, "[DONE]");
    }
    PN_CHECK(has(tail, "[DONE]"), "and when it reads on it gets all of it (%zu bytes)", n);
    close(fd);
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

static void test_a_stop_finishes_what_is_under_way(void)
{
    host h;
    const pn_server_params p = {.inline_work = 1};
    const pn_server_model m = {.path = model_path};
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    int fd = client_open(&h);
    client_send(fd, "POST", "/v1/chat/completions", "Connection: close\r\n", chat_stream);
    PN_CHECK(client_read(&h, fd, "\"content\":\"") != NULL, "it runs");
    pn_server_stop(h.s);
    const char *got = client_read(&h, fd, NULL);
    PN_CHECK(got && has(got, "[DONE]"), "the answer comes to its end");
    close(fd);
    for (int i = 0; i < 100 && pn_server_running(h.s); i++)
        pn_server_poll(h.s, 1, &h.err);
    PN_CHECK(!pn_server_running(h.s) && pn_server_poll(h.s, 0, &h.err) == PN_E_STATE, "then it has stopped");
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

static void test_a_stop_with_idle_connections_alone_is_done_at_once(void)
{
    host h;
    const pn_server_params p = {.inline_work = 1};
    const pn_server_model m = {.path = model_path};
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    int fd = client_open(&h);
    client_send(fd, "GET", "/health", "", "");
    PN_CHECK(client_read(&h, fd, "{\"status\":\"ok\"}") != NULL, "it is idle");
    pn_server_stop(h.s);
    pn_server_poll(h.s, 0, &h.err);
    PN_CHECK(!pn_server_running(h.s), "another turn would wait for nobody, as long as draining may take");
    close(fd);
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

/* The answer to the first load frees its model when the second is looked at: not while others are being told. */
static void test_loads_of_a_missing_file_in_one_go_are_all_answered(void)
{
    host h;
    static const char body[] = "{\"name\":\"n\",\"path\":\"none.gguf\"}";
    const pn_server_params p = {.inline_work = 1};
    const pn_server_model m = {.path = model_path};
    char text[1000];
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    int n = 0, fd = client_open(&h);
    for (int i = 0; i < 3; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "POST /admin/models/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n%s\r\n%s", strlen(body),
                      i < 2 ? "" : "Connection: close\r\n", body);
    PN_CHECK(send(fd, text, (size_t)n, MSG_NOSIGNAL) == n, "the requests did not go out");
    const char *got = client_read(&h, fd, NULL);
    n = 0;
    for (const char *at = got; at && (at = strstr(at, "HTTP/1.1 400 ")) != NULL; at++)
        n++;
    PN_CHECK(n == 3, "%d answers: %.300s", n, got ? got : "-");
    close(fd);
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

static void test_a_second_stop_ends_at_once(void)
{
    host h;
    const pn_server_params p = {.inline_work = 1};
    const pn_server_model m = {.path = model_path};
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    int fd = client_open(&h);
    client_send(fd, "POST", "/v1/chat/completions", "", chat_stream);
    PN_CHECK(client_read(&h, fd, "\"content\":\"") != NULL, "it runs");
    pn_server_stop(h.s);
    pn_server_stop(h.s);
    const char *got = client_read(&h, fd, NULL);
    PN_CHECK(got && has(got, "\"error\"") && !has(got, "[DONE]"), "its stream ends with an error");
    close(fd);
    for (int i = 0; i < 100 && pn_server_running(h.s); i++)
        pn_server_poll(h.s, 1, &h.err);
    PN_CHECK(!pn_server_running(h.s), "and it has stopped");
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

static void test_freeing_a_busy_server_leaves_nothing(void)
{
    for (int threads = 0; threads < 2; threads++)
        for (int polls = 0; polls < 12; polls++) {
            host h;
            const pn_server_params p = {.inline_work = !threads};
            const pn_server_model m = {.path = model_path, .max_concurrent = 2};
            PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
            int fd[4];
            for (int i = 0; i < 4; i++) {
                fd[i] = client_open(&h);
                client_send(fd[i], "POST", "/v1/chat/completions", "", chat_stream);
            }
            for (int i = 0; i < polls; i++)
                pn_server_poll(h.s, 0, &h.err);
            host_close(&h);
            for (int i = 0; i < 4; i++)
                close(fd[i]);
            PN_CHECK(heap.out == 0, "%ld blocks are left after %d polls", heap.out, polls);
        }
}

/* The text between two marks of the body, from the n-th `open` on. */
static const char *between(const char *text, const char *open, int n, char *out, size_t cap)
{
    const char *p = text;
    for (int i = 0; p && i <= n; i++)
        p = (p = strstr(p, open)) ? p + strlen(open) : NULL;
    size_t len = p ? strcspn(p, "\"") : 0;
    snprintf(out, cap, "%.*s", (int)len, p ? p : "");
    return out;
}

static void test_choices_are_what_they_would_be_alone(void)
{
    host h;
    char body[1200], three[4][300], one[300], words[600] = "";
    const pn_server_params p = {.inline_work = 1};
    const pn_server_model m = {.path = model_path};
    static const char form[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"%sTell me a story\"}],\"max_tokens\":24,\"seed\":%d,\"n\":%d}";
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    for (int i = 0; i < 40; i++)
        strcat(words, "the fox ");
    snprintf(body, sizeof body, form, words, 7, 3);
    const char *got = ask(&h, "POST", "/v1/chat/completions", "", body);
    for (int i = 0; i < 3; i++)
        between(got, "\"content\":\"", i, three[i], sizeof three[i]);
    PN_CHECK(*three[0] && strcmp(three[0], three[1]) != 0, "three answers: %.500s", got);
    for (int i = 0; i < 3; i++) {
        snprintf(body, sizeof body, form, words, 7 + i, 1);
        got = ask(&h, "POST", "/v1/chat/completions", "", body);
        PN_CHECK(strcmp(three[i], between(got, "\"content\":\"", 0, one, sizeof one)) == 0, "choice %d: '%s', alone '%s'", i, three[i], one);
        PN_CHECK(!has(got, "\"cached_tokens\":0"), "and its prompt was known");
    }
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

static void test_a_scored_prompt_is_as_likely_as_when_it_was_made(void)
{
    host h;
    char made[2000], scored[2000];
    const pn_server_params p = {.inline_work = 1};
    const pn_server_model m = {.path = model_path};
    PN_CHECK(host_open(&h, &p, &m) == PN_OK, "%s", h.err.text);
    const char *got = ask(&h, "POST", "/v1/completions", "", "{\"prompt\":\"Once upon a time\",\"max_tokens\":4,\"temperature\":0,\"logprobs\":1}");
    const char *at = strstr(got, "\"token_logprobs\":[");
    snprintf(made, sizeof made, "%.*s", at ? (int)strcspn(at + 18, "]") : 0, at ? at + 18 : "");
    char text[300], body[600];
    snprintf(body, sizeof body, "{\"prompt\":\"Once upon a time%s\",\"max_tokens\":0,\"echo\":true,\"logprobs\":1}", between(got, "\"text\":\"", 0, text, sizeof text));
    got = ask(&h, "POST", "/v1/completions", "", body);
    at = strstr(got, "\"token_logprobs\":[null,");
    snprintf(scored, sizeof scored, "%.*s", at ? (int)strcspn(at, "]") : 0, at ? at : "");
    PN_CHECK(made[0] && scored[0] && has(scored, made), "made %s, scored %s", made, scored);
    host_close(&h);
    PN_CHECK(heap.out == 0, "%ld blocks are left", heap.out);
}

/* Opening, loading, an answer, a stream, an error: each allocation fails once.  What comes is an answer, an error
 * or the end of the connection; never a wrong answer, and nothing is left. */
static void test_every_allocation_may_fail(void)
{
    long fail_at = 1, n_refused = 0;
    bool fired = true;
    for (; fired && fail_at < 20000; fail_at += 1 + fail_at / 40) {
        host h;
        const pn_server_params p = {.inline_work = 1};
        const pn_server_model m = {.path = model_path};
        heap.calls = 0;
        heap.fail_at = fail_at;
        if (host_open(&h, &p, &m) == PN_OK) {
            const char *got = ask(&h, "POST", "/v1/chat/completions", "", chat);
            bool answered = has(got, " 200 ");
            PN_CHECK(answered ? has(got, "\"completion_tokens\":12") : !*got || has(got, " 503 ") || has(got, " 429 ") || has(got, " 400 ") || has(got, " 500 "),
                     "allocation %ld: %.200s", fail_at, got);
            got = ask(&h, "POST", "/v1/chat/completions", "", "{\"max_tokens\":3,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}");
            PN_CHECK(!has(got, "finish_reason\":\"") || has(got, "[DONE]"), "allocation %ld: %.200s", fail_at, got);
            ask(&h, "GET", "/metrics", "", "");
            heap.fail_at = 0;
            got = ask(&h, "POST", "/v1/chat/completions", "", chat);
            PN_CHECK(has(got, "\"completion_tokens\":12"), "allocation %ld, afterwards: %.200s", fail_at, got);
        } else {
            n_refused++;
        }
        fired = heap.calls >= fail_at;
        heap.fail_at = 0;
        host_close(&h);
        PN_CHECK(heap.out == 0, "allocation %ld: %ld blocks are left", fail_at, heap.out);
    }
    PN_CHECK(n_refused > 10 && fail_at > 100, "the loop went somewhere: %ld, %ld", fail_at, n_refused);
}

int main(void)
{
    test_a_program_drives_the_server_itself();
    test_aborted_requests_leave_nothing();
    test_a_full_queue_says_when_to_come_back();
    test_a_stalled_reader_stalls_nobody();
    test_a_stop_finishes_what_is_under_way();
    test_a_stop_with_idle_connections_alone_is_done_at_once();
    test_loads_of_a_missing_file_in_one_go_are_all_answered();
    test_a_second_stop_ends_at_once();
    test_freeing_a_busy_server_leaves_nothing();
    test_choices_are_what_they_would_be_alone();
    test_a_scored_prompt_is_as_likely_as_when_it_was_made();
    test_every_allocation_may_fail();
    return pn_test_end();
}
