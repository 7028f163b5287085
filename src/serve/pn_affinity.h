/*
 * pn_affinity.h - which of several servers should answer this request?
 *
 * A server that has seen the beginning of a conversation has its keys and values in memory and computes only what is
 * new, so the next turn should go there.  Three answers, in this order:
 *
 *     session   The client names its conversation (session_id, prompt_cache_key, X-Session-Id).  The server that has
 *               it; for a new one rendezvous hashing, so several routers agree without talking and a server that goes
 *               away takes only its own sessions along.
 *     prefix    The longest beginning of the messages that some server has seen, unless that server is far busier
 *               than the least busy one: computing a prefix twice costs less than waiting behind others.
 *     load      The server with the fewest requests under way; among equals by rendezvous hashing on the beginning
 *               of the prompt, or in turn where there is none or prefixes do not count.
 *
 * What was seen is kept as hashes in a table of a fixed size.  A beginning has a hash at 1 KiB, 4 KiB, 16 KiB ... of
 * the messages as they were sent, and one behind every message: a conversation of three short messages is found
 * again by the fourth.  Hashes are seeded by chance, so nobody can make two prompts meet.
 *
 * Everything but pn_affinity_read's input is ours; the request's body may be hostile, or no JSON at all: then there
 * are simply no keys.
 *
 * Threads: one owner.  Pure but for memory.
 */
#ifndef PN_AFFINITY_H
#define PN_AFFINITY_H

#include "base/pn_str.h"

enum {
    PN_AFFINITY_SERVERS = 64,   /* a set of servers is the bits of a uint64_t */
    PN_AFFINITY_BYTES = 8,      /* marks at 1 KiB, 4 KiB ... 16 MiB */
    PN_AFFINITY_ITEMS = 64,     /* marks behind messages: of the last ones */
    PN_AFFINITY_MARKS = PN_AFFINITY_BYTES + PN_AFFINITY_ITEMS
};

typedef enum pn_affinity_mode { PN_AFFINITY_PREFIX = 0, PN_AFFINITY_HEADER, PN_AFFINITY_NONE } pn_affinity_mode;

/* What a request is known by. */
typedef struct pn_affinity_keys {
    uint64_t session;           /* 0: it names none */
    uint64_t shape;             /* of the first 1 KiB of the prompt: for rendezvous; the same in every process; 0: none */
    uint64_t mark[PN_AFFINITY_MARKS];   /* [n_marks], the longest beginning first */
    uint32_t n_marks;
    uint32_t n_keep;            /* bits of what to remember are in keep */
    uint64_t keep[PN_AFFINITY_BYTES + 1];       /* [n_keep]: the marks at bytes, and the one behind the last message */
} pn_affinity_keys;

/* The value of a member of a JSON object, as written; data NULL: there is none. */
typedef struct pn_affinity_fields {
    pn_bytes model, session_id, prompt_cache_key, messages, prompt, input;
} pn_affinity_fields;

/* One pass over the top level of body[0..n), without memory; of a repeated key the last.  What is no JSON object
 * gives what was found before it went wrong. */
PN_INTERNAL void pn_affinity_scan(const char *body, size_t n, pn_affinity_fields *out);

/* The text of a JSON string as it was written, with its quotes, onto out.  False: it is none. */
PN_INTERNAL bool pn_affinity_text(pn_mem *mem, pn_bytes json, pn_str *out);

/* The keys.  model: its name, which is part of every key; session: as named by the client, data NULL: not at all;
 * seed: of this process. */
PN_INTERNAL void pn_affinity_read(pn_affinity_keys *k, const pn_affinity_fields *f, pn_bytes model, pn_bytes session, uint64_t seed);

/* --- the table -------------------------------------------------------------------------------- */

typedef struct pn_affinity_seen {
    uint64_t key;               /* 0: free */
    uint64_t servers;           /* who saw it */
    uint64_t at;                /* when it was used last: a count */
} pn_affinity_seen;

typedef struct pn_affinity {
    pn_mem *mem;                /* borrowed */
    pn_affinity_seen *table;    /* owned, [n]; a key lives in one of 4 places, the oldest gives way */
    size_t n;                   /* a power of two */
    uint64_t clock;
    uint32_t last;              /* the server that was chosen last in turn */
} pn_affinity;

/* n: about how many beginnings to remember; 0: 65,536, which take 1.5 MiB. */
PN_INTERNAL pn_status pn_affinity_init(pn_affinity *a, pn_mem *mem, size_t n);
PN_INTERNAL void pn_affinity_fini(pn_affinity *a);

/* Who saw it; 0: nobody that is remembered. */
PN_INTERNAL uint64_t pn_affinity_find(pn_affinity *a, uint64_t key);
PN_INTERNAL void pn_affinity_add(pn_affinity *a, uint64_t key, uint64_t servers);      /* to those that saw it */
PN_INTERNAL void pn_affinity_set(pn_affinity *a, uint64_t key, uint64_t servers);      /* instead of them */
PN_INTERNAL void pn_affinity_forget(pn_affinity *a, uint64_t servers);                 /* they lost their memory */

/* --- the choice ------------------------------------------------------------------------------- */

typedef struct pn_affinity_server {
    uint64_t name;              /* hash of its address: rendezvous needs the same one in every router */
    uint32_t running;           /* requests under way */
} pn_affinity_server;

typedef enum pn_affinity_by { PN_BY_LOAD = 0, PN_BY_PREFIX, PN_BY_SESSION } pn_affinity_by;

/* One of `eligible`, which is not empty: its index. */
PN_INTERNAL uint32_t pn_affinity_choose(pn_affinity *a, pn_affinity_mode mode, const pn_affinity_keys *k, const pn_affinity_server *servers,
                                        uint64_t eligible, pn_affinity_by *by);

/* Server i is answering it. */
PN_INTERNAL void pn_affinity_learn(pn_affinity *a, pn_affinity_mode mode, const pn_affinity_keys *k, uint32_t i);

#endif /* PN_AFFINITY_H */
