/* SPDX-License-Identifier: AGPL-3.0-only */
/* Strings, parsing, memory, hashing, UTF-8, error texts. */
#include "pn_test.h"

#include "base/pn_err.h"
#include "base/pn_digest.h"
#include "base/pn_hash.h"
#include "base/pn_str.h"
#include "base/pn_utf8.h"

static pn_test_mem mem;

/* --- pn_str ------------------------------------------------------------------------------------- */

static void test_str_grows_and_stays_terminated(void)
{
    pn_str s;
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    PN_CHECK(strcmp(pn_str_cstr(&s), "") == 0 && s.data == NULL, "empty takes no memory");
    for (int i = 0; i < 1000; i++) {
        pn_str_addc(&s, (char)('a' + i % 26));
        PN_CHECK(s.len == (size_t)i + 1 && s.data[s.len] == 0, "at %d", i);
    }
    pn_str_clear(&s);
    PN_CHECK(s.len == 0 && strcmp(pn_str_cstr(&s), "") == 0, "cleared");
    pn_str_add(&s, "a\0b", 3);
    pn_str_addz(&s, "c");
    pn_str_addf(&s, "%d-%s", 12, "xyz");
    PN_CHECK(s.len == 10 && memcmp(s.data, "a\0bc12-xyz", 11) == 0, "%s", s.data);
    pn_str_add(&s, NULL, 0);
    pn_str_addf(&s, "%0500d", 7);
    PN_CHECK(s.len == 510 && s.data[509] == '7' && s.data[508] == '0', "long format");
    pn_str_fini(&s);
    pn_str_fini(&s);
    pn_str_addz(&s, "again");
    PN_CHECK(strcmp(pn_str_cstr(&s), "again") == 0, "usable after fini");
    pn_str_fini(&s);
}

static void test_str_remembers_failure(void)
{
    for (long k = 1; k < 4; k++) {
        pn_test_mem m;
        pn_str s;
        pn_test_mem_init(&m, k);
        pn_str_init(&s, &m.mem, PN_ACCT_MISC);
        for (int i = 0; i < 100; i++)
            pn_str_addz(&s, "0123456789");
        PN_CHECK(s.failed && s.len < 1000, "failure %ld", k);
        size_t len = s.len;
        pn_str_addc(&s, 'x');
        PN_CHECK(s.len == len && strlen(pn_str_cstr(&s)) == len, "no more after failure");
        pn_str_clear(&s);
        pn_str_addz(&s, "ok");
        PN_CHECK(!s.failed && strcmp(pn_str_cstr(&s), "ok") == 0, "works again");
        pn_str_fini(&s);
        PN_CHECK(m.outstanding == 0, "leak");
    }
}

/* --- numbers ------------------------------------------------------------------------------------ */

static void f64(const char *text, bool ok, double want, size_t used)
{
    double v = -99;
    const char *end = NULL;
    bool got = pn_parse_f64(text, text + strlen(text), &v, &end);
    PN_CHECK(got == ok, "\"%s\"", text);
    if (got && ok)
        PN_CHECK(v == want && (size_t)(end - text) == used, "\"%s\" is %.17g, used %zu", text, v, (size_t)(end - text));
}

static void test_parse_f64(void)
{
    f64("0", true, 0, 1);
    f64("-1.5", true, -1.5, 4);
    f64("+2", true, 2, 2);
    f64("1,5", true, 1, 1);
    f64("1e3x", true, 1000, 3);
    f64("1e", true, 1, 1);
    f64("1e+", true, 1, 1);
    f64("1.", true, 1, 2);
    f64(".5", true, .5, 2);
    f64("0.1", true, .1, 3);
    f64("123456789012", true, 123456789012.0, 12);
    f64("9007199254740992", true, 9007199254740992.0, 16);
    f64("1e22", true, 1e22, 4);
    f64("1e-5", true, 1e-5, 4);
    f64("1e999", true, HUGE_VAL, 5);
    f64("1e99999999999999999999", true, HUGE_VAL, 22);
    f64("1e-999", true, 0, 6);
    f64("0e999", true, 0, 5);
    f64("", false, 0, 0);
    f64("-", false, 0, 0);
    f64(".", false, 0, 0);
    f64("e5", false, 0, 0);
    f64("nan", false, 0, 0);
    f64("inf", false, 0, 0);
    f64(" 1", false, 0, 0);
    double v;
    const char *end;
    static const char digits[] = "12345";
    PN_CHECK(!pn_parse_f64(digits, digits, &v, &end), "empty range");
    PN_CHECK(pn_parse_f64(digits, digits + 2, &v, &end) && v == 12 && end == digits + 2, "stops at stop");
    PN_CHECK(pn_parse_f64(digits, digits + 5, &v, NULL) && v == 12345, "end may be NULL");
}

static void i64(const char *text, int64_t lo, int64_t hi, bool ok, int64_t want)
{
    int64_t v = -99;
    bool got = pn_parse_i64(text, lo, hi, &v);
    PN_CHECK(got == ok && (ok ? v == want : v == -99), "\"%s\" gives %" PRId64, text, v);
}

static void test_parse_i64(void)
{
    i64("0", INT64_MIN, INT64_MAX, true, 0);
    i64("-5", -5, 5, true, -5);
    i64("+5", -5, 5, true, 5);
    i64("6", -5, 5, false, 0);
    i64("-6", -5, 5, false, 0);
    i64("9223372036854775807", INT64_MIN, INT64_MAX, true, INT64_MAX);
    i64("9223372036854775808", INT64_MIN, INT64_MAX, false, 0);
    i64("-9223372036854775808", INT64_MIN, INT64_MAX, true, INT64_MIN);
    i64("-9223372036854775809", INT64_MIN, INT64_MAX, false, 0);
    i64("99999999999999999999999", INT64_MIN, INT64_MAX, false, 0);
    i64("", -9, 9, false, 0);
    i64("-", -9, 9, false, 0);
    i64("--1", -9, 9, false, 0);
    i64(" 1", -9, 9, false, 0);
    i64("1 ", -9, 9, false, 0);
    i64("1.0", -9, 9, false, 0);
    i64("0x1", -9, 9, false, 0);
}

static void size(const char *text, bool ok, uint64_t want)
{
    uint64_t v = 99;
    bool got = pn_parse_size(text, &v);
    PN_CHECK(got == ok && v == (ok ? want : 99), "\"%s\" gives %" PRIu64, text, v);
}

static void test_parse_size(void)
{
    size("0", true, 0);
    size("123", true, 123);
    size("46M", true, (uint64_t)46 << 20);
    size("1.5G", true, (uint64_t)3 << 29);
    size("2k", true, 2048);
    size("1T", true, (uint64_t)1 << 40);
    size("8GiB", true, (uint64_t)8 << 30);
    size("8GB", true, (uint64_t)8 << 30);
    size("", false, 0);
    size("-1", false, 0);
    size("+1", false, 0);
    size("G", false, 0);
    size("1X", false, 0);
    size("1GG", false, 0);
    size("1 G", false, 0);
    size("9999999999T", false, 0);
    size("1e300", false, 0);
}

/* --- memory --------------------------------------------------------------------------------------- */

static void test_mem_helpers(void)
{
    size_t cap = 0;
    uint32_t *list = NULL;
    for (uint32_t i = 0; i < 1000; i++) {
        PN_CHECK(pn_mem_grow(&mem.mem, PN_ACCT_VOCAB, (void **)&list, &cap, i + 1, sizeof *list), "grow to %u", (unsigned)i);
        list[i] = i;
    }
    int wrong = 0;
    for (uint32_t i = 0; i < 1000; i++)
        wrong += list[i] != i;
    PN_CHECK(wrong == 0 && cap >= 1000, "%d lost", wrong);
    size_t before = cap;
    PN_CHECK(!pn_mem_grow(&mem.mem, PN_ACCT_VOCAB, (void **)&list, &cap, SIZE_MAX / 2, sizeof *list), "product overflows");
    PN_CHECK(cap == before && list[999] == 999, "array untouched");
    pn_mem_free(&mem.mem, PN_ACCT_VOCAB, list, cap * sizeof *list);

    PN_CHECK(pn_mem_calloc(&mem.mem, PN_ACCT_MISC, UINT64_MAX / 2, 16) == NULL, "calloc overflow");
    unsigned char *z = pn_mem_calloc(&mem.mem, PN_ACCT_MISC, 7, 13);
    PN_CHECK(z && z[0] == 0 && z[90] == 0 && (uintptr_t)z % PN_MEM_ALIGN == 0, "zeroed and aligned");
    pn_mem_free(&mem.mem, PN_ACCT_MISC, z, 7 * 13);
    void *empty = pn_mem_calloc(&mem.mem, PN_ACCT_MISC, 0, 13);
    PN_CHECK(empty != NULL, "size 0 is not NULL");
    pn_mem_free(&mem.mem, PN_ACCT_MISC, empty, 0);
    pn_mem_free(&mem.mem, PN_ACCT_MISC, NULL, 0);

    char *dup = pn_mem_strndup(&mem.mem, PN_ACCT_MISC, "hello", 3);
    PN_CHECK(dup && strcmp(dup, "hel") == 0, "strndup");
    pn_mem_free(&mem.mem, PN_ACCT_MISC, dup, 4);
    PN_CHECK(pn_mem_strndup(&mem.mem, PN_ACCT_MISC, "", SIZE_MAX) == NULL, "strndup overflow");
}

static void test_libc_memory_is_aligned(void)
{
    pn_mem m;
    pn_mem_init_libc(&m);
    for (size_t n = 0; n < 300; n += 7) {
        unsigned char *p = pn_mem_alloc(&m, PN_ACCT_MISC, n);
        PN_CHECK(p && (uintptr_t)p % PN_MEM_ALIGN == 0, "%zu", n);
        if (p)
            memset(p, 1, n);
        p = pn_mem_resize(&m, PN_ACCT_MISC, p, n, n * 2 + 1);
        PN_CHECK(p && (n == 0 || p[n - 1] == 1), "resize keeps");
        pn_mem_free(&m, PN_ACCT_MISC, p, n * 2 + 1);
    }
    PN_CHECK(pn_mem_alloc(&m, PN_ACCT_MISC, SIZE_MAX) == NULL, "too much is NULL");
}

static void test_checked_arithmetic(void)
{
    uint64_t v = 5;
    PN_CHECK(pn_mul_u64(0, UINT64_MAX, &v) && v == 0, "0 * max");
    PN_CHECK(pn_mul_u64(UINT32_MAX, UINT32_MAX, &v) && v == (uint64_t)UINT32_MAX * UINT32_MAX, "large");
    v = 5;
    PN_CHECK(!pn_mul_u64(UINT64_MAX, 2, &v) && v == 5, "max * 2");
    PN_CHECK(!pn_add_u64(UINT64_MAX, 1, &v) && v == 5, "max + 1");
    PN_CHECK(pn_add_u64(UINT64_MAX, 0, &v) && v == UINT64_MAX, "max + 0");
    PN_CHECK(pn_align_up(0, 64) == 0 && pn_align_up(1, 64) == 64 && pn_align_up(64, 64) == 64, "align");
    PN_CHECK(pn_le16("\x01\x80") == 0x8001 && pn_le32("\x01\x02\x03\x84") == 0x84030201 &&
             pn_le64("\x01\x02\x03\x04\x05\x06\x07\x88") == 0x8807060504030201u, "little-endian");
}

/* --- hashing -------------------------------------------------------------------------------------- */

static void test_hash_sees_every_byte_and_the_length(void)
{
    unsigned char buf[70] = {0};
    for (size_t n = 0; n < 70; n++) {
        uint64_t h = pn_hash(buf, n, 1);
        PN_CHECK(h != pn_hash(buf, n, 2), "seed at %zu", n);
        if (n < 69)
            PN_CHECK(h != pn_hash(buf, n + 1, 1), "length at %zu", n);
        for (size_t i = 0; i < n; i++) {
            buf[i] = 1;
            PN_CHECK(h != pn_hash(buf, n, 1), "byte %zu of %zu", i, n);
            buf[i] = 0;
        }
    }
}

static bool digest_is(const uint8_t *got, const char *want)
{
    char text[65];
    for (size_t i = 0; i < strlen(want) / 2; i++)
        snprintf(text + 2 * i, 3, "%02x", got[i]);
    return strcmp(text, want) == 0;
}

/* RFC 7693, appendix B; and the digest of the digests of 1000 lengths, as Python's hashlib makes it. */
static void test_digest_is_blake2s(void)
{
    uint8_t data[1000], out[32];
    pn_digest d, all;
    pn_digest_begin(&d, 32);
    pn_digest_add(&d, "abc", 3);
    pn_digest_end(&d, out, 32);
    PN_CHECK(digest_is(out, "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"), "abc");
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(7 * i + 3);
    pn_digest_begin(&all, 16);
    for (size_t n = 0; n < sizeof data; n++) {
        pn_digest_begin(&d, 16);
        pn_digest_add(&d, data, n / 3);
        pn_digest_add(&d, data + n / 3, n - n / 3);
        pn_digest_end(&d, out, 16);
        pn_digest_add(&all, out, 16);
    }
    pn_digest_end(&all, out, 16);
    PN_CHECK(digest_is(out, "88d61a69012d7c34f0a6886055a2a458"), "1000 lengths");
}

/* RFC 3720, B.4; every split of a text gives the same. */
static void test_crc32c(void)
{
    static pn_crc32c c;
    const uint8_t zeros[32] = {0};
    pn_crc32c_init(&c);
    PN_CHECK(pn_crc32c_add(&c, 0, "123456789", 9) == 0xe3069283u && pn_crc32c_add(&c, 0, zeros, 32) == 0x8a9136aau);
    for (size_t i = 0; i <= 9; i++)
        PN_CHECK(pn_crc32c_add(&c, pn_crc32c_add(&c, 0, "123456789", i), "123456789" + i, 9 - i) == 0xe3069283u, "split at %zu", i);
}

static void test_map_finds_what_was_put(void)
{
    enum { N = 5000 };
    static char keys[N][12];
    pn_map m;
    bool existed;
    int wrong = 0;
    pn_map_init(&m, &mem.mem, PN_ACCT_VOCAB);
    PN_CHECK(pn_map_find(&m, "x", 1) == NULL, "empty");
    for (uint32_t i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "k%u", (unsigned)i);
        uint32_t *v = pn_map_put(&m, keys[i], strlen(keys[i]), i, &existed);
        wrong += !v || existed || *v != i;
    }
    PN_CHECK(wrong == 0 && m.count == N, "%d wrong", wrong);
    uint32_t *v = pn_map_put(&m, "k7", 2, 99, &existed);
    PN_CHECK(v && existed && *v == 7 && m.count == N, "the old value stays");
    for (uint32_t i = 0; i < N; i++) {
        v = pn_map_find(&m, keys[i], strlen(keys[i]));
        wrong += !v || *v != i;
    }
    PN_CHECK(wrong == 0 && !pn_map_find(&m, "k", 1) && !pn_map_find(&m, "k5000", 5), "%d wrong", wrong);
    PN_CHECK(pn_map_put(&m, "", 0, 1, NULL) && pn_map_find(&m, "", 0), "the empty key is a key");
    pn_map_fini(&m);
    pn_map_fini(&m);
}

static void test_map_survives_failure(void)
{
    for (long k = 1; k < 3; k++) {
        static const char *const keys[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"};
        pn_test_mem m;
        pn_map map;
        size_t put = 0;
        pn_test_mem_init(&m, k);
        pn_map_init(&map, &m.mem, PN_ACCT_MISC);
        while (put < PN_COUNT_OF(keys) && pn_map_put(&map, keys[put], 1, (uint32_t)put, NULL))
            put++;
        PN_CHECK(put == (k == 1 ? 0 : 12), "%zu went in", put);
        for (size_t i = 0; i < put; i++)
            PN_CHECK(pn_map_find(&map, keys[i], 1) != NULL, "%s is still there", keys[i]);
        pn_map_fini(&map);
        PN_CHECK(m.outstanding == 0, "leak");
    }
}

/* --- UTF-8 ---------------------------------------------------------------------------------------- */

static void test_utf8_every_character_goes_round(void)
{
    int wrong = 0;
    for (uint32_t cp = 0; cp <= 0x110010; cp++) {
        char buf[4];
        uint32_t back;
        bool real = cp <= 0x10FFFF && !(cp >= 0xD800 && cp <= 0xDFFF);
        size_t n = pn_utf8_encode(cp, buf), used = pn_utf8_decode(buf, n, &back);
        wrong += used != n || back != (real ? cp : PN_UTF8_BAD) || pn_utf8_valid(buf, n) != n;
        wrong += pn_utf8_incomplete(buf, n) != 0;
        for (size_t cut = 1; cut < n; cut++)
            wrong += pn_utf8_incomplete(buf, cut) != cut || pn_utf8_decode(buf, cut, &back) != 1 ||
                     back != PN_UTF8_BAD || pn_utf8_valid(buf, cut) != 0;
    }
    PN_CHECK(wrong == 0, "%d wrong", wrong);
}

/* All sequences of up to three bytes (and four with a tail of 80) against the definition. */
static void test_utf8_accepts_only_what_encode_writes(void)
{
    int wrong = 0;
    for (uint32_t x = 0; x < 1u << 24; x += (x & 0xFF) == 0x40 ? 0x3F : 1) {    /* last byte: 00..40, 7F.. */
        unsigned char s[4] = {(unsigned char)(x >> 16), (unsigned char)(x >> 8), (unsigned char)x, 0x80};
        char again[4];
        uint32_t cp;
        if (s[0] < 0x80 || (s[0] >= 0xC2 && s[0] < 0xE0 && x & 0xFF))
            continue;                           /* one- and two-byte forms are seen once */
        for (size_t n = 2; n <= 4; n++) {
            size_t used = pn_utf8_decode((const char *)s, n, &cp);
            if (used == 1)
                wrong += cp != PN_UTF8_BAD;
            else
                wrong += pn_utf8_encode(cp, again) != used || memcmp(again, s, used) != 0;
        }
    }
    PN_CHECK(wrong == 0, "%d wrong", wrong);
}

static void test_utf8_edges(void)
{
    static const struct { const char *s; size_t n, valid, incomplete; } cases[] = {
        {"", 0, 0, 0}, {"abc", 3, 3, 0}, {"a\xC3\xA9", 3, 3, 0}, {"a\xC3", 2, 1, 1}, {"\x80", 1, 0, 0},
        {"\xC0\xAF", 2, 0, 0}, {"\xC1", 1, 0, 0}, {"\xE0\x80", 2, 0, 0}, {"\xE0\xA0", 2, 0, 2}, {"\xED\xA0", 2, 0, 0},
        {"\xED\x9F", 2, 0, 2}, {"\xF0\x80", 2, 0, 0}, {"\xF0\x90\x80", 3, 0, 3}, {"\xF4\x90", 2, 0, 0},
        {"\xF4\x8F\xBF\xBF", 4, 4, 0}, {"\xF5", 1, 0, 0}, {"\xFF", 1, 0, 0}, {"ab\xE2\x82", 4, 2, 2},
        {"\xE2\x82\x80\x80", 4, 3, 0}, {"\x80\x80\x80\x80", 4, 0, 0}, {"\xE2\x28\xA1", 3, 0, 0}, {"\xF0\x9F\x98", 3, 0, 3},
        {"\xC3\xC3", 2, 0, 1}, {"\xF0\x9F\xC3", 3, 0, 1},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        PN_CHECK(pn_utf8_valid(cases[i].s, cases[i].n) == cases[i].valid, "valid, case %zu", i);
        PN_CHECK(pn_utf8_incomplete(cases[i].s, cases[i].n) == cases[i].incomplete, "incomplete, case %zu", i);
    }
    uint32_t cp = 1;
    PN_CHECK(pn_utf8_decode("", 0, &cp) == 0 && cp == PN_UTF8_BAD, "nothing");
    PN_CHECK(pn_utf8_decode("\xEF\xBF\xBD", 3, &cp) == 3 && cp == PN_UTF8_BAD, "the real replacement character");
}

/* --- errors --------------------------------------------------------------------------------------- */

static void test_error_texts(void)
{
    pn_err err = {0};
    PN_CHECK(pn_fail(&err, PN_E_IO, "expected %d", 5) == PN_E_IO && err.status == PN_E_IO, "status");
    PN_CHECK(strcmp(err.text, "expected 5") == 0, "%s", err.text);
    PN_CHECK(pn_err_prefix(&err, PN_E_IO, "file %s", "x") == PN_E_IO, "prefix");
    PN_CHECK(strcmp(err.text, "file x: expected 5") == 0, "%s", err.text);
    PN_CHECK(pn_fail(NULL, PN_E_IO, "nobody listens") == PN_E_IO, "NULL");
    PN_CHECK(pn_fail_nomem(&err, "a thing", 12) == PN_E_NOMEM && strstr(err.text, "a thing needs 12 bytes"), "%s", err.text);
    for (int n = 480; n < 530; n++) {           /* around the size of the text */
        pn_fail(&err, PN_E_IO, "%0*d", n, 1);
        PN_CHECK(strlen(err.text) < sizeof err.text, "cut");
        pn_err_prefix(&err, PN_E_IO, "%0*d", n - 470, 1);
        PN_CHECK(strlen(err.text) < sizeof err.text, "cut with prefix");
    }
    for (int n = 490; n < 530; n++) {           /* a prefix that alone fills it */
        pn_fail(&err, PN_E_IO, "old");
        pn_err_prefix(&err, PN_E_IO, "%0*d", n, 1);
        PN_CHECK(memchr(err.text, 0, sizeof err.text) != NULL, "terminated at %d", n);
    }
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    test_str_grows_and_stays_terminated();
    test_str_remembers_failure();
    test_parse_f64();
    test_parse_i64();
    test_parse_size();
    test_mem_helpers();
    test_libc_memory_is_aligned();
    test_checked_arithmetic();
    test_hash_sees_every_byte_and_the_length();
    test_digest_is_blake2s();
    test_crc32c();
    test_map_finds_what_was_put();
    test_map_survives_failure();
    test_utf8_every_character_goes_round();
    test_utf8_accepts_only_what_encode_writes();
    test_utf8_edges();
    test_error_texts();
    PN_CHECK(mem.outstanding == 0, "%ld blocks leak", mem.outstanding);
    return pn_test_end();
}
