/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_cold.c - any bytes as a page of a conversation.  What is taken must be, to the byte, what writing the pages again
 * gives: then nothing in the file was ignored.  The first byte of an input says whether its sums are made right
 * before, which a fuzzer never finds out by itself (1), and whether the model is recurrent (2).
 */
#define FUZZ_MUTATIONS 64
#include "pn_fuzz.h"

#include "store/pn_cold_file.h"

enum { COLD_MOST = 1 << 16 };

#define COLD_GROUPS_OF_BOTH {{.n_layers = 1, .n_heads = 1, .d_k = 2, .d_v = 2}, {.n_layers = 1, .n_heads = 2, .d_k = 2, .d_v = 4, .window = 100}}
static const pn_state_spec cold_spec[2] = {{.group = COLD_GROUPS_OF_BOTH, .n_groups = 2}, {.group = COLD_GROUPS_OF_BOTH, .n_groups = 2, .slot_bytes = 1000}};
static uint8_t cold_room[3][COLD_MOST + PN_COLD_BLOCK];

typedef struct cold_bytes {
    uint8_t *data;              /* aligned to a block */
    size_t n;
} cold_bytes;

static cold_bytes cold_at(int i) { return (cold_bytes){(uint8_t *)(uintptr_t)pn_align_up((uintptr_t)cold_room[i], PN_COLD_BLOCK), 0}; }

static pn_status cold_get(void *user, uint64_t at, void *dst, size_t n, pn_err *err)
{
    const cold_bytes *b = user;
    (void)err;
    if (at > b->n || n > b->n - at)
        return PN_E_IO;
    memcpy(dst, b->data + at, n);
    return PN_OK;
}

static pn_status cold_put(void *user, uint64_t at, const void *src, size_t n, pn_err *err)
{
    cold_bytes *b = user;
    (void)err;
    if (at != b->n || n > COLD_MOST - at)
        abort();
    memcpy(b->data + at, src, n);
    b->n += n;
    return PN_OK;
}

static void cold_put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

/* Head, payloads and foot as their sums want to have it, for the groups that the head names. */
static void cold_mend(const pn_crc32c *crc, cold_bytes *b)
{
    const uint64_t payload = PN_COLD_BLOCK;
    if (b->n < 2 * PN_COLD_BLOCK)
        return;
    uint8_t *foot = b->data + b->n / PN_COLD_BLOCK * PN_COLD_BLOCK - PN_COLD_BLOCK;
    cold_put32(b->data + 4092, pn_crc32c_add(crc, 0, b->data, 4092));
    cold_put32(foot + 16, pn_crc32c_add(crc, 0, b->data, PN_COLD_BLOCK));
    uint8_t *at = b->data + PN_COLD_BLOCK;
    for (int g = 0; g < PN_MAX_GROUPS; g++)
        if ((g < 2 || g == PN_COLD_STATE) && b->data[416 + 40 * g + 24] && at + payload <= foot) {
            cold_put32(foot + 20 + 4 * g, pn_crc32c_add(crc, 0, at, (size_t)payload));
            at += payload;
        }
    cold_put32(foot + 4092, pn_crc32c_add(crc, 0, foot, 4092));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static pn_crc32c crc;
    static pn_identity model;
    pn_token tokens[PN_KV_PAGE_TOKENS];
    pn_kv_page *pages[PN_MAX_GROUPS];
    pn_mem mem;
    cold_bytes in = cold_at(0), out = cold_at(1), piece = cold_at(2);
    if (size < 1 || size - 1 > COLD_MOST)
        return 0;
    if (!crc.t[0][1])
        pn_crc32c_init(&crc);
    for (int i = 0; i < PN_ID_PARTS; i++)
        memset(model.part[i], i + 1, PN_DIGEST_BYTES);
    for (int i = 0; i < PN_KV_PAGE_TOKENS; i++)
        tokens[i] = 3 * i;
    memcpy(in.data, data + 1, in.n = size - 1);
    if (data[0] & 1)
        cold_mend(&crc, &in);
    pn_cold_unit u = {.kind = {&model, &cold_spec[data[0] >> 1 & 1], PN_DTYPE_F16}, .tokens = tokens};
    u.parent = pn_cold_root(&u.kind, 0, 0);
    u.key = pn_cold_next(&u.parent, tokens);
    pn_mem_init_libc(&mem);
    static const uint32_t wants[] = {1, 3, 1u << PN_COLD_STATE | 3};        /* the first group alone, both, with a snapshot */
    for (size_t i = 0; i < PN_COUNT_OF(wants); i++) {
        uint32_t want = wants[i];
        pn_snap *state;
        const pn_cold_io get = {.read = cold_get, .user = &in, .bytes = in.n}, put = {.write = cold_put, .user = &out};
        pn_status st = pn_cold_read(&get, &crc, &u, want, (pn_mem *[2]){&mem, &mem}, pages, &state, piece.data, NULL);
        out.n = 0;
        if (!st && in.n == pn_cold_file_bytes(&u.kind, want)) {
            if (pn_cold_write(&put, &crc, &u, pages, state, piece.data, NULL) || out.n != in.n || memcmp(out.data, in.data, in.n) != 0)
                abort();
        }
        for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
            pn_kv_release(pages[g]);
        pn_snap_release(state);
    }
    return 0;
}
