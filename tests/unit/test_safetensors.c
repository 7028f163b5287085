/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_safetensors.c - every rule of the container and of the index as a named case, from memory and
 * from a callback; the header that is written, read again and compared with the reference's.
 */
#include "st_image.h"

#include <time.h>

#include "base/pn_json.h"
#include "format/pn_safetensors.h"

/* Length, JSON, data. */
static img st_image(const char *json, size_t data)
{
    img m = {0};
    put64(&m, strlen(json));
    put(&m, json, strlen(json));
    zeros(&m, data);
    return m;
}

/* Reads m both ways and wants the same of both; frees it. */
static void expect(const char *what, img m, pn_status status, const char *piece)
{
    for (int callback = 0; callback < 2; callback++) {
        pn_test_mem mem;
        pn_safetensors s;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        img exact = img_exact(&m);
        pn_source src = img_source(&exact, callback, &r);
        pn_status st = pn_safetensors_read(&s, &mem.mem, &src, &err);
        PN_CHECK(st == status && (st == PN_OK || err.status == st), "%s (callback %d): %s", what, callback, err.text);
        PN_CHECK(st == PN_OK || strstr(err.text, piece), "%s: no '%s' in: %s", what, piece, err.text);
        PN_CHECK(st == PN_OK || strncmp(err.text, "some-file: ", 11) == 0, "%s: %s", what, err.text);
        PN_CHECK(r.largest <= m.n, "%s: asked for %" PRIu64 " bytes", what, r.largest);
        PN_CHECK(st != PN_OK || s.n_tensors == 0 || pn_safetensors_find(&s, s.tensors[0].name) == s.tensors);
        pn_safetensors_fini(&s);
        PN_CHECK(mem.outstanding == 0, "%s: %ld blocks left", what, mem.outstanding);
        img_free(&exact);
    }
    img_free(&m);
}

static void refuse(const char *json, size_t data, const char *piece) { expect(json, st_image(json, data), PN_E_FORMAT, piece); }

static void accept(const char *json, size_t data) { expect(json, st_image(json, data), PN_OK, ""); }

/* One tensor `a` with these fields. */
static void refuse_entry(const char *fields, size_t data, const char *piece)
{
    char json[512];
    snprintf(json, sizeof json, "{\"a\":{%s}}", fields);
    refuse(json, data, piece);
}

#define F32_2 "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":"

/* --- the rules --------------------------------------------------------------------------------------- */

static void length_is_checked(void)
{
    img m = {0};
    expect("empty file", m, PN_E_FORMAT, "at least 8 bytes, found 0");
    put32(&m, 2);
    put(&m, "{}", 2);
    expect("six bytes", m, PN_E_FORMAT, "found 6");
    static const uint64_t lengths[] = {100000001, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < PN_COUNT_OF(lengths); i++) {
        m = (img){0};
        put64(&m, lengths[i]);
        put(&m, "{}", 2);
        expect("length", m, PN_E_FORMAT, "above 100000000");
    }
    m = (img){0};
    put64(&m, 100000000);
    put(&m, "{}", 2);
    expect("longest", m, PN_E_FORMAT, "the header has 100000000 bytes from offset 8, the file 10 in all");
    m = (img){0};
    put64(&m, 3);
    put(&m, "{}", 2);
    expect("one short", m, PN_E_FORMAT, "truncated: the header has 3 bytes");
    accept("{}", 0);
    accept("{ }  \t\n\r", 0);
    refuse("", 0, "found an empty header");
    refuse(" {}", 0, "expected '{' at offset 8");
    refuse("[]", 0, "expected '{' at offset 8");
    refuse("{}x", 0, "expected the end of the text");
    m = st_image("{}", 0);
    m.b[0] = 3;
    zeros(&m, 1);
    expect("NUL padding", m, PN_E_FORMAT, "found byte 0x00");
}

static void json_is_strict(void)
{
    refuse("{\"a\xff\":{" F32_2 "[0,8]}}", 8, "UTF-8");
    refuse("{\"a\\ud83d\":{" F32_2 "[0,8]}}", 8, "surrogates");
    accept("{\"a\\ud83d\\ude00\":{" F32_2 "[0,8]}}", 8);
    accept("{\"a\":{" F32_2 "[0,8],\"x\":[[1]]}}", 8);
    refuse("{\"a\":{" F32_2 "[0,8],\"x\":[[[1]]]}}", 8, "at most 4 arrays and objects inside each other");
    accept("{\"a\":{" F32_2 "[0,8],\"x\":[1,null,true]}}", 8);
    refuse("{\"a\":{" F32_2 "[0,8]},\"a\":{" F32_2 "[0,8]}}", 8, "found \"a\" again");
    refuse("{\"a\":{" F32_2 "[0,8]},\"\\u0061\":{" F32_2 "[8,16]}}", 16, "found \"a\" again");
    refuse("{\"a\":{" F32_2 "[0,8],\"dtype\":\"F32\"}}", 8, "found \"dtype\" again");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "found \"__metadata__\" again");
    refuse("{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}}", 0, "found \"k\" again");
    refuse("{\"__metadata__\":{\"k\":1}}", 0, "'__metadata__', key 'k': expected a string, found number");
    refuse("{\"__metadata__\":null}", 0, "'__metadata__': expected an object, found null");
    accept("{\"__metadata__\":{\"\":\"\"}}", 0);
}

static void names_are_checked(void)
{
    char json[1024], name[514];
    refuse("{\"\":{" F32_2 "[0,8]}}", 8, "the name is empty");
    refuse("{\"a\\u0000b\":{" F32_2 "[0,8]}}", 8, "tensor 'a?b': the name holds a NUL");
    memset(name, 'n', 513);
    name[513] = 0;
    snprintf(json, sizeof json, "{\"%s\":{" F32_2 "[0,8]}}", name);
    refuse(json, 8, "longer than 512 bytes");
    name[512] = 0;
    snprintf(json, sizeof json, "{\"%s\":{" F32_2 "[0,8]}}", name);
    accept(json, 8);
}

static void entries_are_checked(void)
{
    refuse("{\"a\":3}", 0, "tensor 'a': expected an object, found number");
    refuse_entry("\"shape\":[2],\"data_offsets\":[0,8]", 8, "tensor 'a': expected a string as 'dtype', found nothing");
    refuse_entry("\"dtype\":\"F32\",\"data_offsets\":[0,8]", 8, "integers as 'shape', found nothing");
    refuse_entry("\"dtype\":\"F32\",\"shape\":[2]", 8, "integers as 'data_offsets', found nothing");
    refuse_entry(F32_2 "[0]", 8, "found 1 numbers");
    refuse_entry(F32_2 "[0,8,8]", 8, "at most 2 numbers in 'data_offsets', found 3");
    refuse_entry(F32_2 "[8,0]", 8, "8 and 0");
    refuse_entry("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]", 4, "at most 8 numbers in 'shape', found 9");
    expect("dtype", st_image("{\"a\":{\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8), PN_E_UNSUPPORTED, "tensor 'a': dtype 'f32' is not known");
    expect("dtype", st_image("{\"a\":{\"dtype\":\"Q4_0\",\"shape\":[32],\"data_offsets\":[0,18]}}", 18), PN_E_UNSUPPORTED, "'Q4_0'");
    static const char *const bad[] = {"1.0", "1e0", "-1", "-0", "9223372036854775808", "18446744073709551616", "\"1\"", "null", "[1]"};
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        char fields[128];
        snprintf(fields, sizeof fields, "\"dtype\":\"F32\",\"shape\":[1,%s],\"data_offsets\":[0,4]", bad[i]);
        refuse_entry(fields, 4, i + 1 < PN_COUNT_OF(bad) ? "'shape' item 1: expected an integer of 0 to 2^63-1, found " : "");
        snprintf(fields, sizeof fields, "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,%s]", bad[i]);
        refuse_entry(fields, 4, i + 1 < PN_COUNT_OF(bad) ? "'data_offsets' item 1: expected an integer" : "");
    }
    refuse_entry("\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]", 4, "JSON byte");
    refuse_entry("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]", 8, "the shape needs 12 bytes, 'data_offsets' 0 to 8 declare 8");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,0]", 0, "4294967296 x 4294967296 (dimension 1)");
    refuse_entry("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]", 0, "overflows");
    refuse_entry("\"dtype\":\"F64\",\"shape\":[9223372036854775807],\"data_offsets\":[0,8]", 8, "the size overflows");
    refuse_entry("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]", 1, "3 elements of 4 bits are 12 bits: expected whole bytes");
    accept("{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3);
    accept("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3);
    accept("{\"a\":{\"dtype\":\"C64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8);
    accept("{\"a\":{\"dtype\":\"U8\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]}}", 0);
}

static void tensors_cover_the_data(void)
{
    refuse("{\"a\":{" F32_2 "[4,12]}}", 12, "the first 4 bytes of data, before 'a', belong to no tensor");
    refuse("{\"a\":{" F32_2 "[0,8]},\"b\":{" F32_2 "[4,12]}}", 12, "tensor 'b' overlaps 'a': it begins at data offset 4, the other ends at 8");
    refuse("{\"b\":{" F32_2 "[0,8]},\"a\":{" F32_2 "[0,8]}}", 8, "tensor 'b' overlaps 'a'");
    refuse("{\"a\":{" F32_2 "[0,8]},\"b\":{" F32_2 "[12,20]}}", 20, "4 bytes between 'a' and 'b' belong to no tensor (data offsets 8 to 12)");
    refuse("{\"a\":{" F32_2 "[0,8]}}", 9, "1 bytes after the last tensor a belong to none");
    refuse("{}", 3, "3 bytes after the last tensor belong to none");
    refuse("{\"a\":{" F32_2 "[0,8]}}", 5, "truncated: tensor 'a' needs 8 bytes at data offset 0, the data section has 5 in all, 3 short");
    refuse("{\"a\":{" F32_2 "[0,8]},\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}", 8, "tensor 'z' overlaps 'a'");
    refuse("{\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[9,9]},\"a\":{" F32_2 "[0,8]}}", 8, "between 'a' and 'z'");
    accept("{\"b\":{" F32_2 "[8,16]},\"a\":{" F32_2 "[0,8]},\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]},"
           "\"y\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]},\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[16,16]}}", 16);
}

/* --- fixtures ---------------------------------------------------------------------------------------- */

static void an_odd_file_gives_what_the_reference_reads(void)
{
    pn_mem mem;
    pn_json_doc d;
    pn_safetensors s;
    pn_err err = {0};
    reader r;
    pn_mem_init_libc(&mem);
    img m = hf_file("st/odd.safetensors"), facts = hf_file("st/odd.json");
    pn_source src = img_source(&m, true, &r);
    if (!PN_CHECK(pn_safetensors_read(&s, &mem, &src, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_json_parse(&d, &mem, PN_ACCT_MISC, (const char *)facts.b, facts.n, NULL, &err) == PN_OK, "%s", err.text))
        return;
    uint32_t tensors = pn_json_get(&d, 0, "tensors"), meta = pn_json_get(&d, 0, "metadata");
    PN_CHECK(s.n_tensors == pn_json_count(&d, tensors) && s.n_meta == pn_json_count(&d, meta));
    for (uint32_t at = pn_json_first(&d, tensors); at != PN_JSON_NONE; at = pn_json_next(&d, at)) {
        pn_bytes dtype = {0}, hex = {0};
        const char *name = pn_json_key_of(&d, at).data;
        const pn_st_tensor *t = pn_safetensors_find(&s, name);
        uint32_t shape = pn_json_get(&d, at, "shape"), k = 0;
        if (!PN_CHECK(t, "%s", name))
            continue;
        pn_json_str(&d, pn_json_get(&d, at, "dtype"), &dtype);
        pn_json_str(&d, pn_json_get(&d, at, "hex"), &hex);
        PN_CHECK(strcmp(pn_st_dtype_get(t->dtype)->name, dtype.data) == 0 && t->rank == pn_json_count(&d, shape));
        for (uint32_t n = pn_json_first(&d, shape); n != PN_JSON_NONE; n = pn_json_next(&d, n), k++) {
            int64_t v = -1;
            PN_CHECK(pn_json_i64(&d, n, &v) && t->shape[k] == (uint64_t)v);
        }
        PN_CHECK(hex_equal(hex.data, hex.len, m.b + t->offset, (size_t)t->bytes), "%s", name);
    }
    for (size_t i = 0; i < s.n_meta; i++) {
        pn_bytes v = {0};
        PN_CHECK(pn_json_str(&d, pn_json_find(&d, meta, s.meta[i].key.data, s.meta[i].key.len), &v) &&
                 v.len == s.meta[i].value.len && memcmp(v.data, s.meta[i].value.data, v.len) == 0);
    }
    for (size_t i = 1; i < s.n_tensors; i++)
        PN_CHECK(s.tensors[i].offset == s.tensors[i - 1].offset + s.tensors[i - 1].bytes);
    pn_safetensors_fini(&s);
    pn_json_fini(&d);
    img_free(&m);
    img_free(&facts);
}

static void hostile_files_are_refused(void)
{
    static const struct { const char *file, *piece; } bad[] = {
        {"header_2e63", "the header length at offset 0 is 9223372036854775808, above 100000000"},
        {"header_beyond_file", "truncated: the header has "},
        {"overlap", "tensor 'b' overlaps 'a': it begins at data offset 4, the other ends at 8"},
        {"hole", "4 bytes between 'a' and 'b' belong to no tensor"},
        {"trailing", "bytes after the last tensor"},
        {"cut", "3 short"},
        {"wrap", "tensor 'a': the element count overflows: 4294967296 x 4294967296"},
        {"size_mismatch", "the shape needs 12 bytes, 'data_offsets' 0 to 8 declare 8"},
        {"duplicate_same", "found \"w\" again"},
        {"float_shape", "tensor 'w': 'shape' item 0: expected an integer of 0 to 2^63-1, found 1e0"},
        {"nested_20000", "at most 4 arrays and objects inside each other"},
        {"metadata_number", "expected a string, found number"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        char name[96];
        snprintf(name, sizeof name, "hostile/%s.safetensors", bad[i].file);
        expect(name, hf_file(name), PN_E_FORMAT, bad[i].piece);
    }
    expect("many_empty", hf_file("hostile/many_empty.safetensors"), PN_OK, "");
}

static void every_cut_is_refused(void)
{
    img m = hf_file("st/odd.safetensors");
    for (size_t n = 0; n < m.n; n++) {
        img cut = {m.b, n, n}, exact = img_exact(&cut);
        pn_test_mem mem;
        pn_safetensors s;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        pn_source src = img_source(&exact, n & 1, &r);
        PN_CHECK(pn_safetensors_read(&s, &mem.mem, &src, &err) == PN_E_FORMAT && mem.outstanding == 0, "%zu bytes", n);
        img_free(&exact);
    }
    img_free(&m);
}

static void each_allocation_and_each_read_may_fail(void)
{
    img m = hf_file("st/odd.safetensors");
    for (int callback = 0; callback < 2; callback++)
        for (long k = 1;; k++) {
            pn_test_mem mem;
            pn_safetensors s;
            pn_err err = {0};
            reader r;
            pn_test_mem_init(&mem, k);
            pn_source src = img_source(&m, callback, &r);
            pn_status st = pn_safetensors_read(&s, &mem.mem, &src, &err);
            pn_safetensors_fini(&s);
            PN_CHECK(mem.outstanding == 0, "allocation %ld: %ld left", k, mem.outstanding);
            if (st == PN_OK) {
                PN_CHECK(mem.n_calls < k && k > 4);
                break;
            }
            PN_CHECK(st == PN_E_NOMEM && strstr(err.text, "out of memory"), "allocation %ld: %s", k, err.text);
        }
    for (long k = 1; k < 3; k++) {
        pn_test_mem mem;
        pn_safetensors s;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        pn_source src = img_source(&m, true, &r);
        r.fail_at = k;
        PN_CHECK(pn_safetensors_read(&s, &mem.mem, &src, &err) == PN_E_IO && mem.outstanding == 0, "%s", err.text);
    }
    img_free(&m);
}

/* --- many -------------------------------------------------------------------------------------------- */

/* n tensors of 1 byte (zero bytes where `empty`), in an order unlike their places. */
static img many(size_t n, bool empty)
{
    pn_mem mem;
    pn_str s;
    pn_mem_init_libc(&mem);
    pn_str_init(&s, &mem, PN_ACCT_MISC);
    for (size_t i = 0; i < n; i++) {
        size_t at = empty ? 0 : i * 7919 % n;
        pn_str_addf(&s, "%c\"model.layers.%zu.weight\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%zu,%zu]}", i ? ',' : '{', i,
                    !empty, at, at + !empty);
    }
    pn_str_addc(&s, '}');
    img m = {0};
    put64(&m, s.len);
    put(&m, s.data, s.len);
    zeros(&m, empty ? 0 : n);
    pn_str_fini(&s);
    return m;
}

static double load_seconds(img m, size_t n)
{
    pn_test_mem mem;
    pn_safetensors s;
    pn_err err = {0};
    reader r;
    pn_test_mem_init(&mem, 0);
    pn_source src = img_source(&m, false, &r);
    clock_t start = clock();
    PN_CHECK(pn_safetensors_read(&s, &mem.mem, &src, &err) == PN_OK && s.n_tensors == n, "%s", err.text);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    PN_CHECK(pn_safetensors_find(&s, "model.layers.17.weight") && !pn_safetensors_find(&s, "model.layers.x.weight"));
    pn_safetensors_fini(&s);
    PN_CHECK(mem.outstanding == 0);
    img_free(&m);
    return seconds;
}

/* 200,000 take ten times 20,000 and not a hundred times; generous, because machines are busy. */
static void many_tensors_load_fast(void)
{
    double some = load_seconds(many(20000, false), 20000), all = load_seconds(many(200000, false), 200000);
    printf("20,000 tensors in %.0f ms, 200,000 in %.0f ms\n", some * 1e3, all * 1e3);
    PN_CHECK(all < 40 * some + 1);
    load_seconds(many(1000, true), 1000);
    load_seconds(many(200000, true), 200000);
}

static void too_many_values_are_refused(void)
{
    img m = {0};
    size_t n = (size_t)1 << 24;
    put64(&m, n * 2 + 25 + 1);
    put(&m, "{\"a\":{\"dtype\":\"F32\",\"x\":[", 25);
    for (size_t i = 0; i < n; i++)
        put(&m, "1,", 2);
    put(&m, "1", 1);
    pn_test_mem mem;
    pn_safetensors s;
    pn_err err = {0};
    reader r;
    pn_test_mem_init(&mem, 0);
    pn_source src = img_source(&m, false, &r);
    PN_CHECK(pn_safetensors_read(&s, &mem.mem, &src, &err) == PN_E_FORMAT && strstr(err.text, "at most 16777216 values"), "%s", err.text);
    PN_CHECK(mem.outstanding == 0);
    img_free(&m);
}

/* --- the index --------------------------------------------------------------------------------------- */

static pn_status index_open(pn_st_index *x, pn_mem *mem, const img *m, bool callback, pn_err *err)
{
    reader r;
    pn_source src = img_source(m, callback, &r);
    src.name = "index";
    return pn_st_index_read(x, mem, &src, err);
}

static void index_refuse(const char *json, const char *piece)
{
    for (int callback = 0; callback < 2; callback++) {
        pn_test_mem mem;
        pn_st_index x;
        pn_err err = {0};
        img m = {0};
        put(&m, json, strlen(json));
        pn_test_mem_init(&mem, 0);
        PN_CHECK(index_open(&x, &mem.mem, &m, callback, &err) == PN_E_FORMAT && mem.outstanding == 0);
        PN_CHECK(strncmp(err.text, "index: ", 7) == 0 && strstr(err.text, piece), "%s: %s", json, err.text);
        pn_st_index_fini(&x);
        img_free(&m);
    }
}

static void an_index_is_checked(void)
{
    static const char *const names[] = {"../x", "/x", "a/b", ".x", "", "a\\u0000", "a b", "a\\\\b", "..", "\xc3\xa9"};
    index_refuse("", "JSON byte 0");
    index_refuse("[]", "'weight_map'");
    index_refuse("{\"weight_map\":[]}", "found array");
    index_refuse("{\"weight_map\":{}}", "found an empty one");
    index_refuse("{\"weight_map\":{\"a\":1}}", "tensor 'a': expected a string");
    index_refuse("{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "found \"a\" again");
    index_refuse("{\"weight_map\":{\"\":\"x\"}}", "the name is empty");
    index_refuse("{\"weight_map\":{\"a\\u0000\":\"x\"}}", "NUL");
    for (size_t i = 0; i < PN_COUNT_OF(names); i++) {
        char json[96];
        snprintf(json, sizeof json, "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        index_refuse(json, "tensor 'a': file name '");
    }
}

static void an_index_maps_tensors_to_files(void)
{
    static const char json[] = "{\"metadata\":{\"total_size\":1,\"x\":[[1]]},\"weight_map\":"
                               "{\"c\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}";
    img m = {0};
    put(&m, json, strlen(json));
    for (long k = 1;; k++) {
        pn_test_mem mem;
        pn_st_index x;
        pn_err err = {0};
        pn_test_mem_init(&mem, k);
        pn_status st = index_open(&x, &mem.mem, &m, k & 1, &err);
        if (st == PN_OK) {
            PN_CHECK(x.n_places == 3 && x.n_files == 2 && mem.n_calls < k);
            PN_CHECK(strcmp(x.files[0].name, "m-2.safetensors") == 0 && x.files[0].n_tensors == 2);
            PN_CHECK(strcmp(x.files[1].name, "m-1.safetensors") == 0 && x.files[1].n_tensors == 1);
            PN_CHECK(pn_st_index_find(&x, "a")->file == 1 && pn_st_index_find(&x, "b")->file == 0 && !pn_st_index_find(&x, "d"));
        }
        pn_st_index_fini(&x);
        PN_CHECK(mem.outstanding == 0);
        if (st == PN_OK)
            break;
        PN_CHECK(st == PN_E_NOMEM);
    }
    img_free(&m);
}

/* The index in hostile/DIR against `shard`, a file of the same folder. */
static void index_disagrees(const char *index, const char *shard, const char *piece)
{
    pn_mem mem;
    pn_st_index x;
    pn_safetensors s;
    pn_err err = {0};
    reader r;
    pn_mem_init_libc(&mem);
    img mx = hf_file(index), ms = hf_file(shard);
    pn_source src = img_source(&ms, false, &r);
    if (PN_CHECK(index_open(&x, &mem, &mx, false, &err) == PN_OK, "%s", err.text) &&
        PN_CHECK(pn_safetensors_read(&s, &mem, &src, &err) == PN_OK, "%s", err.text)) {
        pn_status st = pn_st_index_check(&x, 0, &s, &err);
        PN_CHECK(piece ? st == PN_E_FORMAT && strstr(err.text, piece) : st == PN_OK, "%s", err.text);
        pn_safetensors_fini(&s);
        pn_st_index_fini(&x);
    }
    img_free(&mx);
    img_free(&ms);
}

static void hostile_indexes_are_refused(void)
{
    pn_mem mem;
    pn_st_index x;
    pn_err err = {0};
    pn_mem_init_libc(&mem);
    img m = hf_file("hostile/index_escape/model.safetensors.index.json");
    PN_CHECK(index_open(&x, &mem, &m, false, &err) == PN_E_FORMAT && strstr(err.text, "'../overlap.safetensors'"), "%s", err.text);
    img_free(&m);
    index_disagrees("hostile/index_disagrees/model.safetensors.index.json", "hostile/index_disagrees/model-00001-of-00001.safetensors",
                    "holds tensor 'w', which the index does not list; tensor 'v', which it has there, is missing");
    index_disagrees("hostile/index_missing/model.safetensors.index.json", "hostile/index_missing/model-00001-of-00002.safetensors", NULL);
    m = hf_file("hostile/index_missing/model.safetensors.index.json");
    if (PN_CHECK(index_open(&x, &mem, &m, false, &err) == PN_OK))
        PN_CHECK(x.n_files == 2 && strcmp(x.files[1].name, "model-00002-of-00002.safetensors") == 0);
    pn_st_index_fini(&x);
    img_free(&m);
    /* one that it has, one that it lacks, one in another file */
    static const char json[] = "{\"weight_map\":{\"a\":\"f\",\"v\":\"f\",\"w\":\"g\"}}";
    static const struct { const char *shard, *piece; } cases[] = {
        {"{\"a\":{" F32_2 "[0,8]}}", "f: tensor 'v' is missing"},
        {"{\"w\":{" F32_2 "[0,8]}}", "f: holds tensor 'w', which the index has in g"},
        {"{\"x\":{" F32_2 "[0,8]}}", "f: holds tensor 'x', which the index does not list"},
    };
    m = (img){0};
    put(&m, json, strlen(json));
    PN_CHECK(index_open(&x, &mem, &m, false, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_safetensors s;
        reader r;
        img ms = st_image(cases[i].shard, 8);
        pn_source src = img_source(&ms, false, &r);
        PN_CHECK(pn_safetensors_read(&s, &mem, &src, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_st_index_check(&x, 0, &s, &err) == PN_E_FORMAT && strstr(err.text, cases[i].piece), "%s", err.text);
        pn_safetensors_fini(&s);
        img_free(&ms);
    }
    pn_st_index_fini(&x);
    img_free(&m);
}

/* --- writing ----------------------------------------------------------------------------------------- */

static const pn_st_meta meta_pt[] = {{{"format", 6}, {"pt", 2}}};

static void what_is_written_reads_back(void)
{
    pn_test_mem mem;
    pn_str out;
    pn_err err = {0};
    pn_st_tensor list[] = {
        {.name = "b", .dtype = PN_ST_BOOL, .rank = 1, .shape = {3}}, {.name = "h\xc3\xa9 \"q\"", .dtype = PN_ST_F16, .rank = 2, .shape = {2, 3}},
        {.name = "empty", .dtype = PN_ST_F32, .rank = 2, .shape = {0, 7}}, {.name = "z", .dtype = PN_ST_I64, .rank = 0},
        {.name = "a", .dtype = PN_ST_F16, .rank = 1, .shape = {1}}, {.name = "f4", .dtype = PN_ST_F4, .rank = 1, .shape = {2}},
    };
    pn_test_mem_init(&mem, 0);
    pn_str_init(&out, &mem.mem, PN_ACCT_MISC);
    pn_str_addz(&out, "before");
    PN_CHECK(pn_st_header(&out, list, PN_COUNT_OF(list), meta_pt, 1, &err) == PN_OK, "%s", err.text);
    static const char *const order[] = {"z", "empty", "a", "h\xc3\xa9 \"q\"", "f4", "b"};
    img m = {0};
    put(&m, out.data + 6, out.len - 6);
    PN_CHECK(m.n % 8 == 0);
    zeros(&m, 8 + 2 + 12 + 1 + 3);
    pn_safetensors s;
    reader r;
    pn_source src = img_source(&m, false, &r);
    PN_CHECK(pn_safetensors_read(&s, &mem.mem, &src, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < s.n_tensors; i++) {
        const pn_st_tensor *a = &s.tensors[i], *b = &list[i];
        PN_CHECK(strcmp(b->name, order[i]) == 0 && strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank &&
                 a->offset == b->offset && a->bytes == b->bytes && memcmp(a->shape, b->shape, sizeof a->shape) == 0, "%s", order[i]);
        PN_CHECK(a->offset * 8 % PN_MIN(pn_st_dtype_get(a->dtype)->bits, 8u) == 0);
    }
    PN_CHECK(s.n_meta == 1 && strcmp(s.meta[0].key.data, "format") == 0 && strcmp(s.meta[0].value.data, "pt") == 0);
    pn_safetensors_fini(&s);
    pn_str_fini(&out);
    img_free(&m);
    PN_CHECK(mem.outstanding == 0);
}

/* The reference's own file, its header made anew from its tensors in another order. */
static void header_is_made_again(const img *m, const char *who)
{
    pn_mem mem;
    pn_safetensors s;
    pn_str out;
    pn_err err = {0};
    reader r;
    pn_mem_init_libc(&mem);
    pn_str_init(&out, &mem, PN_ACCT_MISC);
    pn_source src = img_source(m, true, &r);
    if (!PN_CHECK(pn_safetensors_read(&s, &mem, &src, &err) == PN_OK, "%s: %s", who, err.text))
        return;
    for (size_t i = 0; i < s.n_tensors / 2; i++) {
        pn_st_tensor swap = s.tensors[i];
        s.tensors[i] = s.tensors[s.n_tensors - 1 - i];
        s.tensors[s.n_tensors - 1 - i] = swap;
    }
    PN_CHECK(pn_st_header(&out, s.tensors, s.n_tensors, s.meta, s.n_meta, &err) == PN_OK, "%s: %s", who, err.text);
    PN_CHECK(out.len == s.data_start && memcmp(out.data, m->b, out.len) == 0, "%s", who);
    pn_str_fini(&out);
    pn_safetensors_fini(&s);
}

static void the_header_is_the_reference_writers(void)
{
    img m = hf_file("qwen3_tied/model.safetensors");
    header_is_made_again(&m, "qwen3_tied");
    img_free(&m);
}

static img golden_file(const char *name)
{
    const char *dir = getenv("PANTHEON_GOLDEN") ? getenv("PANTHEON_GOLDEN") : "../shared/golden";
    char path[512];
    img m = {0};
    snprintf(path, sizeof path, "%s/hf/%s", dir, name);
    m.b = (uint8_t *)pn_test_read_file(path, &m.n);
    return m;
}

static void golden_checkpoints_are_read(void)
{
    static const char *const files[] = {"llama_bf16/model-00001-of-00002.safetensors", "llama_bf16/model-00002-of-00002.safetensors",
                                        "mixtral_f32/model.safetensors", "phi3_f16/model.safetensors"};
    pn_mem mem;
    pn_st_index x;
    pn_err err = {0};
    pn_mem_init_libc(&mem);
    img index = golden_file("llama_bf16/model.safetensors.index.json");
    if (!index.b) {
        pn_test_skip("checkpoints: no golden fixtures");
        return;
    }
    PN_CHECK(index_open(&x, &mem, &index, false, &err) == PN_OK && x.n_files == 2, "%s", err.text);
    for (size_t i = 0; i < PN_COUNT_OF(files); i++) {
        img m = golden_file(files[i]);
        if (!PN_CHECK(m.b, "%s", files[i]))
            continue;
        header_is_made_again(&m, files[i]);
        for (uint32_t f = 0; f < x.n_files; f++) {
            pn_safetensors s;
            reader r;
            pn_source src = img_source(&m, false, &r);
            if (strcmp(strchr(files[i], '/') + 1, x.files[f].name) != 0)
                continue;
            PN_CHECK(pn_safetensors_read(&s, &mem, &src, &err) == PN_OK && pn_st_index_check(&x, f, &s, &err) == PN_OK, "%s", err.text);
            PN_CHECK(pn_st_index_check(&x, 1 - f, &s, &err) == PN_E_FORMAT, "%s", err.text);
            pn_safetensors_fini(&s);
        }
        img_free(&m);
    }
    pn_st_index_fini(&x);
    img_free(&index);
}

static void what_cannot_be_written_is_refused(void)
{
    static const struct { pn_st_tensor t; const char *piece; } bad[] = {
        {{.name = "", .dtype = PN_ST_F32}, "the name is empty"},
        {{.name = "a\xff", .dtype = PN_ST_F32}, "not UTF-8"},
        {{.name = "__metadata__", .dtype = PN_ST_F32}, "means something else"},
        {{.name = "a", .dtype = PN_ST_DTYPE_COUNT}, "number format"},
        {{.name = "a", .dtype = PN_ST_F32, .rank = 9}, "8 dimensions"},
        {{.name = "a", .dtype = PN_ST_F4, .rank = 1, .shape = {1}}, "whole bytes"},
        {{.name = "a", .dtype = PN_ST_U8, .rank = 2, .shape = {1u << 31, 1ull << 33}}, "overflows"},
        {{.name = "a", .dtype = PN_ST_U8, .rank = 1, .shape = {(1ull << 61) - 1}}, "beyond 2^60"},
        {{.name = "twice", .dtype = PN_ST_U8, .rank = 1, .shape = {1}}, "'twice' comes twice"},
    };
    pn_mem mem;
    pn_mem_init_libc(&mem);
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        pn_st_tensor list[2] = {bad[i].t, {.name = "twice", .dtype = PN_ST_F32}};
        pn_str out;
        pn_err err = {0};
        pn_str_init(&out, &mem, PN_ACCT_MISC);
        PN_CHECK(pn_st_header(&out, list, 2, NULL, 0, &err) == PN_E_INVALID && strstr(err.text, bad[i].piece), "%s", err.text);
        pn_str_fini(&out);
    }
    for (long k = 1;; k++) {
        pn_test_mem failing;
        pn_st_tensor list[1] = {{.name = "a", .dtype = PN_ST_F32}};
        pn_str out;
        pn_err err = {0};
        pn_test_mem_init(&failing, k);
        pn_str_init(&out, &failing.mem, PN_ACCT_MISC);
        pn_status st = pn_st_header(&out, list, 1, meta_pt, 1, &err);
        pn_str_fini(&out);
        PN_CHECK(failing.outstanding == 0 && (st == PN_OK || st == PN_E_NOMEM));
        if (st == PN_OK)
            break;
    }
}

int main(void)
{
    length_is_checked();
    json_is_strict();
    names_are_checked();
    entries_are_checked();
    tensors_cover_the_data();
    an_odd_file_gives_what_the_reference_reads();
    hostile_files_are_refused();
    every_cut_is_refused();
    each_allocation_and_each_read_may_fail();
    many_tensors_load_fast();
    too_many_values_are_refused();
    an_index_is_checked();
    an_index_maps_tensors_to_files();
    hostile_indexes_are_refused();
    what_is_written_reads_back();
    the_header_is_the_reference_writers();
    golden_checkpoints_are_read();
    what_cannot_be_written_is_refused();
    return pn_test_end();
}
