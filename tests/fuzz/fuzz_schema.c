/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_schema.c - any bytes as a JSON Schema, strict and lenient.  What compiles must write JSON:
 * a walk through the grammar, steered by the input's own bytes, never gets stuck, and where it
 * may end the text parses.
 */
#include "pn_fuzz.h"

#include "base/pn_json.h"
#include "sample/pn_schema.h"

enum { FUZZ_WALK = 200 };

static pn_gtrie *fuzz_schema_bytes(pn_mem *mem)
{
    static char one[256];
    pn_bytes pieces[257];
    const pn_token end = 256;
    pn_gtrie *t = NULL;
    for (int i = 0; i < 256; i++) {
        one[i] = (char)i;
        pieces[i].data = &one[i];
        pieces[i].len = 1;
    }
    pieces[256].data = "";
    pieces[256].len = 0;
    const pn_gtrie_source src = {pieces, 257, 257, NULL, &end, 1};
    if (pn_gtrie_new(&t, mem, &src, NULL) != PN_OK)
        abort();
    return t;
}

static int fuzz_schema_pick(const uint32_t bits[9], uint64_t *seed)
{
    static const char closing[] = "\"}]";
    const uint64_t r = pn_test_rand(seed) >> 16;
    for (int i = 0; closing[i] && r % 3 == 0; i++)
        if (bits[closing[i] / 32] >> (closing[i] & 31) & 1)
            return closing[i];
    for (int i = 0; i < 256; i++) {
        const int c = (int)((r / 3 + (unsigned)i) & 255);
        if (bits[c / 32] >> (c & 31) & 1)
            return c;
    }
    return -1;
}

static void fuzz_schema_walk(pn_mem *mem, pn_gram *g, const pn_gtrie *t, uint64_t seed)
{
    pn_matcher *m = NULL;
    char text[FUZZ_WALK];
    if (pn_matcher_new(&m, mem, g, t, NULL) != PN_OK)
        abort();
    for (size_t n = 0; n < FUZZ_WALK; n++) {
        uint32_t bits[9], allowed;
        pn_json_doc d;
        if (pn_matcher_mask(m, bits, &allowed, NULL) != PN_OK)
            break;                                      /* a limit */
        if (allowed == 0)
            abort();
        if (pn_matcher_is_complete(m)) {
            if (pn_json_parse(&d, mem, PN_ACCT_MISC, text, n, NULL, NULL) != PN_OK)
                abort();
            pn_json_fini(&d);
        }
        const int c = fuzz_schema_pick(bits, &seed);
        if (c < 0)
            break;                                      /* only the end is left */
        text[n] = (char)c;
        if (pn_matcher_accept_token(m, c, NULL) != PN_OK)
            break;
    }
    pn_matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_mem mem;
    pn_mem_init_libc(&mem);
    pn_gtrie *t = NULL;
    for (int lenient = 0; lenient < 2; lenient++) {
        const pn_schema_options o = {.compact = (size & 1) != 0, .lenient = lenient != 0};
        pn_gram *g = NULL;
        pn_err err;
        if (pn_schema_compile(&g, &mem, (const char *)data, size, &o, &err) != PN_OK) {
            if (err.text[0] == 0 || err.status == PN_E_INTERNAL)
                abort();
            continue;
        }
        t = t ? t : fuzz_schema_bytes(&mem);
        for (uint64_t seed = 1; seed <= 2; seed++)
            fuzz_schema_walk(&mem, g, t, seed + size);
        pn_gram_release(g);
    }
    pn_gtrie_free(t);
    return 0;
}
