/*
 * pn_engine_int.h - the structs behind the public handles.
 *
 *     pn_engine   ledger, log, dies
 *     pn_file     tensor directory of a model file, header only
 *     pn_model    its own directory, description, residency, vocabulary, plans
 *     pn_session  keys and values, tokens, last logits
 *
 * Locks, outermost first; whoever holds one takes only those below it:
 *
 *     pn_sched.lock   the list of requests; not held while a step runs or a callback is called
 *     pn_die.lock     the flags of a die; a step has the die by `busy`, not by holding this
 *     pn_model.lock   plans, caps, the number of sessions
 *     pn_cache.lock   the prefix tree and all pages with more than one holder (pn_cache.h): a leaf
 *
 * Any of the first three may be held when memory is taken, for pn_engine_mem() may go to the cache.
 */
#ifndef PN_ENGINE_INT_H
#define PN_ENGINE_INT_H

#include "base/pn_err.h"

#include <stdatomic.h>

#include "base/pn_os.h"
#include "base/pn_thread.h"
#include "device/pn_device.h"
#include "format/pn_weights.h"
#include "mem/pn_ledger.h"
#include "model/pn_desc.h"
#include "store/pn_kv.h"
#include "store/pn_prefix.h"
#include "store/pn_residency.h"
#include "text/pn_vocab.h"

enum {
    ENGINE_DEFAULT_BATCH = 512,
    ENGINE_MAX_BATCH = 4096,
    ENGINE_PLANS = 16,          /* cached plans of one model: buckets, contexts, batch sizes, embeddings */
    ENGINE_BUCKETS = 4          /* rows of a step: 1, 8, 64, n_batch */
};

/* One compute unit and the working memory its steps share: one exec is open at a time. */
typedef struct pn_die {
    const pn_device_ops *ops;
    pn_device *dev;
    uint32_t n_threads;
    pn_mutex lock;              /* the flags */
    pn_cond idle;
    bool busy;                  /* a step has the die */
    bool parked;                /* that step waits for somebody to go on with it: see pn_sched_settle */
    void *work;                 /* grown when a session is opened, never inside a step */
    uint64_t work_bytes;
} pn_die;

/* Pages that sessions share, and where to find them: see pn_cache.h. */
typedef struct pn_cache {
    pn_mutex lock;
    pn_prefix *tree;            /* owned; NULL: nothing was kept yet */
    uint64_t bytes_max;         /* 0: nothing is kept */
    uint64_t tick;
    uint64_t n_queries, n_hits, tokens_asked, tokens_hit;
} pn_cache;

/* The ledger; where that has nothing left, the cache gives way. */
typedef struct pn_engine_memory_door {
    pn_mem mem;                 /* first: cast back */
    pn_engine *engine;
} pn_engine_memory_door;

struct pn_engine {
    pn_ledger ledger;
    pn_engine_memory_door door;
    pn_cache cache;
    pn_log_fn log;
    void *log_user;
    pn_die cpu;
    struct pn_sched *sched;     /* owned */
    atomic_bool cancelled;      /* since the scheduler last looked, some session was */
};

struct pn_file {
    pn_engine *engine;
    pn_weights weights;
    pn_reader reader;           /* kept for callback sources */
    const void *bytes;          /* and for memory ones */
    size_t n_bytes;
};

/* A plan for steps of up to max_rows rows in a context of n_ctx (which selects long-rope tables), with
 * logits or hidden rows as result. */
typedef struct pn_cached_plan {
    pn_plan plan;
    uint32_t max_rows;
    bool long_ctx;              /* which long-rope table */
    uint32_t users;             /* sessions that hold it: not replaced */
} pn_cached_plan;

/* A model's requests, for the scheduler; under its lock. */
typedef struct pn_queue {
    struct pn_job *work;        /* under way, in the order they began */
    struct pn_job *waiting;     /* the others, oldest first; paused ones as well */
    uint32_t n_work, n_ready;   /* ready: waiting and not paused */
    pn_model *next;             /* of the models that have requests */
    double served;              /* seconds of steps, for turns */
} pn_queue;

struct pn_model {
    pn_engine *engine;
    pn_file file;
    pn_desc desc;
    pn_residency_store store;
    pn_vocab *vocab;
    struct pn_gtrie *trie;      /* for grammars; made on first use, under lock */
    pn_bytes *token_text;       /* [n_token_text], borrowed by vocab */
    uint32_t n_token_text;
    bool exact, vocab_only;
    uint64_t mapped_bytes;
    pn_mutex lock;              /* plans */
    pn_cached_plan *plans[ENGINE_PLANS];
    char type_name[24];
    pn_bytes chat_template;
    pn_queue queue;
    pn_model_caps caps;         /* under lock, as the next */
    uint32_t n_sessions;
    uint32_t spaces[2][2];      /* [F32 keys and values][long_ctx]: 1 + space of the prefix tree; under the cache's lock */
};

struct pn_session {
    pn_model *model;
    pn_kv kv;
    uint32_t n_ctx, n_batch, kv_type;
    bool busy;                  /* a request works on it */
    pn_token *tokens;           /* [n_ctx] */
    float *logits;              /* [n_vocab] after the last token */
    bool has_logits;
    bool apart;                 /* what it holds came with several salts, or with none wanted: not for the prefix cache */
    uint64_t salt;              /* else it came with this one */
    uint32_t *out_rows;         /* [n_batch] */
    pn_cached_plan *plans[ENGINE_BUCKETS];
    struct pn_embed *embed;     /* NULL before the first embedding (pn_embed.c) */
    atomic_bool cancelled;
    pn_tick_fn tick;
    void *tick_user;
};

PN_INTERNAL void pn_engine_logf(pn_engine *e, pn_log_level level, const char *fmt, ...) PN_PRINTF(3, 4);
/* A caller's option struct of any age: what it does not have is zero, which means the default.  The
 * struct's `size` field (0: this version's) says how much of it there is. */
static inline void pn_params_copy(void *dst, size_t n, const void *src, size_t src_size)
{
    memset(dst, 0, n);
    if (src)
        memcpy(dst, src, src_size && src_size < n ? src_size : n);
}

static inline pn_mem *pn_engine_mem(pn_engine *e) { return &e->door.mem; }

/* The backend that is always there. */
PN_INTERNAL const pn_device_ops *pn_backend_cpu(void);

/* A registered table fits this build. */
PN_INTERNAL pn_status pn_backend_check(const pn_device_ops *ops, pn_err *err);

/* The die for one step, and back.  take: when the step that has it is parked, that is finished first. */
PN_INTERNAL void pn_die_take(pn_engine *e, pn_die *die);
PN_INTERNAL void pn_die_give(pn_die *die);
PN_INTERNAL void pn_die_park(pn_die *die, bool parked);

/* The plan of a step of `rows` rows, at most n_batch. */
PN_INTERNAL const pn_plan *pn_session_plan(const pn_session *s, uint32_t rows);

/* n tokens can be appended: they are of the vocabulary and there is room. */
PN_INTERNAL pn_status pn_session_check_more(const pn_session *s, const pn_token *tokens, size_t n, pn_err *err);

/* PN_E_STATE: a request works on the session. */
PN_INTERNAL pn_status pn_session_idle(const pn_session *s, pn_err *err);

/* Bytes that can be taken for a session of m now; UINT64_MAX: nobody knows a limit. */
PN_INTERNAL uint64_t pn_model_available(const pn_model *m);

/* Would `whole` bytes fit, the prefix cache counted as free?  Then there is room for `need` of them now, at the
 * cost of the cache if it has to be.  *available: what there is with all of the cache that can go. */
PN_INTERNAL bool pn_model_room(const pn_model *m, uint64_t whole, uint64_t need, uint64_t *available);

/* pn_kv_prepare, under the lock of the pages. */
PN_INTERNAL void pn_session_prepare(pn_session *s, uint32_t n);

/* A turn begins: pages for all positions before `end` (more than n_ctx: before n_ctx), for a session by the turn.
 * PN_E_BUDGET and nothing changed: they do not fit. */
PN_INTERNAL pn_status pn_session_reserve(pn_session *s, uint64_t end, pn_err *err);

/* Make sure the die has working memory for this plan. */
PN_INTERNAL pn_status pn_die_reserve(pn_engine *e, pn_die *die, const pn_plan *plan, pn_err *err);

/* The plan of a step of up to max_rows rows (cached), with logits or with hidden rows as result.  Release it
 * when the session closes. */
PN_INTERNAL pn_status pn_model_get_plan(pn_model *m, uint32_t max_rows, uint32_t n_ctx, pn_cached_plan **out,
                                        pn_err *err);
PN_INTERNAL pn_status pn_model_get_hidden_plan(pn_model *m, uint32_t max_rows, uint32_t n_ctx, pn_cached_plan **out,
                                               pn_err *err);
PN_INTERNAL void pn_model_put_plan(pn_model *m, pn_cached_plan *p);

/* Bytes a session takes beside the weights, to the byte: keys and values, tokens, logits, and the
 * working memory of its largest step on n_threads threads. */
typedef struct pn_session_need {
    uint64_t kv_bytes, kv_pages, work_bytes, misc_bytes;
} pn_session_need;

PN_INTERNAL pn_status pn_session_needs(const pn_desc *d, uint32_t n_ctx, uint32_t n_batch, uint32_t n_threads,
                                       uint32_t kv_type, bool exact, pn_session_need *out, pn_err *err);

/* What an embedding takes beside that: hidden rows, their sum, and what its step needs beyond work_bytes. */
PN_INTERNAL pn_status pn_embed_needs(const pn_desc *d, uint32_t n_ctx, uint32_t n_batch, uint32_t n_threads, bool exact,
                                     uint64_t work_bytes, uint64_t *out, pn_err *err);
PN_INTERNAL void pn_embed_free(pn_session *s);

/* One step at the session's end: n rows of a text of `total` tokens, `done` of which came before.  The
 * wanted rows are in s->out_rows, ascending. */
typedef struct pn_session_part {
    const pn_plan *plan;
    const pn_token *tokens;     /* [n] */
    uint32_t n, n_outs;
    uint32_t done, total;
    float *out;                 /* [n_outs] rows of the plan's result */
} pn_session_part;

PN_INTERNAL pn_status pn_session_step(pn_session *s, const pn_session_part *p, pn_err *err);

/* One step of n <= n_batch checked tokens, the rows [done, done + n) of `total`; with the last of these come the
 * logits. */
PN_INTERNAL pn_status pn_session_chunk(pn_session *s, const pn_token *tokens, uint32_t n, uint32_t done, uint32_t total, pn_err *err);

/* No character is half read. */
PN_INTERNAL bool pn_detok_is_whole(const pn_detok *d);

/* Build the vocabulary from metadata (pn_vocab_join.c).  *tokens [*n] holds the token views the
 * vocabulary borrows: free it (account VOCAB) after the vocabulary. */
PN_INTERNAL pn_status pn_vocab_from_file(pn_vocab **out, pn_bytes **tokens, uint32_t *n, pn_engine *e,
                                         const pn_weights *w, uint32_t n_logits, pn_err *err);

#endif /* PN_ENGINE_INT_H */
