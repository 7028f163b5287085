/*
 * fuzz_source.h - what the targets of containers share: one input as both kinds of pn_source, and promises that must hold.
 */
#ifndef PN_FUZZ_SOURCE_H
#define PN_FUZZ_SOURCE_H

#include "pn_fuzz.h"

#include "format/pn_source.h"

#define FUZZ_MUST(c) ((c) ? (void)0 : fuzz_broken(#c, __LINE__))

static inline void fuzz_broken(const char *what, int line)
{
    fprintf(stderr, "line %d: %s does not hold\n", line, what);
    abort();
}

typedef struct fuzz_source {
    const uint8_t *data;
    size_t size;
    pn_source memory, callback;         /* of the same bytes; the callback's user is this struct */
} fuzz_source;

static inline pn_status fuzz_read(void *user, uint64_t offset, void *dst, size_t n)
{
    const fuzz_source *s = user;
    FUZZ_MUST(offset <= s->size && n <= s->size - offset);      /* never asks beyond the end */
    memcpy(dst, s->data + offset, n);
    return PN_OK;
}

static inline void fuzz_source_init(fuzz_source *s, const uint8_t *data, size_t size)
{
    static const uint8_t none[1] = {0};
    *s = (fuzz_source){.data = data ? data : none, .size = size};
    s->memory = (pn_source){.bytes = s->data, .size = size, .name = "input"};
    s->callback = (pn_source){.read = fuzz_read, .user = s, .size = size, .name = "input"};
}

#endif /* PN_FUZZ_SOURCE_H */
