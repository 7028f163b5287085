/*
 * st_image.h - what the tests of safetensors and .pth share: files of tests/vectors/hf, and one open in both kinds of source.
 */
#ifndef PN_ST_IMAGE_H
#define PN_ST_IMAGE_H

#include "gguf_image.h"

/* A file of the fixtures, or the end of the test. */
static inline img hf_file(const char *name)
{
    char path[256];
    img m = {0};
    snprintf(path, sizeof path, "tests/vectors/hf/%s", name);
    char *bytes = pn_test_read_file(path, &m.n);
    if (!bytes) {
        printf("FAIL: cannot read %s\n", path);
        exit(1);
    }
    m.b = malloc(m.n ? m.n : 1);        /* exact, so that sanitizers see one byte too many */
    if (!m.b)
        exit(2);
    memcpy(m.b, bytes, m.n);
    m.cap = m.n;
    free(bytes);
    return m;
}

static inline void img_free(img *m)
{
    free(m->b);
    *m = (img){0};
}

static inline img img_exact(const img *m)
{
    img e = {malloc(m->n ? m->n : 1), m->n, m->n};
    if (!e.b)
        exit(2);
    if (m->n)
        memcpy(e.b, m->b, m->n);
    return e;
}

/* The image as memory, or behind a callback. */
static inline pn_source img_source(const img *m, bool callback, reader *r)
{
    *r = (reader){.b = m->b, .n = m->n};
    pn_source src = {.size = m->n, .name = "some-file"};
    if (callback) {
        src.read = reader_read;
        src.user = r;
    } else {
        src.bytes = m->b;
    }
    return src;
}

/* Hex digits of `hex` against bytes. */
static inline bool hex_equal(const char *hex, size_t n_hex, const uint8_t *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    if (n_hex != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (hex[2 * i] != digits[bytes[i] >> 4] || hex[2 * i + 1] != digits[bytes[i] & 15])
            return false;
    return true;
}

#endif /* PN_ST_IMAGE_H */
