/*
 * pn_cache.h - a die's prefix cache: what one generation has computed, the next may begin with.
 *
 * One tree (store/pn_prefix.h) for all models of a die, in spaces: a model, a type of keys and values, and which of
 * the model's two rotary tables, for all of these change what a page holds.  (Arithmetic is the model's.)
 *
 * Only generations look into it and add to it (engine/pn_generate.c); pn_session_eval does neither, so
 * what measures evaluation measures evaluation.  It is a cache: it grows into memory nobody wants, never by
 * more than half of what is available, and whoever runs into the limit takes from it first.
 *
 * The lock is a leaf (pn_engine_int.h has the order) and guards every page that may have a second holder, so
 * it is held around pn_kv_prepare, _truncate, _close and whatever shares and adopts, in any session.  While
 * it is held, memory is taken for PN_ACCT_KV, PN_ACCT_STATE and PN_ACCT_PREFIX alone: for every other account the allocator
 * may come here to make room.
 */
#ifndef PN_CACHE_H
#define PN_CACHE_H

#include "engine/pn_engine_int.h"

/* After the dies: what each may keep. */
PN_INTERNAL void pn_cache_limit(pn_engine *e, const pn_engine_params *p);
PN_INTERNAL void pn_cache_close(pn_die *die);

/* The empty session begins with what is known of tokens[0..n), of which at least the last is left to compute.
 * Returns the tokens it holds then. */
PN_INTERNAL uint32_t pn_cache_adopt(pn_session *s, uint64_t salt, const pn_token *tokens, size_t n);

/* How many that would be. */
PN_INTERNAL uint32_t pn_cache_holds(pn_session *s, uint64_t salt, const pn_token *tokens, size_t n);

/* Keep the session's tokens, as far as there is room.  Of a recurrent model: those before its last snapshot, which the
 * cache takes over; whole: also the one at the last page boundary, which is another's as long as there are more tokens. */
PN_INTERNAL void pn_cache_insert(pn_session *s, bool whole);

/* Is it worth while to make a snapshot of the session's state?  last_only: at the last page boundary alone. */
PN_INTERNAL bool pn_cache_wants_state(const pn_session *s, bool *last_only);

/* With the lock held, of a session that rests: pn_prefix_rest(), _rest_over(), _let_go(). */
PN_INTERNAL void pn_cache_rest(pn_session *s);
PN_INTERNAL void pn_cache_rest_over(pn_session *s);
PN_INTERNAL uint64_t pn_cache_let_go(pn_session *s, uint32_t depth);

/* A session of a recurrent model goes back to n tokens, where the cache has a snapshot.  False: it has none. */
PN_INTERNAL bool pn_cache_rewind(pn_session *s, uint32_t n);

/* Bytes that nobody uses at the moment, at most; give them back, at least `bytes` if there are as many.  Returns
 * what came of it.  Any thread, any lock but this one. */
PN_INTERNAL uint64_t pn_cache_droppable(pn_die *die);
PN_INTERNAL uint64_t pn_cache_give(pn_die *die, uint64_t bytes);
/* The same for all dies, whose pages are in this machine's memory. */
PN_INTERNAL uint64_t pn_cache_droppable_all(pn_engine *e);
PN_INTERNAL uint64_t pn_cache_give_all(pn_engine *e, uint64_t bytes);

/* The same of snapshots alone: of each conversation the last one stays, and as long as `few` no others are made. */
PN_INTERNAL uint64_t pn_cache_state_bytes(pn_die *die);
PN_INTERNAL uint64_t pn_cache_give_states(pn_die *die, uint64_t bytes);
PN_INTERNAL void pn_cache_few_states(pn_die *die, bool few);

/* The model goes, and all of it with it.  It has no sessions any more. */
PN_INTERNAL void pn_cache_forget(pn_model *m);

#endif /* PN_CACHE_H */
