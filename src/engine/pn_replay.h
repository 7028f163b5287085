/*
 * pn_replay.h - which tokens of a session does the next prompt of its conversation keep?
 *
 * A session holds prompts and answers by turns:
 *
 *     prompt 0 | answer 0 | prompt 1 | answer 1 | ...
 *
 * Each prompt is what the template added since the answer before it: that answer's closing, new messages,
 * the opening of the next answer.  The next rendering is compared from its start: where it repeats a
 * prompt, byte for byte and trust for trust, and then repeats the answer, however spelled
 * (text/pn_respell.h), both stay as they are, tokens and all.  So a call that the template prints with
 * other spaces costs nothing, and the model goes on reading what it wrote.
 *
 * Why not a comparison of tokens alone: the first call that is printed otherwise would make all behind
 * it new.  Why not the answer's text alone: then only a template that repeats the model's spelling keeps
 * anything.
 *
 * Invariants
 *   1. An answer's tokens are kept for the message that was made from them, while that message is in its
 *      place and unchanged, and for no other: what a client writes keeps no control token alive.
 *   2. What the prompt holds of reasoning that the template has dropped since is not kept.  An empty pair
 *      of reasoning markers that the opening wrote and the history leaves out is kept: it says nothing.
 *   3. Turns cover session positions [0, ...) without gaps; a turn is used only while the session still
 *      has all of it.
 *   4. Memory is the text of the conversation a few times over; turns that do not match are dropped.
 *
 * Threads: the conversation's.
 */
#ifndef PN_REPLAY_H
#define PN_REPLAY_H

#include "text/pn_chat.h"
#include "text/pn_toolcall.h"

typedef struct pn_replay_turn pn_replay_turn;

typedef struct pn_replay {
    pn_mem *mem;                    /* borrowed */
    const pn_vocab *vocab;          /* borrowed */
    const pn_out_format *format;    /* borrowed: the syntax of answers */
    const pn_json_doc *tools;       /* borrowed; NULL: none */
    pn_replay_turn *turns;          /* owned, [cap_turns] */
    size_t n_turns, cap_turns;
} pn_replay;

PN_INTERNAL void pn_replay_init(pn_replay *r, pn_mem *mem, const pn_vocab *v, const pn_out_format *f, const pn_json_doc *tools);
PN_INTERNAL void pn_replay_fini(pn_replay *r);

/* Compare `p`, rendered from messages[0..n_messages), with the turns; those that are not kept are dropped.
 * opening: where in p the next answer's opening begins.  n_session: tokens the session holds.
 * *at: the text from here on is new.  *kept: session positions [0, *kept) stay.  PN_E_NOMEM. */
PN_INTERNAL pn_status pn_replay_match(pn_replay *r, const pn_prompt *p, size_t opening, const pn_str *messages,
                                      size_t n_messages, size_t n_session, size_t *at, size_t *kept, pn_err *err);

/* A prompt's text from `at` on is session positions [first, first + n). */
PN_INTERNAL pn_status pn_replay_prompt(pn_replay *r, const pn_prompt *p, size_t at, size_t opening, size_t first, size_t n,
                                       pn_err *err);

/* What was sampled after the last prompt: text and tokens.  An answer whose text is not all of its tokens'
 * (a stop string was cut off) keeps the tokens in front, where the cut is between two. */
PN_INTERNAL pn_status pn_replay_answer(pn_replay *r, const char *text, size_t len, const pn_token *tokens, size_t n, pn_err *err);

/* The last answer became messages[index].  Without this call, or without the memory for it, the answer
 * is not kept. */
PN_INTERNAL void pn_replay_sign(pn_replay *r, size_t index, const pn_str *message);

#endif /* PN_REPLAY_H */
