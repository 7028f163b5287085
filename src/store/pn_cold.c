/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_cold.h"

#include <stdio.h>

#include "base/pn_err.h"
#include "base/pn_os_dir.h"
#include "base/pn_os_direct.h"

enum {
    COLD_NONE = -1,
    COLD_ENTRIES = 1 << 20,     /* most files: 48 bytes each in memory */
    COLD_QUEUE = 32 << 20,      /* bytes of pages that wait to be written */
    COLD_SHARE = 10,            /* of what is free on the disk */
    COLD_FAILURES = 3,
    COLD_NAME = 2 * PN_DIGEST_BYTES,
    COLD_PATH = 1024
};
static const uint64_t cold_default = UINT64_C(8) << 30;
static const double cold_pause = 60;            /* seconds without writing after that many failures */
static const double cold_touch = 600;           /* a file's time is at most that old */
static const double cold_guess = 200e6;         /* bytes a second, until something was measured */

/* A file that is there (groups != 0), or about to be (pending). */
typedef struct cold_entry {
    pn_cold_key key;
    int32_t chain;              /* next in the bucket, or of the free ones */
    int32_t newer, older;       /* by use */
    uint32_t blocks;            /* of the file */
    uint8_t groups;
    bool pending;
    double touched;             /* the clock when its time was set; while opening: the file's time */
} cold_entry;

typedef struct cold_job {
    struct cold_job *next;
    pn_identity model;
    pn_state_spec spec;
    pn_token tokens[PN_KV_PAGE_TOKENS];
    pn_cold_unit unit;          /* points into this job */
    pn_kv_page *pages[PN_MAX_GROUPS];
    pn_snap *state;             /* or NULL */
    uint32_t groups;
    uint64_t page_bytes;
    pn_mutex *lock;
} cold_job;

struct pn_cold {
    pn_mem *mem;
    char *dir;
    uint64_t quota;
    pn_crc32c crc;
    void *piece_mem;            /* [2 pieces] */
    uint8_t *piece;             /* the writer's, aligned */
    bool threaded;
    pn_thread thread;

    pn_mutex lock;              /* the next ones */
    pn_cond work;
    bool stop;
    cold_job *first, **last;    /* the queue */
    uint64_t queued;            /* bytes of its pages, the one being written included */
    cold_entry *entry;          /* [cap] */
    size_t cap;
    int32_t *bucket;            /* [cap], a power of two */
    int32_t free, newest, oldest;
    uint64_t n_entries;
    uint32_t failures;          /* in a row */
    double resume;              /* no writing before */
    pn_cold_info info;
};

/* ------------------------------------------------------------------------------------------
 * The index.  With the lock held.
 * ------------------------------------------------------------------------------------------ */

static size_t cold_bucket(const pn_cold *c, const pn_cold_key *key) { return (size_t)pn_le64(key->b) & (c->cap - 1); }

static int32_t cold_find(const pn_cold *c, const pn_cold_key *key)
{
    int32_t i = c->cap ? c->bucket[cold_bucket(c, key)] : COLD_NONE;
    while (i != COLD_NONE && memcmp(&c->entry[i].key, key, sizeof *key) != 0)
        i = c->entry[i].chain;
    return i;
}

static void cold_chain(pn_cold *c, int32_t i)
{
    int32_t *b = &c->bucket[cold_bucket(c, &c->entry[i].key)];
    c->entry[i].chain = *b;
    *b = i;
}

static void cold_unlink(pn_cold *c, int32_t i)
{
    cold_entry *e = &c->entry[i];
    *(e->newer == COLD_NONE ? &c->newest : &c->entry[e->newer].older) = e->older;
    *(e->older == COLD_NONE ? &c->oldest : &c->entry[e->older].newer) = e->newer;
}

static void cold_link(pn_cold *c, int32_t i)
{
    cold_entry *e = &c->entry[i];
    e->newer = COLD_NONE;
    e->older = c->newest;
    *(c->newest == COLD_NONE ? &c->oldest : &c->entry[c->newest].newer) = i;
    c->newest = i;
}

/* Room for an entry more; the new ones are free. */
static bool cold_grow(pn_cold *c)
{
    size_t cap = c->cap ? 2 * c->cap : 64;
    if (c->free != COLD_NONE)
        return true;
    int32_t *b = cap <= COLD_ENTRIES ? pn_mem_alloc(c->mem, PN_ACCT_PREFIX, cap * sizeof *b) : NULL;
    cold_entry *e = b ? pn_mem_resize(c->mem, PN_ACCT_PREFIX, c->entry, c->cap * sizeof *e, cap * sizeof *e) : NULL;
    if (!e) {
        pn_mem_free(c->mem, PN_ACCT_PREFIX, b, cap * sizeof *b);
        return false;
    }
    pn_mem_free(c->mem, PN_ACCT_PREFIX, c->bucket, c->cap * sizeof *b);
    size_t had = c->cap;
    c->entry = e;
    c->bucket = b;
    c->cap = cap;
    memset(b, 0xff, cap * sizeof *b);
    for (size_t i = 0; i < had; i++)
        cold_chain(c, (int32_t)i);
    for (size_t i = cap; i-- > had;) {
        e[i].chain = c->free;
        c->free = (int32_t)i;
    }
    return true;
}

/* A new entry, the newest; COLD_NONE: no room. */
static int32_t cold_add(pn_cold *c, const pn_cold_key *key)
{
    if (!cold_grow(c))
        return COLD_NONE;
    int32_t i = c->free;
    c->free = c->entry[i].chain;
    c->entry[i] = (cold_entry){.key = *key};
    cold_chain(c, i);
    cold_link(c, i);
    c->n_entries++;
    return i;
}

static void cold_forget_entry(pn_cold *c, int32_t i)
{
    cold_entry *e = &c->entry[i];
    int32_t *at = &c->bucket[cold_bucket(c, &e->key)];
    while (*at != i)
        at = &c->entry[*at].chain;
    *at = e->chain;
    cold_unlink(c, i);
    e->chain = c->free;
    c->free = i;
    c->n_entries--;
}

/* The entry's file is this one from now on; 0 groups: it is none. */
static void cold_set_file(pn_cold *c, int32_t i, uint32_t groups, uint64_t bytes)
{
    cold_entry *e = &c->entry[i];
    c->info.bytes -= (uint64_t)e->blocks * PN_COLD_BLOCK;
    c->info.pages -= e->groups != 0;
    e->groups = (uint8_t)groups;
    e->blocks = (uint32_t)(bytes / PN_COLD_BLOCK);
    c->info.bytes += bytes;
    c->info.pages += groups != 0;
    if (!groups && !e->pending)
        cold_forget_entry(c, i);
}

static uint32_t cold_look(pn_cold *c, const pn_cold_key *key, bool pending_too)
{
    pn_mutex_lock(&c->lock);
    int32_t i = cold_find(c, key);
    uint32_t groups = i == COLD_NONE ? 0 : c->entry[i].groups;
    if (i != COLD_NONE && pending_too && c->entry[i].pending)
        groups = UINT32_MAX;
    pn_mutex_unlock(&c->lock);
    return groups;
}

PN_INTERNAL uint32_t pn_cold_groups(pn_cold *c, const pn_cold_key *key) { return cold_look(c, key, false); }
PN_INTERNAL uint32_t pn_cold_known(pn_cold *c, const pn_cold_key *key) { return cold_look(c, key, true); }

/* ------------------------------------------------------------------------------------------
 * Names
 * ------------------------------------------------------------------------------------------ */

static void cold_hex(const pn_cold_key *key, char out[COLD_NAME + 1])
{
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < PN_DIGEST_BYTES; i++) {
        out[2 * i] = digit[key->b[i] >> 4];
        out[2 * i + 1] = digit[key->b[i] & 15];
    }
    out[COLD_NAME] = 0;
}

/* groups 0: the one being written. */
static void cold_path(const pn_cold *c, const pn_cold_key *key, uint32_t groups, char path[COLD_PATH])
{
    char hex[COLD_NAME + 1];
    cold_hex(key, hex);
    if (groups)
        snprintf(path, COLD_PATH, "%s/%s-%02x.pnkv", c->dir, hex, (unsigned)groups);
    else
        snprintf(path, COLD_PATH, "%s/%s.tmp", c->dir, hex);
}

static int cold_digit(char ch) { return ch >= '0' && ch <= '9' ? ch - '0' : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1; }

static bool cold_byte(const char *p, uint8_t *out)
{
    int hi = cold_digit(p[0]), lo = hi < 0 ? -1 : cold_digit(p[1]);
    if (lo >= 0)
        *out = (uint8_t)(hi * 16 + lo);
    return lo >= 0;
}

/* Is it a name of ours?  *groups 0: of a file that was being written. */
static bool cold_parse(const char *name, pn_cold_key *key, uint8_t *groups)
{
    *groups = 0;
    for (int i = 0; i < PN_DIGEST_BYTES; i++)
        if (!cold_byte(name + 2 * i, &key->b[i]))
            return false;
    name += COLD_NAME;
    return strcmp(name, ".tmp") == 0 || (name[0] == '-' && cold_byte(name + 1, groups) && *groups && strcmp(name + 3, ".pnkv") == 0);
}

static void cold_remove(const pn_cold *c, const pn_cold_key *key, uint32_t groups)
{
    char path[COLD_PATH];
    cold_path(c, key, groups, path);
    pn_os_remove(path);
}

/* Remove the least recently used files until `need` more bytes are within the quota.  False: they never are. */
static bool cold_room(pn_cold *c, uint64_t need)
{
    bool fits = false;
    for (;;) {
        pn_mutex_lock(&c->lock);
        int32_t i = c->oldest;
        fits = need <= c->quota && c->info.bytes <= c->quota - need;
        while (!fits && i != COLD_NONE && (c->entry[i].pending || !c->entry[i].groups))
            i = c->entry[i].newer;
        if (fits || i == COLD_NONE || need > c->quota)
            break;
        const cold_entry e = c->entry[i];
        cold_set_file(c, i, 0, 0);
        c->info.evicted++;
        pn_mutex_unlock(&c->lock);
        cold_remove(c, &e.key, e.groups);
    }
    pn_mutex_unlock(&c->lock);
    return fits;
}

/* ------------------------------------------------------------------------------------------
 * Writing
 * ------------------------------------------------------------------------------------------ */

static pn_status cold_put(void *user, uint64_t offset, const void *src, size_t n, pn_err *err) { return pn_os_direct_write(user, offset, src, n, err); }
static pn_status cold_get(void *user, uint64_t offset, void *dst, size_t n, pn_err *err) { return pn_os_direct_read(user, offset, dst, n, n, err); }

static double cold_mean(double had, double now) { return had > 0 ? 0.8 * had + 0.2 * now : now; }

/* The file, under its name or not at all. */
static pn_status cold_write_file(pn_cold *c, const cold_job *j)
{
    char tmp[COLD_PATH], path[COLD_PATH];
    pn_os_direct f;
    const pn_cold_io io = {.write = cold_put, .user = &f};
    cold_path(c, &j->unit.key, 0, tmp);
    cold_path(c, &j->unit.key, j->groups, path);
    pn_status st = pn_os_direct_create(&f, tmp, NULL);
    if (st)
        return st;
    st = pn_cold_write(&io, &c->crc, &j->unit, j->pages, j->state, c->piece, NULL);
    if (!st)
        st = pn_os_direct_flush(&f, NULL);
    pn_os_direct_close(&f);
    if (!st && !pn_os_rename(tmp, path))
        st = PN_E_IO;
    if (st)
        pn_os_remove(tmp);
    return st;
}

/* What came of it.  Returns the groups of the file it takes the place of; 0: none. */
static uint32_t cold_note_written(pn_cold *c, const cold_job *j, pn_status st, uint64_t bytes, double seconds)
{
    pn_mutex_lock(&c->lock);
    int32_t i = cold_find(c, &j->unit.key);
    cold_entry *e = &c->entry[i];
    uint32_t had = e->groups != j->groups ? e->groups : 0;
    e->pending = false;
    e->touched = pn_os_now();
    cold_set_file(c, i, st ? e->groups : j->groups, st ? (uint64_t)e->blocks * PN_COLD_BLOCK : bytes);
    c->failures = st ? c->failures + 1 : 0;
    if (c->failures >= COLD_FAILURES)
        c->resume = pn_os_now() + cold_pause;
    if (st) {
        *(st == PN_E_BUDGET ? &c->info.failed_full : &c->info.failed_write) += 1;
    } else {
        c->info.saved++;
        c->info.saved_bytes += bytes;
        c->info.write_rate = cold_mean(c->info.write_rate, (double)bytes / PN_MAX(seconds, 1e-6));
    }
    pn_mutex_unlock(&c->lock);
    return st ? 0 : had;
}

/* The lock of the pages is held. */
static void cold_free_job(pn_cold *c, cold_job *j)
{
    for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
        pn_kv_release(j->pages[g]);
    pn_snap_release(j->state);
    pn_mem_free(c->mem, PN_ACCT_PREFIX, j, sizeof *j);
}

static void cold_do(pn_cold *c, cold_job *j)
{
    uint64_t bytes = pn_cold_file_bytes(&j->unit.kind, j->groups);
    double since = pn_os_now();
    pn_status st = cold_room(c, bytes) ? cold_write_file(c, j) : PN_E_BUDGET;
    uint32_t old = cold_note_written(c, j, st, bytes, pn_os_now() - since);
    if (old)
        cold_remove(c, &j->unit.key, old);
    pn_mutex *lock = j->lock;
    uint64_t page_bytes = j->page_bytes;
    pn_mutex_lock(lock);
    cold_free_job(c, j);
    pn_mutex_unlock(lock);
    pn_mutex_lock(&c->lock);
    c->queued -= page_bytes;            /* last: who waits for 0 may drop the pages then */
    pn_mutex_unlock(&c->lock);
}

/* The next job; NULL: there is none, and none will come. */
static cold_job *cold_take(pn_cold *c, bool wait)
{
    pn_mutex_lock(&c->lock);
    while (wait && !c->first && !c->stop)
        pn_cond_wait(&c->work, &c->lock);
    cold_job *j = c->first;
    if (j && !(c->first = j->next))
        c->last = &c->first;
    pn_mutex_unlock(&c->lock);
    return j;
}

static void cold_run(void *store)
{
    pn_cold *c = store;
    for (cold_job *j; (j = cold_take(c, c->threaded)) != NULL;)
        cold_do(c, j);
}

/* May it be queued?  Then its entry is there, and pending.  With the lock held. */
static bool cold_accept(pn_cold *c, const pn_cold_unit *u, uint32_t groups, uint64_t page_bytes)
{
    int32_t i = cold_find(c, &u->key);
    if (i != COLD_NONE && (c->entry[i].pending || !(groups & ~(uint32_t)c->entry[i].groups)))
        return false;
    if (c->queued + page_bytes > COLD_QUEUE || pn_os_now() < c->resume) {
        c->info.not_saved_busy++;
        return false;
    }
    if (i == COLD_NONE)
        i = cold_add(c, &u->key);
    if (i == COLD_NONE) {
        c->info.failed_memory++;
        return false;
    }
    c->entry[i].pending = true;
    return true;
}

static cold_job *cold_job_new(pn_cold *c, const pn_cold_unit *u, pn_kv_page *const *pages, pn_snap *state, pn_mutex *lock)
{
    cold_job *j = pn_mem_calloc(c->mem, PN_ACCT_PREFIX, 1, sizeof *j);
    if (!j)
        return NULL;
    j->model = *u->kind.model;
    j->spec = *u->kind.spec;
    memcpy(j->tokens, u->tokens, sizeof j->tokens);
    j->unit = *u;
    j->unit.kind = (pn_cold_kind){&j->model, &j->spec, u->kind.type};
    j->unit.tokens = j->tokens;
    j->lock = lock;
    for (uint32_t g = 0; g < j->spec.n_groups; g++)
        if (pages[g]) {
            pn_kv_retain(pages[g]);
            j->pages[g] = pages[g];
            j->groups |= UINT32_C(1) << g;
            j->page_bytes += pn_kv_page_cost(&j->spec, g, u->kind.type);
        }
    if (state) {
        pn_snap_retain(state);
        j->state = state;
        j->groups |= UINT32_C(1) << PN_COLD_STATE;
        j->page_bytes += state->bytes;
    }
    return j;
}

PN_INTERNAL bool pn_cold_save(pn_cold *c, const pn_cold_unit *u, pn_kv_page *const *pages, pn_snap *state, pn_mutex *lock)
{
    cold_job *j = cold_job_new(c, u, pages, state, lock);
    pn_mutex_lock(&c->lock);
    c->info.failed_memory += j == NULL;
    bool ok = j && j->groups && cold_accept(c, u, j->groups, j->page_bytes);
    if (ok) {
        *c->last = j;
        c->last = &j->next;
        c->queued += j->page_bytes;
        pn_cond_broadcast(&c->work);
    }
    pn_mutex_unlock(&c->lock);
    if (j && !ok)
        cold_free_job(c, j);
    if (ok && !c->threaded)
        cold_run(c);
    return ok;
}

/* ------------------------------------------------------------------------------------------
 * When memory wants them back
 * ------------------------------------------------------------------------------------------ */

/* Nobody but the tree and this job holds a page of it. */
static bool cold_only_waits(const cold_job *j, const pn_mutex *lock)
{
    bool only = j->lock == lock;        /* first: it guards what follows */
    for (uint32_t g = 0; g < PN_MAX_GROUPS && only; g++)
        only = !j->pages[g] || j->pages[g]->refs <= 2;
    return only && (!j->state || atomic_load(&j->state->refs) <= 2);
}

PN_INTERNAL uint64_t pn_cold_waiting(pn_cold *c, const pn_mutex *lock)
{
    uint64_t bytes = 0;
    pn_mutex_lock(&c->lock);
    for (const cold_job *j = c->first; j; j = j->next)
        bytes += cold_only_waits(j, lock) ? j->page_bytes : 0;
    pn_mutex_unlock(&c->lock);
    return bytes;
}

PN_INTERNAL void pn_cold_forget(pn_cold *c, const pn_mutex *lock)
{
    pn_mutex_lock(&c->lock);
    for (cold_job **at = &c->first; *at;) {
        cold_job *j = *at;
        if (j->lock != lock) {
            at = &j->next;
            continue;
        }
        int32_t i = cold_find(c, &j->unit.key);
        c->entry[i].pending = false;
        cold_set_file(c, i, c->entry[i].groups, (uint64_t)c->entry[i].blocks * PN_COLD_BLOCK);
        c->info.not_saved_busy++;
        c->queued -= j->page_bytes;
        *at = j->next;
        cold_free_job(c, j);
    }
    c->last = &c->first;
    while (*c->last)
        c->last = &(*c->last)->next;
    pn_mutex_unlock(&c->lock);
}

PN_INTERNAL bool pn_cold_worth(pn_cold *c, uint64_t bytes, uint32_t tokens_per_second)
{
    pn_mutex_lock(&c->lock);
    double w = c->info.write_rate, r = c->info.read_rate;
    w = w > 0 ? w : r > 0 ? r : cold_guess;
    r = r > 0 ? r : w;
    bool worth = !tokens_per_second || (double)bytes / w + (double)bytes / r < 0.5 * PN_KV_PAGE_TOKENS / tokens_per_second;
    c->info.not_saved_slow += !worth;
    pn_mutex_unlock(&c->lock);
    return worth;
}

/* ------------------------------------------------------------------------------------------
 * Reading
 * ------------------------------------------------------------------------------------------ */

/* True: the file's time is to be set. */
static bool cold_note_read(pn_cold *c, const pn_cold_key *key, pn_status st, uint64_t bytes, double seconds)
{
    double now = pn_os_now();
    pn_mutex_lock(&c->lock);
    int32_t i = cold_find(c, key);
    bool touch = !st && i != COLD_NONE && now - c->entry[i].touched > cold_touch;
    if (touch)
        c->entry[i].touched = now;
    if (!st && i != COLD_NONE) {
        cold_unlink(c, i);
        cold_link(c, i);
    }
    if (!st) {
        c->info.restored++;
        c->info.restored_bytes += bytes;
        c->info.read_rate = cold_mean(c->info.read_rate, (double)bytes / PN_MAX(seconds, 1e-6));
    } else {
        *(st == PN_E_NOMEM ? &c->info.failed_memory : st == PN_E_FORMAT ? &c->info.failed_damaged
          : st == PN_E_INVALID || st == PN_E_STATE ? &c->info.failed_stranger : &c->info.failed_read) += 1;
        if (st != PN_E_NOMEM && i != COLD_NONE)
            cold_set_file(c, i, 0, 0);
    }
    pn_mutex_unlock(&c->lock);
    return touch;
}

static pn_status cold_load_file(pn_cold *c, const char *path, const pn_cold_unit *u, uint32_t want, pn_mem *const mem[2],
                                pn_kv_page *pages[PN_MAX_GROUPS], pn_snap **state, pn_err *err)
{
    enum { ROOM = PN_COLD_PIECE + PN_COLD_BLOCK };
    pn_os_direct f;
    void *room = pn_mem_alloc(c->mem, PN_ACCT_STAGE, ROOM);
    if (!room)
        return pn_fail_nomem(err, "reading a saved page", ROOM);
    pn_status st = pn_os_direct_open_alone(&f, path, err);
    if (!st) {
        const pn_cold_io io = {.read = cold_get, .user = &f, .bytes = f.size};
        st = pn_cold_read(&io, &c->crc, u, want, mem, pages, state, (void *)(uintptr_t)pn_align_up((uintptr_t)room, PN_COLD_BLOCK), err);
        pn_os_direct_close(&f);
    }
    pn_mem_free(c->mem, PN_ACCT_STAGE, room, ROOM);
    return st;
}

PN_INTERNAL pn_status pn_cold_load(pn_cold *c, const pn_cold_unit *u, uint32_t want, pn_mem *const mem[2],
                                   pn_kv_page *pages[PN_MAX_GROUPS], pn_snap **state, pn_err *err)
{
    char path[COLD_PATH];
    double since = pn_os_now();
    uint32_t groups = pn_cold_groups(c, &u->key);
    memset(pages, 0, PN_MAX_GROUPS * sizeof *pages);
    *state = NULL;
    if (!groups || want & ~groups)
        return pn_fail(err, PN_E_STATE, "the page is not on disk");
    cold_path(c, &u->key, groups, path);
    pn_status st = cold_load_file(c, path, u, want, mem, pages, state, err);
    if (cold_note_read(c, &u->key, st, pn_cold_file_bytes(&u->kind, want), pn_os_now() - since))
        pn_os_touch(path);
    if (st && st != PN_E_NOMEM)
        pn_os_remove(path);
    return st;
}

PN_INTERNAL void pn_cold_report(pn_cold *c, pn_cold_info *out)
{
    pn_mutex_lock(&c->lock);
    *out = c->info;
    out->bytes_max = c->quota;
    out->queued_bytes = c->queued;
    pn_mutex_unlock(&c->lock);
}

PN_INTERNAL const char *pn_cold_dir(const pn_cold *c) { return c->dir; }
PN_INTERNAL const pn_crc32c *pn_cold_crc(const pn_cold *c) { return &c->crc; }

/* ------------------------------------------------------------------------------------------
 * Opening
 * ------------------------------------------------------------------------------------------ */

/* A file of the directory. */
static bool cold_see(void *user, const char *name, uint64_t bytes, uint64_t modified)
{
    pn_cold *c = user;
    pn_cold_key key;
    uint8_t groups;
    if (!cold_parse(name, &key, &groups))
        return true;
    bool whole = groups && bytes && bytes % PN_COLD_BLOCK == 0 && bytes / PN_COLD_BLOCK <= UINT32_MAX;
    bool twice = cold_find(c, &key) != COLD_NONE;       /* one with more groups was to take its place, or took it */
    int32_t i = whole && !twice ? cold_add(c, &key) : COLD_NONE;
    if (!whole || twice)
        cold_remove(c, &key, groups);
    if (i == COLD_NONE)
        return !whole || c->n_entries < COLD_ENTRIES;
    cold_set_file(c, i, groups, bytes);
    c->entry[i].touched = (double)modified;
    return true;
}

/* While the index is made, entries [0, n) are in no order: let the use be that of the files' times. */
static void cold_sort(pn_cold *c)
{
    cold_entry *e = c->entry;
    size_t n = (size_t)c->n_entries;
    for (size_t gap = n / 2; gap; gap /= 2)                     /* shell sort: no libc qsort, no recursion */
        for (size_t i = gap; i < n; i++)
            for (size_t k = i; k >= gap && e[k - gap].touched > e[k].touched; k -= gap) {
                const cold_entry t = e[k];
                e[k] = e[k - gap];
                e[k - gap] = t;
            }
    if (c->cap)
        memset(c->bucket, 0xff, c->cap * sizeof *c->bucket);
    c->newest = c->oldest = COLD_NONE;
    for (size_t i = 0; i < n; i++) {
        e[i].touched = 0;
        cold_chain(c, (int32_t)i);
        cold_link(c, (int32_t)i);
    }
}

static pn_status cold_open(pn_cold *c, const char *dir, pn_err *err)
{
    size_t len = strlen(dir);
    if (!len || len > COLD_PATH - COLD_NAME - 16)
        return pn_fail(err, PN_E_INVALID, "the directory for conversations has a name of %zu bytes, expected 1 to %d", len,
                       COLD_PATH - COLD_NAME - 16);
    c->dir = pn_mem_strndup(c->mem, PN_ACCT_MISC, dir, len);
    c->piece_mem = pn_mem_alloc(c->mem, PN_ACCT_STAGE, PN_COLD_PIECE + PN_COLD_BLOCK);
    if (!c->dir || !c->piece_mem)
        return pn_fail_nomem(err, "the directory for conversations", PN_COLD_PIECE + PN_COLD_BLOCK);
    c->piece = (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)c->piece_mem, PN_COLD_BLOCK);
    pn_status st = pn_os_dir_make(dir, err);
    if (!st)
        st = pn_os_dir_each(dir, cold_see, c, err);
    if (st)
        return st;
    cold_sort(c);
    if (!c->quota)
        c->quota = PN_MIN(cold_default, pn_os_dir_free(dir) / COLD_SHARE + c->info.bytes);
    (void)cold_room(c, 0);
    c->threaded = PN_ENABLE_THREADS;
    if (c->threaded && !pn_thread_start(&c->thread, cold_run, c)) {
        c->threaded = false;
        return pn_fail(err, PN_E_UNSUPPORTED, "the system gives no thread to write conversations");
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_cold_open(pn_cold **out, pn_mem *mem, const char *dir, uint64_t quota, pn_err *err)
{
    pn_cold *c = pn_mem_calloc(mem, PN_ACCT_PREFIX, 1, sizeof *c);
    *out = NULL;
    if (!c)
        return pn_fail_nomem(err, "the directory for conversations", sizeof *c);
    c->mem = mem;
    c->quota = quota;
    c->last = &c->first;
    c->free = c->newest = c->oldest = COLD_NONE;
    pn_crc32c_init(&c->crc);
    pn_mutex_init(&c->lock);
    pn_cond_init(&c->work);
    pn_status st = cold_open(c, dir, err);
    if (st)
        pn_cold_close(c);
    else
        *out = c;
    return st;
}

PN_INTERNAL void pn_cold_close(pn_cold *c)
{
    if (!c)
        return;
    pn_mutex_lock(&c->lock);
    c->stop = true;
    pn_cond_broadcast(&c->work);
    pn_mutex_unlock(&c->lock);
    if (c->threaded)
        pn_thread_join(&c->thread);
    pn_cond_fini(&c->work);
    pn_mutex_fini(&c->lock);
    pn_mem_free(c->mem, PN_ACCT_PREFIX, c->entry, c->cap * sizeof *c->entry);
    pn_mem_free(c->mem, PN_ACCT_PREFIX, c->bucket, c->cap * sizeof *c->bucket);
    pn_mem_free(c->mem, PN_ACCT_STAGE, c->piece_mem, PN_COLD_PIECE + PN_COLD_BLOCK);
    if (c->dir)
        pn_mem_free(c->mem, PN_ACCT_MISC, c->dir, strlen(c->dir) + 1);
    pn_mem_free(c->mem, PN_ACCT_PREFIX, c, sizeof *c);
}
