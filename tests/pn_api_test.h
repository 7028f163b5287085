/*
 * pn_api_test.h - small helpers for tests that see pantheon.h alone: fixtures in JSON, argmax.
 *
 * The JSON reader finds "key": value by text; it is for our own fixture files only.
 */
#ifndef PN_API_TEST_H
#define PN_API_TEST_H

#include "pn_check.h"

static inline char *api_read_file(const char *path, size_t *len) { return pn_test_read_file(path, len); }

static inline const char *api_golden_dir(void)
{
    const char *d = getenv("PANTHEON_GOLDEN");
    return d ? d : "../shared/golden";
}

/* Just behind `"key":`, or NULL. */
static inline const char *api_json_find(const char *json, const char *key)
{
    char quoted[128];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *p = json ? strstr(json, quoted) : NULL;
    return p ? p + strlen(quoted) : NULL;
}

static inline double api_json_num(const char *json, const char *key)
{
    const char *p = api_json_find(json, key);
    return p ? strtod(p, NULL) : 0;
}

/* One \u escape (four digits at p), or a pair of them, as UTF-8; returns the bytes used at p. */
static inline size_t api_json_unicode(const char *p, char *out, size_t *n)
{
    unsigned cp = 0, low = 0;
    size_t used = 4;
    sscanf(p, "%4x", &cp);
    if (cp >= 0xd800 && cp < 0xdc00 && sscanf(p + 4, "\\u%4x", &low) == 1) {
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        used = 10;
    }
    if (cp < 0x80)
        out[(*n)++] = (char)cp;
    else {
        int more = cp < 0x800 ? 1 : cp < 0x10000 ? 2 : 3;
        out[(*n)++] = (char)((more == 1 ? 0xc0 : more == 2 ? 0xe0 : 0xf0) | cp >> 6 * more);
        while (more--)
            out[(*n)++] = (char)(0x80 | (cp >> 6 * more & 63));
    }
    return used;
}

/* A string value.  0: absent or null. */
static inline int api_json_str(const char *json, const char *key, char *out, size_t cap)
{
    const char *p = api_json_find(json, key);
    while (p && (*p == ' ' || *p == '\n'))
        p++;
    if (!p || *p++ != '"')
        return 0;
    size_t n = 0;
    for (; *p && *p != '"' && n + 5 < cap; p++) {
        if (*p != '\\' || !p[1]) {
            out[n++] = *p;
            continue;
        }
        p++;
        if (*p == 'u')
            p += api_json_unicode(p + 1, out, &n);
        else
            out[n++] = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p == 'r' ? '\r' : *p;
    }
    out[n] = 0;
    return 1;
}

/* An array of integers, malloc'd; *n its length.  NULL: absent. */
static inline int32_t *api_json_ints(const char *json, const char *key, long *n)
{
    const char *p = api_json_find(json, key);
    size_t cap = 64, len = 0;
    while (p && *p && *p != '[')
        p++;
    if (!p || !*p)
        return NULL;
    int32_t *list = malloc(cap * sizeof *list);
    for (p++; list;) {
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p)
            break;
        if (len == cap) {
            cap *= 2;
            int32_t *grown = realloc(list, cap * sizeof *list);
            if (!grown)
                break;
            list = grown;
        }
        list[len++] = (int32_t)v;
        for (p = end; *p == ',' || *p == ' ' || *p == '\n'; p++)
            ;
    }
    *n = (long)len;
    return list;
}

static inline long api_argmax(const float *x, long n)
{
    long best = 0;
    for (long i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* An allocator that counts, and refuses the k-th request (0: never), or that one and all later ones. */
typedef struct api_heap {
    long calls, fail_at, out;
    int fail_on;                /* 1: the later ones as well */
} api_heap;

static inline void *api_heap_alloc(void *user, size_t size, size_t align)
{
    api_heap *h = user;
    (void)align;
    long call = __atomic_add_fetch(&h->calls, 1, __ATOMIC_SEQ_CST);
    if (h->fail_at && (call == h->fail_at || (call > h->fail_at && h->fail_on)))
        return NULL;
    void *p = aligned_alloc(64, (size + 63) / 64 * 64);
    if (p)
        __atomic_add_fetch(&h->out, 1, __ATOMIC_SEQ_CST);
    return p;
}

static inline void api_heap_free(void *user, void *p, size_t size)
{
    (void)size;
    __atomic_sub_fetch(&((api_heap *)user)->out, 1, __ATOMIC_SEQ_CST);
    free(p);
}

#endif /* PN_API_TEST_H */
