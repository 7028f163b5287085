/*
 * pn_watch.h - free text must not come to a call by a way that has no trigger.
 *
 * The readers of answers are lenient.  Where a family marks its calls with openers, the openers are the
 * triggers of pn_calls.h, and whatever follows one is held to the grammar.  Three families have no such
 * opener; for those this follows the text as the reader would and says at which byte it has to be stopped:
 *
 *     bare        an object at the start of the answer is a call in many spellings: members in any order,
 *                 any white space, other keys.  {"name": N is one trigger, after "type": "function" too.
 *                 A key or a name that can only lead to another spelling may not come.
 *     segments    ">>>N\n{" calls any N.  A tool's name is a trigger; behind others no '{' may come.
 *     headers     a message is a call when its header has a recipient.  "to=" is where the triggers end;
 *                 no other may come inside a header.
 *
 * None of these stops where the model has no way out: there is always another byte.
 *
 * A plain value without pointers into itself: copy it to come back to it.  Pure.
 */
#ifndef PN_WATCH_H
#define PN_WATCH_H

#include "base/pn_base.h"
#include "text/pn_out_family.h"

typedef enum pn_watch_kind { PN_WATCH_NOTHING, PN_WATCH_BARE, PN_WATCH_SEGMENTS, PN_WATCH_HEADERS } pn_watch_kind;

typedef enum pn_watch_word {
    PN_WATCH_ON,                    /* the text may go on so */
    PN_WATCH_NAME,                  /* bare: a name is complete; if it is a tool's, this is a trigger */
    PN_WATCH_OTHER_NAME,            /* bare: the same, but no trigger: a tool's may not come */
    PN_WATCH_STOP                   /* it may not */
} pn_watch_word;

typedef struct pn_watch {
    uint8_t kind, state, key;       /* key: out_key of the member being read */
    uint8_t members;                /* bare: complete ones, 2 for more */
    uint8_t depth;                  /* bare: containers open in a value */
    bool in_string, escaped, strange;       /* strange: word is not all of it, or not as it is meant */
    bool typed;                     /* bare: the first member was "type": "function" */
    bool trigger;                   /* bare: the name being read makes one */
    uint32_t n_word;
    char word[OUT_NAME_MAX + 1];    /* a key, a name, a segment's name, the end of a header */
} pn_watch;

PN_INTERNAL void pn_watch_start(pn_watch *w, pn_watch_kind kind);      /* at the start of an answer */
PN_INTERNAL void pn_watch_text(pn_watch *w);                           /* behind a call */
PN_INTERNAL pn_watch_word pn_watch_byte(pn_watch *w, char c);          /* after PN_WATCH_STOP of no use */

#endif /* PN_WATCH_H */
