/* SPDX-License-Identifier: AGPL-3.0-only */
/* Browsers get the page, programs get JSON; the page is what its source says. */
#include "pn_test.h"

#include "serve/pn_accept.h"
#include "serve/pn_page.h"

static pn_test_mem mem;

/* fields: complete lines, or "" */
static bool html(const char *fields)
{
    pn_http_parser p;
    char text[600];
    size_t used, at = 0;
    snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", fields);
    pn_http_init(&p, &mem.mem, NULL);
    size_t n = strlen(text);
    pn_feed f = pn_http_feed(&p, text, n, &used);
    at = used;
    PN_CHECK(f == PN_FEED_HEAD && pn_http_feed(&p, text + at, n - at, &used) == PN_FEED_REQUEST);
    bool yes = pn_accept_html(&p.req);
    pn_http_fini(&p);
    return yes;
}

static void browsers_get_the_page(void)
{
    PN_CHECK(html("Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8\r\n"));
    PN_CHECK(html("Accept: text/html\r\n"));
    PN_CHECK(html("ACCEPT: */*\r\naccept: TEXT/HTML\r\n"));
    PN_CHECK(html("Accept: text/html;level=1 ; q=0.7, application/json;q=0.699\r\n"));
    PN_CHECK(html("Accept: application/json;q=0, text/html;q=0.001\r\n"));
}

static void programs_get_json(void)
{
    PN_CHECK(!html(""));
    PN_CHECK(!html("Accept:\r\n"));
    PN_CHECK(!html("Accept: */*\r\n"));
    PN_CHECK(!html("Accept: text/*\r\n"));
    PN_CHECK(!html("Accept: application/json\r\n"));
    PN_CHECK(!html("Accept: application/json, text/html\r\n"));
    PN_CHECK(!html("Accept: text/html;q=0.5, */*\r\n"));
    PN_CHECK(!html("Accept: text/html;q=0\r\n"));
    PN_CHECK(!html("Accept: text/html;q=0.000, text/plain\r\n"));
    PN_CHECK(!html("Accept: text/htm, text/html5, \"text/html\r\n"));
    PN_CHECK(!html("Accept: ;;q=,;q=0.,text/html;q=0.\r\n"));
}

static void the_page_holds_nothing_from_elsewhere(void)
{
    size_t bytes = 0, nonces = 0;
    for (size_t i = 0; pn_page_line(i); i++) {
        const char *line = pn_page_line(i);
        bytes += strlen(line);
        nonces += strstr(line, PN_PAGE_NONCE) != NULL;
        PN_CHECK(line[strlen(line) - 1] == '\n');
        PN_CHECK(!strstr(line, "https://") && !strstr(line, "innerHTML") && !strstr(line, "outerHTML") && !strstr(line, "insertAdjacentHTML"), "%s", line);
        PN_CHECK(!strstr(line, "http://") || strstr(line, "xmlns='http://www.w3.org/2000/svg'"), "%s", line);
        PN_CHECK(!strstr(line, " style=\""), "the policy forbids it: %s", line);
    }
    PN_CHECK(nonces == 2, "%zu", nonces);
    PN_CHECK(bytes > 10000 && bytes < 40960, "%zu", bytes);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    browsers_get_the_page();
    programs_get_json();
    the_page_holds_nothing_from_elsewhere();
    PN_CHECK(mem.outstanding == 0);
    return pn_test_end();
}
