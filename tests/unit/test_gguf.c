/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_gguf.c - every rule of the GGUF container as a named case, from memory and from a callback.
 *
 * expect_fail() reads an image through both kinds of source and wants the same status, a piece of the message, the file's name in it,
 * and nothing left allocated.
 */
#include "gguf_image.h"

#include "base/pn_os.h"

static pn_status read_image(pn_gguf *g, pn_test_mem *mem, const img *m, bool callback, reader *r, pn_err *err)
{
    *r = (reader){.b = m->b, .n = m->n};
    pn_source src = {.size = m->n, .name = "some-file.gguf"};
    if (callback) {
        src.read = reader_read;
        src.user = r;
    } else {
        src.bytes = m->b;
    }
    return pn_gguf_read(g, &mem->mem, &src, err);
}

static void expect_fail(const char *what, img *m, pn_status status, const char *piece)
{
    for (int callback = 0; callback < 2; callback++) {
        pn_test_mem mem;
        pn_gguf g;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        img exact = {malloc(m->n ? m->n : 1), m->n, m->n};      /* so that sanitizers see one byte too many */
        if (m->n)
            memcpy(exact.b, m->b, m->n);
        pn_status st = read_image(&g, &mem, &exact, callback, &r, &err);
        PN_CHECK(st == status && err.status == status, "%s (callback %d): status %d, expected %d: %s", what,
                 callback, (int)st, (int)status, err.text);
        PN_CHECK(st == PN_OK || strstr(err.text, piece), "%s: no '%s' in: %s", what, piece, err.text);
        PN_CHECK(st == PN_OK || strncmp(err.text, "some-file.gguf: ", 16) == 0, "%s: %s", what, err.text);
        PN_CHECK(r.largest <= m->n || r.largest <= 65536, "%s: asked for %" PRIu64 " bytes", what, r.largest);
        pn_gguf_fini(&g);
        PN_CHECK(mem.outstanding == 0, "%s: %ld blocks left", what, mem.outstanding);
        free(exact.b);
    }
    free(m->b);
    m->b = NULL;
}

static void expect_ok(const char *what, img *m)
{
    for (int callback = 0; callback < 2; callback++) {
        pn_test_mem mem;
        pn_gguf g;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        pn_status st = read_image(&g, &mem, m, callback, &r, &err);
        PN_CHECK(st == PN_OK, "%s (callback %d): %s", what, callback, err.text);
        pn_gguf_fini(&g);
        PN_CHECK(mem.outstanding == 0, "%s: %ld blocks left", what, mem.outstanding);
    }
    free(m->b);
    m->b = NULL;
}

/* --- rules 1 to 3: header and counts --------------------------------------------------------------- */

static void header_is_checked(void)
{
    img m = {0};
    expect_fail("empty file", &m, PN_E_FORMAT, "at least 24 bytes, found 0");
    m = head(3, 0, 0);
    m.n = 23;
    expect_fail("23 bytes", &m, PN_E_FORMAT, "found 23");
    m = head(3, 0, 0);
    m.b[0] = 'X';
    expect_fail("magic", &m, PN_E_FORMAT, "expected 47 47 55 46 at offset 0, found 58 47 55 46");
    m = (img){0};
    put(&m, "version https://git-lfs.github.com/spec/v1\n", 43);
    expect_fail("lfs pointer", &m, PN_E_FORMAT, "Git LFS");
    m = (img){0};
    put(&m, "<!DOCTYPE html><html></html>", 28);
    expect_fail("web page", &m, PN_E_FORMAT, "download failed");
    m = head(0, 0, 0);
    expect_fail("version 0", &m, PN_E_FORMAT, "expected 2 or 3, found 0");
    m = head(1, 0, 0);
    expect_fail("version 1", &m, PN_E_UNSUPPORTED, "version 1 is obsolete");
    m = head(4, 0, 0);
    expect_fail("version 4", &m, PN_E_UNSUPPORTED, "found 4");
    m = head(0x03000000, 0, 0);
    expect_fail("big-endian", &m, PN_E_UNSUPPORTED, "big-endian");
    m = head(3, 0, 0);
    expect_ok("no keys, no tensors", &m);
    m = head(2, 0, 0);
    expect_ok("version 2", &m);
}

static void counts_are_checked_before_allocating(void)
{
    static const uint64_t many[] = {(uint64_t)1 << 60, UINT64_MAX, (uint64_t)1 << 63, (1u << 20) + 1};
    for (size_t i = 0; i < PN_COUNT_OF(many); i++) {
        img m = head(3, many[i], 0);
        zeros(&m, 40);
        expect_fail("tensors claimed", &m, PN_E_FORMAT, "tensors, at most 1048576");
        m = head(3, 0, many[i]);
        zeros(&m, 40);
        expect_fail("keys claimed", &m, PN_E_FORMAT, "keys, at most 1048576");
    }
    img m = head(3, 0, 100000);
    zeros(&m, 40);
    expect_fail("more keys than bytes", &m, PN_E_FORMAT, "100000 keys of at least 14 bytes, but has 40 bytes left");
    m = head(3, 100000, 0);
    zeros(&m, 40);
    expect_fail("more tensors than bytes", &m, PN_E_FORMAT, "100000 tensors of at least 25 bytes");
    m = head(3, 2, 0);
    tensor1(&m, "a", 8, 0, 0);
    expect_fail("second tensor absent", &m, PN_E_FORMAT, "2 tensors of at least 25 bytes");
}

/* --- rule 4: keys ---------------------------------------------------------------------------------- */

static void keys_are_checked(void)
{
    img m = head(3, 0, 1);
    kv32(&m, "", 4, 1);
    zeros(&m, 8);
    expect_fail("empty key", &m, PN_E_FORMAT, "key 0 at offset 24: expected a name of 1 to 65535 bytes, found length 0");
    m = head(3, 0, 1);
    put64(&m, 65536);
    zeros(&m, 70000);
    expect_fail("long key", &m, PN_E_FORMAT, "found length 65536");
    m = head(3, 0, 1);
    put64(&m, (uint64_t)1 << 63);
    zeros(&m, 20);
    expect_fail("key of 2^63", &m, PN_E_FORMAT, "found length 9223372036854775808");
    m = head(3, 0, 1);
    put64(&m, 3);
    put(&m, "a\0b", 3);
    put32(&m, 4);
    put32(&m, 1);
    expect_fail("NUL in key", &m, PN_E_FORMAT, "NUL");
    m = head(3, 0, 2);
    kv32(&m, "a.key", 4, 1);
    kv32(&m, "a.key", 4, 2);
    expect_fail("duplicate key", &m, PN_E_FORMAT, "duplicate key 'a.key' at offset 45");
    m = head(3, 0, 1);
    put64(&m, 60);
    zeros(&m, 16);
    expect_fail("key cut", &m, PN_E_FORMAT, "truncated");
    m = head(3, 0, 1);
    puts_(&m, "odd\x01\xffkey");
    put32(&m, 99);
    zeros(&m, 8);
    expect_fail("unprintable key in a message", &m, PN_E_FORMAT, "key 'odd??key'");
}

/* --- rule 5: values --------------------------------------------------------------------------------- */

static void values_are_checked(void)
{
    img m = head(3, 0, 1);
    kv32(&m, "a.key", 13, 1);
    expect_fail("value type 13", &m, PN_E_FORMAT, "key 'a.key' at offset 41: expected a value type of 0 to 12, found 13");
    m = head(3, 0, 1);
    puts_(&m, "flag");
    put32(&m, 7);
    put8(&m, 2);
    expect_fail("bool 2", &m, PN_E_FORMAT, "key 'flag' at offset 40: expected a boolean of 0 or 1, found 2");
    m = array(7, 4, 3);
    put8(&m, 255);
    expect_fail("bool array", &m, PN_E_FORMAT, "found 255");
    m = array(9, 1, 12);
    expect_fail("array of arrays", &m, PN_E_FORMAT, "arrays of arrays");
    m = array(13, 1, 12);
    expect_fail("array element type", &m, PN_E_FORMAT, "element type of 0 to 12, found 13");
    m = array(10, ((uint64_t)1 << 61) + 1, 8);
    expect_fail("count x size wraps", &m, PN_E_FORMAT, "at most 2^30 elements");
    m = array(10, (uint64_t)1 << 30, 8);
    expect_fail("array larger than the file", &m, PN_E_FORMAT, "truncated: value of 'an.array' at offset 56 needs 8589934592 bytes, the file has 8 left");
    m = array(8, (uint64_t)1 << 30, 8);
    expect_fail("strings larger than the file", &m, PN_E_FORMAT, "truncated: strings");
    m = array(8, (uint64_t)1 << 62, 8);
    expect_fail("string count wraps", &m, PN_E_FORMAT, "at most 2^30");
    m = array(8, 2, 0);
    puts_(&m, "ok");
    put64(&m, 100);
    expect_fail("second string cut", &m, PN_E_FORMAT, "truncated: string of 'an.array'");
    m = array(8, 1, 0);
    put64(&m, (1 << 20) + 1);
    zeros(&m, (1 << 20) + 1);
    expect_fail("token too long", &m, PN_E_FORMAT, "too long");
    m = head(3, 0, 1);
    puts_(&m, "text");
    put32(&m, 8);
    put64(&m, (uint64_t)1 << 63);
    zeros(&m, 20);
    expect_fail("string of 2^63", &m, PN_E_FORMAT, "found 9223372036854775808");
    m = head(3, 0, 1);
    puts_(&m, "text");
    put32(&m, 8);
    put64(&m, 1000);
    zeros(&m, 20);
    expect_fail("string cut", &m, PN_E_FORMAT, "truncated: string of 'text' at offset 48 needs 1000 bytes, the file has 20 left");
    m = array(8, 0, 0);
    expect_ok("empty array of strings", &m);
    m = array(8, 3, 24);
    expect_ok("empty strings", &m);
}

/* --- rule 6: alignment ------------------------------------------------------------------------------ */

static void alignment_is_checked(void)
{
    static const uint32_t bad[] = {0, 1, 4, 24, 33, 1u << 21, 1u << 31};
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        char text[64];
        img m = head(3, 0, 1);
        kv32(&m, "general.alignment", 4, bad[i]);
        snprintf(text, sizeof text, "found %" PRIu32, bad[i]);
        expect_fail("alignment", &m, PN_E_FORMAT, text);
    }
    img m = head(3, 0, 1);
    kv32(&m, "general.alignment", 5, 32);
    expect_fail("alignment as i32", &m, PN_E_FORMAT, "'general.alignment' at offset 53: expected type 4 (u32), found type 5");
    m = head(3, 0, 1);
    puts_(&m, "general.alignment");
    put32(&m, 10);
    put64(&m, 32);
    expect_fail("alignment as u64", &m, PN_E_FORMAT, "found type 10");
    m = head(3, 1, 1);
    kv32(&m, "general.alignment", 4, 64);
    tensor1(&m, "t", 8, 0, 32);
    data(&m, 64, 128);
    expect_fail("offset 32 with alignment 64", &m, PN_E_FORMAT, "tensor 't': data offset 32");
    for (uint32_t a = 8; a <= 4096; a *= 2) {
        m = head(3, 2, 1);
        kv32(&m, "general.alignment", 4, a);
        tensor1(&m, "t", 2, 0, 0);
        tensor1(&m, "u", 2, 0, a);
        data(&m, a, a + 8);
        expect_ok("alignment", &m);
    }
}

/* --- rules 7 and 8: tensors -------------------------------------------------------------------------- */

static img one(uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset, size_t bytes)
{
    img m = head(3, 1, 0);
    tensor(&m, "blk.0.w", n_dims, ne, type, offset);
    data(&m, 32, bytes);
    return m;
}

static void tensor_entries_are_checked(void)
{
    char name[70];
    memset(name, 'n', sizeof name);
    name[65] = 0;
    img m = head(3, 1, 0);
    tensor1(&m, name, 8, 0, 0);
    data(&m, 32, 32);
    expect_fail("name of 65", &m, PN_E_FORMAT, "tensor 0 at offset 24: expected a name of 1 to 64 bytes, found length 65");
    name[64] = 0;
    m = head(3, 1, 0);
    tensor1(&m, name, 8, 0, 0);
    data(&m, 32, 32);
    expect_ok("name of 64", &m);
    m = head(3, 1, 0);
    tensor1(&m, "", 8, 0, 0);
    data(&m, 32, 32);
    expect_fail("empty name", &m, PN_E_FORMAT, "found length 0");
    m = head(3, 1, 0);
    put64(&m, 3);
    put(&m, "t\0u", 3);
    zeros(&m, 64);
    expect_fail("NUL in name", &m, PN_E_FORMAT, "NUL");
    m = head(3, 2, 0);
    tensor1(&m, "same", 8, 0, 0);
    tensor1(&m, "same", 8, 0, 32);
    data(&m, 32, 64);
    expect_fail("duplicate tensor", &m, PN_E_FORMAT, "duplicate tensor 'same'");

    static const uint64_t zero[] = {0, 4, 1, 1}, zero2[] = {32, 0}, huge[] = {INT64_MAX, 2, 1, 1};
    static const uint64_t wrap[] = {32, ((uint64_t)1 << 42) + 1}, neg[] = {(uint64_t)1 << 63}, five[5] = {1, 1, 1, 1, 1};
    static const uint64_t odd[] = {31}, big[] = {(uint64_t)1 << 61, 2}, ok[] = {32, 2, 1, 1};
    m = one(4, zero, 0, 0, 64);
    expect_fail("dimension 0", &m, PN_E_FORMAT, "tensor 'blk.0.w': dimension 0 at offset 43: expected 1 to 2^63-1, found 0");
    m = one(2, zero2, 0, 0, 64);
    expect_fail("second dimension 0", &m, PN_E_FORMAT, "dimension 1");
    m = one(1, neg, 0, 0, 64);
    expect_fail("dimension 2^63", &m, PN_E_FORMAT, "found 9223372036854775808");
    m = one(4, huge, 24, 0, 64);
    expect_fail("I8 [2^63-1, 2]", &m, PN_E_FORMAT, "tensor 'blk.0.w': element count overflows");
    m = one(2, wrap, 2, 0, 64);
    expect_fail("[32, 2^42+1]", &m, PN_E_FORMAT, "tensor 'blk.0.w' needs 79164837199890 bytes");
    m = one(2, big, 0, 0, 64);
    expect_fail("bytes overflow", &m, PN_E_FORMAT, "size overflows");
    m = one(1, big, 28, 0, 64);
    expect_fail("row overflows", &m, PN_E_FORMAT, "size overflows");
    m = one(1, odd, 2, 0, 64);
    expect_fail("31 in Q4_0", &m, PN_E_FORMAT, "tensor 'blk.0.w': first dimension 31 is not a multiple of the block size 32 of Q4_0");
    m = one(5, five, 0, 0, 64);
    expect_fail("five dimensions", &m, PN_E_FORMAT, "at most 4 dimensions, found 5");
    static const uint32_t holes[] = {4, 5, 31, 32, 33, 36, 37, 38};
    for (size_t i = 0; i < PN_COUNT_OF(holes); i++) {
        m = one(2, ok, holes[i], 0, 256);
        expect_fail("removed type", &m, PN_E_UNSUPPORTED, "removed");
    }
    m = one(2, ok, 43, 0, 256);
    expect_fail("type 43", &m, PN_E_UNSUPPORTED, "type id 43");
    m = one(2, ok, UINT32_MAX, 0, 256);
    expect_fail("type 2^32-1", &m, PN_E_UNSUPPORTED, "unknown");
    m = one(0, ok, 0, 0, 4);
    expect_ok("scalar", &m);
    m = one(4, ok, 2, 0, 36);
    expect_ok("trailing ones", &m);
}

/* --- rules 9 and 10: where the data lie ---------------------------------------------------------------- */

static void data_placement_is_checked(void)
{
    static const uint64_t ne[] = {16};
    img m = one(1, ne, 0, 4, 128);
    expect_fail("unaligned offset", &m, PN_E_FORMAT, "tensor 'blk.0.w': data offset 4");
    m = one(1, ne, 0, 0, 32);
    expect_fail("data cut in half", &m, PN_E_FORMAT, "tensor 'blk.0.w' needs 64 bytes at data offset 0, the data section (from offset 64) has 32 bytes");
    m = one(1, ne, 0, 0, 63);
    expect_fail("last byte missing", &m, PN_E_FORMAT, "truncated");
    m = one(1, ne, 0, 0, 64);
    expect_ok("ends with the last byte", &m);
    m = one(1, ne, 0, (uint64_t)1 << 40, 64);
    expect_fail("offset outside", &m, PN_E_FORMAT, "data offset 1099511627776");
    m = one(1, ne, 0, UINT64_MAX - 31, 64);
    expect_fail("offset near 2^64", &m, PN_E_FORMAT, "truncated");
    m = head(3, 1, 0);
    tensor1(&m, "t", 1, 0, 0);
    expect_fail("no data section", &m, PN_E_FORMAT, "data section starts at offset 64, the file has 57");
    m = head(3, 2, 0);
    tensor1(&m, "first", 16, 0, 0);
    tensor1(&m, "second", 16, 0, 32);
    data(&m, 32, 128);
    expect_fail("overlap", &m, PN_E_FORMAT, "tensors overlap: 'first' takes offsets");
    m = head(3, 2, 0);
    tensor1(&m, "first", 16, 0, 0);
    tensor1(&m, "second", 16, 0, 0);
    data(&m, 32, 128);
    expect_fail("same place", &m, PN_E_FORMAT, "tensors overlap");
    m = head(3, 3, 0);
    tensor1(&m, "c", 16, 0, 128);
    tensor1(&m, "a", 16, 0, 0);
    tensor1(&m, "b", 24, 0, 64);
    data(&m, 32, 192);
    expect_fail("overlap in another order", &m, PN_E_FORMAT, "tensors overlap: 'b'");
    m = head(3, 3, 0);
    tensor1(&m, "c", 16, 0, 192);
    tensor1(&m, "a", 16, 0, 0);
    tensor1(&m, "b", 16, 0, 96);
    data(&m, 32, 256);
    expect_ok("any order, with gaps", &m);
}

static void every_cut_is_refused(void)
{
    img m = head(3, 1, 3);
    kv32(&m, "a", 4, 1);
    puts_(&m, "b");
    put32(&m, 9);
    put32(&m, 8);
    put64(&m, 2);
    puts_(&m, "x");
    puts_(&m, "yz");
    puts_(&m, "c");
    put32(&m, 8);
    puts_(&m, "text");
    tensor1(&m, "t", 8, 0, 0);
    data(&m, 32, 32);
    for (size_t n = 0; n <= m.n; n++) {
        img cut = {malloc(n + 1), n, n + 1};
        memcpy(cut.b, m.b, n);
        if (n == m.n)
            expect_ok("whole", &cut);
        else
            expect_fail("cut", &cut, PN_E_FORMAT, "");
    }
    free(m.b);
}

/* --- size ------------------------------------------------------------------------------------------- */

static void many_entries_load_fast(void)
{
    char name[32];
    for (int what = 0; what < 2; what++) {
        img m = head(3, what ? 200000 : 0, what ? 0 : 200000);
        for (uint32_t i = 0; i < 200000; i++) {
            snprintf(name, sizeof name, "some.name.%" PRIu32, i);
            if (what)
                tensor1(&m, name, 8, 0, 32 * (uint64_t)(199999 - i));
            else
                kv32(&m, name, 4, i);
        }
        data(&m, 32, what ? 32 * 200000 : 0);
        pn_test_mem mem;
        pn_gguf g;
        pn_err err;
        reader r;
        pn_test_mem_init(&mem, 0);
        double t0 = pn_os_now();
        pn_status st = read_image(&g, &mem, &m, false, &r, &err);
        double dt = pn_os_now() - t0;
        PN_CHECK(st == PN_OK, "%s", st ? err.text : "");
        PN_CHECK(dt < 5.0, "200,000 %s took %.2f s", what ? "tensors" : "keys", dt);    /* 0.1 s here; sanitizers are slow */
        if (st == PN_OK && !what) {
            uint64_t v = 0;
            PN_CHECK(pn_gguf_u64(pn_gguf_find(&g, "some.name.123456"), 0, &v) && v == 123456);
        } else if (st == PN_OK) {
            const pn_gguf_tensor *t = pn_gguf_find_tensor(&g, "some.name.199999");
            PN_CHECK(t && t->offset == g.data_start);
        }
        pn_gguf_fini(&g);
        PN_CHECK(mem.outstanding == 0);
        free(m.b);
    }
}

/* --- writing and reading back --------------------------------------------------------------------------- */

static void check_sample(const pn_gguf *g)
{
    volatile float eps = 1e-5f;         /* x87 keeps more bits otherwise */
    uint64_t u = 0;
    int64_t s = 0;
    double f = 0;
    pn_bytes b = {0};
    PN_CHECK(g->version == 3 && g->alignment == 32 && g->n_kv == 6 && g->n_tensors == 2 && g->data_start % 32 == 0);
    PN_CHECK(pn_gguf_str(pn_gguf_find(g, "general.architecture"), 0, &b) && b.len == 5 && !memcmp(b.data, "llama", 5));
    PN_CHECK(!pn_gguf_str(pn_gguf_find(g, "general.architecture"), 1, &b));
    PN_CHECK(!pn_gguf_u64(pn_gguf_find(g, "general.architecture"), 0, &u));
    PN_CHECK(pn_gguf_u64(pn_gguf_find(g, "llama.block_count"), 0, &u) && u == 4000000000u);
    PN_CHECK(pn_gguf_f64(pn_gguf_find(g, "llama.block_count"), 0, &f) && f == 4e9);
    PN_CHECK(pn_gguf_f64(pn_gguf_find(g, "llama.eps"), 0, &f) && (float)f == eps);
    PN_CHECK(!pn_gguf_i64(pn_gguf_find(g, "llama.eps"), 0, &s));
    PN_CHECK(pn_gguf_f64(pn_gguf_find(g, "flag"), 0, &f) && f == 1);
    PN_CHECK(!pn_gguf_u64(pn_gguf_find(g, "flag"), 0, &u));
    const pn_gguf_kv *types = pn_gguf_find(g, "types");
    PN_CHECK(types && types->type == PN_META_ARRAY && types->elem == PN_META_I32 && types->count == 3);
    PN_CHECK(pn_gguf_i64(types, 1, &s) && s == -3);
    PN_CHECK(!pn_gguf_u64(types, 1, &u) && pn_gguf_u64(types, 2, &u) && u == 6 && !pn_gguf_u64(types, 3, &u));
    PN_CHECK(pn_gguf_f64(types, 1, &f) && f == -3);
    const pn_gguf_kv *words = pn_gguf_find(g, "words");
    PN_CHECK(words && words->count == 3 && words->str_at);
    PN_CHECK(pn_gguf_str(words, 1, &b) && b.len == 3 && !memcmp(b.data, "t\0o", 3));
    PN_CHECK(pn_gguf_str(words, 2, &b) && b.len == 0 && !pn_gguf_str(words, 3, &b));
    PN_CHECK(!pn_gguf_find(g, "absent") && !pn_gguf_u64(NULL, 0, &u) && !pn_gguf_str(NULL, 0, &b));
    const pn_gguf_tensor *t = pn_gguf_find_tensor(g, "matrix"), *v = pn_gguf_find_tensor(g, "vector");
    PN_CHECK(t && t->n_dims == 2 && t->ne[0] == 64 && t->ne[1] == 3 && t->ne[3] == 1 && t->bytes == 108 &&
             t->row_bytes == 36 && t->n_elems == 192 && t->offset == g->data_start);
    PN_CHECK(v && v->n_dims == 1 && v->ne[0] == 5 && v->offset == g->data_start + 128);
    PN_CHECK(!pn_gguf_find_tensor(g, "absent"));
}

static void what_is_written_reads_back(void)
{
    img m = sample_image();
    for (int callback = 0; callback < 2; callback++) {
        pn_test_mem mem;
        pn_gguf g;
        pn_err err;
        reader r;
        pn_test_mem_init(&mem, 0);
        pn_status st = read_image(&g, &mem, &m, callback, &r, &err);
        if (PN_CHECK(st == PN_OK, "%s", err.text)) {
            check_sample(&g);
            /* and copied entry by entry it is the same again */
            pn_gguf_writer w;
            pn_str out;
            pn_gguf_writer_init(&w, &mem.mem);
            pn_str_init(&out, &mem.mem, PN_ACCT_MISC);
            for (size_t i = 0; i < g.n_kv; i++)
                pn_gguf_put_kv(&w, &g.kv[i]);
            for (size_t i = 0; i < g.n_tensors; i++)
                pn_gguf_put_tensor(&w, g.tensors[i].name, g.tensors[i].dtype, g.tensors[i].n_dims, g.tensors[i].ne,
                                   g.tensors[i].bytes);
            PN_CHECK(pn_gguf_header(&w, &out) && out.len == g.data_start && memcmp(out.data, m.b, out.len) == 0);
            pn_str_fini(&out);
            pn_gguf_writer_fini(&w);
        }
        pn_gguf_fini(&g);
        PN_CHECK(mem.outstanding == 0);
    }
    m.b[4] = 2;
    expect_ok("the same as version 2", &m);
}

static void all_scalar_types_convert(void)
{
    static const struct { uint32_t type, size; uint64_t bits; bool u, i; double f; } t[] = {
        {0, 1, 200, true, true, 200}, {1, 1, 0x80, false, true, -128}, {2, 2, 65535, true, true, 65535},
        {3, 2, 0xffff, false, true, -1}, {4, 4, 0xffffffff, true, true, 4294967295.0},
        {5, 4, 0x80000000, false, true, -2147483648.0}, {6, 4, 0xbfc00000, false, false, -1.5},
        {7, 1, 1, false, false, 1}, {10, 8, UINT64_MAX, true, false, 18446744073709551616.0},
        {11, 8, (uint64_t)1 << 63, false, true, -9223372036854775808.0},
        {12, 8, 0x4004000000000000, false, false, 2.5},
    };
    for (size_t k = 0; k < PN_COUNT_OF(t); k++) {
        img m = head(3, 0, 1);
        puts_(&m, "v");
        put32(&m, t[k].type);
        for (uint32_t i = 0; i < t[k].size; i++)
            put8(&m, t[k].bits >> (8 * i) & 255);
        if (m.n < 24 + 14)
            zeros(&m, 14);
        pn_test_mem mem;
        pn_gguf g;
        pn_err err = {0};
        reader r;
        uint64_t u = 0;
        int64_t s = 0;
        double f = 0;
        pn_test_mem_init(&mem, 0);
        PN_CHECK(read_image(&g, &mem, &m, true, &r, &err) == PN_OK, "%s", err.text);
        const pn_gguf_kv *kv = pn_gguf_find(&g, "v");
        PN_CHECK(pn_gguf_u64(kv, 0, &u) == t[k].u && (!t[k].u || u == t[k].bits), "type %" PRIu32, t[k].type);
        PN_CHECK(pn_gguf_i64(kv, 0, &s) == t[k].i && (!t[k].i || (double)s == t[k].f), "type %" PRIu32, t[k].type);
        PN_CHECK(pn_gguf_f64(kv, 0, &f) && f == t[k].f, "type %" PRIu32 ": %g", t[k].type, f);
        PN_CHECK(!pn_gguf_u64(kv, 1, &u) && !pn_gguf_f64(kv, 1, &f));
        pn_gguf_fini(&g);
        free(m.b);
    }
}

/* --- memory that fails -------------------------------------------------------------------------- */

static void each_allocation_may_fail(void)
{
    img m = sample_image();
    for (int callback = 0; callback < 2; callback++)
        for (long k = 1;; k++) {
            pn_test_mem mem;
            pn_gguf g;
            pn_err err = {0};
            reader r;
            pn_test_mem_init(&mem, k);
            pn_status st = read_image(&g, &mem, &m, callback, &r, &err);
            pn_gguf_fini(&g);
            PN_CHECK(mem.outstanding == 0, "allocation %ld: %ld left", k, mem.outstanding);
            if (st == PN_OK) {
                PN_CHECK(mem.n_calls < k && k > 5);
                break;
            }
            PN_CHECK(st == PN_E_NOMEM && strstr(err.text, "out of memory"), "allocation %ld: %s", k, err.text);
        }
    free(m.b);
    for (long k = 1;; k++) {
        pn_test_mem mem;
        pn_gguf_writer w;
        pn_str out;
        pn_test_mem_init(&mem, k);
        pn_gguf_writer_init(&w, &mem.mem);
        pn_str_init(&out, &mem.mem, PN_ACCT_MISC);
        write_sample(&w);
        bool ok = pn_gguf_header(&w, &out);
        pn_str_fini(&out);
        pn_gguf_writer_fini(&w);
        PN_CHECK(mem.outstanding == 0 && ok == (mem.n_calls < k));
        if (ok)
            break;
    }
}

int main(void)
{
    header_is_checked();
    counts_are_checked_before_allocating();
    keys_are_checked();
    values_are_checked();
    alignment_is_checked();
    tensor_entries_are_checked();
    data_placement_is_checked();
    every_cut_is_refused();
    many_entries_load_fast();
    what_is_written_reads_back();
    all_scalar_types_convert();
    each_allocation_may_fail();
    return pn_test_end();
}
