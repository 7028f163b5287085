/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_json.c - any bytes as JSON text.  What is read must be found again by its own keys, and what
 * is written must read back as the same text.
 */
#include "pn_fuzz.h"

#include "base/pn_json.h"

/* Every member by its key, every number, the neighbours of every node. */
static void fuzz_json_walk(const pn_json_doc *d)
{
    for (uint32_t n = 0; n < d->n_nodes; n++) {
        uint32_t seen = 0;
        double f;
        int64_t i;
        pn_bytes b;
        for (uint32_t c = pn_json_first(d, n); c != PN_JSON_NONE; c = pn_json_next(d, c), seen++) {
            pn_bytes key = pn_json_key_of(d, c);
            if (key.data && pn_json_find(d, n, key.data, key.len) != c)
                abort();
        }
        if (seen != pn_json_count(d, n))
            abort();
        if (pn_json_i64(d, n, &i) && !pn_json_f64(d, n, &f))
            abort();
        if (pn_json_str(d, n, &b) && b.data[b.len] != 0)
            abort();
    }
}

static void fuzz_json_again(pn_mem *mem, const pn_json_doc *d)
{
    pn_str first, second;
    pn_json_doc e;
    pn_str_init(&first, mem, PN_ACCT_MISC);
    pn_str_init(&second, mem, PN_ACCT_MISC);
    pn_json_write_node(&first, d, PN_JSON_ROOT);
    if (pn_json_parse(&e, mem, PN_ACCT_MISC, first.data, first.len, &(pn_json_params){.unique_keys = true}, NULL))
        abort();
    pn_json_write_node(&second, &e, PN_JSON_ROOT);
    if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0)
        abort();
    pn_json_fini(&e);
    pn_str_fini(&first);
    pn_str_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const pn_json_params params[] = {
        {.max_depth = 0}, {.fix_surrogates = true}, {.unique_keys = true}, {.max_depth = 2, .max_nodes = 5},
    };
    pn_mem mem;
    pn_str s;
    pn_mem_init_libc(&mem);
    for (size_t i = 0; i < PN_COUNT_OF(params); i++) {
        pn_json_doc d;
        pn_err err;
        if (pn_json_parse(&d, &mem, PN_ACCT_MISC, (const char *)data, size, &params[i], &err) == PN_OK) {
            fuzz_json_walk(&d);
            fuzz_json_again(&mem, &d);
        }
        pn_json_fini(&d);
    }
    /* Any bytes can be written as a string, and that is JSON. */
    pn_str_init(&s, &mem, PN_ACCT_MISC);
    pn_json_write_str(&s, (const char *)data, size);
    pn_json_doc d;
    if (pn_json_parse(&d, &mem, PN_ACCT_MISC, s.data, s.len, NULL, NULL))
        abort();
    pn_json_fini(&d);
    pn_str_fini(&s);
    return 0;
}
