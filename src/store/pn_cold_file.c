/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_cold_file.h"

#include <inttypes.h>

#include "base/pn_err.h"

enum { COLD_VERSION = 1, COLD_SUM = PN_COLD_BLOCK - 4, COLD_GROUPS = 416, COLD_GROUP = 40, COLD_PRESENT = 24 };

static const char cold_magic[8] = {'P', 'N', 'C', 'O', 'L', 'D', '\x1a', '\n'};
static const char cold_done[8] = {'P', 'N', 'C', 'O', 'L', 'D', 'O', 'K'};

/* ------------------------------------------------------------------------------------------
 * Keys
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_cold_key pn_cold_root(const pn_cold_kind *kind, uint32_t rotary, uint64_t salt)
{
    const pn_state_spec *s = kind->spec;
    pn_cold_key key;
    pn_digest d;
    pn_digest_begin(&d, sizeof key.b);
    pn_digest_add(&d, kind->model, sizeof *kind->model);
    pn_digest_add_u64(&d, PN_KV_PAGE_TOKENS);
    pn_digest_add_u64(&d, kind->type);
    pn_digest_add_u64(&d, rotary);
    pn_digest_add_u64(&d, salt);
    pn_digest_add_u64(&d, s->n_groups);
    for (uint32_t i = 0; i < s->n_groups; i++) {
        const pn_stream_group *g = &s->group[i];
        const uint32_t shape[] = {g->n_layers, g->n_heads, g->d_k, g->d_v, g->window, g->part};
        for (size_t k = 0; k < PN_COUNT_OF(shape); k++)
            pn_digest_add_u64(&d, shape[k]);
    }
    if (s->slot_bytes)
        pn_digest_add_u64(&d, s->slot_bytes);
    if (s->slot_second)
        pn_digest_add_u64(&d, s->slot_second);
    pn_digest_end(&d, key.b, sizeof key.b);
    return key;
}

static void cold_put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static void cold_put64(uint8_t *p, uint64_t v)
{
    cold_put32(p, (uint32_t)v);
    cold_put32(p + 4, (uint32_t)(v >> 32));
}

static void cold_put_tokens(uint8_t *p, const pn_token *tokens)
{
    for (uint32_t i = 0; i < PN_KV_PAGE_TOKENS; i++)
        cold_put32(p + 4 * i, (uint32_t)tokens[i]);
}

PN_INTERNAL pn_cold_key pn_cold_next(const pn_cold_key *parent, const pn_token *tokens)
{
    uint8_t bytes[4 * PN_KV_PAGE_TOKENS];
    pn_cold_key key;
    pn_digest d;
    cold_put_tokens(bytes, tokens);
    pn_digest_begin(&d, sizeof key.b);
    pn_digest_add(&d, parent->b, sizeof parent->b);
    pn_digest_add(&d, bytes, sizeof bytes);
    pn_digest_end(&d, key.b, sizeof key.b);
    return key;
}

/* ------------------------------------------------------------------------------------------
 * Head and foot
 * ------------------------------------------------------------------------------------------ */

/* A file may have a page of this group, or this is the snapshot. */
static bool cold_section(const pn_cold_kind *k, uint32_t g)
{
    return g < k->spec->n_groups || (g == PN_COLD_STATE && k->spec->slot_bytes);
}

static uint64_t cold_page_bytes(const pn_cold_kind *k, uint32_t g)
{
    if (g == PN_COLD_STATE && k->spec->slot_bytes)
        return k->spec->slot_bytes;
    return pn_kv_page_bytes(&k->spec->group[g], k->type, k->type);
}

/* Of these, what begins a block of its own: a snapshot's second part. */
static uint64_t cold_second_bytes(const pn_cold_kind *k, uint32_t g) { return g < k->spec->n_groups ? 0 : k->spec->slot_second; }

static uint64_t cold_payload(const pn_cold_kind *k, uint32_t g)
{
    uint64_t second = cold_second_bytes(k, g);
    return pn_align_up(cold_page_bytes(k, g) - second, PN_COLD_BLOCK) + pn_align_up(second, PN_COLD_BLOCK);
}

PN_INTERNAL uint64_t pn_cold_file_bytes(const pn_cold_kind *kind, uint32_t groups)
{
    uint64_t n = 2 * PN_COLD_BLOCK;
    for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
        n += cold_section(kind, g) && groups >> g & 1 ? cold_payload(kind, g) : 0;
    return n;
}

static void cold_seal(const pn_crc32c *crc, uint8_t *block) { cold_put32(block + COLD_SUM, pn_crc32c_add(crc, 0, block, COLD_SUM)); }

static void cold_head(const pn_crc32c *crc, const pn_cold_unit *u, uint32_t groups, uint8_t *h)
{
    const pn_cold_kind *k = &u->kind;
    memset(h, 0, PN_COLD_BLOCK);
    memcpy(h, cold_magic, sizeof cold_magic);
    cold_put32(h + 8, COLD_VERSION);
    cold_put32(h + 12, PN_KV_PAGE_TOKENS);
    memcpy(h + 16, k->model, sizeof *k->model);
    memcpy(h + 112, u->key.b, sizeof u->key.b);
    memcpy(h + 128, u->parent.b, sizeof u->parent.b);
    cold_put32(h + 144, k->type);
    cold_put32(h + 148, k->spec->n_groups);
    cold_put64(h + 152, pn_cold_file_bytes(k, groups));
    cold_put_tokens(h + 160, u->tokens);
    for (uint32_t i = 0; i < k->spec->n_groups; i++) {
        const pn_stream_group *g = &k->spec->group[i];
        const uint32_t shape[] = {g->n_layers, g->n_heads, g->d_k, g->d_v, g->window, g->part};
        uint8_t *at = h + COLD_GROUPS + i * COLD_GROUP;
        for (size_t s = 0; s < PN_COUNT_OF(shape); s++)
            cold_put32(at + 4 * s, shape[s]);
        at[COLD_PRESENT] = groups >> i & 1;
        at[COLD_PRESENT + 1] = at[COLD_PRESENT + 2] = (uint8_t)k->type;
        at[COLD_PRESENT + 3] = pn_kv_is_block(k->type);
        cold_put64(at + 32, cold_page_bytes(k, i));
    }
    if (k->spec->slot_bytes) {
        uint8_t *at = h + COLD_GROUPS + PN_COLD_STATE * COLD_GROUP;
        cold_put64(at, k->spec->slot_second);
        at[COLD_PRESENT] = groups >> PN_COLD_STATE & 1;
        cold_put64(at + 32, k->spec->slot_bytes);
    }
    cold_seal(crc, h);
}

/* sums: [PN_MAX_GROUPS] of the payloads. */
static void cold_foot(const pn_crc32c *crc, uint64_t bytes, uint32_t head_sum, const uint32_t *sums, uint8_t *f)
{
    memset(f, 0, PN_COLD_BLOCK);
    memcpy(f, cold_done, sizeof cold_done);
    cold_put64(f + 8, bytes);
    cold_put32(f + 16, head_sum);
    for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
        cold_put32(f + 20 + 4 * g, sums[g]);
    cold_seal(crc, f);
}

/* ------------------------------------------------------------------------------------------
 * Writing
 * ------------------------------------------------------------------------------------------ */

/* *sum goes on from what it is. */
static pn_status cold_write_page(const pn_cold_io *io, const pn_crc32c *crc, uint64_t at, const uint8_t *data, uint64_t bytes, uint8_t *piece,
                                 uint32_t *sum, pn_err *err)
{
    for (uint64_t done = 0; done < bytes;) {
        size_t n = (size_t)PN_MIN(bytes - done, (uint64_t)PN_COLD_PIECE), whole = (size_t)pn_align_up(n, PN_COLD_BLOCK);
        memcpy(piece, data + done, n);
        memset(piece + n, 0, whole - n);
        *sum = pn_crc32c_add(crc, *sum, piece, whole);
        pn_status st = io->write(io->user, at + done, piece, whole, err);
        if (st)
            return st;
        done += n;
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_cold_write(const pn_cold_io *io, const pn_crc32c *crc, const pn_cold_unit *u, pn_kv_page *const *pages,
                                    const pn_snap *state, void *piece, pn_err *err)
{
    const pn_cold_kind *k = &u->kind;
    uint32_t groups = 0, sums[PN_MAX_GROUPS] = {0};
    const void *data[PN_MAX_GROUPS] = {NULL}, *second = state ? pn_snap_data(state, 1) : NULL;
    for (uint32_t g = 0; g < k->spec->n_groups; g++)
        data[g] = pages[g] ? pages[g]->data : NULL;
    if (state)
        data[PN_COLD_STATE] = pn_snap_data(state, 0);
    for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
        groups |= data[g] ? UINT32_C(1) << g : 0;
    cold_head(crc, u, groups, piece);
    uint32_t head_sum = pn_crc32c_add(crc, 0, piece, PN_COLD_BLOCK);
    pn_status st = io->write(io->user, 0, piece, PN_COLD_BLOCK, err);
    uint64_t at = PN_COLD_BLOCK;
    for (uint32_t g = 0; g < PN_MAX_GROUPS && !st; g++)
        if (data[g]) {
            uint64_t last = cold_second_bytes(k, g), end = at + cold_payload(k, g);
            st = cold_write_page(io, crc, at, data[g], cold_page_bytes(k, g) - last, piece, &sums[g], err);
            if (!st)
                st = cold_write_page(io, crc, end - pn_align_up(last, PN_COLD_BLOCK), second, last, piece, &sums[g], err);
            at = end;
        }
    if (st)
        return st;
    cold_foot(crc, at + PN_COLD_BLOCK, head_sum, sums, piece);
    return io->write(io->user, at, piece, PN_COLD_BLOCK, err);
}

/* ------------------------------------------------------------------------------------------
 * Reading
 * ------------------------------------------------------------------------------------------ */

/* Why a head that is whole is not the one. */
static pn_status cold_stranger(const pn_cold_unit *u, const uint8_t *h, pn_err *err)
{
    pn_identity other;
    memcpy(&other, h + 16, sizeof other);
    const char *what = pn_identity_differs(&other, u->kind.model);
    return pn_fail(err, PN_E_INVALID, "the page was made by another model or for other tokens: %s differ%s", what ? what : "keys or geometry",
                   what ? "s" : "");
}

/* The head, which must be the one of `u` with whatever groups it says.  scratch: a block. */
static pn_status cold_check_head(const pn_cold_io *io, const pn_crc32c *crc, const pn_cold_unit *u, uint8_t *h, uint8_t *scratch,
                                 uint32_t *groups, pn_err *err)
{
    *groups = 0;
    if (io->bytes < 2 * PN_COLD_BLOCK || io->bytes % PN_COLD_BLOCK)
        return pn_fail(err, PN_E_FORMAT, "%" PRIu64 " bytes: not whole blocks of %d", io->bytes, PN_COLD_BLOCK);
    pn_status st = io->read(io->user, 0, h, PN_COLD_BLOCK, err);
    if (st)
        return st;
    if (memcmp(h, cold_magic, sizeof cold_magic) != 0 || pn_le32(h + 8) != COLD_VERSION)
        return pn_fail(err, PN_E_FORMAT, "not a page of version %d", COLD_VERSION);
    if (pn_le32(h + COLD_SUM) != pn_crc32c_add(crc, 0, h, COLD_SUM))
        return pn_fail(err, PN_E_FORMAT, "the head is damaged");
    for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
        *groups |= cold_section(&u->kind, g) && h[COLD_GROUPS + g * COLD_GROUP + COLD_PRESENT] ? UINT32_C(1) << g : 0;
    cold_head(crc, u, *groups, scratch);
    if (memcmp(h, scratch, PN_COLD_BLOCK) != 0)
        return cold_stranger(u, h, err);
    uint64_t want = pn_cold_file_bytes(&u->kind, *groups);
    return io->bytes == want ? PN_OK : pn_fail(err, PN_E_FORMAT, "%" PRIu64 " bytes, expected %" PRIu64, io->bytes, want);
}

/* The foot; sums: what it says of the payloads. */
static pn_status cold_check_foot(const pn_cold_io *io, const pn_crc32c *crc, uint32_t head_sum, uint32_t groups, uint8_t *f, uint8_t *scratch,
                                 uint32_t *sums, pn_err *err)
{
    pn_status st = io->read(io->user, io->bytes - PN_COLD_BLOCK, f, PN_COLD_BLOCK, err);
    if (st)
        return st;
    for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
        sums[g] = groups >> g & 1 ? pn_le32(f + 20 + 4 * g) : 0;
    cold_foot(crc, io->bytes, head_sum, sums, scratch);
    return memcmp(f, scratch, PN_COLD_BLOCK) == 0 ? PN_OK : pn_fail(err, PN_E_FORMAT, "the foot is damaged, or the file was never finished");
}

/* *sum goes on from what it is. */
static pn_status cold_read_page(const pn_cold_io *io, const pn_crc32c *crc, uint64_t at, uint8_t *data, uint64_t bytes, uint8_t *piece,
                                uint32_t *sum, pn_err *err)
{
    uint8_t rest = 0;                   /* what is behind the page, which is zeros */
    for (uint64_t done = 0; done < bytes;) {
        size_t n = (size_t)PN_MIN(bytes - done, (uint64_t)PN_COLD_PIECE), whole = (size_t)pn_align_up(n, PN_COLD_BLOCK);
        pn_status st = io->read(io->user, at + done, piece, whole, err);
        if (st)
            return st;
        *sum = pn_crc32c_add(crc, *sum, piece, whole);
        memcpy(data + done, piece, n);
        for (size_t i = n; i < whole; i++)
            rest |= piece[i];
        done += n;
    }
    return rest ? pn_fail(err, PN_E_FORMAT, "the keys and values, or the state, at byte %" PRIu64 " are damaged", at) : PN_OK;
}

/* Memory for what is read of group g, noted where it belongs; NULL: there is none. */
static uint8_t *cold_make(const pn_cold_kind *k, uint32_t g, pn_mem *const mem[2], pn_kv_page *pages[PN_MAX_GROUPS], pn_snap **state)
{
    if (g < k->spec->n_groups) {
        pages[g] = pn_kv_page_new(mem[k->spec->group[g].part], &k->spec->group[g], k->type);
        return pages[g] ? pages[g]->data : NULL;
    }
    *state = pn_snap_new(mem, k->spec->slot_bytes, k->spec->slot_second);
    return *state ? pn_snap_data(*state, 0) : NULL;
}

/* Group g, which is at `at` and has this sum. */
static pn_status cold_read_group(const pn_cold_io *io, const pn_crc32c *crc, const pn_cold_kind *k, uint32_t g, uint64_t at, uint32_t want,
                                 pn_mem *const mem[2], pn_kv_page *pages[PN_MAX_GROUPS], pn_snap **state, void *piece, pn_err *err)
{
    uint64_t bytes = cold_page_bytes(k, g), last = cold_second_bytes(k, g), end = at + cold_payload(k, g);
    uint32_t sum = 0;
    uint8_t *data = cold_make(k, g, mem, pages, state);
    if (!data)
        return pn_fail_nomem(err, "a page of keys and values, or its state,", bytes);
    pn_status st = cold_read_page(io, crc, at, data, bytes - last, piece, &sum, err);
    if (!st && last)
        st = cold_read_page(io, crc, end - pn_align_up(last, PN_COLD_BLOCK), pn_snap_data(*state, 1), last, piece, &sum, err);
    if (!st && sum != want)
        st = pn_fail(err, PN_E_FORMAT, "the keys and values, or the state, at byte %" PRIu64 " are damaged", at);
    return st;
}

PN_INTERNAL pn_status pn_cold_read(const pn_cold_io *io, const pn_crc32c *crc, const pn_cold_unit *u, uint32_t want,
                                   pn_mem *const mem[2], pn_kv_page *pages[PN_MAX_GROUPS], pn_snap **state, void *piece, pn_err *err)
{
    const pn_cold_kind *k = &u->kind;
    uint8_t *block = piece, *scratch = block + PN_COLD_BLOCK;
    uint32_t groups, sums[PN_MAX_GROUPS];
    memset(pages, 0, PN_MAX_GROUPS * sizeof *pages);
    *state = NULL;
    pn_status st = cold_check_head(io, crc, u, block, scratch, &groups, err);
    if (!st)
        st = cold_check_foot(io, crc, pn_crc32c_add(crc, 0, block, PN_COLD_BLOCK), groups, block, scratch, sums, err);
    if (!st && want & ~groups)
        st = pn_fail(err, PN_E_STATE, "a window had passed, or there was no snapshot, when the page was saved");
    uint64_t at = PN_COLD_BLOCK;
    for (uint32_t g = 0; g < PN_MAX_GROUPS && !st; g++) {
        if (want >> g & 1)
            st = cold_read_group(io, crc, k, g, at, sums[g], mem, pages, state, piece, err);
        at += groups >> g & 1 ? cold_payload(k, g) : 0;
    }
    for (uint32_t g = 0; g < PN_MAX_GROUPS && st; g++) {
        pn_kv_release(pages[g]);
        pages[g] = NULL;
    }
    if (st) {
        pn_snap_release(*state);
        *state = NULL;
    }
    return st;
}
