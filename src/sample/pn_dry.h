/*
 * pn_dry.h - which tokens would repeat a passage?  ("Don't repeat yourself")
 *
 * Let h be the tokens so far.  Where a passage h[..e] ends like h itself ends, on L tokens, the token
 * h[e + 1] would make that match longer; it is punished by multiplier * base^(L - allowed).  Sequence
 * breakers (line ends, quotes, a speaker's colon) stop matches, so that forms may repeat.
 *
 * All L come from one Z-function over the reversed history: linear in its length, whatever it holds.
 *
 * A breaker is a token (head) and the tokens that follow it (tail, often none).  Texts become breakers
 * in pn_breakers_add_text, which knows the vocabulary through callbacks only.
 */
#ifndef PN_DRY_H
#define PN_DRY_H

#include "base/pn_mem.h"

typedef struct pn_breaker {
    pn_token head;
    uint32_t tail, n_tail;      /* into pn_breakers.tails */
} pn_breaker;

/* Plain data, can be moved. */
typedef struct pn_breakers {
    pn_mem *mem;                /* borrowed */
    pn_breaker *list;           /* owned, [cap]; sorted by pn_dry_take */
    size_t n, cap;
    pn_token *tails;            /* owned, [cap_tails] */
    size_t n_tails, cap_tails;
} pn_breakers;

/* How texts become tokens.  piece: the bytes of token t, borrowed until the next call, empty for
 * none.  tokenize: append the tokens of a text, no control tokens, to a growing array of `mem`,
 * account MISC. */
typedef struct pn_breaker_text {
    uint32_t n_tokens;
    pn_bytes (*piece)(void *user, pn_token t);
    pn_status (*tokenize)(void *user, const char *text, size_t len, pn_token **out, size_t *n, size_t *cap,
                          pn_err *err);
    void *user;
} pn_breaker_text;

PN_INTERNAL void pn_breakers_init(pn_breakers *b, pn_mem *mem);
PN_INTERNAL void pn_breakers_fini(pn_breakers *b);

/* One breaker as tokens; false: out of memory. */
PN_INTERNAL bool pn_breakers_add(pn_breakers *b, pn_token head, const pn_token *tail, size_t n_tail);

/* One breaker as text: every token that contains it, and every token that ends with the start of it,
 * followed by the tokens of the rest.  Only the first 40 bytes (whole characters) count. */
PN_INTERNAL pn_status pn_breakers_add_text(pn_breakers *b, const char *text, const pn_breaker_text *vocab, pn_err *err);

/* --- below: for the chain ---------------------------------------------------------------------- */

typedef struct pn_dry_hit {
    pn_token token;             /* -1: free slot */
    uint32_t len;               /* the longest passage it would continue */
} pn_dry_hit;

typedef struct pn_dry {
    pn_mem *mem;                /* borrowed */
    size_t window;              /* tokens looked back, at least 1; SIZE_MAX: all */
    pn_breakers breakers;
    pn_token *hist;             /* owned, [cap]; the last min(n, window) count */
    uint32_t *z;                /* owned, [cap_z] */
    pn_dry_hit *hits;           /* owned, [cap_hits], open addressing, power of two */
    size_t n, cap, cap_z, cap_hits;
} pn_dry;

PN_INTERNAL void pn_dry_init(pn_dry *d, pn_mem *mem, size_t window);
PN_INTERNAL void pn_dry_fini(pn_dry *d);
PN_INTERNAL void pn_dry_take(pn_dry *d, pn_breakers *b);               /* moves; b is empty then */

/* Room for one more token (false: out of memory), then the token. */
PN_INTERNAL bool pn_dry_reserve(pn_dry *d);
PN_INTERNAL void pn_dry_push(pn_dry *d, pn_token t);

/* Fill d->hits for matches of at least `allowed` tokens; false: none. */
PN_INTERNAL bool pn_dry_find(pn_dry *d, size_t allowed);

/* The longest passage t would continue; 0: none. */
PN_INTERNAL uint32_t pn_dry_length(const pn_dry *d, pn_token t);

#endif /* PN_DRY_H */
