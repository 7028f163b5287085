/*
 * gguf_image.h - what the tests of the container share: byte images, right or wrong on purpose, and
 * a reader that fails when told to.
 */
#ifndef PN_GGUF_IMAGE_H
#define PN_GGUF_IMAGE_H

#include "pn_test.h"

#include "format/pn_gguf.h"

/* --- byte images -------------------------------------------------------------------------------- */

typedef struct img {
    uint8_t *b;
    size_t n, cap;
} img;

static inline void put(img *m, const void *bytes, size_t n)
{
    if (m->n + n > m->cap) {
        m->cap = 2 * (m->n + n) + 256;
        m->b = realloc(m->b, m->cap);
        if (!m->b)
            exit(2);
    }
    if (n)
        memcpy(m->b + m->n, bytes, n);
    m->n += n;
}

static inline void put8(img *m, unsigned v)
{
    uint8_t b = (uint8_t)v;
    put(m, &b, 1);
}

static inline void put32(img *m, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        put8(m, v >> (8 * i) & 255);
}

static inline void put64(img *m, uint64_t v)
{
    put32(m, (uint32_t)v);
    put32(m, (uint32_t)(v >> 32));
}

static inline void puts_(img *m, const char *s)
{
    put64(m, strlen(s));
    put(m, s, strlen(s));
}

static inline void zeros(img *m, size_t n)
{
    while (n--)
        put8(m, 0);
}

static inline img head(uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    img m = {0};
    put(&m, "GGUF", 4);
    put32(&m, version);
    put64(&m, n_tensors);
    put64(&m, n_kv);
    return m;
}

static inline void kv32(img *m, const char *key, uint32_t type, uint32_t v)
{
    puts_(m, key);
    put32(m, type);
    put32(m, v);
}

static inline void tensor(img *m, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    puts_(m, name);
    put32(m, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put64(m, ne[i]);
    put32(m, type);
    put64(m, offset);
}

static inline void tensor1(img *m, const char *name, uint64_t ne0, uint32_t type, uint64_t offset)
{
    tensor(m, name, 1, &ne0, type, offset);
}

/* Pad to `a` and add n bytes of data. */
static inline void data(img *m, size_t a, size_t n)
{
    while (m->n % a)
        put8(m, 0);
    zeros(m, n);
}

/* --- sources ------------------------------------------------------------------------------------ */

typedef struct reader {
    const uint8_t *b;
    size_t n;
    long calls, fail_at;        /* the fail_at-th call fails; 0: none */
    uint64_t largest;
} reader;

static inline pn_status reader_read(void *user, uint64_t offset, void *dst, size_t n)
{
    reader *r = user;
    if (n > r->largest)
        r->largest = n;
    if (++r->calls == r->fail_at || offset > r->n || n > r->n - offset)
        return PN_E_IO;
    memcpy(dst, r->b + offset, n);
    return PN_OK;
}

/* A file of one array with `payload` zero bytes. */
static inline img array(uint32_t elem, uint64_t count, size_t payload)
{
    img m = head(3, 0, 1);
    puts_(&m, "an.array");
    put32(&m, 9);
    put32(&m, elem);
    put64(&m, count);
    zeros(&m, payload);
    return m;
}

/* --- a small correct file, made by the writer --------------------------------------------------- */

static inline pn_bytes bytes_of(const char *s) { return (pn_bytes){s, strlen(s)}; }

static inline void write_sample(pn_gguf_writer *w)
{
    /* 1, -3, 6 */
    static const uint8_t packed[] = {1, 0, 0, 0, 0xfd, 0xff, 0xff, 0xff, 6, 0, 0, 0};
    static const uint64_t ne[] = {64, 3, 1, 1}, vec[] = {5, 1};
    pn_bytes words[] = {bytes_of("one"), {"t\0o", 3}, bytes_of("")};
    pn_gguf_put_str(w, "general.architecture", "llama", 5);
    pn_gguf_put_u32(w, "llama.block_count", 4000000000u);
    pn_gguf_put_f32(w, "llama.eps", 1e-5f);
    pn_gguf_put_bool(w, "flag", true);
    pn_gguf_put_array(w, "types", PN_META_I32, 3, packed, sizeof packed);
    pn_gguf_put_str_array(w, "words", 3, words);
    pn_gguf_put_tensor(w, "matrix", PN_DTYPE_Q4_0, 4, ne, 108);
    pn_gguf_put_tensor(w, "vector", PN_DTYPE_F32, 2, vec, 20);
}

static inline img sample_image(void)
{
    pn_mem mem;
    pn_gguf_writer w;
    pn_str out;
    img m = {0};
    pn_mem_init_libc(&mem);
    pn_gguf_writer_init(&w, &mem);
    pn_str_init(&out, &mem, PN_ACCT_MISC);
    write_sample(&w);
    PN_CHECK(pn_gguf_header(&w, &out) && out.len % 32 == 0 && w.data_bytes == 160);
    put(&m, out.data, out.len);
    for (unsigned i = 0; i < 160; i++)
        put8(&m, i);
    pn_str_fini(&out);
    pn_gguf_writer_fini(&w);
    return m;
}

#endif /* PN_GGUF_IMAGE_H */
