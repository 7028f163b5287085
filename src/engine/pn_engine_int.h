/*
 * pn_engine_int.h - the structs behind the public handles.
 *
 *     pn_engine   ledger, log, dies (pn_die.h)
 *     pn_file     tensor directory of a model file, header only
 *     pn_model    its own directory, description, residency, vocabulary, plans
 *     pn_session  keys and values, tokens, last logits
 *
 * Locks, outermost first; whoever holds one takes only those below it:
 *
 *     pn_engine.models_lock   the list of models; held while a rung goes through it
 *     pn_engine.admit_lock    who looks for memory for a turn takes it before the next one looks; no die is waited for
 *     pn_sched.lock   a die's list of requests; not held while a step runs or a callback is called
 *     pn_die.lock     the flags of a die; a step has the die by `busy`, not by holding this
 *     pn_model.lock   plans, caps, the number of sessions
 *     pn_cache.lock   a die's prefix tree and all its pages with more than one holder (pn_cache.h)
 *     leaves          pn_drive.lock (who steps), pn_engine.clock_lock, pn_sim_memory.lock, pn_cold's
 *
 * There is one of the first, second and fourth for every die; nobody holds two of a kind.  Who needs two dies for a
 * step takes the one with the lower number first, or tries the second and gives the first back.  Any of the first
 * three may be held when memory is taken, for pn_engine_mem() may go to the caches.
 */
#ifndef PN_ENGINE_INT_H
#define PN_ENGINE_INT_H

#include "base/pn_err.h"

#include <stdatomic.h>

#include "base/pn_os.h"
#include "base/pn_thread.h"
#include "device/pn_device.h"
#include "engine/pn_die.h"
#include "engine/pn_govern.h"
#include "format/pn_weights.h"
#include "mem/pn_ledger.h"
#include "model/pn_desc.h"
#include "store/pn_cold.h"
#include "store/pn_kv.h"
#include "store/pn_prefix.h"
#include "store/pn_residency.h"
#include "text/pn_vocab.h"

enum {
    ENGINE_DEFAULT_BATCH = 512,
    ENGINE_MAX_BATCH = 4096,
    ENGINE_LEAST_BATCH = 16,
    ENGINE_PLANS = 16,          /* cached plans of one model: buckets, contexts, batch sizes, embeddings */
    ENGINE_BUCKETS = 4,         /* rows of a step: 1, 16, 64, n_batch */
    SESSION_TAKEN = 1 << 30,
    ENGINE_KV_IDS = PN_DTYPE_Q8_0 + 1,  /* ids of types of keys and values, with gaps */
    ENGINE_SPACES = 2 * ENGINE_KV_IDS   /* of those and of two rotary tables */
};

/* The ledger; where that has nothing left, the caches give way. */
typedef struct pn_engine_memory_door {
    pn_mem mem;                 /* first: cast back */
    pn_engine *engine;
} pn_engine_memory_door;

/* Who steps, and the engine's own driver. */
typedef struct pn_drive {
    pn_mutex lock;              /* the next ones: a leaf */
    pn_cond work;               /* for the driver: there is news */
    uint64_t news;              /* a job came or went on, some session was cancelled */
    bool driving, stop;
    bool stepping;              /* a thread is in pn_engine_step, or */
    bool visiting;              /* in pn_sched_each, for which others wait */
    pn_thread_id stepper;       /* that thread */
    pn_thread driver;
} pn_drive;

struct pn_engine {
    pn_ledger ledger;
    pn_engine_memory_door door;
    pn_log_fn log;
    void *log_user;
    uint32_t n_threads;
    pn_die *dies;               /* owned, [n_dies]: the CPU alone, or simulated ones */
    uint32_t n_dies;
    pn_mutex clock_lock;        /* the dies' clocks: a leaf */
    pn_drive drive;
    pn_governor govern;
    pn_mutex admit_lock;        /* looking for memory and taking it is one thing */
    pn_mutex models_lock;       /* the next ones */
    pn_model *models;           /* all of them */
    pn_cold *cold;              /* owned; NULL: nothing is kept on disk */
    bool cold_always;
    atomic_uint n_turns;        /* that hold a reserve */
    atomic_ullong floor_bytes;  /* of all models' floors, in PN_ACCT_KV: kept, or of the turn that runs on it */
    atomic_ullong floor_owed;   /* the rest of them: free, and for nobody else */
    atomic_ullong lent;         /* pinned weights that go as soon as somebody needs the memory (pn_lend.h) */
    atomic_bool lend_taken;     /* some have gone since the keeper looked; */
    double lend_again;          /* more are pinned from then on.  Under models_lock */
    atomic_uint n_loading;      /* models that are being loaded: nothing is lent meanwhile */
    uint32_t kv_least;          /* the smallest type that keys and values may become; F16: none */
    double kv_max_kl, kv_min_top1;      /* 0: the gate's own */
    atomic_uint n_models;
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
    pn_plan part[PN_MAX_PARTS]; /* [n_dies of the model]: what each of its dies does */
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
    pn_model *next;             /* of the engine's, under its models_lock */
    bool listed;
    void *floor[PN_MAX_PARTS];  /* owned, touched [floor_part]: memory for one turn, each die's share; under the engine's admit_lock, as the
                                   next */
    uint64_t floor_part[PN_MAX_PARTS], floor_bytes;     /* their sum; 0: none is kept */
    uint64_t floor_owed[PN_MAX_PARTS];  /* of those, what is not there while a turn uses it or until it is filled again */
    uint32_t floor_tokens;
    bool floor_kept, floor_used;        /* it is there; a turn runs on it */
    pn_die *dies[PN_MAX_PARTS]; /* [n_dies]: where it is; the first one's scheduler and cache are its */
    uint32_t n_dies;            /* 0: without weights */
    uint32_t n_uploaded;
    uint64_t uploaded[PN_MAX_PARTS];    /* [n_uploaded] bytes of weights on each */
    double share[PN_MAX_PARTS]; /* of its layers */
    float *carry;               /* owned, [carry_rows, n_embd]: what the first die hands to the second; by `busy` of both */
    uint32_t carry_rows;
    pn_file file;
    pn_desc desc;
    pn_residency_store store;
    pn_vocab *vocab;
    struct pn_gtrie *trie;      /* for grammars; made on first use, under lock */
    pn_bytes *token_text;       /* [n_token_text], borrowed by vocab */
    struct pn_hf_vocab *folder_vocab;   /* owned, borrowed by vocab; NULL: not from a folder */
    uint32_t n_token_text;
    bool exact, vocab_only;
    bool gate_failed;           /* of the driver's thread: not probed again */
    atomic_bool probing, closing;       /* the driver's thread probes it; it is to go */
    atomic_ullong mapped_bytes; /* of page cache that mapped weights need */
    uint64_t experts_whole;     /* the expert cache before the ladder made it smaller; 0: it did not.  Under the engine's models_lock */
    uint64_t experts_goal, pin_goal;    /* what a step of the ladder that is not over is to come to; 0: none is.  As the one before */
    uint64_t stage_bytes;       /* of mapped weights, if they were streamed: ring and experts; UINT64_MAX: they cannot be */
    bool was_mapped;            /* before the ladder streamed it */
    bool lends;                 /* nobody asked for so and so many pinned weights: free memory may hold more (pn_lend.h) */
    uint64_t pin_kept;          /* of the pinned ones, what is not lent; by `busy` of its dies */
    atomic_ullong lent;         /* its share of the engine's */
    atomic_bool parked;         /* mapped, but nobody has used it since the ladder let its page cache go, */
    atomic_ullong park_at;      /* which has gone up to this byte */
    pn_mutex lock;              /* plans */
    pn_cached_plan *plans[ENGINE_PLANS];
    char type_name[24];
    pn_bytes chat_template, tool_template;  /* the second of chats with tools, where it has one */
    pn_queue queue;
    pn_model_caps caps;         /* under lock, as the next */
    uint32_t n_sessions;
    pn_session *sessions;       /* all of them */
    pn_kv_gate gate[ENGINE_KV_IDS];     /* what probing has found, n_positions 0: nothing yet; under lock */
    pn_identity identity;       /* if identified */
    bool identified;
    atomic_uint prefill_rate;   /* tokens a second, of the last long prompt; 0: unknown */
    uint32_t spaces[ENGINE_SPACES];     /* 1 + space of the prefix tree (pn_cache.c says whose); under the cache's lock */
};

/* The template of its chats with or without tools. */
static inline pn_bytes pn_model_template(const pn_model *m, bool tools)
{
    return tools && m->tool_template.len ? m->tool_template : m->chat_template;
}

/* Its weights are streamed, and not on the way to the mapping. */
static inline bool pn_model_streams(const pn_model *m) { return m->store.stream && !m->store.leaving; }

struct pn_session {
    pn_model *model;
    pn_session *next, *prev;    /* of the model's, under its lock */
    atomic_uint users;          /* calls that work on its keys and values; SESSION_TAKEN: the ladder does */
    pn_kv kv;
    uint32_t n_ctx, n_batch, kv_type;
    bool auto_type;             /* nobody asked for that type: the ladder may choose when a sequence begins */
    bool busy;                  /* a request works on it */
    bool on_floor;              /* its turn uses the model's floor */
    bool in_turn;               /* counted in the engine's n_turns */
    bool keeps_state;           /* a generation that tells the prefix cache: snapshots are made of its recurrent state */
    pn_checkpoint marks[PN_STATE_MARKS];        /* of the step under way */
    pn_token *tokens;           /* [n_ctx] */
    float *logits;              /* [n_vocab] after the last token */
    bool has_logits;
    bool apart;                 /* what it holds came with several salts, or with none wanted: not for the prefix cache */
    uint64_t salt;              /* else it came with this one */
    uint32_t *out_rows;         /* [n_batch] */
    pn_cached_plan *plans[ENGINE_BUCKETS];
    pn_budget_info budget;      /* of the last turn that was refused; size 0: none was */
    struct pn_parked *parked;   /* its pages are on disk (pn_park.h); NULL: they are not */
    struct pn_embed *embed;     /* NULL before the first embedding (pn_embed.c) */
    atomic_bool cancelled;
    pn_tick_fn tick;
    void *tick_user;
};

/* The die whose scheduler and cache are the session's. */
static inline pn_die *pn_session_die(const pn_session *s) { return s->model->dies[0]; }

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

/* A call works on the session's keys and values from here to there; nests.  Waits for the ladder, which is there for
 * a slice.  pn_session_try_take: for the ladder, where no call does. */
PN_INTERNAL void pn_session_enter(pn_session *s);
PN_INTERNAL void pn_session_leave(pn_session *s);
PN_INTERNAL bool pn_session_try_take(pn_session *s);
PN_INTERNAL void pn_session_untake(pn_session *s);

/* Most rows of a step of the session now. */
PN_INTERNAL uint32_t pn_session_rows(const pn_session *s);

/* The plan of a step of `rows` rows, at most n_batch. */
PN_INTERNAL const pn_cached_plan *pn_session_plan(const pn_session *s, uint32_t rows);

/* n tokens can be appended: they are of the vocabulary and there is room. */
PN_INTERNAL pn_status pn_session_check_more(const pn_session *s, const pn_token *tokens, size_t n, pn_err *err);

/* PN_E_STATE: a request works on the session. */
PN_INTERNAL pn_status pn_session_idle(const pn_session *s, pn_err *err);

/* Bytes in the machine's memory, and those of them that are on the model's dies. */
typedef struct pn_need {
    uint64_t all, die[PN_MAX_PARTS];
} pn_need;

/* What stood in the way: bytes needed, bytes there with all of the cache that can go, and where. */
typedef struct pn_lack {
    uint64_t need, available;
    uint64_t lent;              /* bytes that are there once so many have been given back (pn_lend_back); 0: none, or it would not help */
    uint32_t resource;          /* as the governor counts them */
    char where[64];             /* "", or " on die 1, which has 536870912" */
} pn_lack;

/* Bytes that can be taken for a session of m now, wherever it is tightest; UINT64_MAX: nobody knows a limit. */
PN_INTERNAL uint64_t pn_model_available(const pn_model *m);

/* Would `whole` fit everywhere, the prefix cache and what is lent counted as free?  Then there is room for `need` of it now, at
 * the cost of those if it has to be.  alone: for the only turn there is, or for what somebody wants to keep. */
PN_INTERNAL bool pn_model_room(const pn_model *m, bool alone, const pn_need *whole, const pn_need *need, pn_lack *lack);
/* The same without a lock held; what is lent is given back for it. */
PN_INTERNAL bool pn_model_make_room(const pn_model *m, bool alone, const pn_need *whole, const pn_need *need, pn_lack *lack);

/* The session's part in a step of n rows: pages prepared under their lock, snapshots where the cache wants some. */
PN_INTERNAL pn_run pn_session_run(pn_session *s, uint32_t n);

/* Under pressure, between steps: pages of the session become smaller ones of `type` (pn_kv_requant_some), at least
 * one if any may, no further one after `deadline` (pn_os_now).  Returns the bytes freed; _gain: what all would free.
 * Of sessions at rest: pn_smaller.h. */
PN_INTERNAL uint64_t pn_session_requant(pn_session *s, uint32_t type, bool also_recent, double deadline);
PN_INTERNAL uint64_t pn_session_requant_gain(pn_session *s, uint32_t type, bool also_recent);
PN_INTERNAL bool pn_session_requant_pays(pn_session *s, uint32_t type);        /* pn_kv_requant_pays */

/* A turn begins: pages for all positions before `end` (more than n_ctx: before n_ctx), for a session by the turn.
 * PN_E_BUDGET and nothing changed: they do not fit. */
PN_INTERNAL pn_status pn_session_reserve(pn_session *s, uint64_t end, pn_err *err);

/* Memory for one turn of up to `tokens` tokens, in a session of n_ctx, is kept from now on; as many as there is room
 * for, PN_E_BUDGET when not for 512. */
PN_INTERNAL pn_status pn_floor_open(pn_model *m, uint32_t tokens, pn_err *err);
PN_INTERNAL void pn_floor_close(pn_model *m);
/* A turn that used it is over, or memory has come free: it is kept again if it can be. */
PN_INTERNAL void pn_floor_refill(pn_model *m);

/* An empty session whose type is ours to choose gets the one that memory suggests now, or keeps the one it has where
 * there is not even memory for another's tables. */
PN_INTERNAL void pn_session_choose_type(pn_session *s);

/* It is over: what it did not use goes back. */
PN_INTERNAL void pn_session_end_turn(pn_session *s);

/* A turn from `prompt` to `end` tokens is refused because the context is shorter. */
PN_INTERNAL void pn_session_note_context(pn_session *s, uint64_t prompt, uint64_t end);

/* Weights mapped or streamed, as `p` says: a slice of the way (pn_residency_convert), between steps; waits for the one under
 * way. */
PN_INTERNAL pn_status pn_model_convert(pn_model *m, const pn_model_params *p, double deadline, bool *done, pn_err *err);

/* Nobody uses the mapped weights for now: their page cache goes, in slices as above, and then counts as needed no more, until
 * the next step. */
PN_INTERNAL void pn_model_park(pn_model *m, double deadline, bool *done);
PN_INTERNAL void pn_model_unpark(pn_model *m);

/* All dies of the model for one step, and back. */
PN_INTERNAL void pn_model_take(const pn_model *m);
PN_INTERNAL pn_die *pn_model_try(const pn_model *m, struct pn_sched *q);       /* all or none: then the one that was busy.  q: as pn_die_try */
PN_INTERNAL void pn_model_give(const pn_model *m);

/* The dies of this list, checked; for an empty one the die with most bytes free. */
PN_INTERNAL pn_status pn_engine_find_dies(pn_engine *e, const uint32_t *list, size_t n, pn_die *out[PN_MAX_PARTS], uint32_t *n_out, pn_err *err);

/* Make sure the model's dies have working memory for this plan. */
PN_INTERNAL pn_status pn_model_reserve(pn_model *m, const pn_cached_plan *plan, pn_err *err);

/* The plan of a step of up to max_rows rows (cached), with logits or with hidden rows as result.  Release it
 * when the session closes. */
PN_INTERNAL pn_status pn_model_get_plan(pn_model *m, uint32_t max_rows, uint32_t n_ctx, pn_cached_plan **out,
                                        pn_err *err);
PN_INTERNAL pn_status pn_model_get_hidden_plan(pn_model *m, uint32_t max_rows, uint32_t n_ctx, pn_cached_plan **out,
                                               pn_err *err);
PN_INTERNAL void pn_model_put_plan(pn_model *m, pn_cached_plan *p);

/* Bytes a session takes beside the weights, to the byte: keys and values, recurrent state, tokens, logits, and the
 * working memory of its largest step on n_threads threads. */
typedef struct pn_session_need {
    uint64_t kv_bytes, kv_pages, state_bytes, work_bytes, misc_bytes;
    uint64_t kv_part[PN_MAX_PARTS], work_part[PN_MAX_PARTS];   /* the parts of a split model: of kv_bytes and state_bytes, of work_bytes */
} pn_session_need;

static inline uint64_t pn_session_need_sum(const pn_session_need *n) { return n->kv_bytes + n->state_bytes + n->work_bytes + n->misc_bytes; }

PN_INTERNAL pn_status pn_session_needs(const pn_desc *d, uint32_t n_ctx, uint32_t n_batch, uint32_t n_threads,
                                       uint32_t kv_type, bool exact, pn_session_need *out, pn_err *err);

/* What an embedding takes beside that: hidden rows, their sum, and what its step needs beyond work_part. */
PN_INTERNAL pn_status pn_embed_needs(const pn_desc *d, uint32_t n_ctx, uint32_t n_batch, uint32_t n_threads, bool exact,
                                     const uint64_t work_part[PN_MAX_PARTS], pn_need *out, pn_err *err);
PN_INTERNAL void pn_embed_free(pn_session *s);

/* One step at the session's end: n rows of a text of `total` tokens, `done` of which came before.  The
 * wanted rows are in s->out_rows, ascending. */
typedef struct pn_session_part {
    const pn_cached_plan *plan;
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
/* The same from the files of a Hugging Face folder (pn_vocab_folder.c).  *files holds what the vocabulary borrows: free
 * it after the vocabulary. */
PN_INTERNAL pn_status pn_vocab_from_folder(pn_vocab **out, struct pn_hf_vocab **files, pn_engine *e, const pn_weights *w, pn_err *err);
/* The folder's vocabulary as the keys of a GGUF file; what those cannot say is logged, or refused. */
PN_INTERNAL pn_status pn_folder_put_vocab(pn_gguf_writer *w, pn_engine *e, const pn_weights *file, pn_err *err);

#endif /* PN_ENGINE_INT_H */
