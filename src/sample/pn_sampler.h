/*
 * pn_sampler.h - from logits to one token.
 *
 * A chain over candidates in the order the caller gave; greedy needs one pass and no memory.
 * Randomness is counter-based, u = f(seed, tokens accepted as generated, stream), so there is no
 * generator state to save: same seed, same text, whatever the batch or a restart.
 * Ties are broken by id everywhere.  NaN counts as -inf.
 */
#ifndef PN_SAMPLER_H
#define PN_SAMPLER_H

#include "base/pn_mem.h"
#include "sample/pn_dry.h"

typedef struct pn_chain pn_chain;

/* n_vocab: columns of the logits; n_live: how many of them are tokens (the rest are padding and are
 * never chosen).  ends[0..n_ends): tokens that end an answer; never[0..n_never): tokens that the
 * model's file forbids.  Arrays are copied.  Bad parameters: PN_E_INVALID naming the field, its
 * value and what is allowed. */
PN_INTERNAL pn_status pn_chain_new(pn_chain **out, pn_mem *mem, const pn_sampling *p, uint32_t n_vocab,
                                   uint32_t n_live, const pn_token *ends, size_t n_ends,
                                   const pn_token *never, size_t n_never, pn_err *err);
PN_INTERNAL void pn_chain_free(pn_chain *c);
PN_INTERNAL uint64_t pn_chain_seed(const pn_chain *c);

/* All memory is taken at creation (accept may grow the history: PN_E_NOMEM).  PN_E_NUMERIC: no
 * finite logit is left. */
PN_INTERNAL pn_status pn_chain_pick(pn_chain *c, const float *logits, pn_token *out, pn_err *err);

/* The same among allowed tokens only: bit i % 32 of allowed[i / 32] is token i's, (n_live + 31) / 32
 * words, NULL: all.  The mask is applied after the bias and before every sampler.  PN_E_NUMERIC
 * when no allowed token has a finite logit. */
PN_INTERNAL pn_status pn_chain_pick_masked(pn_chain *c, const float *logits, const uint32_t *allowed, pn_token *out,
                                           pn_err *err);
PN_INTERNAL pn_status pn_chain_accept(pn_chain *c, pn_token t, bool generated, pn_err *err);

/* Does the chain run DRY?  Then it should get breakers (pn_breakers_add_text); the tokens that end
 * an answer are breakers in any case.  Moves *b, which is empty afterwards. */
PN_INTERNAL bool pn_chain_wants_breakers(const pn_chain *c);
PN_INTERNAL pn_status pn_chain_take_breakers(pn_chain *c, pn_breakers *b, pn_err *err);

/* Natural logarithms of the softmax over logits[0..n_live), before any bias, temperature or mask.
 * ids, lp [n_top]: the likeliest, best first, ties by id; n_top may be 0, ids and lp NULL then.
 * *chosen_lp (may be NULL): that of `chosen`.  A logit of NaN or -inf gives -inf. */
PN_INTERNAL pn_status pn_chain_logprobs(const float *logits, uint32_t n_vocab, uint32_t n_live, pn_token chosen,
                                        uint32_t n_top, pn_token *ids, float *lp, float *chosen_lp, pn_err *err);

/* For tests: run the chain up to the draw.  Writes the surviving ids, their logits after the chain,
 * in the order the draw walks them; returns how many. */
PN_INTERNAL size_t pn_chain_candidates(pn_chain *c, const float *logits, pn_token *ids, float *out, size_t cap);

/* 64 random bits for a position: SplitMix64 seeded with `seed`, output number pos of stream 0 (the
 * draw); other streams (XTC, ...) are independent of it.  pn_chain_unit: the top 53 bits, in [0, 1). */
PN_INTERNAL uint64_t pn_chain_random(uint64_t seed, uint64_t pos, uint32_t stream);
PN_INTERNAL double pn_chain_unit(uint64_t seed, uint64_t pos, uint32_t stream);

#endif /* PN_SAMPLER_H */
