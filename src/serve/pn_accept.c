/* SPDX-License-Identifier: AGPL-3.0-only */
#include "serve/pn_accept.h"

/* "q=0.8" in thousandths; 1000 for what is no weight. */
static int accept_weight(pn_bytes text)
{
    int v = 0, digits = 0;
    if (text.len < 3 || (text.data[0] | 32) != 'q' || text.data[1] != '=' || (text.data[2] != '0' && text.data[2] != '1'))
        return 1000;
    for (size_t i = 4; i < text.len && digits < 3 && text.data[i] >= '0' && text.data[i] <= '9'; i++, digits++)
        v = v * 10 + (text.data[i] - '0');
    while (digits++ < 3)
        v *= 10;
    return text.data[2] == '1' ? 1000 : v;
}

/* Up to the next ';', trimmed; *rest is what follows it. */
static pn_bytes accept_part(pn_bytes *rest)
{
    const char *semi = rest->len ? memchr(rest->data, ';', rest->len) : NULL;
    size_t n = semi ? (size_t)(semi - rest->data) : rest->len;
    pn_bytes part = {rest->data, n};
    *rest = semi ? (pn_bytes){semi + 1, rest->len - n - 1} : (pn_bytes){rest->data + n, 0};
    while (part.len && (part.data[0] == ' ' || part.data[0] == '\t'))
        part = (pn_bytes){part.data + 1, part.len - 1};
    while (part.len && (part.data[part.len - 1] == ' ' || part.data[part.len - 1] == '\t'))
        part.len--;
    return part;
}

static int accept_range_weight(pn_bytes rest)
{
    while (rest.len) {
        pn_bytes p = accept_part(&rest);
        if (p.len > 1 && (p.data[0] | 32) == 'q' && p.data[1] == '=')
            return accept_weight(p);
    }
    return 1000;
}

PN_INTERNAL bool pn_accept_html(const pn_http_request *r)
{
    int html = 0, json = -1, any = 0;           /* json -1: not named */
    for (uint32_t i = pn_http_find(r, "accept", 0); i < r->n_fields; i = pn_http_find(r, "accept", i + 1)) {
        pn_bytes range;
        for (size_t at = 0; pn_http_list(pn_http_field_value(r, i), &at, &range);) {
            pn_bytes type = accept_part(&range);
            int q = accept_range_weight(range);
            if (pn_http_is(type, "text/html"))
                html = q;
            else if (pn_http_is(type, "application/json"))
                json = q;
            else if (pn_http_is(type, "*/*") || pn_http_is(type, "application/*"))
                any = PN_MAX(any, q);
        }
    }
    return html > 0 && (json < 0 ? html >= any : html > json);
}
