/*
 * pn_cold.h - what memory cannot keep of conversations, kept on disk.
 *
 * Computing a page of keys and values again takes from some milliseconds on a GPU to seconds on an old CPU; reading
 * it takes a fraction of that.  So pages that come into the prefix cache are written behind it, each a file of its own
 * (pn_cold_file.h), and one that was dropped for want of memory, or that belongs to the last run of the program,
 * is read instead of computed.
 *
 *     session dir/  <key>-<groups>.pnkv        the key in 32, the groups that are present in 2 hexadecimal digits
 *                   <key>.tmp                  being written; what a crash left is removed at opening
 *
 * The index, from keys to sizes, is in memory: made from the names at opening, least recently used first (a file's
 * time says when), and bounded.  It is a cache in every respect: whatever goes wrong with a file, the page is
 * computed.  A file that is broken, or not what its name says, is removed and counted.
 *
 * Writing is behind: one thread, a queue bounded in bytes.  A queued page has a reference of its own, so memory may
 * want it back: pn_cold_forget().  A full queue means the page is not saved.  After three failures in a row
 * nothing is written for a minute.  Reading is on the caller's thread, which holds no lock.
 *
 * Threads: any.  The lock here is a leaf and not held during input or output; who calls pn_cold_save() and
 * pn_cold_forget() holds the lock of the pages, the store's own thread takes it to release them.  Memory is taken for
 * PN_ACCT_PREFIX, or PN_ACCT_STATE, where a lock may be held, else for PN_ACCT_STAGE.  Where the build has no threads pages are
 * written while pn_cold_save() is called.
 */
#ifndef PN_COLD_H
#define PN_COLD_H

#include "base/pn_thread.h"
#include "store/pn_cold_file.h"

typedef struct pn_cold pn_cold;

/* dir: made if it is not there.  quota: most bytes of files; 0: 8 GiB or a tenth of what is free, whichever is less. */
PN_INTERNAL pn_status pn_cold_open(pn_cold **out, pn_mem *mem, const char *dir, uint64_t quota, pn_err *err);
/* What is queued is written.  NULL is a no-op. */
PN_INTERNAL void pn_cold_close(pn_cold *c);

/* Groups of the page that can be loaded; 0: it is not there.  _known: or are about to be. */
PN_INTERNAL uint32_t pn_cold_groups(pn_cold *c, const pn_cold_key *key);
PN_INTERNAL uint32_t pn_cold_known(pn_cold *c, const pn_cold_key *key);

/* Is writing and reading a page of so many bytes less than half the time that computing it takes at so many tokens a
 * second?  0: unknown, so yes. */
PN_INTERNAL bool pn_cold_worth(pn_cold *c, uint64_t bytes, uint32_t tokens_per_second);

/* Write the page when there is time.  pages: common, of the unit's type; state: the snapshot behind them, or NULL; all
 * retained.  lock: theirs, held.  False: it is known, or will not be saved. */
PN_INTERNAL bool pn_cold_save(pn_cold *c, const pn_cold_unit *u, pn_kv_page *const *pages, pn_snap *state, pn_mutex *lock);

/* Bytes of pages under this lock, which is held, that only wait to be written; let go of them. */
PN_INTERNAL uint64_t pn_cold_waiting(pn_cold *c, const pn_mutex *lock);
PN_INTERNAL void pn_cold_forget(pn_cold *c, const pn_mutex *lock);

/* As pn_cold_read(). */
PN_INTERNAL pn_status pn_cold_load(pn_cold *c, const pn_cold_unit *u, uint32_t want, pn_mem *const mem[2],
                                   pn_kv_page *pages[PN_MAX_GROUPS], pn_snap **state, pn_err *err);

PN_INTERNAL void pn_cold_report(pn_cold *c, pn_cold_info *out);

/* For others who keep something there. */
PN_INTERNAL const char *pn_cold_dir(const pn_cold *c);
PN_INTERNAL const pn_crc32c *pn_cold_crc(const pn_cold *c);

#endif /* PN_COLD_H */
