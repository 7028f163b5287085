/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_cold.c - pages of conversations as files: the format to the byte, what is refused, and the store that keeps them.
 */
#include "pn_test.h"

#include "store/pn_cold.h"

#include "base/pn_err.h"

#if PN_ENABLE_FILES && defined(__linux__)

#include "pread_faults.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { BLOB_MOST = 1 << 20, SPECS = 5 };

static const pn_state_spec specs[SPECS] = {
    {.group = {{.n_layers = 2, .n_heads = 1, .d_k = 32, .d_v = 32}}, .n_groups = 1},
    {.group = {{.n_layers = 1, .n_heads = 2, .d_k = 32, .d_v = 64}, {.n_layers = 3, .n_heads = 1, .d_k = 32, .d_v = 32, .window = 100}}, .n_groups = 2},
    {.group = {{.n_layers = 1, .n_heads = 1, .d_k = 64, .d_v = 32}, {.n_layers = 1, .n_heads = 1, .d_k = 64, .d_v = 32, .part = 1}}, .n_groups = 2},
    {.group = {{.n_layers = 2, .n_heads = 1, .d_k = 32, .d_v = 32}}, .n_groups = 1, .slot_bytes = 5000},     /* the snapshot's bit is PN_COLD_STATE */
    {.group = {{.n_layers = 2, .n_heads = 1, .d_k = 32, .d_v = 32, .part = 1}}, .n_groups = 1, .slot_bytes = 9000, .slot_second = 4200}};

/* Sections that a file of this kind may have, and the groups of a subset of them. */
static uint32_t spec_sections(uint32_t spec) { return specs[spec].n_groups + (specs[spec].slot_bytes != 0); }

static uint64_t spec_slot(const pn_state_spec *s, uint32_t part) { return part ? s->slot_second : s->slot_bytes - s->slot_second; }

static uint32_t spec_groups(uint32_t spec, uint32_t bits)
{
    uint32_t n = specs[spec].n_groups;
    return (bits & ((1u << n) - 1)) | (bits >> n & 1) << PN_COLD_STATE;
}

static pn_test_mem mem;
static pn_mem *const both[2] = {&mem.mem, &mem.mem};
static pn_crc32c crc;
static pn_identity model;
static pn_token tokens[2][PN_KV_PAGE_TOKENS];
static uint64_t seed = 11;

/* ------------------------------------------------------------------------------------------
 * A unit and its pages
 * ------------------------------------------------------------------------------------------ */

typedef struct unit {
    pn_cold_unit u;
    pn_kv_page *pages[PN_MAX_GROUPS];
    pn_snap *state;
} unit;

static unit unit_new(uint32_t spec, uint32_t type, uint32_t groups, uint32_t which)
{
    unit x = {.u = {.kind = {&model, &specs[spec], type}, .tokens = tokens[which]}};
    x.u.parent = pn_cold_root(&x.u.kind, 0, 5);
    x.u.key = pn_cold_next(&x.u.parent, x.u.tokens);
    for (uint32_t g = 0; g < specs[spec].n_groups; g++)
        if (groups >> g & 1) {
            x.pages[g] = pn_kv_page_new(&mem.mem, &specs[spec].group[g], type);
            for (uint64_t i = 0; i < pn_kv_page_bytes(&specs[spec].group[g], type, type); i++)
                ((uint8_t *)x.pages[g]->data)[i] = (uint8_t)(i * 31 / 7 + g + which);
        }
    if (groups >> PN_COLD_STATE & 1) {
        x.state = pn_snap_new(both, specs[spec].slot_bytes, specs[spec].slot_second);
        for (uint32_t part = 0; part < 2; part++)
            for (uint64_t i = 0; i < spec_slot(&specs[spec], part); i++)
                ((uint8_t *)pn_snap_data(x.state, part))[i] = (uint8_t)(i * 13 / 5 + which + part);
    }
    return x;
}

static void unit_free(unit *x)
{
    for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
        pn_kv_release(x->pages[g]);
    pn_snap_release(x->state);
}

static bool unit_same(const unit *x, pn_kv_page *const *pages, const pn_snap *state, uint32_t want)
{
    bool same = (state != NULL) == (want >> PN_COLD_STATE & 1);
    if (same && state)
        same = atomic_load(&state->refs) == 1;
    for (uint32_t part = 0; same && state && part < 2; part++)
        same = !spec_slot(x->u.kind.spec, part) ||
               memcmp(pn_snap_data(state, part), pn_snap_data(x->state, part), (size_t)spec_slot(x->u.kind.spec, part)) == 0;
    for (uint32_t g = 0; g < x->u.kind.spec->n_groups && same; g++) {
        const pn_stream_group *sg = &x->u.kind.spec->group[g];
        same = (pages[g] != NULL) == (want >> g & 1);
        if (same && pages[g])
            same = pages[g]->common && pages[g]->refs == 1 && pages[g]->k_type == x->u.kind.type && pages[g]->rotated == pn_kv_is_block(x->u.kind.type) &&
                   memcmp(pages[g]->data, x->pages[g]->data, (size_t)pn_kv_page_bytes(sg, x->u.kind.type, x->u.kind.type)) == 0;
    }
    return same;
}

/* ------------------------------------------------------------------------------------------
 * Files in memory
 * ------------------------------------------------------------------------------------------ */

typedef struct blob {
    uint8_t bytes[BLOB_MOST];
    uint64_t n;
    long calls, fail_at;        /* the k-th call gives PN_E_IO; 0: none */
} blob;

static pn_status blob_write(void *user, uint64_t at, const void *src, size_t n, pn_err *err)
{
    blob *b = user;
    PN_CHECK(at == b->n && n % PN_COLD_BLOCK == 0 && at + n <= BLOB_MOST && (uintptr_t)src % PN_COLD_BLOCK == 0, "%zu bytes at %" PRIu64, n, at);
    if (++b->calls == b->fail_at)
        return pn_fail(err, PN_E_IO, "on purpose");
    memcpy(b->bytes + at, src, n);
    b->n += n;
    return PN_OK;
}

static pn_status blob_read(void *user, uint64_t at, void *dst, size_t n, pn_err *err)
{
    blob *b = user;
    if (++b->calls == b->fail_at || at > b->n || n > b->n - at)
        return pn_fail(err, PN_E_IO, "no such bytes");
    memcpy(dst, b->bytes + at, n);
    return PN_OK;
}

static blob one, two;
static uint8_t *piece;          /* aligned */

static pn_status blob_make(blob *b, const unit *x)
{
    b->n = 0;
    b->calls = 0;
    return pn_cold_write(&(pn_cold_io){.write = blob_write, .user = b}, &crc, &x->u, x->pages, x->state, piece, NULL);
}

static pn_snap *taken;           /* the state of the last file */

static pn_status blob_take(blob *b, const pn_cold_unit *u, uint32_t want, pn_kv_page *pages[PN_MAX_GROUPS])
{
    const pn_cold_io io = {.read = blob_read, .user = b, .bytes = b->n};
    b->calls = 0;
    return pn_cold_read(&io, &crc, u, want, both, pages, &taken, piece, NULL);
}

static void pages_free(pn_kv_page **pages)
{
    for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
        pn_kv_release(pages[g]);
    pn_snap_release(taken);
    taken = NULL;
}

/* ------------------------------------------------------------------------------------------
 * The format
 * ------------------------------------------------------------------------------------------ */

static void what_is_written_is_read(void)
{
    static const uint32_t types[] = {PN_DTYPE_F16, PN_DTYPE_F32, PN_DTYPE_Q8_0, PN_DTYPE_Q4_0};
    for (uint32_t s = 0; s < SPECS; s++)
        for (size_t t = 0; t < PN_COUNT_OF(types); t++)
            for (uint32_t bits = 1; bits < 1u << spec_sections(s); bits++) {
                uint32_t groups = spec_groups(s, bits);
                unit x = unit_new(s, types[t], groups, 0);
                PN_CHECK(blob_make(&one, &x) == PN_OK && one.n == pn_cold_file_bytes(&x.u.kind, groups), "%u: %" PRIu64 " bytes", (unsigned)s, one.n);
                for (uint32_t more = 0; more < 1u << spec_sections(s); more++) {
                    uint32_t want = spec_groups(s, more);
                    pn_kv_page *pages[PN_MAX_GROUPS];
                    pn_status st = blob_take(&one, &x.u, want, pages);
                    PN_CHECK(st == (want & ~groups ? PN_E_STATE : PN_OK) && (st || unit_same(&x, pages, taken, want)), "%u of %u: %s", (unsigned)want, (unsigned)groups,
                             pn_status_name(st));
                    pages_free(pages);
                }
                unit_free(&x);
            }
}

/* The header's layout, and nothing else: a change here makes all files of the version before strangers. */
static void the_layout_is_the_one_described(void)
{
    unit x = unit_new(1, PN_DTYPE_F16, 3, 0);
    const uint8_t *b = one.bytes;
    PN_CHECK(blob_make(&one, &x) == PN_OK);
    uint64_t first = pn_kv_page_bytes(&specs[1].group[0], PN_DTYPE_F16, PN_DTYPE_F16), second = pn_kv_page_bytes(&specs[1].group[1], PN_DTYPE_F16, PN_DTYPE_F16);
    uint64_t at2 = 4096 + pn_align_up(first, 4096), foot = at2 + pn_align_up(second, 4096);
    PN_CHECK(memcmp(b, "PNCOLD\x1a\n", 8) == 0 && pn_le32(b + 8) == 1 && pn_le32(b + 12) == PN_KV_PAGE_TOKENS && memcmp(b + 16, &model, 96) == 0);
    PN_CHECK(memcmp(b + 112, &x.u.key, 16) == 0 && memcmp(b + 128, &x.u.parent, 16) == 0 && pn_le32(b + 144) == PN_DTYPE_F16 && pn_le32(b + 148) == 2);
    PN_CHECK(pn_le64(b + 152) == one.n && one.n == foot + 4096 && pn_le32(b + 160 + 4 * 63) == (uint32_t)tokens[0][63]);
    PN_CHECK(pn_le32(b + 416 + 40) == 3 && pn_le32(b + 416 + 40 + 16) == 100 && b[416 + 40 + 24] == 1 && pn_le64(b + 416 + 40 + 32) == second);
    PN_CHECK(pn_le32(b + 4092) == pn_crc32c_add(&crc, 0, b, 4092) && memcmp(b + 4096, x.pages[0]->data, (size_t)first) == 0);
    PN_CHECK(memcmp(b + at2, x.pages[1]->data, (size_t)second) == 0 && memcmp(b + foot, "PNCOLDOK", 8) == 0 && pn_le64(b + foot + 8) == one.n);
    PN_CHECK(pn_le32(b + foot + 16) == pn_crc32c_add(&crc, 0, b, 4096) && pn_le32(b + foot + 24) == pn_crc32c_add(&crc, 0, b + at2, (size_t)(foot - at2)));
    unit_free(&x);
}

/* Of a recurrent model; and what has no snapshot, or another slot, is another kind. */
static void the_snapshot_is_the_last_section(void)
{
    unit x = unit_new(3, PN_DTYPE_F16, spec_groups(3, 3), 0);
    const uint8_t *b = one.bytes, *entry = b + 416 + 7 * 40;
    const pn_state_spec other = {.group = {specs[3].group[0]}, .n_groups = 1, .slot_bytes = 5001}, none = {.group = {specs[3].group[0]}, .n_groups = 1};
    pn_kv_page *pages[PN_MAX_GROUPS];
    PN_CHECK(blob_make(&one, &x) == PN_OK);
    uint64_t at = 4096 + pn_align_up(pn_kv_page_bytes(&specs[3].group[0], PN_DTYPE_F16, PN_DTYPE_F16), 4096);
    PN_CHECK(pn_le32(b + 148) == 1 && pn_le32(entry) == 0 && entry[24] == 1 && pn_le64(entry + 32) == 5000 && one.n == at + 3 * 4096,
             "%" PRIu64 " bytes", one.n);
    PN_CHECK(memcmp(b + at, pn_snap_data(x.state, 0), 5000) == 0 && pn_le32(b + at + 8192 + 20 + 28) == pn_crc32c_add(&crc, 0, b + at, 8192), "the section");
    for (int i = 0; i < 2; i++) {
        pn_cold_unit u = x.u;
        u.kind.spec = i ? &none : &other;
        const pn_cold_key root = pn_cold_root(&u.kind, 0, 5);
        PN_CHECK(memcmp(&root, &x.u.parent, sizeof root) != 0 && blob_take(&one, &u, 1, pages) == PN_E_INVALID, "another kind");
    }
    unit_free(&x);
}

/* Of a split model each part's share begins a block, under one sum; cut elsewhere it is another kind. */
static void a_split_snapshot_is_two_payloads(void)
{
    unit x = unit_new(4, PN_DTYPE_F16, spec_groups(4, 3), 0);
    const uint8_t *b = one.bytes, *entry = b + 416 + 7 * 40;
    pn_state_spec other = specs[4];
    pn_cold_unit u = x.u;
    pn_kv_page *pages[PN_MAX_GROUPS];
    PN_CHECK(blob_make(&one, &x) == PN_OK);
    uint64_t at = 4096 + pn_align_up(pn_kv_page_bytes(&specs[4].group[0], PN_DTYPE_F16, PN_DTYPE_F16), 4096);
    PN_CHECK(pn_le64(entry) == 4200 && pn_le64(entry + 32) == 9000 && one.n == at + 5 * 4096, "%" PRIu64 " bytes", one.n);
    PN_CHECK(memcmp(b + at, pn_snap_data(x.state, 0), 4800) == 0 && memcmp(b + at + 8192, pn_snap_data(x.state, 1), 4200) == 0 &&
             pn_le32(b + at + 4 * 4096 + 20 + 28) == pn_crc32c_add(&crc, 0, b + at, 4 * 4096), "the section");
    other.slot_second = 4264;
    u.kind.spec = &other;
    const pn_cold_key root = pn_cold_root(&u.kind, 0, 5);
    PN_CHECK(memcmp(&root, &x.u.parent, sizeof root) != 0 && blob_take(&one, &u, 1, pages) == PN_E_INVALID, "another kind");
    unit_free(&x);
}

/* Other tokens, another way to them, another model, type or shape: whole, but not what is looked for. */
static void a_stranger_is_refused(void)
{
    unit x = unit_new(1, PN_DTYPE_F16, 3, 0), y = unit_new(1, PN_DTYPE_F16, 3, 1), t = unit_new(1, PN_DTYPE_Q8_0, 3, 0), s = unit_new(2, PN_DTYPE_F16, 3, 0);
    pn_kv_page *pages[PN_MAX_GROUPS];
    pn_identity other = model;
    other.part[PN_ID_BYTES][3] ^= 1;
    pn_cold_unit wrong[7];
    for (size_t i = 0; i < PN_COUNT_OF(wrong); i++)
        wrong[i] = x.u;
    wrong[0].tokens = y.u.tokens;               /* two texts of one key */
    wrong[1].parent.b[0] ^= 1;
    wrong[2].key.b[15] ^= 1;
    wrong[3].kind.model = &other;
    wrong[4].kind = t.u.kind;
    wrong[5].kind = s.u.kind;
    wrong[6] = y.u;
    PN_CHECK(blob_make(&one, &x) == PN_OK && blob_take(&one, &x.u, 3, pages) == PN_OK);
    pages_free(pages);
    for (size_t i = 0; i < PN_COUNT_OF(wrong); i++)
        PN_CHECK(blob_take(&one, &wrong[i], 3, pages) == PN_E_INVALID, "stranger %zu", i);
    PN_CHECK(strcmp(pn_identity_differs(&model, &other), "tensor bytes") == 0 && !pn_identity_differs(&model, &model));
    const pn_cold_unit *keys[] = {&x.u, &y.u, &t.u, &s.u};
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < i; k++)
            PN_CHECK(memcmp(&keys[i]->key, &keys[k]->key, sizeof(pn_cold_key)) != 0, "%zu and %zu have one key", i, k);
    pn_cold_key salts[2] = {pn_cold_root(&x.u.kind, 0, 6), pn_cold_root(&x.u.kind, 1, 5)};
    for (size_t i = 0; i < 2; i++)
        PN_CHECK(memcmp(&salts[i], &x.u.parent, sizeof salts[i]) != 0, "a salt or a rotary table is not in the key");
    unit_free(&x);
    unit_free(&y);
    unit_free(&t);
    unit_free(&s);
}

/* One change of a file, somewhere. */
static void blob_mutate(blob *b, const blob *from)
{
    uint64_t at = pn_test_rand(&seed) % from->n, block = at / 4096 * 4096, to = pn_test_rand(&seed) % from->n / 4096 * 4096;
    memcpy(b->bytes, from->bytes, (size_t)from->n);
    b->n = from->n;
    switch (pn_test_rand(&seed) % 8) {
    case 0: b->n = at; break;                                                       /* cut */
    case 1: b->n = block; break;
    case 2: b->n += 1 + pn_test_rand(&seed) % 8192; break;                          /* trailing bytes */
    case 3: memset(b->bytes + block, 0, 4096); break;                               /* a block was never written */
    case 4: memmove(b->bytes + to, b->bytes + block, 4096); break;                  /* or in another's place */
    case 5: b->bytes[at % 800] ^= (uint8_t)(1 + pn_test_rand(&seed) % 255); break;  /* the head */
    case 6: b->bytes[b->n - 4096 + at % 60] ^= (uint8_t)(1 << pn_test_rand(&seed) % 8); break;
    default: b->bytes[at] ^= (uint8_t)(1 << pn_test_rand(&seed) % 8); break;
    }
}

static void of_ten_thousand_broken_files_none_is_taken(uint32_t spec, uint32_t groups)
{
    enum { TRIES = 10000 };
    unit x = unit_new(spec, PN_DTYPE_Q8_0, groups, 0);
    pn_kv_page *pages[PN_MAX_GROUPS];
    long taken = 0, same = 0, refused = 0;
    PN_CHECK(blob_make(&one, &x) == PN_OK);
    while (refused + taken < TRIES) {
        blob_mutate(&two, &one);
        if (two.n == one.n && memcmp(two.bytes, one.bytes, (size_t)one.n) == 0) {
            same++;
            continue;
        }
        pn_status st = blob_take(&two, &x.u, groups, pages);
        taken += st == PN_OK;
        refused += st != PN_OK;
        pages_free(pages);
    }
    printf("%d broken files, %ld taken (%ld were the same bytes)\n", TRIES, taken, same);
    PN_CHECK(taken == 0, "%ld broken files were taken", taken);
    for (uint64_t n = 0; n < one.n; n += 511) {
        two = one;
        two.n = n;
        PN_CHECK(blob_take(&two, &x.u, groups, pages) != PN_OK, "cut at %" PRIu64, n);
    }
    unit_free(&x);
}

static void failing_reads_and_memory_leave_nothing(uint32_t spec, uint32_t groups)
{
    unit x = unit_new(spec, PN_DTYPE_F16, groups, 0);
    pn_kv_page *pages[PN_MAX_GROUPS];
    PN_CHECK(blob_make(&one, &x) == PN_OK);
    long out = mem.outstanding;
    for (int what = 0; what < 2; what++)
        for (long k = 1, done = 0; !done; k++) {
            one.fail_at = what ? 0 : k;
            mem.fail_at = what ? mem.n_calls + k : 0;
            pn_status st = blob_take(&one, &x.u, groups, pages);
            PN_CHECK(st == PN_OK || (st == (what ? PN_E_NOMEM : PN_E_IO) && !pages[0] && !pages[1] && !taken), "%s", pn_status_name(st));
            done = st == PN_OK;
            pages_free(pages);
            mem.fail_at = 0;
            PN_CHECK(mem.outstanding == out, "%ld blocks leak", mem.outstanding - out);
        }
    for (one.fail_at = 1; blob_make(&one, &x) == PN_E_IO; one.fail_at++)
        ;
    PN_CHECK(one.fail_at == 5, "%ld writes", one.fail_at - 1);      /* head, two payloads, foot */
    one.fail_at = 0;
    unit_free(&x);
}

/* ------------------------------------------------------------------------------------------
 * The store
 * ------------------------------------------------------------------------------------------ */

static char dir[200];
static pn_mutex pages_lock;

static int dir_each(const char *with, bool remove_them)
{
    char path[sizeof dir + 300];
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.' && strstr(e->d_name, with)) {
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            n++;
            if (remove_them)
                remove(path);
        }
    if (d)
        closedir(d);
    return n;
}

static void path_of(const unit *x, uint32_t groups, char *out, size_t n)
{
    int at = snprintf(out, n, "%s/", dir);
    for (int i = 0; i < PN_DIGEST_BYTES; i++)
        at += snprintf(out + at, n - (size_t)at, "%02x", x->u.key.b[i]);
    snprintf(out + at, n - (size_t)at, "-%02x.pnkv", (unsigned)groups);
}

static pn_cold *store_open(uint64_t quota)
{
    pn_cold *c = NULL;
    pn_err err = {0};
    PN_CHECK(pn_cold_open(&c, &mem.mem, dir, quota, &err) == PN_OK, "%s", err.text);
    return c;
}

static pn_cold_info store_info(pn_cold *c)
{
    pn_cold_info i;
    pn_cold_report(c, &i);
    return i;
}

static void store_wait(pn_cold *c)
{
    for (int ms = 0; store_info(c).queued_bytes && ms < 20000; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static bool store_save(pn_cold *c, const unit *x)
{
    pn_mutex_lock(&pages_lock);
    bool ok = pn_cold_save(c, &x->u, x->pages, x->state, &pages_lock);
    pn_mutex_unlock(&pages_lock);
    store_wait(c);
    return ok;
}

static pn_status store_load(pn_cold *c, const unit *x, uint32_t want)
{
    pn_kv_page *pages[PN_MAX_GROUPS];
    pn_status st = pn_cold_load(c, &x->u, want, both, pages, &taken, NULL);
    PN_CHECK(st || unit_same(x, pages, taken, want), "other bytes");
    pages_free(pages);
    return st;
}

/* Many units, told apart by their salt. */
static unit unit_at(uint64_t salt)
{
    unit x = unit_new(0, PN_DTYPE_F16, 1, 0);
    x.u.parent = pn_cold_root(&x.u.kind, 0, salt);
    x.u.key = pn_cold_next(&x.u.parent, x.u.tokens);
    return x;
}

static void the_store_keeps_what_it_is_given(void)
{
    unit x = unit_new(1, PN_DTYPE_F16, 1, 0), whole = unit_new(1, PN_DTYPE_F16, 3, 0);
    char path[300];
    pn_cold *c = store_open(0);
    PN_CHECK(store_load(c, &x, 1) == PN_E_STATE && pn_cold_groups(c, &x.u.key) == 0, "it is empty");
    PN_CHECK(store_save(c, &x) && !store_save(c, &x) && pn_cold_groups(c, &x.u.key) == 1 && dir_each("", false) == 1, "saved once");
    PN_CHECK(store_load(c, &x, 1) == PN_OK && store_load(c, &x, 3) == PN_E_STATE, "the window's page is not there");
    PN_CHECK(store_save(c, &whole) && pn_cold_groups(c, &x.u.key) == 3 && dir_each("", false) == 1, "the gap is filled");
    PN_CHECK(!store_save(c, &x) && store_load(c, &whole, 3) == PN_OK && store_load(c, &whole, 2) == PN_OK, "and stays");
    pn_cold_info i = store_info(c);
    PN_CHECK(i.pages == 1 && i.saved == 2 && i.restored == 3 && i.bytes == pn_cold_file_bytes(&x.u.kind, 3) && i.write_rate > 0 && i.read_rate > 0,
             "%u saved, %u restored", (unsigned)i.saved, (unsigned)i.restored);
    pn_cold_close(c);
    /* Found again; what a crash left, or is not whole blocks, is gone; what is not ours stays. */
    path_of(&x, 3, path, sizeof path);
    memcpy(strrchr(path, '-'), ".tmp", 5);
    fclose(fopen(path, "wb"));
    snprintf(path, sizeof path, "%s/notes.txt", dir);
    fclose(fopen(path, "wb"));
    snprintf(path, sizeof path, "%s/00000000000000000000000000000000-01.pnkv", dir);
    FILE *f = fopen(path, "wb");
    fputs("half", f);
    fclose(f);
    c = store_open(0);
    PN_CHECK(dir_each("", false) == 2 && dir_each("notes", false) == 1 && pn_cold_groups(c, &x.u.key) == 3 && store_load(c, &whole, 3) == PN_OK, "found again");
    pn_cold_close(c);
    dir_each("", true);
    unit_free(&x);
    unit_free(&whole);
}

/* A file under another's name; one that is cut; one that cannot be read.  Each is gone then. */
static void what_is_not_right_is_removed(void)
{
    unit x = unit_new(0, PN_DTYPE_F16, 1, 0), y = unit_new(0, PN_DTYPE_F16, 1, 1);
    char from[300], to[300];
    path_of(&x, 1, from, sizeof from);
    path_of(&y, 1, to, sizeof to);
    for (int what = 0; what < 3; what++) {
        pn_cold *c = store_open(0);
        PN_CHECK(store_save(c, &x) && store_save(c, &y), "saved");
        if (what == 0) {
            PN_CHECK(rename(from, to) == 0);
        } else if (what == 1) {
            PN_CHECK(truncate(to, 3 * 4096) == 0);
        }
        faults_clear();
        atomic_store(&faults.fail_errno, EIO);
        atomic_store(&faults.fail_at, what == 2 ? 2 : 0);
        pn_status st = store_load(c, &y, 1);
        faults_clear();
        if (what == 2 && !PREAD_FAULTS)
            st = PN_E_IO;
        PN_CHECK(st == (what == 0 ? PN_E_INVALID : what == 1 ? PN_E_FORMAT : PN_E_IO), "%s", pn_status_name(st));
        pn_cold_info i = store_info(c);
        if (what < 2 || PREAD_FAULTS)
            PN_CHECK(i.failed_stranger == (what == 0) && i.failed_damaged == (what == 1) && i.failed_read == (what == 2) && i.pages == 1 &&
                     pn_cold_groups(c, &y.u.key) == 0, "way %d", what);
        pn_cold_close(c);
        dir_each("", true);
    }
    atomic_store(&faults.short_by, 4096);       /* short and interrupted reads go on */
    atomic_store(&faults.eintr_every, 3);
    pn_cold *c = store_open(0);
    PN_CHECK(store_save(c, &x) && store_load(c, &x, 1) == PN_OK, "in pieces");
    faults_clear();
    pn_cold_close(c);
    dir_each("", true);
    unit_free(&x);
    unit_free(&y);
}

static void the_least_recently_used_goes(void)
{
    enum { N = 8, KEPT = 4 };
    unit x[N];
    for (int i = 0; i < N; i++)
        x[i] = unit_at((uint64_t)i);
    uint64_t bytes = pn_cold_file_bytes(&x[0].u.kind, 1);
    pn_cold *c = store_open(KEPT * bytes + bytes / 2);
    for (int i = 0; i < KEPT; i++)
        PN_CHECK(store_save(c, &x[i]));
    PN_CHECK(store_load(c, &x[0], 1) == PN_OK && store_load(c, &x[2], 1) == PN_OK && store_save(c, &x[4]) && store_save(c, &x[5]));
    for (int i = 0; i < N; i++)
        PN_CHECK((pn_cold_groups(c, &x[i].u.key) != 0) == (i == 0 || i == 2 || i == 4 || i == 5), "page %d", i);
    PN_CHECK(store_info(c).evicted == 2 && dir_each("", false) == KEPT && store_info(c).bytes == KEPT * bytes);
    pn_cold_close(c);
    /* The same order by the files' times, and a smaller quota. */
    for (int i = 0; i < N; i++) {
        char path[300];
        path_of(&x[i], 1, path, sizeof path);
        const struct timespec when[2] = {{.tv_sec = 1000 - i}, {.tv_sec = 1000 - i}};
        (void)utimensat(AT_FDCWD, path, when, 0);
    }
    c = store_open(2 * bytes);
    for (int i = 0; i < N; i++)
        PN_CHECK((pn_cold_groups(c, &x[i].u.key) != 0) == (i == 0 || i == 2), "page %d after a restart", i);
    pn_cold_close(c);
    dir_each("", true);
    /* One that is never within the quota is not written. */
    c = store_open(bytes - 1);
    store_save(c, &x[0]);
    PN_CHECK(store_info(c).failed_full == 1 && dir_each("", false) == 0 && pn_cold_groups(c, &x[0].u.key) == 0);
    pn_cold_close(c);
    for (int i = 0; i < N; i++)
        unit_free(&x[i]);
}

/* Files may not grow beyond two blocks: what a full disk looks like.  After three in a row there is a pause. */
static void a_full_disk_is_survived(const char *how)
{
    unit x[5];
    for (int i = 0; i < 5; i++)
        x[i] = unit_at((uint64_t)i);
    pn_cold *c = store_open(1 << 30);
    for (int i = 0; i < 3; i++) {
        store_save(c, &x[i]);
        PN_CHECK(store_info(c).failed_full == (uint64_t)i + 1 && pn_cold_known(c, &x[i].u.key) == 0 && dir_each("", false) == 0, "%s: page %d", how, i);
    }
    PN_CHECK(!store_save(c, &x[3]) && store_info(c).not_saved_busy == 1 && store_info(c).failed_full == 3, "%s: no pause", how);
    pn_cold_close(c);
    for (int i = 0; i < 5; i++)
        unit_free(&x[i]);
}

static void a_full_disk(void)
{
    struct rlimit had, two_blocks;
    getrlimit(RLIMIT_FSIZE, &had);
    two_blocks = had;
    two_blocks.rlim_cur = 8192;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &two_blocks) == 0)
        a_full_disk_is_survived("a limit on files");
    setrlimit(RLIMIT_FSIZE, &had);
    if (mount("none", dir, "tmpfs", 0, "size=16k") != 0) {
        pn_test_skip("no tmpfs of 16 KiB can be mounted here (errno %d)", errno);
        return;
    }
    a_full_disk_is_survived("a full tmpfs");
    umount(dir);
}

/* The writer can only let go of pages under their lock, so while we have it the queue fills. */
static void the_queue_is_bounded_and_gives_way(void)
{
    enum { N = 3000 };
    static unit x[N];
    pn_cold *c = store_open(1 << 30);
    long out = mem.outstanding, queued = 0;
    uint64_t cost = pn_kv_page_cost(&specs[0], 0, PN_DTYPE_F16);
    for (int i = 0; i < N; i++)
        x[i] = unit_at((uint64_t)i);
    pn_mutex_lock(&pages_lock);
    for (int i = 0; i < N; i++)
        queued += pn_cold_save(c, &x[i].u, x[i].pages, NULL, &pages_lock);
    PN_CHECK(queued == (32 << 20) / (long)cost && store_info(c).queued_bytes <= 32 << 20, "%ld pages queued", queued);
    uint64_t waiting = pn_cold_waiting(c, &pages_lock);
    PN_CHECK(waiting && waiting + 2 * cost >= (uint64_t)queued * cost, "%u bytes wait", (unsigned)waiting);
    pn_mutex other;
    PN_CHECK(pn_cold_waiting(c, &other) == 0);
    pn_cold_forget(c, &other);
    PN_CHECK(pn_cold_waiting(c, &pages_lock) == waiting, "others' pages went");
    pn_cold_forget(c, &pages_lock);
    PN_CHECK(pn_cold_waiting(c, &pages_lock) == 0 && store_info(c).queued_bytes <= 2 * cost, "something waits still");
    pn_mutex_unlock(&pages_lock);
    store_wait(c);
    PN_CHECK(store_info(c).pages <= 2 && (uint64_t)dir_each("", false) == store_info(c).pages && pn_cold_known(c, &x[N / 2].u.key) == 0, "written after all");
    for (int i = 0; i < N; i++) {
        PN_CHECK(x[i].pages[0]->refs == 1, "page %d has %u holders", i, (unsigned)x[i].pages[0]->refs);
        unit_free(&x[i]);
    }
    pn_cold_close(c);
    PN_CHECK(mem.outstanding < out, "%ld blocks leak", mem.outstanding - out);
    dir_each("", true);
}

static void saving_has_to_be_worth_it(void)
{
    pn_cold *c = store_open(1 << 30);
    PN_CHECK(pn_cold_worth(c, 1 << 30, 0), "nothing is known of the model");
    PN_CHECK(pn_cold_worth(c, 1 << 20, 10) && !pn_cold_worth(c, 64 << 20, 1000) && store_info(c).not_saved_slow == 1, "by a guess");
    pn_cold_close(c);
}

static void opening_survives_failing_memory(void)
{
    unit x = unit_new(0, PN_DTYPE_F16, 1, 0);
    pn_cold *c = store_open(0);
    PN_CHECK(store_save(c, &x));
    pn_cold_close(c);
    long out = mem.outstanding;
    for (long k = 1, done = 0; !done; k++) {
        mem.fail_at = mem.n_calls + k;
        pn_status st = pn_cold_open(&c, &mem.mem, dir, 0, NULL);
        done = mem.n_calls < mem.fail_at;
        mem.fail_at = 0;
        PN_CHECK(st == PN_OK || (st == PN_E_NOMEM && !c), "%s", pn_status_name(st));
        pn_cold_close(c);
        PN_CHECK(mem.outstanding == out, "%ld blocks leak", mem.outstanding - out);
    }
    dir_each("", true);
    unit_free(&x);
}

int main(void)
{
    void *raw = malloc(PN_COLD_PIECE + PN_COLD_BLOCK);
    piece = (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)raw, PN_COLD_BLOCK);
    pn_test_mem_init(&mem, 0);
    pn_crc32c_init(&crc);
    pn_mutex_init(&pages_lock);
    faults_clear();
    for (size_t i = 0; i < sizeof model; i++)
        ((uint8_t *)&model)[i] = (uint8_t)pn_test_rand(&seed);
    for (int i = 0; i < PN_KV_PAGE_TOKENS; i++) {
        tokens[0][i] = i * 1000;
        tokens[1][i] = i == 63 ? 7 : i * 1000;
    }
    what_is_written_is_read();
    the_layout_is_the_one_described();
    a_stranger_is_refused();
    the_snapshot_is_the_last_section();
    a_split_snapshot_is_two_payloads();
    of_ten_thousand_broken_files_none_is_taken(1, 3);
    of_ten_thousand_broken_files_none_is_taken(3, spec_groups(3, 3));
    failing_reads_and_memory_leave_nothing(1, 3);
    failing_reads_and_memory_leave_nothing(3, spec_groups(3, 3));
    static const char *const places[] = {"/tmp", "/dev/shm"};
    for (size_t i = 0; i < PN_COUNT_OF(places); i++) {
        snprintf(dir, sizeof dir, "%s/pn_cold_unit_%ld", places[i], (long)getpid());
        if (mkdir(dir, 0700) != 0) {
            pn_test_skip("%s cannot be written", places[i]);
            continue;
        }
        the_store_keeps_what_it_is_given();
        what_is_not_right_is_removed();
        the_least_recently_used_goes();
        a_full_disk();
        the_queue_is_bounded_and_gives_way();
        saving_has_to_be_worth_it();
        opening_survives_failing_memory();
        PN_CHECK(rmdir(dir) == 0, "%s is not empty", dir);
    }
    PN_CHECK(mem.outstanding == 0, "%ld blocks leak", mem.outstanding);
    pn_mutex_fini(&pages_lock);
    free(raw);
    return pn_test_end();
}

#else
int main(void)
{
    pn_test_skip("no files, or not Linux");
    return pn_test_end();
}
#endif
