/*
 * pn_emit.h - an answer's tokens and text on their way out.
 *
 * Text waits while it may become a stop string, and in a conversation while it may become markup; a
 * token is told to on_logprob with the first of its text that goes out.  So three things have to stay
 * together: the bytes that wait, the tokens they came from, and what was likely when those were
 * chosen.  Every byte of text carries its offset in the answer's raw text (all pieces one after the
 * other), every token the stretch it covers there; that is all that ties them.
 *
 *     raw      |  The| fo|x. </thi|nk>|Hello S|TO|P it|
 *     text            the parser's events -----^     ^- held: the stop string "STOP" from here
 *     tokens kept after the stop: those that end at or before its first byte
 *
 * Stop strings: the match that starts first wins, of those starting together the longest, whatever the
 * cuts between tokens.  That means waiting for one more token where one stop string begins another.
 * Text is never cut inside a character: a stop string that begins in one takes all of it.
 *
 * Invariants
 *   1. Offsets of text grow from one pn_emit_text() to the next.
 *   2. Tokens are told once and in order; those that belong to a stop string entirely never are.
 *   3. Nothing goes out after a stop string was met.
 *
 * Memory is taken when it is opened; it grows when more tokens wait than ever before.
 */
#ifndef PN_EMIT_H
#define PN_EMIT_H

#include "base/pn_str.h"
#include "engine/pn_engine_int.h"

/* n bytes of text are final (perhaps none).  Nonzero: the receiver wants no more. */
typedef int (*pn_emit_give)(void *user, const char *text, size_t n);

typedef struct pn_emit_token {
    pn_token id;
    pn_text_part part;
    size_t begin, end;          /* bytes of the raw text */
    float logprob;
    bool told;
} pn_emit_token;

typedef struct pn_emit {
    pn_mem *mem;
    const pn_vocab *vocab;
    const pn_generate_params *p;    /* borrowed: stop strings and on_logprob */
    bool special;               /* control tokens are text */
    pn_emit_give give;
    void *user;

    pn_emit_token *wait;        /* [n_wait] tokens whose text is not all out, oldest first */
    size_t n_wait, cap_wait;
    pn_token *top;              /* [n_wait, n_top] likeliest tokens of their steps */
    float *top_lp;              /* [n_wait, n_top] */
    size_t cap_top, cap_top_lp;
    pn_token_logprob *out;      /* [n_top] for the callback */
    size_t n_tokens, n_done;    /* pushed; of these no longer in wait */
    uint32_t n_reasoning;       /* told as PN_PART_REASONING */
    size_t raw_len, done_len, last_begin;   /* raw text of all tokens; of those done; without the last */

    pn_str held, held_at;       /* text that may become a stop string; a size_t a byte: its offset */
    size_t stop_at;             /* offset of the stop string's first byte */
    int32_t stop_index;         /* -1: none was met */
    bool refused;               /* give or on_logprob said no */
    bool failed;                /* out of memory */
} pn_emit;

/* `p` must outlive it. */
PN_INTERNAL pn_status pn_emit_open(pn_emit *e, const pn_model *m, const pn_generate_params *p, bool special,
                                   pn_emit_give give, void *user, pn_err *err);
PN_INTERNAL void pn_emit_close(pn_emit *e);                     /* NULL members are fine */

/* A token was chosen from these logits [n_vocab]; its piece is added to the raw text. */
PN_INTERNAL pn_status pn_emit_push(pn_emit *e, pn_token t, const float *logits, pn_err *err);

/* Bytes [begin, end) of the raw text turned out to be `part`; of several for one token the last of the
 * enumeration counts. */
PN_INTERNAL void pn_emit_mark(pn_emit *e, size_t begin, size_t end, pn_text_part part);

/* n bytes of visible text from offset `at` on; gives what cannot become a stop string. */
PN_INTERNAL void pn_emit_text(pn_emit *e, const char *text, size_t n, size_t at);

/* No stop string reaches across this point: what is held goes out, but for one that is complete. */
PN_INTERNAL void pn_emit_release(pn_emit *e);

/* Tokens that end at or before `upto` have no text still to come, but for what is held. */
PN_INTERNAL void pn_emit_settle(pn_emit *e, size_t upto);

static inline bool pn_emit_stopped(const pn_emit *e) { return e->stop_index >= 0; }
static inline bool pn_emit_over(const pn_emit *e) { return e->stop_index >= 0 || e->refused || e->failed; }

/* How many tokens said no more than what went out, at most `max`, which is all of them or all but the
 * last; *len: their raw text. */
PN_INTERNAL size_t pn_emit_kept(const pn_emit *e, size_t max, size_t *len);

#endif /* PN_EMIT_H */
