/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_pth.c - files of torch: the archive, the pickle and the tensors, each rule as a named case, from
 * memory and from a callback; elements against what torch has, and gathered ones against a plain loop.
 */
#include "pth_image.h"

#include <time.h>

#include "base/pn_json.h"
#include "format/pn_pickle.h"
#include "format/pn_pth.h"
#include "format/pn_zip.h"

/* --- opening ------------------------------------------------------------------------------------------ */

static void expect(const char *what, img m, pn_status status, const char *piece)
{
    for (int callback = 0; callback < 2; callback++) {
        pn_test_mem mem;
        pn_pth p;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        img exact = img_exact(&m);
        pn_source src = img_source(&exact, callback, &r);
        pn_status st = pn_pth_open(&p, &mem.mem, &src, &err);
        PN_CHECK(st == status && (st == PN_OK || err.status == st), "%s (callback %d): %s: %s", what, callback, pn_status_name(st), err.text);
        PN_CHECK(st == PN_OK || strstr(err.text, piece), "%s: no '%s' in: %s", what, piece, err.text);
        PN_CHECK(st == PN_OK || strncmp(err.text, "some-file: ", 11) == 0, "%s: %s", what, err.text);
        PN_CHECK(r.largest <= m.n, "%s: asked for %" PRIu64 " bytes", what, r.largest);
        pn_pth_close(&p);
        PN_CHECK(mem.outstanding == 0, "%s: %ld blocks left", what, mem.outstanding);
        img_free(&exact);
    }
    img_free(&m);
}

static const pn_pth_tensor *find(const pn_pth *p, const char *name)
{
    for (size_t i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensors[i].name, name) == 0)
            return &p->tensors[i];
    return NULL;
}

static pn_status collect(void *user, const void *bytes, size_t n, pn_err *err)
{
    (void)err;
    put(user, bytes, n);
    return PN_OK;
}

static img elements(const pn_pth *p, const pn_pth_tensor *t)
{
    img out = {0};
    pn_err err = {0};
    PN_CHECK(pn_pth_stream(p, t, collect, &out, &err) == PN_OK, "%s: %s", t->name, err.text);
    return out;
}

/* --- fixtures ----------------------------------------------------------------------------------------- */

static void check_shape(const pn_json_doc *d, uint32_t list, const uint64_t *have, uint32_t rank, const char *name)
{
    uint32_t k = 0;
    PN_CHECK(pn_json_count(d, list) == rank, "%s", name);
    for (uint32_t n = pn_json_first(d, list); n != PN_JSON_NONE; n = pn_json_next(d, n), k++) {
        int64_t v = -1;
        PN_CHECK(pn_json_i64(d, n, &v) && have[k] == (uint64_t)v, "%s", name);
    }
}

static void an_odd_file_gives_what_torch_reads(void)
{
    for (int callback = 0; callback < 2; callback++) {
        pn_test_mem mem;
        pn_json_doc d;
        pn_pth p;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        img m = hf_file("pth/odd.pth"), facts = hf_file("pth/odd.json");
        pn_source src = img_source(&m, callback, &r);
        if (!PN_CHECK(pn_pth_open(&p, &mem.mem, &src, &err) == PN_OK, "%s", err.text) ||
            !PN_CHECK(pn_json_parse(&d, &mem.mem, PN_ACCT_MISC, (const char *)facts.b, facts.n, NULL, &err) == PN_OK, "%s", err.text))
            return;
        uint32_t tensors = pn_json_get(&d, 0, "tensors");
        PN_CHECK(p.n_tensors == pn_json_count(&d, tensors) && p.n_others > 0);
        for (uint32_t at = pn_json_first(&d, tensors); at != PN_JSON_NONE; at = pn_json_next(&d, at)) {
            pn_bytes dtype = {0}, hex = {0};
            const char *name = pn_json_key_of(&d, at).data;
            const pn_pth_tensor *t = find(&p, name);
            if (!PN_CHECK(t, "%s", name))
                continue;
            pn_json_str(&d, pn_json_get(&d, at, "dtype"), &dtype);
            pn_json_str(&d, pn_json_get(&d, at, "hex"), &hex);
            PN_CHECK(strcmp(pn_st_dtype_get(t->dtype)->name, dtype.data) == 0, "%s", name);
            check_shape(&d, pn_json_get(&d, at, "shape"), t->shape, t->rank, name);
            img out = elements(&p, t);
            PN_CHECK(out.n == t->bytes && hex_equal(hex.data, hex.len, out.b, out.n), "%s", name);
            img_free(&out);
        }
        pn_json_fini(&d);
        pn_pth_close(&p);
        PN_CHECK(mem.outstanding == 0);
        img_free(&m);
        img_free(&facts);
    }
}

static void both_forms_of_a_model_hold_its_tensors(void)
{
    static const char *const files[] = {"pth/qwen3_tied.pth", "pth/qwen3_tied_legacy.pth"};
    pn_test_mem mem;
    pn_json_doc d;
    pn_safetensors s;
    pn_err err = {0};
    reader r;
    pn_test_mem_init(&mem, 0);
    img want = hf_file("qwen3_tied/model.safetensors"), facts = hf_file("pth/qwen3_tied.json");
    pn_source src = img_source(&want, false, &r);
    if (!PN_CHECK(pn_safetensors_read(&s, &mem.mem, &src, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_json_parse(&d, &mem.mem, PN_ACCT_MISC, (const char *)facts.b, facts.n, NULL, &err) == PN_OK, "%s", err.text))
        return;
    uint32_t tensors = pn_json_get(&d, 0, "tensors");
    for (size_t f = 0; f < PN_COUNT_OF(files); f++) {
        pn_pth p;
        img m = hf_file(files[f]);
        src = img_source(&m, f == 0, &r);
        if (!PN_CHECK(pn_pth_open(&p, &mem.mem, &src, &err) == PN_OK, "%s", err.text))
            continue;
        PN_CHECK(p.n_tensors == pn_json_count(&d, tensors) && p.n_tensors == s.n_tensors + 1);
        for (size_t i = 0; i < p.n_tensors; i++) {
            const pn_pth_tensor *t = &p.tensors[i];
            const pn_st_tensor *w = pn_safetensors_find(&s, strcmp(t->name, "lm_head.weight") ? t->name : "model.embed_tokens.weight");
            uint32_t fact = pn_json_get(&d, tensors, t->name);
            int64_t first = -1;
            bool contiguous = false;
            if (!PN_CHECK(w && fact != PN_JSON_NONE, "%s", t->name))
                continue;
            check_shape(&d, pn_json_get(&d, fact, "shape"), t->shape, t->rank, t->name);
            check_shape(&d, pn_json_get(&d, fact, "strides"), t->stride, t->rank, t->name);
            PN_CHECK(pn_json_i64(&d, pn_json_get(&d, fact, "offset"), &first) && t->first == (uint64_t)first);
            PN_CHECK(pn_json_bool(&d, pn_json_get(&d, fact, "contiguous"), &contiguous) && t->contiguous == contiguous);
            PN_CHECK(t->dtype == w->dtype && t->bytes == w->bytes && t->rank == w->rank);
            img out = elements(&p, t);
            PN_CHECK(out.n == w->bytes && memcmp(out.b, want.b + w->offset, out.n) == 0, "%s", t->name);
            if (t->contiguous)
                PN_CHECK(memcmp(m.b + pn_pth_offset(&p, t), want.b + w->offset, out.n) == 0, "%s", t->name);
            img_free(&out);
        }
        PN_CHECK(pn_pth_same_view(find(&p, "lm_head.weight"), find(&p, "model.embed_tokens.weight")));
        PN_CHECK(!pn_pth_same_view(find(&p, "model.layers.1.self_attn.k_proj.weight"), find(&p, "model.layers.1.self_attn.v_proj.weight")));
        pn_pth_close(&p);
        img_free(&m);
    }
    pn_json_fini(&d);
    pn_safetensors_fini(&s);
    PN_CHECK(mem.outstanding == 0);
    img_free(&want);
    img_free(&facts);
}

static void hostile_files_are_refused(void)
{
    static const struct { const char *file; pn_status status; const char *piece; } bad[] = {
        {"global_system", PN_E_UNSUPPORTED, "global 'os.system' is not one that tensors need: refused, nothing was run"},
        {"global_eval", PN_E_UNSUPPORTED, "global '__builtin__.eval'"},
        {"getattr_chain", PN_E_UNSUPPORTED, "global '__builtin__.getattr'"},
        {"stride_beyond", PN_E_FORMAT, "needs element 5, its storage 0 has 4"},
        {"offset_wrap", PN_E_FORMAT, "strides overflow"},
        {"negative_stride", PN_E_FORMAT, "negative stride -1"},
        {"storage_short", PN_E_FORMAT, "storage 0 has 12 bytes in the archive, 16 are declared"},
        {"storage_missing", PN_E_FORMAT, "storage 7 is not in the archive: no member 'archive/data/7'"},
        {"storage_key_path", PN_E_FORMAT, "the storage key '../data.pkl' is not a number"},
        {"expand_huge", PN_E_FORMAT, "tensor 'w', a view of 4 elements: the size overflows: 1152921504606846976 elements"},
        {"compressed", PN_E_UNSUPPORTED, "is compressed (method 8, deflate)"},
        {"memo_bomb", PN_E_FORMAT, "no tensors"},
        {"self_reference", PN_E_FORMAT, "no tensors"},
        {"stack_underflow", PN_E_FORMAT, "archive/data.pkl: pickle offset 2, opcode 74: stack underflow"},
        {"string_4g", PN_E_FORMAT, "4294967295 bytes are needed"},
        {"negative_count", PN_E_FORMAT, "storage 0: expected an element count of 0 or more, found -1"},
        {"zip64_missing", PN_E_FORMAT, "asks for a zip64 record"},
        {"zip_offset", PN_E_FORMAT, "at offset 2147483647 is not before the directory at offset 342"},
        {"legacy_count", PN_E_FORMAT, "1152921504606846976"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        char name[96];
        snprintf(name, sizeof name, "hostile/%s.pth", bad[i].file);
        expect(name, hf_file(name), bad[i].status, bad[i].piece);
    }
}

/* --- the archive --------------------------------------------------------------------------------------- */

static void other_files_are_told_apart(void)
{
    img m = {0};
    expect("empty", m, PN_E_FORMAT, "not a file of torch.save");
    put(&m, "version https://git-lfs.github.com/spec/v1\n", 43);
    expect("lfs", m, PN_E_FORMAT, "Git LFS");
    m = (img){0};
    zeros(&m, 512);
    memcpy(m.b + 257, "ustar", 5);
    expect("tar", m, PN_E_UNSUPPORTED, "re-save the file with torch 1.6");
    m = (img){0};
    put(&m, "PK\3\4", 4);
    expect("short", m, PN_E_FORMAT, "less than an end record");
    m = (img){0};
    put(&m, "PK\3\4", 4);
    zeros(&m, 100);
    expect("no end", m, PN_E_FORMAT, "no end record in the last 104 bytes");
    zip z = {{0}, {0}, 0};
    zip_put(&z, "code/constants.pkl", "", 0, false, 0);
    expect("script", zip_end(&z, 0, ""), PN_E_UNSUPPORTED, "TorchScript");
    z = (zip){{0}, {0}, 0};
    zip_put(&z, "readme.txt", "", 0, false, 0);
    expect("another zip", zip_end(&z, 0, ""), PN_E_FORMAT, "a zip archive of 1 members, but none is */data.pkl");
    z = (zip){{0}, {0}, 0};
    zip_put(&z, "a/data.pkl", "", 0, false, 0);
    zip_put(&z, "b/data.pkl", "", 0, false, 0);
    expect("two pickles", zip_end(&z, 0, ""), PN_E_FORMAT, "two pickles, 'a/data.pkl' and 'b/data.pkl'");
}

static pn_status zip_open(pn_zip *z, pn_test_mem *mem, img m, pn_err *err)
{
    reader r;
    pn_test_mem_init(mem, 0);
    img exact = img_exact(&m);
    pn_source src = img_source(&exact, true, &r);
    pn_status st = pn_zip_read(z, &mem->mem, &src, err);
    img_free(&exact);
    img_free(&m);
    return st;
}

static void zip_refuse(const char *what, img m, const char *piece)
{
    pn_test_mem mem;
    pn_zip z;
    pn_err err = {0};
    pn_status st = zip_open(&z, &mem, m, &err);
    PN_CHECK((st == PN_E_FORMAT || st == PN_E_UNSUPPORTED) && strstr(err.text, piece), "%s: no '%s' in: %s", what, piece, err.text);
    PN_CHECK(mem.outstanding == 0);
}

static zip zip_two(bool wide)
{
    zip z = {{0}, {0}, 0};
    zip_put(&z, "a", "12345", 5, wide, 3);
    zip_put(&z, "bb", "6", 1, wide, 0);
    return z;
}

/* Every way in which numbers move to the zip64 records gives the same members. */
static void zip64_is_read(void)
{
    for (unsigned saturated = 0; saturated < 8; saturated++)
        for (int wide = 0; wide < 2; wide++) {
            pn_test_mem mem;
            pn_zip z;
            pn_err err = {0};
            zip two = zip_two(wide);
            if (!PN_CHECK(zip_open(&z, &mem, zip_end(&two, saturated, saturated & 1 ? "a comment" : ""), &err) == PN_OK, "%s", err.text))
                continue;
            const pn_zip_member *a = pn_zip_find(&z, "a"), *b = pn_zip_find(&z, "bb");
            PN_CHECK(z.n_members == 2 && a && b && !pn_zip_find(&z, "b"));
            PN_CHECK(a->header == 0 && a->offset == 30 + 1 + 3 && a->bytes == 5);
            PN_CHECK(b->header == 34 + 5 + 16 && b->offset == b->header + 32 && b->bytes == 1);
            pn_zip_fini(&z);
            PN_CHECK(mem.outstanding == 0);
        }
}

/* A byte changed at `at` from the end of the local part (dir true: of the directory). */
static img zip_broken(bool wide, unsigned saturated, bool dir, size_t at, unsigned v, unsigned n)
{
    zip z = zip_two(wide);
    for (unsigned i = 0; i < n; i++)
        (dir ? z.dir.b : z.file.b)[at + i] = (uint8_t)(v >> (8 * i));
    return zip_end(&z, saturated, "");
}

static void zips_are_checked(void)
{
    zip_refuse("encrypted", zip_broken(false, 0, true, 8, 0x0809, 2), "member 'a' is encrypted");
    zip_refuse("masked", zip_broken(false, 0, true, 8, 0x2808, 2), "member 'a' is encrypted");
    zip_refuse("encrypted locally", zip_broken(false, 0, false, 6, 0x0809, 2), "member 'a' is encrypted");
    zip_refuse("deflated", zip_broken(false, 0, true, 10, 8, 2), "member 'a' is compressed (method 8, deflate)");
    zip_refuse("bzip2", zip_broken(false, 0, true, 10, 12, 2), "member 'a' is compressed (method 12)");
    zip_refuse("deflated locally", zip_broken(false, 0, false, 8, 8, 2), "member 'a' is compressed");
    zip_refuse("sizes", zip_broken(false, 0, true, 20, 4, 4), "has 4 bytes packed and 5 unpacked");
    zip_refuse("offset", zip_broken(false, 0, true, 42, 99999, 4), "is not before the directory");
    zip_refuse("offset of another", zip_broken(false, 0, true, 42, 55, 4), "no header of that name at offset 55");
    zip_refuse("no signature", zip_broken(false, 0, true, 0, 0, 1), "no entry at offset");
    zip_refuse("name length", zip_broken(false, 0, true, 28, 0, 2), "expected a name of 1 to 512 bytes");
    zip_refuse("name length", zip_broken(false, 0, true, 28, 60000, 2), "its entry has");
    zip_refuse("NUL", zip_broken(false, 0, true, 46, 0, 1), "without NULs");
    zip_refuse("volume", zip_broken(false, 0, true, 34, 1, 2), "another volume");
    zip_refuse("zip64 field short", zip_broken(true, 0, true, 46 + 1 + 10 + 2, 16, 2), "asks for a zip64 field");
    zip_refuse("zip64 field absent", zip_broken(true, 0, true, 46 + 1 + 10, 2, 2), "asks for a zip64 field");
    zip_refuse("zip64 size", zip_broken(true, 0, true, 46 + 1 + 10 + 4, 77777, 4), "packed");
    zip z = zip_two(false);
    zip_put(&z, "a", "", 0, false, 0);
    zip_refuse("name twice", zip_end(&z, 0, ""), "member 'a' comes twice");
    z = zip_two(false);
    memcpy(z.dir.b + 24, "\x06\0\0\0", 4);
    memcpy(z.dir.b + 20, "\x20\0\0\0", 4);
    memcpy(z.dir.b + 24, "\x20\0\0\0", 4);      /* 32 bytes from 34 on, the next begins at 55 */
    zip_refuse("overlap", zip_end(&z, 0, ""), "members overlap: 'a' ends at offset 66, 'bb' begins at 55");
    z = zip_two(false);
    z.n = 3;
    zip_refuse("one more", zip_end(&z, 0, ""), "claims 3 members");
    z = zip_two(false);
    z.n = 1;
    zip_refuse("one less", zip_end(&z, 0, ""), "after its 1 members");
    z = zip_two(false);
    img m = zip_end(&z, 7, "");
    m.b[m.n - 22 - 20] = 0;
    zip_refuse("no locator", m, "no locator is at offset");
    z = zip_two(false);
    m = zip_end(&z, 7, "");
    m.b[m.n - 22 - 20 + 15] = 0x80;
    zip_refuse("record outside", m, "the zip64 record would be at offset");
    z = zip_two(false);
    m = zip_end(&z, 7, "");
    m.b[m.n - 22 - 20 - 56] = 0;
    zip_refuse("no record", m, "no zip64 record at offset");
    z = zip_two(false);
    m = zip_end(&z, 7, "");
    memset(m.b + m.n - 22 - 20 - 56 + 40, 0xFF, 8);
    zip_refuse("2^64 - 1 bytes", m, "outside the file");
    z = zip_two(false);
    m = zip_end(&z, 7, "");
    memset(m.b + m.n - 22 - 20 - 56 + 32, 0xFF, 8);
    zip_refuse("2^64 - 1 members", m, "claims 18446744073709551615 members");
    z = zip_two(false);
    m = zip_end(&z, 0, "");
    m.b[m.n - 22 + 4] = 1;
    zip_refuse("volumes", m, "several volumes");
}

static void every_cut_of_a_zip_is_refused(void)
{
    zip z = zip_two(true);
    img m = zip_end(&z, 7, "comment");
    for (size_t n = 0; n < m.n; n++) {
        img cut = {0};
        put(&cut, m.b, n);
        pn_test_mem mem;
        pn_zip out;
        pn_err err = {0};
        PN_CHECK(zip_open(&out, &mem, cut, &err) == PN_E_FORMAT && mem.outstanding == 0, "%zu bytes", n);
    }
    img_free(&m);
}

/* --- the pickle ---------------------------------------------------------------------------------------- */

static pn_status pickle(pn_pickle *p, pn_test_mem *mem, const char *bytes, size_t n, pn_err *err)
{
    pn_test_mem_init(mem, 0);
    img whole = {(uint8_t *)(uintptr_t)bytes, n, n}, exact = img_exact(&whole);
    pn_status st = pn_pickle_read(p, &mem->mem, exact.b, n, 0, err);
    img_free(&exact);
    return st;
}

#define REFUSE(bytes, piece) pickle_refuse(bytes, sizeof bytes - 1, piece, __LINE__)
#define KIND(bytes, kind) pickle_kind(bytes, sizeof bytes - 1, kind, __LINE__)

static void pickle_refuse(const char *bytes, size_t n, const char *piece, int line)
{
    pn_test_mem mem;
    pn_pickle p;
    pn_err err = {0};
    pn_status st = pickle(&p, &mem, bytes, n, &err);
    PN_CHECK(st != PN_OK && strstr(err.text, piece) && strstr(err.text, "pickle offset "), "line %d: no '%s' in: %s", line, piece, err.text);
    PN_CHECK(mem.outstanding == 0);
    pn_pickle_fini(&p);
}

static void pickle_kind(const char *bytes, size_t n, pn_pickle_kind kind, int line)
{
    pn_test_mem mem;
    pn_pickle p;
    pn_err err = {0};
    if (PN_CHECK(pickle(&p, &mem, bytes, n, &err) == PN_OK, "line %d: %s", line, err.text))
        PN_CHECK(pn_pickle_as(&p, p.root, kind), "line %d: %s", line, pn_pickle_kind_name(&p, p.root));
    pn_pickle_fini(&p);
    PN_CHECK(mem.outstanding == 0);
}

static void pickle_int_is(const char *bytes, size_t n, int64_t want)
{
    pn_test_mem mem;
    pn_pickle p;
    pn_err err = {0};
    if (PN_CHECK(pickle(&p, &mem, bytes, n, &err) == PN_OK, "%s", err.text)) {
        const pn_pickle_value *v = pn_pickle_as(&p, p.root, PN_PICKLE_INT);
        PN_CHECK(v && v->u.i == want, "%" PRId64, v ? v->u.i : 0);
    }
    pn_pickle_fini(&p);
}

#define INT(bytes, want) pickle_int_is("\x80\x02" bytes ".", sizeof bytes + 2, want)

static void instructions_do_what_they_should(void)
{
    KIND("\x80\x02N.", PN_PICKLE_NONE);
    KIND("\x80\x02\x88.", PN_PICKLE_BOOL);
    KIND("\x80\x02G\x3f\xf0\0\0\0\0\0\0.", PN_PICKLE_FLOAT);
    KIND("\x80\x02X\1\0\0\0a.", PN_PICKLE_STR);
    KIND("\x80\x02U\0.", PN_PICKLE_STR);
    KIND("\x80\x02).", PN_PICKLE_TUPLE);
    KIND("\x80\x02NNN\x87.", PN_PICKLE_TUPLE);
    KIND("\x80\x02(NNt.", PN_PICKLE_TUPLE);
    KIND("\x80\x02(t.", PN_PICKLE_TUPLE);
    KIND("\x80\x02]Na(NNe.", PN_PICKLE_LIST);
    KIND("\x80\x02\x8f.", PN_PICKLE_LIST);
    KIND("\x80\x02}NNs(NNNNu(u.", PN_PICKLE_DICT);
    KIND("\x80\x02" "ccollections\nOrderedDict\n)R}b.", PN_PICKLE_DICT);
    KIND("\x80\x02" "ccollections\nOrderedDict\n)\x81.", PN_PICKLE_DICT);
    KIND("\x80\x02" "ccollections\nOrderedDict\n]NN\x86" "a\x85R.", PN_PICKLE_DICT);
    KIND("\x80\x02" "ctorch\nSize\n(NNt\x85R.", PN_PICKLE_TUPLE);
    KIND("\x80\x02" "ctorch\nfloat8_e4m3fn\n.", PN_PICKLE_GLOBAL);
    KIND("\x80\x02NQ.", PN_PICKLE_PERSID);
    KIND("\x80\x02}q\0h\0h\0s.", PN_PICKLE_DICT);
    INT("K\xff", 255);
    INT("M\xff\xff", 65535);
    INT("J\xff\xff\xff\xff", -1);
    INT("J\0\0\0\x80", INT32_MIN);
    INT("\x8a\0", 0);
    INT("\x8a\1\x80", -128);
    INT("\x8a\2\x80\0", 128);
    INT("\x8a\x08\0\0\0\0\0\0\0\x80", INT64_MIN);
    INT("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", INT64_MAX);
}

static void broken_pickles_are_refused_with_their_offset(void)
{
    REFUSE("", "offset 0: expected 80 02");
    REFUSE("\x80", "expected 80 02");
    REFUSE("}.", "offset 0: expected 80 02");
    REFUSE("\x80\x04}.", "offset 0: protocol 4, expected 2");
    REFUSE("\x80\x02", "offset 2: the bytes end before STOP");
    REFUSE("\x80\x02N", "offset 3: the bytes end");
    REFUSE("\x80\x02.", "found 0");
    REFUSE("\x80\x02NN.", "found 2");
    REFUSE("\x80\x02(.", "offset 3: expected one object on the stack at the end, found 1");
    REFUSE("\x80\x02N(.", "found 2");
    REFUSE("\x80\x02N0.", "offset 3, opcode 30: this instruction is not one");
    REFUSE("\x80\x02\x95\0\0\0\0\0\0\0\0.", "opcode 95");
    REFUSE("\x80\x02ios\nsystem\n.", "opcode 69");
    REFUSE("\x80\x02K", "1 bytes are needed, 0 are left");
    REFUSE("\x80\x02J\1\2\3", "4 bytes are needed, 3 are left");
    REFUSE("\x80\x02X\5\0\0\0abc.", "offset 2, opcode 58: 5 bytes are needed, 4 are left");
    REFUSE("\x80\x02\x8a\x09" "123456789.", "more than 8 bytes");
    REFUSE("\x80\x02\x8a\x05" "1234", "5 bytes are needed");
    REFUSE("\x80\x02\x85.", "stack underflow");
    REFUSE("\x80\x02NN\x87.", "stack underflow");
    REFUSE("\x80\x02N(N\x86.", "stack underflow");
    REFUSE("\x80\x02t.", "no MARK");
    REFUSE("\x80\x02]e.", "no MARK");
    REFUSE("\x80\x02}u.", "no MARK");
    REFUSE("\x80\x02(e.", "no container");
    REFUSE("\x80\x02((u.", "no container");
    REFUSE("\x80\x02(Na.", "no container");
    REFUSE("\x80\x02Na.", "no container");
    REFUSE("\x80\x02" "a.", "stack underflow");
    REFUSE("\x80\x02}s.", "stack underflow");
    REFUSE("\x80\x02)Na.", "expected a list");
    REFUSE("\x80\x02}Na.", "expected a list");
    REFUSE("\x80\x02]NNs.", "expected a dictionary");
    REFUSE("\x80\x02}(Nu.", "a key without a value");
    REFUSE("\x80\x02h\0.", "offset 2: memo 0 was never set");
    REFUSE("\x80\x02Nq\2h\1.", "memo 1 was never set");
    REFUSE("\x80\x02Nj\xff\xff\xff\xff.", "memo 4294967295 was never set");
    REFUSE("\x80\x02Nr\xff\xff\xff\xff.", "the number of a memo");
    REFUSE("\x80\x02q\0.", "stack underflow");
    REFUSE("\x80\x02(q\0.", "stack underflow");
    REFUSE("\x80\x02Nb.", "stack underflow");
    REFUSE("\x80\x02NNb.", "expected an OrderedDict");
    REFUSE("\x80\x02Q.", "stack underflow");
    REFUSE("\x80\x02)R.", "stack underflow");
    REFUSE("\x80\x02N)R.", "expected a global and a tuple");
    REFUSE("\x80\x02" "ctorch\nSize\n]R.", "expected a global and a tuple");
    REFUSE("\x80\x02" "ctorch\nSize\n)R.", "one tuple as argument of Size");
    REFUSE("\x80\x02" "ctorch\nfloat32\n)R.", "'float32' is not a function");
    REFUSE("\x80\x02" "ctorch\nSize\n)\x81.", "expected OrderedDict as the class");
    REFUSE("\x80\x02" "ctorch._utils\n_rebuild_parameter\nN\x85R.", "expected a tensor as first argument");
    REFUSE("\x80\x02" "ccollections\nOrderedDict\nN\x85R.", "one list of pairs");
    REFUSE("\x80\x02" "ccollections\nOrderedDict\n]Na\x85R.", "expected pairs");
    REFUSE("\x80\x02" "cos\nsystem\n.", "offset 2: global 'os.system'");
    REFUSE("\x80\x02" "ctorch\nFloatStorag\n.", "global 'torch.FloatStorag'");
    REFUSE("\x80\x02" "ctorch\nFloatStorage", "expected the name of a global");
    REFUSE("\x80\x02" "ctorch", "expected the name of a global");
    REFUSE("\x80\x02" "cnumpy.core.multiarray\n_reconstruct\n.", "global 'numpy.core.multiarray._reconstruct'");
    REFUSE("\x80\x02" "ctorch._tensor\n_rebuild_from_type_v2\n.", "global 'torch._tensor._rebuild_from_type_v2'");
}

/* 2^22 pushes, and lists that hold one list again and again. */
static void memory_is_bounded_by_the_bytes(void)
{
    pn_test_mem mem;
    pn_pickle p;
    pn_err err = {0};
    img m = {0};
    put(&m, "\x80\x02", 2);
    for (int i = 0; i < 1 << 20; i++)
        put8(&m, i % 3 ? ')' : '(');
    pn_test_mem_init(&mem, 0);
    PN_CHECK(pn_pickle_read(&p, &mem.mem, m.b, m.n, 0, &err) == PN_E_FORMAT && mem.outstanding == 0, "%s", err.text);
    m.n = 2;
    put(&m, "]q\0(", 4);
    for (int i = 0; i < 1000; i++)
        put(&m, "h\0", 2);
    put(&m, "e", 1);                            /* a list of itself a thousand times, then a dictionary of pairs of it */
    for (int i = 0; i < 20000; i++)
        put(&m, "ccollections\nOrderedDict\nh\0\x85R", 29);
    put8(&m, '.');
    PN_CHECK(pn_pickle_read(&p, &mem.mem, m.b, m.n, 0, &err) == PN_E_FORMAT && strstr(err.text, "expected pairs"), "%s", err.text);
    m.n = 2;
    put(&m, "]q\0(", 4);
    for (int i = 0; i < 1000; i++)
        put(&m, "))\x86", 3);
    put(&m, "e(", 2);
    for (int i = 0; i < 20000; i++)
        put(&m, "ccollections\nOrderedDict\nh\0\x85R", 29);
    put(&m, "t.", 2);
    PN_CHECK(pn_pickle_read(&p, &mem.mem, m.b, m.n, 0, &err) == PN_E_FORMAT && strstr(err.text, "more than 2^23 items"), "%s", err.text);
    PN_CHECK(mem.outstanding == 0);
    img_free(&m);
}

/* --- tensors ------------------------------------------------------------------------------------------- */

static img one_tensor(int64_t count, int64_t first, const int64_t *shape, const int64_t *stride, uint32_t rank, size_t bytes)
{
    uint8_t storage[64] = {0};
    img m = pk_begin();
    pk_tensor(&m, "w", count, first, shape, stride, rank);
    return pth_of(m, storage, bytes, NULL);
}

static void tensors_are_checked(void)
{
    static const int64_t s22[2] = {2, 2}, st21[2] = {2, 1}, neg[2] = {-2, 2}, big[2] = {INT64_MAX, INT64_MAX}, s10k[2] = {10000, 10000}, zero[2] = {0, 0}, s9[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    expect("fits", one_tensor(4, 0, s22, st21, 2, 16), PN_OK, "");
    expect("offset", one_tensor(4, 1, s22, st21, 2, 16), PN_E_FORMAT, "tensor 'w' needs element 4, its storage 0 has 4");
    expect("negative offset", one_tensor(4, -1, s22, st21, 2, 16), PN_E_FORMAT, "negative offset -1");
    expect("negative size", one_tensor(4, 0, neg, st21, 2, 16), PN_E_FORMAT, "negative size -2");
    expect("negative stride", one_tensor(4, 0, s22, neg, 2, 16), PN_E_FORMAT, "negative stride -2");
    expect("count", one_tensor(-1, 0, s22, st21, 2, 16), PN_E_FORMAT, "storage 0: expected an element count of 0 or more, found -1");
    expect("2^63-1 floats", one_tensor(INT64_MAX, 0, s22, st21, 2, 16), PN_E_FORMAT, "overflow");
    expect("long", one_tensor(3, 0, s22, st21, 2, 16), PN_E_FORMAT, "storage 0 has 16 bytes in the archive, 12 are declared");
    expect("huge", one_tensor(4, 0, big, st21, 2, 16), PN_E_FORMAT, "the element count overflows");
    expect("huge stride", one_tensor(4, 0, s22, big, 2, 16), PN_E_FORMAT, "needs element 18446744073709551614, its storage 0 has 4");
    expect("overflow", one_tensor(4, 2, s22, big, 2, 16), PN_E_FORMAT, "its offset 2 and strides overflow: size 2, stride 9223372036854775807 (dimension 1)");
    expect("repeated", one_tensor(4, 0, s10k, zero, 2, 16), PN_E_FORMAT, "tensor 'w' repeats elements until it has 100000000 of them, 400000000 bytes: expected at most 65536");
    expect("repeated a little", one_tensor(4, 3, s22, zero, 2, 16), PN_OK, "");
    expect("rank 9", one_tensor(4, 0, s9, s9, 9, 16), PN_E_FORMAT, "tuple of at most 8");
    expect("rank 8", one_tensor(4, 3, s9, big, 0, 16), PN_OK, "");
    img m = pk_begin();
    pk_tensor(&m, "w", 4, 0, s22, st21, 2);
    pk_tensor(&m, "w", 4, 0, s22, st21, 2);
    expect("name twice", pth_of(m, "0123456789abcdef", 16, NULL), PN_E_FORMAT, "tensor 'w' comes twice");
    m = pk_begin();
    pk_tensor(&m, "", 4, 0, s22, st21, 2);
    expect("no name", pth_of(m, "0123456789abcdef", 16, NULL), PN_E_FORMAT, "the name is empty");
    m = pk_begin();
    pk_tensor(&m, "\xff", 4, 0, s22, st21, 2);
    expect("bad name", pth_of(m, "0123456789abcdef", 16, NULL), PN_E_FORMAT, "not UTF-8");
    m = pk_begin();
    pk_tensor(&m, "a", 4, 0, s22, st21, 2);
    pk_tensor(&m, "b", 2, 0, s22, st21, 1);
    expect("two sizes", pth_of(m, "0123456789abcdef", 16, NULL), PN_E_FORMAT, "storage 0 is declared with 16 bytes and with 8");
    m = pk_begin();
    pk_tensor(&m, "a", 4, 0, s22, st21, 2);
    expect("byte order", pth_of(m, "0123456789abcdef", 16, "middle"), PN_E_FORMAT, "expected 'little' or 'big', found 'middle'");
    m = pk_begin();
    pk_str(&m, "a");
    put(&m, "N", 1);
    expect("no tensors", pth_of(m, "", 0, NULL), PN_E_FORMAT, "no tensors");
    m = pk_begin();
    put(&m, "N(", 2);
    pk_str(&m, "module");
    put(&m, "NNNNtQ", 6);
    expect("module", pth_of(m, "", 0, NULL), PN_E_UNSUPPORTED, "a whole module was saved");
    m = pk_begin();
    put(&m, "NNQ", 3);
    expect("odd id", pth_of(m, "", 0, NULL), PN_E_FORMAT, "a persistent id is None");
}

/* One storage of bytes that all differ somewhere, seen through random strides: the same as a plain loop. */
static void gathered_elements_are_those_of_a_plain_loop(void)
{
    uint64_t seed = 7;
    enum { COUNT = 60000 };
    static uint8_t storage[4 * COUNT];
    for (size_t i = 0; i < sizeof storage; i++)
        storage[i] = (uint8_t)pn_test_rand(&seed);
    for (int round = 0; round < 200; round++) {
        int64_t shape[8], stride[8], last = 0, n = 1;
        uint32_t rank = 1 + (uint32_t)(pn_test_rand(&seed) % 5);
        bool big = pn_test_rand(&seed) % 4 == 0;
        uint32_t order[8];
        for (uint32_t k = 0; k < rank; k++) {
            order[k] = k;
            shape[k] = 1 + (int64_t)(pn_test_rand(&seed) % (rank < 3 ? 120 : 7));
            n *= shape[k];
        }
        for (uint32_t k = rank; k-- > 1;) {
            uint32_t other = (uint32_t)(pn_test_rand(&seed) % (k + 1)), swap = order[k];
            order[k] = order[other];
            order[other] = swap;
        }
        int64_t step = 1 + (int64_t)(pn_test_rand(&seed) % 3) / 2;      /* a permutation of a packed tensor, sometimes sparse or repeated */
        for (uint32_t k = 0; k < rank; k++) {
            stride[order[k]] = pn_test_rand(&seed) % 9 == 0 ? 0 : step;
            step *= shape[order[k]];
        }
        for (uint32_t k = 0; k < rank; k++)
            last += (shape[k] - 1) * stride[k];
        if (last >= COUNT)
            continue;
        int64_t first = (int64_t)(pn_test_rand(&seed) % (uint64_t)(COUNT - last));
        img pickle = pk_begin();
        pk_tensor(&pickle, "w", COUNT, first, shape, stride, rank);
        img m = pth_of(pickle, storage, sizeof storage, big ? "big" : "little");
        pn_test_mem mem;
        pn_pth p;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        pn_source src = img_source(&m, true, &r);
        if (PN_CHECK(pn_pth_open(&p, &mem.mem, &src, &err) == PN_OK && p.big_endian == big, "%s", err.text)) {
            img got = elements(&p, p.tensors);
            bool same = got.n == 4 * (size_t)n;
            for (int64_t i = 0; i < n && same; i++) {
                int64_t at = first, left = i;
                for (uint32_t k = rank; k-- > 0; left /= shape[k])
                    at += left % shape[k] * stride[k];
                for (int b = 0; b < 4 && same; b++)
                    same = got.b[4 * i + b] == storage[4 * at + (big ? 3 - b : b)];
            }
            PN_CHECK(same, "round %d, rank %" PRIu32 ", contiguous %d", round, rank, p.tensors[0].contiguous);
            img_free(&got);
        }
        pn_pth_close(&p);
        PN_CHECK(mem.outstanding == 0);
        img_free(&m);
    }
}

/* More than a tile and a run: 24 MiB transposed, and rows of which one is longer than a tile. */
static void large_tensors_go_in_pieces(void)
{
    static const int64_t shapes[][2] = {{3000, 2000}, {3, 5 << 20}, {5 << 20, 2}};
    for (size_t s = 0; s < PN_COUNT_OF(shapes); s++) {
        int64_t rows = shapes[s][0], cols = shapes[s][1], stride[2] = {1, rows};
        size_t count = (size_t)(rows * cols);
        uint32_t *storage = malloc(4 * count);
        for (size_t i = 0; i < count; i++)
            storage[i] = (uint32_t)i;
        img pickle = pk_begin();
        pk_tensor(&pickle, "w", (int64_t)count, 0, shapes[s], stride, 2);
        img m = pth_of(pickle, storage, 4 * count, NULL);
        free(storage);
        pn_test_mem mem;
        pn_pth p;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        pn_source src = img_source(&m, false, &r);
        if (PN_CHECK(pn_pth_open(&p, &mem.mem, &src, &err) == PN_OK, "%s", err.text)) {
            img got = elements(&p, p.tensors);
            bool same = got.n == 4 * count;
            for (size_t i = 0; i < count && same; i++)
                same = pn_le32(got.b + 4 * i) == (uint32_t)(i % (size_t)cols * (size_t)rows + i / (size_t)cols);
            PN_CHECK(same, "[%" PRId64 ", %" PRId64 "]", rows, cols);
            img_free(&got);
        }
        pn_pth_close(&p);
        PN_CHECK(mem.outstanding == 0);
        img_free(&m);
    }
}

static void many_tensors_load_fast(void)
{
    static const int64_t one[1] = {1};
    double ms[2];
    for (int big = 0; big < 2; big++) {
        int n = big ? 60000 : 6000;
        img m = pk_begin();
        for (int i = 0; i < n; i++) {
            char name[32];
            snprintf(name, sizeof name, "layers.%d.weight", i);
            pk_tensor(&m, name, 4, i % 4, one, one, 1);
        }
        m = pth_of(m, "0123456789abcdef", 16, NULL);
        pn_test_mem mem;
        pn_pth p;
        pn_err err = {0};
        reader r;
        pn_test_mem_init(&mem, 0);
        pn_source src = img_source(&m, false, &r);
        clock_t start = clock();
        PN_CHECK(pn_pth_open(&p, &mem.mem, &src, &err) == PN_OK && p.n_tensors == (size_t)n, "%s", err.text);
        ms[big] = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
        pn_pth_close(&p);
        PN_CHECK(mem.outstanding == 0);
        img_free(&m);
    }
    printf("6,000 tensors in %.0f ms, 60,000 in %.0f ms\n", ms[0], ms[1]);
    PN_CHECK(ms[1] < 40 * ms[0] + 1000);
}

/* --- cuts, memory, reads -------------------------------------------------------------------------------- */

static void every_cut_is_refused(void)
{
    static const char *const files[] = {"pth/odd.pth", "pth/qwen3_tied_legacy.pth"};
    for (size_t f = 0; f < PN_COUNT_OF(files); f++) {
        img m = hf_file(files[f]);
        for (size_t n = 0; n < m.n; n += n < 6000 || f == 0 ? 61 : 7001) {
            img cut = {m.b, n, n}, exact = img_exact(&cut);
            pn_test_mem mem;
            pn_pth p;
            pn_err err = {0};
            reader r;
            pn_test_mem_init(&mem, 0);
            pn_source src = img_source(&exact, n & 1, &r);
            PN_CHECK(pn_pth_open(&p, &mem.mem, &src, &err) == PN_E_FORMAT && mem.outstanding == 0, "%s, %zu bytes: %s", files[f], n, err.text);
            img_free(&exact);
        }
        img_free(&m);
    }
}

static void each_allocation_and_each_read_may_fail(void)
{
    static const char *const files[] = {"pth/odd.pth", "pth/qwen3_tied_legacy.pth"};
    for (size_t f = 0; f < PN_COUNT_OF(files); f++) {
        img m = hf_file(files[f]);
        for (int reads = 0; reads < 2; reads++)
            for (long k = 1;; k++) {
                pn_test_mem mem;
                pn_pth p;
                pn_err err = {0};
                reader r;
                img out = {0};
                pn_test_mem_init(&mem, reads ? 0 : k);
                pn_source src = img_source(&m, true, &r);
                r.fail_at = reads ? k : 0;
                pn_status st = pn_pth_open(&p, &mem.mem, &src, &err);
                for (size_t i = 0; i < p.n_tensors && !st; i += 5)
                    st = pn_pth_stream(&p, &p.tensors[i], collect, &out, &err);
                pn_pth_close(&p);
                img_free(&out);
                PN_CHECK(mem.outstanding == 0, "%s %ld: %ld left", files[f], k, mem.outstanding);
                if (st == PN_OK)
                    break;
                PN_CHECK(st == (reads ? PN_E_IO : PN_E_NOMEM), "%s %ld: %s", files[f], k, err.text);
            }
        img_free(&m);
    }
}

int main(void)
{
    an_odd_file_gives_what_torch_reads();
    both_forms_of_a_model_hold_its_tensors();
    hostile_files_are_refused();
    other_files_are_told_apart();
    zip64_is_read();
    zips_are_checked();
    every_cut_of_a_zip_is_refused();
    instructions_do_what_they_should();
    broken_pickles_are_refused_with_their_offset();
    memory_is_bounded_by_the_bytes();
    tensors_are_checked();
    gathered_elements_are_those_of_a_plain_loop();
    large_tensors_go_in_pieces();
    many_tensors_load_fast();
    every_cut_is_refused();
    each_allocation_and_each_read_may_fail();
    return pn_test_end();
}
