/*
 * pn_cold_file.h - a page of a conversation as a file: all its groups, and whose it is.
 *
 * One file is what one node of the prefix tree is: PN_KV_PAGE_TOKENS tokens with a page of every stream group that
 * had one (that of a windowed group may have been recycled before), and of a recurrent model the snapshot behind them,
 * if there is one.  It is found by a key that names everything its content depends on:
 *
 *     root    = digest(identity of the model, geometry of the groups, type, rotary table, salt; bytes of a slot if any, those of
 *                      the second part if any)
 *     key(i)  = digest(key(i - 1), tokens of page i)           key(-1) = root
 *
 * so conversations that begin alike share their files, and two that do not never do.
 *
 * Layout.  Blocks of 4096 bytes, for direct I/O; numbers little-endian.
 *
 *     head, one block
 *         0      8  "PNCOLD\x1a\n"
 *         8      4  version, 1
 *        12      4  PN_KV_PAGE_TOKENS
 *        16     96  identity, 6 digests of 16 bytes (pn_identity.h)
 *       112     16  key
 *       128     16  key of the page before, or root
 *       144      4  type of keys and values (pn_dtype)
 *       148      4  number of groups
 *       152      8  bytes of the file
 *       160    256  tokens, 64 of 4 bytes
 *       416  8 * 40 groups: n_layers, n_heads, d_k, d_v, window, part (6 * 4 bytes), present, k_type, v_type, rotated
 *                   (4 * 1), 4 zeros, bytes of the payload (8); all zero behind the last group.  Of a recurrent model the
 *                   eighth is the snapshot's: for the shape, the bytes of it that are the second part's (8), and no type
 *       736         zeros
 *      4092      4  CRC-32C of the bytes before
 *     payload of each group that is present, as the page lies in memory, zeros up to the next block; the snapshot's parts
 *     one behind the other in the same way
 *     foot, one block, written last
 *         0      8  "PNCOLDOK"
 *         8      8  bytes of the file
 *        16      4  CRC-32C of the head
 *        20  8 * 4  CRC-32C of each group's payload, its zeros included; 0 where it is not present
 *        52         zeros
 *      4092      4  CRC-32C of the bytes before
 *
 * Reading believes nothing.  Given what is looked for, a head has one right content but for which groups are
 * present: it is made anew and compared whole, and so is the foot.  Every byte of a file is under one of the sums,
 * and its length follows from the head, so whatever differs is refused, a byte behind the end included.  The
 * directory is trusted as far as its owner is: sums find accidents, not somebody who can write there.
 *
 * Threads: any; nothing here has state.  Pages are common, so they do not change while they are written.
 */
#ifndef PN_COLD_FILE_H
#define PN_COLD_FILE_H

#include "base/pn_hash.h"
#include "store/pn_identity.h"
#include "store/pn_kv.h"

enum {
    PN_COLD_STATE = PN_MAX_GROUPS - 1,      /* among the groups of a file: its snapshot; such a model has one group less at most */
    PN_COLD_BLOCK = 4096,
    PN_COLD_PIECE = 128 << 10   /* bytes moved at a time */
};

typedef struct pn_cold_key {
    uint8_t b[PN_DIGEST_BYTES];
} pn_cold_key;

/* Whose pages: what all pages of a kind have in common. */
typedef struct pn_cold_kind {
    const pn_identity *model;
    const pn_state_spec *spec;
    uint32_t type;
} pn_cold_kind;

/* A page that is looked for, or written. */
typedef struct pn_cold_unit {
    pn_cold_kind kind;          /* borrowed, as the tokens are */
    pn_cold_key key, parent;
    const pn_token *tokens;     /* [PN_KV_PAGE_TOKENS] */
} pn_cold_unit;

PN_INTERNAL pn_cold_key pn_cold_root(const pn_cold_kind *kind, uint32_t rotary, uint64_t salt);
PN_INTERNAL pn_cold_key pn_cold_next(const pn_cold_key *parent, const pn_token *tokens);

/* Bytes of a file with these groups (bit g: group g, bit PN_COLD_STATE: a snapshot). */
PN_INTERNAL uint64_t pn_cold_file_bytes(const pn_cold_kind *kind, uint32_t groups);

/* Where whole blocks go, and come from: n and offset are multiples of PN_COLD_BLOCK. */
typedef struct pn_cold_io {
    pn_status (*write)(void *user, uint64_t offset, const void *src, size_t n, pn_err *err);
    pn_status (*read)(void *user, uint64_t offset, void *dst, size_t n, pn_err *err);
    void *user;
    uint64_t bytes;             /* reading: of the file */
} pn_cold_io;

/* pages[g], state: NULL where there is none.  piece: [PN_COLD_PIECE], aligned to a block. */
PN_INTERNAL pn_status pn_cold_write(const pn_cold_io *io, const pn_crc32c *crc, const pn_cold_unit *u, pn_kv_page *const *pages,
                                    const pn_snap *state, void *piece, pn_err *err);

/* The groups of `want`, into new pages from mem[part of the group], a snapshot into *state; pages[g] is NULL for the others.
 * On failure all are.  PN_E_FORMAT: damaged; PN_E_INVALID: whole, but of something else; PN_E_STATE: a wanted group is not there;
 * PN_E_IO; PN_E_NOMEM. */
PN_INTERNAL pn_status pn_cold_read(const pn_cold_io *io, const pn_crc32c *crc, const pn_cold_unit *u, uint32_t want,
                                   pn_mem *const mem[2], pn_kv_page *pages[PN_MAX_GROUPS], pn_snap **state, void *piece, pn_err *err);

#endif /* PN_COLD_FILE_H */
