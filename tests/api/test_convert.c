/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_convert.c - pn_convert: files of torch become what the reference writer makes of the same tensors, and
 * nothing is left behind when that fails.
 */
#define _XOPEN_SOURCE 700       /* mkdtemp */
#include "pantheon.h"
#include "pn_api_test.h"

#include <unistd.h>

#define FIXTURES "tests/vectors/hf/"

static char convert_dir[64] = "/tmp/pn-convert-XXXXXX";

static const char *out_path(void)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/out.safetensors", convert_dir);
    return path;
}

static int out_exists(void) { return access(out_path(), F_OK) == 0; }

typedef struct st_file {
    char *bytes;                /* malloc'd, [len] */
    size_t len, header;         /* bytes of JSON */
    const unsigned char *data;
} st_file;

static st_file st_open(const char *path)
{
    st_file f = {0};
    f.bytes = api_read_file(path, &f.len);
    if (!PN_CHECK(f.bytes && f.len > 8, "%s", path))
        exit(pn_test_end());
    for (int i = 8; i-- > 0;)
        f.header = f.header << 8 | (unsigned char)f.bytes[i];
    PN_CHECK(f.header % 8 == 0 && f.header <= f.len - 8);
    f.data = (const unsigned char *)f.bytes + 8 + f.header;
    return f;
}

static void convert(pn_engine *e, const char *in)
{
    pn_err err = {0};
    pn_status st = pn_convert(e, in, out_path(), NULL, &err);
    PN_CHECK(st == PN_OK, "%s: %s", in, err.text);
}

/* Both forms of torch: the reference's header but for the alias, its data byte for byte. */
static void a_model_becomes_the_reference_writers_file(pn_engine *e)
{
    static const char *const files[] = {FIXTURES "pth/qwen3_tied.pth", FIXTURES "pth/qwen3_tied_legacy.pth"};
    static const char before[] = "{\"__metadata__\":{\"format\":\"pt\"", alias[] = ",\"lm_head.weight\":\"model.embed_tokens.weight\"";
    st_file want = st_open(FIXTURES "qwen3_tied/model.safetensors");
    size_t n = sizeof before - 1, entries = want.header;
    while (want.bytes[8 + entries - 1] == ' ')
        entries--;
    for (size_t i = 0; i < 2; i++) {
        convert(e, files[i]);
        st_file got = st_open(out_path());
        const char *g = got.bytes + 8, *w = want.bytes + 8;
        PN_CHECK(got.header >= entries + sizeof alias - 1 && got.header < entries + sizeof alias - 1 + 8);
        PN_CHECK(memcmp(g, before, n) == 0 && memcmp(g + n, alias, sizeof alias - 1) == 0, "%.120s", g);
        PN_CHECK(memcmp(w, before, n) == 0 && memcmp(g + n + sizeof alias - 1, w + n, entries - n) == 0);
        PN_CHECK(got.len - got.header == want.len - want.header && memcmp(got.data, want.data, want.len - want.header - 8) == 0);
        free(got.bytes);
    }
    free(want.bytes);
    PN_CHECK(unlink(out_path()) == 0);
}

static int hex_is(const char *hex, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned v = 256;
        if (sscanf(hex + 2 * i, "%2x", &v) != 1 || v != bytes[i])
            return 0;
    }
    return hex[2 * n] == '"';
}

/* Every tensor of the facts has an entry with that format, and its bytes; same_object stands for whole, too. */
static void every_rarity_keeps_its_values(pn_engine *e)
{
    int n = 0;
    convert(e, FIXTURES "pth/odd.pth");
    st_file got = st_open(out_path());
    char *facts = api_read_file(FIXTURES "pth/odd.json", NULL), *header = malloc(got.header + 1);
    memcpy(header, got.bytes + 8, got.header);
    header[got.header] = 0;
    PN_CHECK(strncmp(header, "{\"__metadata__\":{\"format\":\"pt\",\"whole\":\"same_object\"},", 54) == 0, "%.80s", header);
    for (const char *p = api_json_find(facts, "tensors"); p && (p = strstr(p, "\"dtype\": \"")); p++, n++) {
        char name[64], dtype[16], entry[128];
        const char *start = p, *hex = strstr(p, "\"hex\": \"");
        while (start[-1] != '{')
            start--;
        for (start -= 4; start[-1] != '"'; start--)
            continue;
        sscanf(start, "%63[^\"]", name);
        sscanf(p, "\"dtype\": \"%15[^\"]", dtype);
        snprintf(entry, sizeof entry, "\"%s\":{\"dtype\":\"%s\",", strcmp(name, "whole") ? name : "same_object", dtype);
        const char *at = strstr(header, entry), *offsets = at ? strstr(at, "\"data_offsets\":[") : NULL;
        unsigned long begin = 0, end = 0;
        PN_CHECK(hex && offsets && sscanf(offsets, "\"data_offsets\":[%lu,%lu]", &begin, &end) == 2, "%s in %s", entry, header);
        PN_CHECK(begin <= end && end <= got.len - 8 - got.header && hex_is(hex + 8, got.data + begin, end - begin), "%s", name);
    }
    PN_CHECK(n == 90, "%d tensors", n);
    free(facts);
    free(header);
    free(got.bytes);
    PN_CHECK(unlink(out_path()) == 0);
}

static void refused(pn_engine *e, const char *in, const char *out, pn_status want, const char *piece)
{
    pn_err err = {0};
    pn_status st = pn_convert(e, in, out, NULL, &err);
    PN_CHECK(st == want && (!err.text[0] || strstr(err.text, piece)), "%s: %s: %s", in ? in : "(none)", pn_status_name(st), err.text);
    PN_CHECK(!out_exists());
}

static void what_cannot_be_converted_is_refused(pn_engine *e)
{
    refused(e, FIXTURES "hostile/global_system.pth", out_path(), PN_E_UNSUPPORTED, "'os.system'");
    refused(e, FIXTURES "hostile/storage_short.pth", out_path(), PN_E_FORMAT, "12 bytes");
    refused(e, FIXTURES "qwen3_tied/model.safetensors", out_path(), PN_E_FORMAT, "not a file of torch.save");
    refused(e, FIXTURES "absent.pth", out_path(), PN_E_IO, "absent.pth");
    refused(e, FIXTURES "pth/odd.pth", FIXTURES "pth/odd.pth", PN_E_INVALID, "is read from");
    refused(e, FIXTURES "pth/odd.pth", "/nonexistent/x", PN_E_IO, "/nonexistent/x");
    refused(e, NULL, out_path(), PN_E_INVALID, "no input path");
    refused(e, FIXTURES "pth/odd.pth", NULL, PN_E_INVALID, "no output path");
    refused(NULL, FIXTURES "pth/odd.pth", out_path(), PN_E_INVALID, "no engine");
    size_t n = 0;
    char *bytes = api_read_file(FIXTURES "pth/odd.pth", &n);
    PN_CHECK(bytes && n == 24433);              /* still whole */
    free(bytes);
}

typedef struct watch {
    int calls, stop_at;
    uint64_t last, total;
} watch;

static int watched(void *user, uint64_t done, uint64_t total)
{
    watch *w = user;
    PN_CHECK(done >= w->last && done <= total);
    w->last = done;
    w->total = total;
    return ++w->calls == w->stop_at;
}

static void stopping_leaves_nothing(pn_engine *e)
{
    watch w = {0};
    pn_err err = {0};
    const pn_convert_params p = {.progress = watched, .progress_user = &w};
    PN_CHECK(pn_convert(e, FIXTURES "pth/qwen3_tied.pth", out_path(), &p, &err) == PN_OK && w.last == w.total && w.total > 300000, "%s", err.text);
    PN_CHECK(unlink(out_path()) == 0);
    w = (watch){.stop_at = 5};
    PN_CHECK(pn_convert(e, FIXTURES "pth/qwen3_tied.pth", out_path(), &p, &err) == PN_E_CANCELLED && !out_exists(), "%s", err.text);
}

typedef struct heap {
    long calls, fail_at, out;
} heap;

static void *heap_alloc(void *user, size_t size, size_t align)
{
    heap *h = user;
    void *p = NULL;
    if (++h->calls == h->fail_at || posix_memalign(&p, align < 64 ? 64 : align, size ? size : 1))
        return NULL;
    h->out++;
    return p;
}

static void heap_free(void *user, void *ptr, size_t size)
{
    (void)size;
    ((heap *)user)->out--;
    free(ptr);
}

static void any_allocation_may_fail(void)
{
    for (long k = 1;; k++) {
        heap h = {.fail_at = k};
        pn_engine *e = NULL;
        pn_err err = {0};
        const pn_engine_params ep = {.n_threads = 1, .allocator = {heap_alloc, heap_free, &h}};
        pn_status st = pn_engine_open(&e, &ep, &err);
        if (!st)
            st = pn_convert(e, FIXTURES "pth/odd.pth", out_path(), NULL, &err);
        pn_engine_close(e);
        PN_CHECK(h.out == 0, "allocation %ld: %ld left", k, h.out);
        PN_CHECK(st == PN_OK || (st == PN_E_NOMEM && !out_exists()), "allocation %ld: %s", k, err.text);
        if (h.calls < k)                /* reached when none was made to fail */
            break;
    }
    PN_CHECK(unlink(out_path()) == 0);
}

int main(void)
{
    pn_engine *e = NULL;
    pn_err err = {0};
    const pn_engine_params ep = {.n_threads = 1};
    pn_status st = pn_engine_open(&e, &ep, &err);
    if (!PN_CHECK(mkdtemp(convert_dir) != NULL) || !PN_CHECK(st == PN_OK, "%s", err.text))
        return pn_test_end();
    a_model_becomes_the_reference_writers_file(e);
    every_rarity_keeps_its_values(e);
    what_cannot_be_converted_is_refused(e);
    stopping_leaves_nothing(e);
    any_allocation_may_fail();
    pn_engine_close(e);
    PN_CHECK(rmdir(convert_dir) == 0, "something was left in %s", convert_dir);
    return pn_test_end();
}
