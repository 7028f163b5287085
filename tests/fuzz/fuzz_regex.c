/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_regex.c - a byte of flags, a pattern, a NUL, then a text to match.  A pattern and its
 * complement must split the texts between them.
 */
#include "pn_fuzz.h"

#include "sample/pn_gram_impl.h"

static void fuzz_regex_split(pn_gir *b, pn_gnode node, unsigned flags, const char *text, size_t n)
{
    pn_gram *g = NULL, *h = NULL;
    pn_gnode any = flags & PN_REGEX_JSON ? pn_gir_json_body(b, 0, PN_GIR_MANY)
                                         : pn_gir_repeat(b, pn_gir_class(b, NULL, 0, true), 0, PN_GIR_MANY);
    pn_gnode other = pn_gir_and_not(b, any, node);
    bool never = pn_gir_is_never(b, node), other_never = pn_gir_is_never(b, other);
    int all = -1, in = 0, out = 0;
    if (pn_gir_ok(b) && pn_gir_finish(b, any, &g, NULL) == PN_OK)
        all = pn_gram_matches(g, text, n, NULL);
    pn_gram_release(g);
    g = NULL;
    if (!pn_gir_ok(b))
        return;
    if (!never)
        in = pn_gir_finish(b, node, &g, NULL) == PN_OK ? pn_gram_matches(g, text, n, NULL) : -1;
    if (!other_never)
        out = pn_gir_finish(b, other, &h, NULL) == PN_OK ? pn_gram_matches(h, text, n, NULL) : -1;
    if (all >= 0 && in >= 0 && out >= 0 && in + out != all)
        abort();
    pn_gram_release(g);
    pn_gram_release(h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const pn_gram_limits limits = {.compile_steps = 400000, .dfa_states = 2000, .configs = 300, .cache_bytes = 4 << 20};
    pn_mem mem;
    pn_gir *b = NULL;
    pn_gnode node = PN_GNODE_NONE;
    pn_err err;
    if (size < 1)
        return 0;
    const char *pattern = (const char *)data + 1, *text = memchr(pattern, 0, size - 1);
    size_t len = text ? (size_t)(text - pattern) : size - 1, n = text ? size - len - 2 : 0;
    pn_mem_init_libc(&mem);
    if (pn_gir_new(&b, &mem, &limits, NULL))
        abort();
    if (pn_gir_regex(b, pattern, len, data[0] & 3, &node, &err) == PN_OK)
        fuzz_regex_split(b, node, data[0] & 3, text ? text + 1 : "", n);
    pn_gir_free(b);
    return 0;
}
