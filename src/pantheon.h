/*
 * pantheon.h - run language models with the memory you have.
 *
 * SPDX-License-Identifier: AGPL-3.0-only
 *
 *     cc -O2 app.c pantheon.c -lm -lpthread
 *
 * The library is behind five handles:
 *
 *     pn_engine    threads, memory ledger, backends           one per process is usual
 *     pn_file      a model file's header: metadata, tensors, plan; no weights touched
 *     pn_model     weights bound and checked, vocabulary      many per engine, shared by sessions
 *     pn_session   a text: its tokens and their keys and values
 *     pn_chat      a conversation in a session: messages in, answers out
 *
 * Rules that hold everywhere
 *
 *   - Nothing here prints, exits, aborts or installs a signal handler.  What can fail returns a
 *     pn_status (PN_OK is 0, failures are negative) and, when `err` is not NULL, a sentence in
 *     err->text saying what was expected and what was found.
 *   - Option structs are plain.  Zero means "the default" for every field, so `{0}` works; set
 *     `size = sizeof(the struct)` or leave it 0.  New fields come at the end.
 *   - Out-parameters are written only on success, unless said otherwise.  Every free/close accepts
 *     NULL.  Free chats before their session, sessions before their model,
 *     models, files and everything else before their engine.
 *   - Strings are UTF-8 with an explicit length where they may hold any bytes.  Borrowed pointers
 *     say how long they live.
 *   - Threads: an engine, its files and models may be used from several threads; one session or
 *     sampler or detokenizer from one thread at a time.  pn_session_cancel() may be called from
 *     anywhere, a signal handler included.
 *   - Same bits: for one build and instruction set, logits depend on the tokens alone; not on
 *     threads, batch size, how the tokens were cut into calls, or what the prefix cache knew.
 */
#ifndef PANTHEON_H
#define PANTHEON_H

#include <stddef.h>
#include <stdint.h>

#define PN_VERSION_MAJOR 0
#define PN_VERSION_MINOR 1
#define PN_VERSION_PATCH 0
#define PN_VERSION "0.1.0"

#ifndef PN_API
#ifdef __cplusplus
#define PN_API extern "C"
#else
#define PN_API extern
#endif
#endif

/* ------------------------------------------------------------------------------------------
 * Status and errors
 * ------------------------------------------------------------------------------------------ */

typedef enum pn_status {
    PN_OK = 0,
    PN_E_INVALID = -1,      /* an argument is wrong: the caller's mistake */
    PN_E_NOMEM = -2,        /* an allocation failed */
    PN_E_IO = -3,           /* the file is absent, unreadable or changed underfoot */
    PN_E_FORMAT = -4,       /* the file's content breaks its format */
    PN_E_UNSUPPORTED = -5,  /* well-formed, but this build cannot run it */
    PN_E_BUDGET = -6,       /* refused: does not fit the memory budget; the text has numbers */
    PN_E_CONTEXT = -7,      /* the session's context is full */
    PN_E_CANCELLED = -8,    /* pn_session_cancel() or a callback said stop */
    PN_E_STATE = -9,        /* called in the wrong order, e.g. logits before any evaluation */
    PN_E_NUMERIC = -10,     /* the model produced no finite logit */
    PN_E_ABI = -11,         /* a backend was built against another version */
    PN_E_INTERNAL = -12     /* our mistake; please report */
} pn_status;

/* Fixed-size, caller-owned, never allocated.  Valid after any failing call that took it. */
typedef struct pn_err {
    pn_status status;
    char text[508];
} pn_err;

/* "PN_E_NOMEM" and so on; static. */
PN_API const char *pn_status_name(pn_status s);

/* "0.1.0"; static.  pn_build_info: compile-time options, a line; static. */
PN_API const char *pn_version(void);
PN_API const char *pn_build_info(void);

/* ------------------------------------------------------------------------------------------
 * Memory: your allocator, and where the bytes went
 * ------------------------------------------------------------------------------------------ */

/* alloc returns `size` bytes aligned to `align` (a power of two, at most 64) or NULL; free gets
 * the same size back.  Both may be called from any thread.  NULL functions: malloc and free. */
typedef struct pn_allocator {
    void *(*alloc)(void *user, size_t size, size_t align);
    void (*free)(void *user, void *ptr, size_t size);
    void *user;
} pn_allocator;

/* What a byte is for.  Every byte the library holds belongs to one account. */
typedef enum pn_account {
    PN_ACCT_MISC = 0,       /* handles, tables, strings */
    PN_ACCT_WEIGHTS,        /* weights in memory of their own */
    PN_ACCT_WEIGHTS_MAP,    /* weights mapped from a file: page cache, not heap; counted apart */
    PN_ACCT_VOCAB,          /* token tables, merges */
    PN_ACCT_KV,             /* keys and values */
    PN_ACCT_KV_RESERVE,     /* promised to turns for keys and values, not written yet: the system has not given it */
    PN_ACCT_FLOOR,          /* kept for one turn of a model, whatever happens (pn_model_params.floor_tokens) */
    PN_ACCT_STATE,          /* recurrent state and snapshots */
    PN_ACCT_SCRATCH,        /* activations of a step, per-thread tiles */
    PN_ACCT_PREFIX,         /* prefix cache */
    PN_ACCT_STAGE,          /* streaming and upload buffers */
    PN_ACCT_GRAMMAR,        /* compiled grammars */
    PN_ACCT_CONN,           /* the server's buffers */
    PN_ACCT_COUNT
} pn_account;

typedef struct pn_mem_info {
    uint64_t used[PN_ACCT_COUNT];   /* bytes now */
    uint64_t peak[PN_ACCT_COUNT];   /* most ever, per account */
    uint64_t total_used;            /* all accounts but PN_ACCT_WEIGHTS_MAP */
    uint64_t total_peak;
    uint64_t limit;                 /* 0: none */
    uint64_t host_total;            /* smallest of physical memory and every cgroup limit; 0: unknown */
    uint64_t host_available;        /* what can be taken without swapping or being killed; 0: unknown */
} pn_mem_info;

/* "weights", "kv", ...; static. */
PN_API const char *pn_account_name(pn_account a);

/* How little memory is left, for this machine or for a die: docs/memory.md tells what each level does. */
typedef enum pn_level { PN_LEVEL_OK = 0, PN_LEVEL_WATCH, PN_LEVEL_TIGHT, PN_LEVEL_CRITICAL } pn_level;

/* "OK", "WATCH", "TIGHT", "CRITICAL"; static. */
PN_API const char *pn_level_name(pn_level l);

/* ------------------------------------------------------------------------------------------
 * Engine
 * ------------------------------------------------------------------------------------------ */

typedef struct pn_engine pn_engine;
typedef struct pn_file pn_file;
typedef struct pn_model pn_model;
typedef struct pn_session pn_session;
typedef int32_t pn_token;

typedef enum pn_log_level { PN_LOG_ERROR = 0, PN_LOG_WARN = 1, PN_LOG_INFO = 2, PN_LOG_DEBUG = 3 } pn_log_level;

/* One message, no newline, valid during the call.  May come from any thread. */
typedef void (*pn_log_fn)(void *user, pn_log_level level, const char *text);

typedef struct pn_engine_params {
    size_t size;
    pn_allocator allocator;     /* zero: malloc */
    pn_log_fn log;              /* NULL: silence */
    void *log_user;
    uint32_t n_threads;         /* 0: usable cores by affinity and cgroup quota */
    uint64_t mem_limit;         /* bytes for everything but mapped weights; 0: no cap of ours */
    uint64_t prefix_bytes;      /* most that the prefix cache may hold; 0: a tenth of mem_limit or of the machine's
                                   memory, whichever is less */
    int no_prefix;              /* 1: there is none */
    const char *sim_dies;       /* for tests: simulated dies instead of the CPU, "2;bytes=512M;tps=100;fail_alloc=0;
                                   die1.bytes=64M"; NULL: none */
    uint64_t mem_reserve;       /* bytes of the machine's memory that turns and loads leave alone; 0: what TIGHT begins at */
    int kv_min_type;            /* pn_dtype: under pressure keys and values that nobody chose a type for become no smaller than
                                   this, on models where that costs little (pn_model_kv_gate); 0: PN_DTYPE_Q4_0;
                                   PN_DTYPE_F16: never */
    double kv_max_kl, kv_min_top1;  /* what "little" is: as in pn_kv_gate_params */
    const char *pressure_script;    /* for tests: a file of readings instead of the machine's; NULL: the machine's */
    double (*clock)(void *user);    /* for tests: seconds by which memory is watched; NULL: the system's */
    void *clock_user;
    const char *session_dir;    /* a directory for what the prefix cache has no memory for, made if it is not there, and
                                   read again by the next engine; NULL: none.  Needs the prefix cache */
    uint64_t session_quota;     /* most bytes of files there; 0: 8 GiB or a tenth of what is free, whichever is less */
    int session_always;         /* for tests: 1: also where computing again is faster than writing and reading */
} pn_engine_params;

/* Create an engine.  `params` may be NULL. */
PN_API pn_status pn_engine_open(pn_engine **out, const pn_engine_params *params, pn_err *err);
PN_API void pn_engine_close(pn_engine *e);

PN_API uint32_t pn_engine_threads(const pn_engine *e);

/* Where an engine computes: dies, numbered from 0.  Each has a scheduler and a prefix cache of its own, and runs at
 * the same time as the others. */
typedef struct pn_die_info {
    char kind[8];               /* "cpu", "sim" */
    char name[32];
    uint64_t total_bytes, free_bytes;   /* of its memory, the host's where it has none; 0: unknown */
    double clock_seconds;       /* a simulated die's virtual time; else 0 */
    uint32_t n_models;          /* with weights there */
    uint32_t max_requests;      /* worked on at once, as memory allows now; 0: as many as there are */
    uint32_t max_rows;          /* of a step, likewise */
} pn_die_info;

PN_API uint32_t pn_engine_die_count(const pn_engine *e);
PN_API pn_status pn_engine_die(const pn_engine *e, uint32_t index, pn_die_info *out);  /* from any thread */

PN_API void pn_engine_memory(pn_engine *e, pn_mem_info *out);

/* Bytes for the host program, counted under `account`; NULL when out of budget or memory. */
PN_API void *pn_alloc(pn_engine *e, pn_account account, size_t size);
PN_API void pn_free(pn_engine *e, pn_account account, void *ptr, size_t size);

/* --- memory under pressure --------------------------------------------------------------------- */

/* The engine watches this machine's memory, and that of dies which have their own, a few times a second while it
 * works: in pn_engine_step and its own thread (pn_engine_start).  When little is left it gives up what does the
 * least harm, rung by rung, and takes it back when there is room again; each change is an event.  What is lossy is
 * told in results (pn_generate_result). */
typedef enum pn_mem_event_kind {
    PN_MEM_LEVEL = 0,           /* a resource's level changed */
    PN_MEM_RUNG,                /* a rung was applied, or undone by a step */
    PN_MEM_ADMIT,               /* a turn or a load was admitted, put off or refused */
    PN_MEM_GATE,                /* a smaller type of keys and values was tried on a model */
    PN_MEM_BUG                  /* memory that was promised was not there; please report */
} pn_mem_event_kind;

typedef struct pn_mem_event {
    pn_mem_event_kind kind;
    double seconds;             /* by the engine's clock */
    uint32_t resource;          /* 0: this machine's memory; 1 + i: die i's */
    pn_level level;             /* of that resource, afterwards */
    pn_level from;              /* LEVEL: before */
    uint32_t rank;              /* RUNG: its number (docs/memory.md) */
    int undone;                 /* RUNG: 1: taken back */
    char what[32];              /* LEVEL: why; RUNG: its name; ADMIT: "admitted", "busy", "refused"; GATE: the type;
                                   BUG: what it was for */
    uint64_t bytes;             /* RUNG: given back; ADMIT, BUG: needed */
    uint64_t available, budget;
    double kl, top1;            /* GATE: mean divergence, share of equal first choices */
    int eligible;               /* GATE: the type may be used */
} pn_mem_event;

/* Called for each event from the thread that caused it, with no lock of the engine held; no call back into the engine
 * but pn_mem_* and pn_engine_memory.  NULL: nobody.  Set it before work begins. */
PN_API void pn_mem_on_event(pn_engine *e, void (*fn)(void *user, const pn_mem_event *ev), void *user);

/* The last events, at most 64, oldest first; returns how many were written to out[0..cap). */
PN_API size_t pn_mem_events(pn_engine *e, pn_mem_event *out, size_t cap);

typedef struct pn_mem_state {
    char name[16];              /* "host", "die0" */
    pn_level level;
    const char *why;            /* of the last change; static, "" before the first */
    uint64_t budget;            /* most there can ever be: the machine's, every cgroup limit, mem_limit */
    uint64_t hard;              /* what can be taken without being killed */
    uint64_t soft;              /* what can be taken without losing mapped weights; less what was promised to turns, with what is lent */
    uint64_t watch, tight, critical;        /* soft below this is that level */
    double stall;               /* share of time that all tasks waited for memory, over the last seconds; < 0: unknown */
    double refault_rate;        /* bytes of page cache a second that were read again after they had been dropped; < 0: unknown */
    uint64_t refault_bytes;     /* of such page cache, since the cgroup or the system began; 0: unknown, too */
    uint64_t oom_kills;         /* in this cgroup since the engine was opened */
    /* of resource 0, ever: */
    uint64_t n_admitted, n_busy, n_refused;     /* turns: begun, put off until others have ended, never to fit */
    uint64_t n_failed;          /* requests for memory that failed */
    uint64_t lent;              /* of resource 0: streamed weights that are pinned as long as nobody needs the memory */
} pn_mem_state;

/* Resource 0 or 1 + die, as it was sampled last.  PN_E_INVALID: there is no such one.  From any thread, as all of these. */
PN_API pn_status pn_mem_get(pn_engine *e, uint32_t resource, pn_mem_state *out);
PN_API pn_level pn_mem_level(pn_engine *e);            /* the worst of all resources */

/* A rung of the ladder on a resource. */
typedef struct pn_mem_rung {
    uint32_t rank, resource;
    const char *name;           /* static */
    pn_level level;             /* from which it is applied */
    int in_force;
    uint64_t n_applied, n_undone, freed;    /* ever */
} pn_mem_rung;

/* All rungs on all resources where they ever moved; returns how many there are, writes at most cap. */
PN_API size_t pn_mem_rungs(pn_engine *e, pn_mem_rung *out, size_t cap);

/* What the host program can give up: called from the thread that steps or polls, between steps; no call back into the
 * engine but pn_mem_* and pn_engine_memory. */
typedef struct pn_mem_rung_params {
    size_t size;
    uint32_t rank;              /* its place in the order: docs/memory.md */
    const char *name;           /* static */
    pn_level level;             /* from which it is applied */
    uint64_t (*gain)(void *user);                   /* bytes of this machine's memory it could give back; 0: nothing now */
    uint64_t (*apply)(void *user, uint64_t want);   /* give back at least `want` of them, now or soon: what came of it now */
    void *user;
} pn_mem_rung_params;

/* PN_E_BUDGET: there are 4 already.  Remove all of a user's before the user goes. */
PN_API pn_status pn_mem_rung_add(pn_engine *e, const pn_mem_rung_params *p, pn_err *err);
PN_API void pn_mem_rung_remove(pn_engine *e, const void *user);

/* Limits for everything but mapped weights: above `soft` the caches shrink, above `hard` requests for memory fail.
 * 0: none; < 0: as it is.  PN_E_BUDGET: more than `hard` is in use and does not go. */
PN_API pn_status pn_mem_limit(pn_engine *e, int64_t soft, int64_t hard, pn_err *err);

/* The host program's own bytes (PN_ACCT_CONN) may grow to so many: turns leave room for them. */
PN_API void pn_mem_headroom(pn_engine *e, uint64_t bytes);

PN_API uint64_t pn_mem_used(pn_engine *e);
PN_API uint64_t pn_mem_highwater(pn_engine *e, int reset);     /* most ever, or since the last reset */

/* Give back at least `want` bytes now, if what is lent (pn_mem_state), caches and idle buffers hold as many: nothing that is in use
 * is touched.  *freed (may be NULL): what came of it. */
PN_API void pn_mem_release(pn_engine *e, uint64_t want, uint64_t *freed);

/* The host program knows that memory is short: at least this level for five seconds. */
PN_API void pn_mem_hint(pn_engine *e, pn_level level);

/* Look now, for programs that neither step nor let the engine drive itself.  Not from within a callback. */
PN_API void pn_mem_poll(pn_engine *e);

/* The prefix cache.  Keys and values of what generations have computed (pn_session_generate, pn_chat_reply,
 * requests) stay, and one that begins in an empty session starts from the longest part of its prompt that
 * is known, in pages of 64 tokens, with the same bits.  pn_session_eval neither looks nor adds.  It gives way to
 * whatever else needs memory, and does not grow by more than half of what is available. */
typedef struct pn_prefix_info {
    uint64_t bytes, bytes_max;  /* PN_ACCT_PREFIX may hold more: pages that sessions share and the cache forgot */
    uint64_t pages;
    uint64_t queries, hits;             /* generations that looked; that found something */
    uint64_t tokens_asked, tokens_hit;  /* of their prompts: all; what was found */
    uint64_t evicted;                   /* pages, ever */
} pn_prefix_info;

PN_API void pn_engine_prefix(pn_engine *e, pn_prefix_info *out);        /* from any thread */

/* Conversations on disk (pn_engine_params.session_dir).  Pages of the prefix cache are written behind it, and read
 * when a generation begins with tokens whose pages memory no longer has: with the same bits, and counted as cached.
 * A file that is broken or of another model is removed and its page computed, so nothing here ever fails a request. */
typedef struct pn_cold_info {
    uint64_t bytes, bytes_max;          /* of files; the quota */
    uint64_t pages;                     /* of 64 tokens, a file each */
    uint64_t queued_bytes;              /* of pages that wait to be written */
    uint64_t saved, saved_bytes;        /* pages and bytes of files, ever, as the next */
    uint64_t restored, restored_bytes;
    uint64_t evicted;                   /* removed for the quota */
    uint64_t not_saved_busy;            /* pages: the disk was behind, or memory wanted them back */
    uint64_t not_saved_slow;            /* computing is faster */
    uint64_t failed_write, failed_full; /* not written: an error; no space */
    uint64_t failed_read;               /* not read: an error */
    uint64_t failed_damaged;            /* cut short, or a flipped bit */
    uint64_t failed_stranger;           /* of another model, or for other tokens */
    uint64_t failed_memory;             /* no memory to write or read it */
    double write_rate, read_rate;       /* bytes a second, lately; 0: unknown */
} pn_cold_info;

/* All zero without a directory.  From any thread. */
PN_API void pn_engine_cold(pn_engine *e, pn_cold_info *out);

/* How much of a prompt a generation without a salt would find now: a hint for choosing where to run it.
 * From any thread. */
PN_API uint32_t pn_model_cached(pn_model *m, const pn_token *tokens, size_t n);

/* The instruction set in use: "ref", "sse41", "avx2", "avx512", "avx512vnni", "neon", "dotprod".
 * pn_cpu_force picks a lower one for the whole process (tests, reproducing another machine's bits);
 * call it before any model is loaded.  PN_E_UNSUPPORTED when this machine lacks it. */
PN_API const char *pn_cpu_isa(void);
PN_API pn_status pn_cpu_force(const char *isa, pn_err *err);

/* The i-th instruction set this machine can run, best first; NULL past the end.  Static. */
PN_API const char *pn_cpu_isa_at(size_t i);

/* ------------------------------------------------------------------------------------------
 * Number formats
 * ------------------------------------------------------------------------------------------ */

/* Values are ggml's type ids.  Block layouts: docs/formats.md. */
typedef enum pn_dtype {
    PN_DTYPE_F32 = 0, PN_DTYPE_F16 = 1, PN_DTYPE_Q4_0 = 2, PN_DTYPE_Q4_1 = 3,
    PN_DTYPE_Q5_0 = 6, PN_DTYPE_Q5_1 = 7, PN_DTYPE_Q8_0 = 8, PN_DTYPE_Q8_1 = 9,
    PN_DTYPE_Q2_K = 10, PN_DTYPE_Q3_K = 11, PN_DTYPE_Q4_K = 12, PN_DTYPE_Q5_K = 13,
    PN_DTYPE_Q6_K = 14, PN_DTYPE_Q8_K = 15,
    PN_DTYPE_IQ2_XXS = 16, PN_DTYPE_IQ2_XS = 17, PN_DTYPE_IQ3_XXS = 18, PN_DTYPE_IQ1_S = 19,
    PN_DTYPE_IQ4_NL = 20, PN_DTYPE_IQ3_S = 21, PN_DTYPE_IQ2_S = 22, PN_DTYPE_IQ4_XS = 23,
    PN_DTYPE_I8 = 24, PN_DTYPE_I16 = 25, PN_DTYPE_I32 = 26, PN_DTYPE_I64 = 27, PN_DTYPE_F64 = 28,
    PN_DTYPE_IQ1_M = 29, PN_DTYPE_BF16 = 30, PN_DTYPE_TQ1_0 = 34, PN_DTYPE_TQ2_0 = 35,
    PN_DTYPE_MXFP4 = 39, PN_DTYPE_NVFP4 = 40, PN_DTYPE_Q1_0 = 41, PN_DTYPE_Q2_0 = 42,
    PN_DTYPE_COUNT = 43
} pn_dtype;

PN_API const char *pn_dtype_name(pn_dtype t);           /* "Q4_K"; "?" for a hole */
PN_API pn_dtype pn_dtype_parse(const char *name);       /* case-insensitive; PN_DTYPE_COUNT: unknown */
PN_API const char *pn_kv_type_name(pn_dtype t);         /* "q8_0", as --kv-type spells it; NULL: not for keys and values */
PN_API uint32_t pn_dtype_block_elems(pn_dtype t);       /* 0: no such type */
PN_API uint32_t pn_dtype_block_bytes(pn_dtype t);

/* ------------------------------------------------------------------------------------------
 * Files: what is in them, and what they would need
 * ------------------------------------------------------------------------------------------ */

/* Where a model's bytes come from when it is not a path.  read() copies n bytes from `offset` to
 * dst and returns PN_OK or PN_E_IO; it may be called from several threads until the file and every
 * model made from it are freed. */
typedef struct pn_reader {
    pn_status (*read)(void *user, uint64_t offset, void *dst, size_t n);
    void *user;
    uint64_t size;              /* bytes in all */
    const char *name;           /* for messages; may be NULL */
} pn_reader;

/* Read and check a header: GGUF v2/v3, any part count (give the first part); or a Hugging Face folder, or
 * one of its weight files, which looks like a GGUF file of as many parts (docs/folders.md).  Metadata and
 * tensor table are validated completely; no matrix is read.  A .safetensors or .pth without config.json beside it has no metadata
 * but tensors, under their own names; nothing else can be done with it. */
PN_API pn_status pn_file_open(pn_engine *e, const char *path, pn_file **out, pn_err *err);

/* The same from memory.  `bytes` is borrowed: it must outlive the file and models made from it;
 * weights are used where they lie (aligned to 32 or better is faster). */
PN_API pn_status pn_file_open_memory(pn_engine *e, const void *bytes, size_t n, pn_file **out, pn_err *err);

/* The same through a callback; weights are copied into memory at load. */
PN_API pn_status pn_file_open_reader(pn_engine *e, const pn_reader *reader, pn_file **out, pn_err *err);
PN_API void pn_file_close(pn_file *f);

typedef enum pn_meta_type {
    PN_META_U8, PN_META_I8, PN_META_U16, PN_META_I16, PN_META_U32, PN_META_I32, PN_META_F32,
    PN_META_BOOL, PN_META_STRING, PN_META_ARRAY, PN_META_U64, PN_META_I64, PN_META_F64
} pn_meta_type;

/* One metadata entry, borrowed until the file is closed.  Strings carry lengths, no terminator. */
typedef struct pn_meta {
    const char *key;
    size_t key_len;
    pn_meta_type type;          /* PN_META_ARRAY: see elem and count */
    pn_meta_type elem;
    uint64_t count;             /* elements of an array, else 1 */
} pn_meta;

typedef struct pn_tensor_info {
    const char *name;           /* borrowed until the file is closed, NUL-terminated */
    pn_dtype dtype;             /* PN_DTYPE_COUNT: none that this build computes with */
    uint32_t n_dims;
    uint64_t ne[4];             /* ne[0] contiguous; missing dimensions are 1, of more than four the slowest are one */
    uint64_t bytes;
    uint64_t offset;            /* from the start of part `part` */
    uint32_t part;              /* which file of a split model */
    const char *type;           /* the format in words: "BF16", "F8_E4M3", "I4"; static.  A quantised matrix of a folder has
                                   codes and scales, and the bytes of both */
} pn_tensor_info;

PN_API size_t pn_file_meta_count(const pn_file *f);
PN_API pn_status pn_file_meta_at(const pn_file *f, size_t i, pn_meta *out);
PN_API pn_status pn_file_meta_find(const pn_file *f, const char *key, pn_meta *out);  /* PN_E_INVALID: absent */

/* Element `index` (0 for scalars) as a number or as bytes; PN_E_INVALID when it is not one. */
PN_API pn_status pn_file_meta_number(const pn_file *f, const char *key, uint64_t index, double *out);
PN_API pn_status pn_file_meta_string(const pn_file *f, const char *key, uint64_t index,
                                     const char **text, size_t *len);

PN_API size_t pn_file_tensor_count(const pn_file *f);
PN_API pn_status pn_file_tensor_at(const pn_file *f, size_t i, pn_tensor_info *out);
PN_API uint32_t pn_file_part_count(const pn_file *f);

/* ------------------------------------------------------------------------------------------
 * The plan: every byte, before anything is loaded
 * ------------------------------------------------------------------------------------------ */

typedef enum pn_residency {
    PN_RESIDENCY_AUTO = 0,      /* of a file: mapped where all fits, else streamed; else copied */
    PN_RESIDENCY_MAP,           /* weights stay in the page cache, shared between processes */
    PN_RESIDENCY_ANON,          /* weights are read into memory of their own */
    PN_RESIDENCY_STREAM         /* weights that do not fit: some are pinned, the others are read in every step, past
                                   the page cache, with the same bits */
} pn_residency;

typedef struct pn_plan_params {
    size_t size;
    uint32_t n_ctx;             /* tokens a session may hold; 0: the trained context */
    uint32_t n_sessions;        /* at once; 0: 1 */
    uint32_t n_batch;           /* most rows of a step; 0: 512 */
    uint32_t n_threads;         /* 0: the engine's */
    pn_dtype kv_type;           /* as for pn_session_params */
    int has_kv_type;
    int exact;                  /* reference arithmetic (see pn_model_params) */
    const uint32_t *dies;       /* [n_dies] as for pn_model_params; available_bytes is what is free there, too */
    size_t n_dies;
    pn_residency residency;     /* this and the next ones as for pn_model_params */
    uint64_t pin_bytes, stream_block, expert_cache_bytes;
    uint32_t stream_depth;
    const char *load_type;
} pn_plan_params;

typedef struct pn_plan_info {
    char arch[32];
    uint64_t n_params;              /* elements of all tensors used */
    uint64_t weight_bytes;          /* tensors used, as they lie in the file, or as they are made of it */
    uint64_t weight_bytes_per_token;/* read by one decode step: embedding table only by row */
    uint64_t file_bytes;            /* all parts */
    uint64_t vocab_bytes;           /* estimate of token tables; exact after load */
    uint64_t kv_bytes_per_token;    /* all layers, before any window caps it */
    uint64_t kv_bytes_per_session;  /* n_ctx tokens, whole pages, windows capped */
    uint64_t kv_bytes;              /* all sessions */
    uint64_t state_bytes;           /* recurrent state, all sessions */
    uint64_t scratch_bytes;         /* activations of the largest step, tiles of all threads, logits */
    uint64_t total_bytes;           /* weights (resident) + everything above */
    uint64_t anon_bytes;            /* the part that is not page cache when weights are mapped or streamed */
    uint64_t floor_bytes;           /* one session, smallest context and batch */
    uint64_t available_bytes;       /* what this machine can give now; 0: unknown */
    uint32_t n_ctx, n_ctx_train, n_ctx_fits;    /* planned; trained; most that fits now (0: none) */
    uint32_t n_layers, n_embd, n_heads, n_heads_kv, n_vocab, n_batch, n_threads, n_sessions;
    pn_dtype kv_type;
    int fits;                       /* total_bytes <= available_bytes */
    uint64_t embed_bytes;           /* what a session takes on top, in none of the sums above, once it has computed
                                       an embedding (pn_session_embed) */
    pn_residency residency;     /* how the weights would be loaded now */
    /* PN_RESIDENCY_STREAM, in the sums above instead of weight_bytes: */
    uint64_t pinned_bytes;          /* matrices that stay */
    uint64_t stage_bytes;           /* the ring that the others pass through, rows of the embedding */
    uint64_t expert_bytes, expert_floor_bytes;  /* cache of experts; the least it may be given */
    uint64_t streamed_bytes;        /* read by every step, experts aside */
    uint64_t load_bytes;            /* load_type, or a quantised folder: most memory while weights are converted, with them and the vocabulary;
                                       total_bytes and floor_bytes are not less.  0: nothing is converted */
} pn_plan_info;

/* Header only; allocates a few KiB, touches no weights. */
PN_API pn_status pn_file_plan(pn_file *f, const pn_plan_params *params, pn_plan_info *out, pn_err *err);

/* The op list of a step of params->n_batch rows as Graphviz text, through `write` (return nonzero to
 * stop). */
typedef int (*pn_write_fn)(void *user, const char *text, size_t len);
PN_API pn_status pn_file_plan_dot(pn_file *f, const pn_plan_params *params, pn_write_fn write, void *user, pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Models
 * ------------------------------------------------------------------------------------------ */

/* done and total in bytes.  Return nonzero to stop: loading then fails with PN_E_CANCELLED. */
typedef int (*pn_progress_fn)(void *user, uint64_t done, uint64_t total);

typedef struct pn_model_params {
    size_t size;
    pn_residency residency;
    int exact;                  /* slow reference arithmetic: weights decoded to f32, activations and
                                   KV in f32; the oracle of every kernel */
    int vocab_only;             /* tokenizer and metadata, no weights: cannot evaluate */
    pn_progress_fn progress;
    void *progress_user;
    uint32_t lease_rows;        /* testing: most weight rows handed to a device at once; 0: all */
    const uint32_t *dies;       /* [n_dies] where it runs; none: where most bytes are free.  Two: the model is split,
                                   the first layers on the first, with the same bits */
    size_t n_dies;
    /* PN_RESIDENCY_STREAM */
    uint64_t pin_bytes;         /* most memory of matrices that stay; 0: none */
    uint64_t stream_block;      /* bytes read at once, at most 256 MiB; 0: 4 MiB.  Less than 1 MiB is slow, one row has
                                   to fit */
    uint32_t stream_depth;      /* blocks, so many are read ahead; 0: 4, at most 64 */
    uint64_t expert_cache_bytes;/* most memory of experts (MoE); 0: a quarter of them, or the least that works */
    uint32_t floor_tokens;      /* keep memory for one turn by the turn of so many tokens (fewer, down to 512, where there
                                   is less), so that one always runs, however short memory gets; 0: none */
    const char *load_type;      /* "Q8_0", "Q4_K_M", ... (the presets of pn_quantize): matrices of 16 and 32 bits are
                                   quantised while they are loaded, into memory of their own (AUTO or ANON), with the bytes
                                   that pn_quantize would write; all else is as in the file.  NULL: all is, but for quantised
                                   matrices of a folder (docs/folders.md), which get a type that keeps their values */
} pn_model_params;

/* Load a model.  `params` may be NULL.  The file handle may be closed afterwards. */
PN_API pn_status pn_model_load(pn_engine *e, const char *path, const pn_model_params *params,
                               pn_model **out, pn_err *err);
PN_API pn_status pn_model_load_file(pn_file *f, const pn_model_params *params, pn_model **out, pn_err *err);
PN_API void pn_model_free(pn_model *m);

/* Where a model's weights are, and what streaming them comes to. */
typedef struct pn_residency_info {
    pn_residency mode;              /* never AUTO */
    uint64_t pinned_bytes, ring_bytes, expert_bytes;    /* memory now; 0 unless streamed, as all that follows */
    uint64_t step_bytes;            /* read by every step, experts aside */
    double disk_bytes_per_second;   /* measured while reading */
    double compute_seconds;         /* of a step of one row, without waiting; 0: there was none yet */
    double expected_tps;            /* tokens a second of one sequence: 1 / max(compute, bytes / disk) */
    uint64_t expert_hits, expert_misses;                /* by layer and expert, ever */
    uint64_t stream_bytes;          /* read, ever */
    double stream_wait_seconds;     /* steps have waited for reads, ever */
    uint64_t mapped_bytes;          /* page cache that mapped weights need; 0: none, or the ladder let it go and nobody has
                                       used the model since */
    uint64_t lent_bytes;            /* of pinned_bytes: what goes as soon as anybody needs the memory */
} pn_residency_info;

PN_API void pn_model_residency(pn_model *m, pn_residency_info *out);

/* The file this model came from; borrowed, lives as long as the model. */
PN_API const pn_file *pn_model_file(const pn_model *m);

typedef struct pn_model_info {
    char arch[32];
    char name[96];              /* general.name, cut to fit; may be empty */
    char type[24];              /* most common weight type, e.g. "Q4_K" or "Q4_K_M" */
    uint64_t n_params, weight_bytes, weight_bytes_per_token;
    uint32_t n_ctx_train, n_embd, n_layers, n_heads, n_heads_kv, n_vocab;
    int has_chat_template;
    uint32_t floor_tokens;      /* memory is kept for one turn of so many; 0: none */
} pn_model_info;

PN_API void pn_model_describe(const pn_model *m, pn_model_info *out);

/* What a model may use, for hosts that share it among many. */
typedef struct pn_model_caps {
    size_t size;
    uint32_t ctx;               /* most tokens of a session; 0: as trained and as memory allows */
    uint32_t sessions;          /* at once; one more is PN_E_BUDGET; 0: no cap */
    uint32_t concurrent;        /* requests that are worked on at once, the others wait their turn; 0: no cap */
} pn_model_caps;

/* From any thread.  Sessions and requests that exist stay as they are. */
PN_API pn_status pn_model_cap(pn_model *m, const pn_model_caps *caps, pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Tokens
 * ------------------------------------------------------------------------------------------ */

enum {
    PN_TOKENIZE_BOS = 1,        /* add BOS and EOS as the vocabulary says */
    PN_TOKENIZE_SPECIAL = 2     /* recognise control tokens written in the text */
};

/* Text to ids.  Bad UTF-8 is kept through byte tokens where the vocabulary has them.  Writes at
 * most `cap` ids; *n gets the number needed, so call with cap 0 to measure.  out may be NULL then. */
PN_API pn_status pn_tokenize(const pn_model *m, const char *text, size_t len, unsigned flags,
                             pn_token *out, size_t cap, size_t *n, pn_err *err);

/* Ids to bytes, the inverse: control tokens render as their text with `special` nonzero, else as
 * nothing.  Same measuring convention; no terminator is written. */
PN_API pn_status pn_detokenize(const pn_model *m, const pn_token *tokens, size_t n_tokens, int special,
                               char *out, size_t cap, size_t *n, pn_err *err);

typedef enum pn_token_kind {
    PN_TOKEN_UNDEFINED = 0, PN_TOKEN_NORMAL = 1, PN_TOKEN_UNKNOWN = 2, PN_TOKEN_CONTROL = 3,
    PN_TOKEN_USER_DEFINED = 4, PN_TOKEN_UNUSED = 5, PN_TOKEN_BYTE = 6
} pn_token_kind;

/* A token's text as stored in the vocabulary (byte-level alphabets included); borrowed from the
 * model.  PN_E_INVALID for an id out of range. */
PN_API pn_status pn_token_text(const pn_model *m, pn_token id, const char **text, size_t *len);
PN_API pn_token_kind pn_token_kind_of(const pn_model *m, pn_token id);
PN_API int pn_token_ends(const pn_model *m, pn_token id);      /* 1: this token ends an answer */

typedef enum pn_special {
    PN_SPECIAL_BOS, PN_SPECIAL_EOS, PN_SPECIAL_EOT, PN_SPECIAL_UNK, PN_SPECIAL_PAD, PN_SPECIAL_SEP,
    PN_SPECIAL_MASK, PN_SPECIAL_NEWLINE
} pn_special;

PN_API pn_token pn_token_special(const pn_model *m, pn_special which);     /* -1: none */
PN_API uint32_t pn_vocab_size(const pn_model *m);                          /* columns of the logits */

/* Streaming: tokens in, whole characters out.  Never half a character; bytes that can never become
 * one are passed through as they are at the end. */
typedef struct pn_detok pn_detok;
PN_API pn_status pn_detok_new(const pn_model *m, int special, pn_detok **out, pn_err *err);
PN_API void pn_detok_free(pn_detok *d);

/* *text: new whole characters (perhaps none), borrowed until the next call on d. */
PN_API pn_status pn_detok_push(pn_detok *d, pn_token t, const char **text, size_t *len, pn_err *err);
PN_API pn_status pn_detok_flush(pn_detok *d, const char **text, size_t *len, pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Chat
 * ------------------------------------------------------------------------------------------ */

typedef struct pn_message {
    const char *role;           /* "system", "user", "assistant" */
    const char *content;
    size_t content_len;         /* 0: strlen(content) */
} pn_message;

/* Which built-in format pn_chat_tokenize() would use: "chatml", "llama3", "llama2", "phi3", "gemma",
 * "zephyr", or a variant of Mistral's ("mistral-v1", "-v3", "-v3-tekken", "-v7", "-v7-tekken";
 * "mistral" names v3); found from the model's own template and vocabulary.  NULL when none fits. */
PN_API const char *pn_chat_format(const pn_model *m);

/* A conversation to ids, ready to evaluate, ending where the assistant is to speak when
 * `add_generation` is nonzero.  What the messages contain can never become a control token.
 * `format` overrides detection; NULL: detect.  Same measuring convention as pn_tokenize.
 * `first` is the index of the first message wanted: ids of messages before it are left out (they are
 * in the session already). */
PN_API pn_status pn_chat_tokenize(const pn_model *m, const char *format, const pn_message *msgs, size_t n_msgs,
                                  size_t first, int add_generation, pn_token *out, size_t cap, size_t *n,
                                  pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Templates: a model's own chat template, and whose text is whose
 * ------------------------------------------------------------------------------------------ */

/* A parsed template; any number of threads may render it.  Close it before its engine. */
typedef struct pn_template pn_template;

/* From source text (Jinja), which is not needed afterwards.  PN_E_FORMAT names line and column. */
PN_API pn_status pn_template_open(pn_engine *e, const char *text, size_t len, pn_template **out, pn_err *err);

/* The model's own, with the texts of its special tokens as bos_token, eos_token, ...; the model may be
 * freed before it.  Where it has a second one for requests with tools (tool_use), they are rendered by that.
 * PN_E_UNSUPPORTED: the model has none. */
PN_API pn_status pn_template_open_model(const pn_model *m, pn_template **out, pn_err *err);
PN_API void pn_template_close(pn_template *t);

enum {
    PN_RENDER_RAW = 1           /* messages as they are; else they are first made to fit the template */
};

/* A stretch of a prompt.  Trusted text is the template's own and may become control tokens; the rest
 * came with the conversation and never does. */
typedef struct pn_segment {
    const char *text;           /* borrowed until the prompt is freed; not terminated */
    size_t len;
    int trusted;
} pn_segment;

typedef struct pn_rendered pn_rendered;

/* Render a JSON object: messages, perhaps tools, add_generation_prompt; any other key is a variable of
 * the template.  PN_E_INVALID: the template refused (the text is its own), or the input is wrong.
 * A template that runs too long, too deep or too large is stopped, which is PN_E_INVALID too. */
PN_API pn_status pn_template_render_json(const pn_template *t, const char *vars_json, size_t len, unsigned flags,
                                         pn_rendered **out, pn_err *err);
PN_API void pn_rendered_free(pn_rendered *p);
PN_API const char *pn_rendered_text(const pn_rendered *p, size_t *len);     /* borrowed; NUL-terminated */
PN_API size_t pn_rendered_segment_count(const pn_rendered *p);
PN_API pn_segment pn_rendered_segment(const pn_rendered *p, size_t i);      /* len 0 past the end */

/* To ids, control tokens from trusted text only; BOS first where the model wants one and the template
 * wrote none.  Same measuring convention as pn_tokenize. */
PN_API pn_status pn_rendered_tokenize(const pn_rendered *p, const pn_model *m, pn_token *out, size_t cap, size_t *n,
                                      pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Output: what a chat model writes, taken apart while it is being written
 * ------------------------------------------------------------------------------------------ */

typedef enum pn_output_kind {
    PN_OUTPUT_REASONING,        /* text */
    PN_OUTPUT_CONTENT,          /* text */
    PN_OUTPUT_CALL_BEGIN,       /* a tool call: text is the function's name, id the model's own or empty */
    PN_OUTPUT_ARGUMENTS,        /* text: the next piece of the call's arguments, one JSON text in all */
    PN_OUTPUT_CALL_END          /* id: the model's own when it came late */
} pn_output_kind;

/* Texts are valid during the call and not terminated.  Pieces never end inside a character, and what
 * was delivered is never taken back. */
typedef struct pn_output_event {
    pn_output_kind kind;
    uint32_t call;              /* index of the tool call, from 0 */
    int complete;               /* CALL_END: the call was well-formed to its end */
    const char *text;
    size_t len;
    const char *id;
    size_t id_len;
} pn_output_event;

/* Return nonzero to stop. */
typedef int (*pn_output_fn)(void *user, const pn_output_event *e);

typedef struct pn_output_params {
    size_t size;
    const char *chat_template;  /* source text that tells the family; NULL: the model's own */
    size_t chat_template_len;   /* 0: strlen */
    const char *format;         /* a family by name ("hermes", "harmony", ...), wins over the template */
    const char *tools;          /* JSON: OpenAI's array of tools; their schemas tell the types of values
                                   in families that write bare text.  NULL: unknown */
    size_t tools_len;           /* 0: strlen */
    const char *prompt;         /* the generation prompt, which may have opened the reasoning; NULL: as
                                   the template leaves it with nothing but add_generation_prompt set */
    size_t prompt_len;          /* 0: strlen */
    int whole;                  /* deliver nothing before the end; then a reasoning block whose beginning
                                   the model left out is recognised too */
    int no_reasoning;           /* leave reasoning and its markers in the content */
    int no_calls;               /* leave calls in the content */
} pn_output_params;

typedef struct pn_output pn_output;

/* A parser for one answer.  `m` may be NULL when a template or format is given.  Push the answer's text
 * with control tokens rendered (pn_detok_new with special 1), without the token that ended it. */
PN_API pn_status pn_output_new(pn_engine *e, const pn_model *m, const pn_output_params *params, pn_output_fn fn,
                               void *user, pn_output **out, pn_err *err);
PN_API pn_status pn_output_push(pn_output *o, const char *text, size_t len, pn_err *err);
PN_API pn_status pn_output_end(pn_output *o, pn_err *err);
PN_API void pn_output_free(pn_output *o);
PN_API const char *pn_output_format(const pn_output *o);       /* the family's name; static */

/* A whole answer at once, as {"reasoning_content":string|null,"content":string|null,
 * "tool_calls":[{"name":string,"arguments":value}]} through `write`; arguments that are no JSON become
 * a string. */
PN_API pn_status pn_output_json(pn_engine *e, const pn_model *m, const pn_output_params *params, const char *text,
                                size_t len, pn_write_fn write, void *user, pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Sessions: evaluate tokens, read logits
 * ------------------------------------------------------------------------------------------ */

typedef struct pn_session_params {
    size_t size;
    uint32_t n_ctx;             /* most tokens held; 0: min(trained, what memory allows) */
    uint32_t n_batch;           /* most rows of a step; 0: 512 */
    pn_dtype kv_type;           /* F32, F16, Q8_0, Q5_1, Q5_0, Q4_1 or Q4_0, with has_kv_type 1; the types of blocks
                                   want heads whose sizes are multiples of 32 (PN_E_UNSUPPORTED) */
    int has_kv_type;            /* 0: F16, or F32 for an exact model */
    int by_turn;                /* 1: memory for keys and values is taken when a turn begins and what it did not use
                                   goes back at its end; 0: all of n_ctx at once, for as long as the session lives */
} pn_session_params;

/* A turn is one generation, request, reply or evaluation.  By the turn it reserves before its first token:
 * for what the session holds, the prompt and max_tokens (0: for all of n_ctx).  An admitted turn never runs out; one
 * that does not fit is PN_E_BUDGET, the text has the numbers, and the session can be used as before.  With n_ctx 0
 * the session may hold what would fit if memory stayed as it is. */

PN_API pn_status pn_session_new(pn_model *m, const pn_session_params *params, pn_session **out, pn_err *err);
PN_API void pn_session_free(pn_session *s);

typedef enum pn_limited_by { PN_BY_CONTEXT = 0, PN_BY_HOST, PN_BY_DEVICE } pn_limited_by;
typedef enum pn_suggestion { PN_SUGGEST_COMPACT = 0, PN_SUGGEST_FEWER_TOKENS, PN_SUGGEST_LATER } pn_suggestion;

/* Why a turn did not fit, in numbers to act on: prompt and answer of at most max_context_now tokens together are
 * admitted if nothing changes meanwhile. */
typedef struct pn_budget_info {
    size_t size;
    int retryable;              /* 1: it fits once others have ended; 0: it never does */
    uint32_t requested_tokens, prompt_tokens, max_new_tokens;   /* prompt_tokens: what the session holds included */
    uint32_t max_context_now;           /* tokens, in whole pages; 0: not one page */
    uint32_t max_context_alone;         /* if nobody else had a turn and the caches were empty */
    uint32_t max_context_unpressured;   /* if nobody but us used memory, too */
    uint32_t ctx_cap;                   /* the session's n_ctx */
    uint64_t kv_bytes_per_token, kv_bytes_needed, kv_bytes_available;
    uint64_t fixed_bytes_needed;        /* whatever the length: recurrent state */
    uint64_t available, budget;         /* of the resource that is short */
    pn_level level;
    pn_dtype kv_type;
    pn_limited_by limited_by;
    int32_t die;                        /* PN_BY_DEVICE; else -1 */
    pn_suggestion suggestion;
} pn_budget_info;

/* After a turn on the session was refused with PN_E_BUDGET or PN_E_CONTEXT, until its next turn; PN_E_STATE: none was. */
PN_API pn_status pn_last_budget(const pn_session *s, pn_budget_info *out);

PN_API uint32_t pn_session_capacity(const pn_session *s);      /* n_ctx in effect */
PN_API uint32_t pn_session_length(const pn_session *s);        /* tokens evaluated */
PN_API const pn_token *pn_session_tokens(const pn_session *s); /* borrowed until the next call on s */

/* What its keys and values are stored as: what it was opened with, and the smallest type of any part of them now.
 * degraded 1: they differ, for memory pressure made older parts of a session by the turn smaller.  That is for good:
 * from there on its results are close to an undisturbed session's, not the same bits, until it is truncated to before
 * those parts.  Each pointer may be NULL. */
PN_API void pn_session_kv_types(const pn_session *s, pn_dtype *configured, pn_dtype *smallest, int *degraded);

/* Called between the parts of a step, a few times a millisecond at most; nonzero stops like
 * pn_session_cancel().  For progress bars and event loops. */
typedef int (*pn_tick_fn)(void *user, uint32_t tokens_done, uint32_t tokens_total);

/* How much a type of keys and values costs this model: it reads a fixed text of up to 2048 tokens with F16 and with
 * the type, and what it expects next is compared over the last half. */
typedef struct pn_kv_gate_params {
    size_t size;
    double max_kl;              /* 0: 0.02 */
    double min_top1;            /* 0: 0.97 */
    pn_tick_fn tick;            /* as for pn_session_on_tick; nonzero: PN_E_CANCELLED */
    void *user;
} pn_kv_gate_params;

typedef struct pn_kv_gate {
    uint32_t n_positions;       /* compared: 1024, fewer where the model reads less */
    double kl;                  /* mean divergence from F16, nats */
    double top1;                /* share of positions with the same likeliest token */
    int eligible;               /* kl <= max_kl and top1 >= min_top1 */
} pn_kv_gate;

/* Takes as long as reading the text twice, in sessions of its own (PN_E_BUDGET where they do not fit); the figures
 * are kept with the model, so a second call only judges them.  params may be NULL.  Any thread that may open a
 * session. */
PN_API pn_status pn_model_kv_gate(pn_model *m, pn_dtype type, const pn_kv_gate_params *params, pn_kv_gate *out, pn_err *err);

/* Append `n` tokens: compute their keys and values and the logits after the last one.  The call works
 * in steps of n_batch rows; when it fails or is cancelled the steps already finished stay, and
 * pn_session_length() tells how many tokens that makes. */
PN_API pn_status pn_session_eval(pn_session *s, const pn_token *tokens, size_t n, pn_err *err);

/* The same with logits for every new token: float32 [n, n_vocab], row-major, caller's memory. */
PN_API pn_status pn_session_eval_all(pn_session *s, const pn_token *tokens, size_t n, float *logits, pn_err *err);

/* Logits after the last evaluated token, [n_vocab], borrowed until the next call on s; NULL before
 * any evaluation and after a truncation. */
PN_API const float *pn_session_logits(const pn_session *s);

/* Forget all tokens from position `n` on.  PN_E_STATE when the model's windows no longer hold what
 * continuing from n would need, or when the model is recurrent and the prefix cache has no snapshot of its
 * state at n (start again from 0). */
PN_API pn_status pn_session_truncate(pn_session *s, uint32_t n, pn_err *err);

/* Stop the evaluation or generation in progress at the next op; it returns PN_E_CANCELLED (generate:
 * finish PN_FINISH_CANCELLED).  Async-signal-safe.  Cleared when the next call starts. */
PN_API void pn_session_cancel(pn_session *s);

/* See pn_tick_fn. */
PN_API void pn_session_on_tick(pn_session *s, pn_tick_fn tick, void *user);

/* ------------------------------------------------------------------------------------------
 * Embeddings
 * ------------------------------------------------------------------------------------------ */

/* How the vectors of a text's tokens become one. */
typedef enum pn_pooling {
    PN_POOLING_DEFAULT = 0,     /* as the model's file says (pn_model_pooling) */
    PN_POOLING_MEAN,            /* their average */
    PN_POOLING_LAST             /* the last token's */
} pn_pooling;

/* What PN_POOLING_DEFAULT means: `<arch>.pooling_type` of the file where it is one of these two, else
 * PN_POOLING_MEAN. */
PN_API pn_pooling pn_model_pooling(const pn_model *m);

/* The embedding of a text: float32 [n_embd] (pn_model_describe), caller's memory.  A token's vector is what the
 * output matrix would be multiplied with, after the final norm.  normalize 1: scaled to length 1 (a vector of
 * zeros stays one).  Models may want an end token there (tokenize with PN_TOKENIZE_BOS).
 *
 * It is a use of the session's memory, not part of its text: the session is emptied first and is empty
 * afterwards, whatever the result, except PN_E_STATE (a request works on it).  PN_E_CONTEXT: the text is longer
 * than the session's context.  The first embedding takes pn_plan_info.embed_bytes, which the session keeps;
 * PN_E_BUDGET or PN_E_NOMEM when they are not to be had.  PN_E_NUMERIC: the vector is not finite.  Ticks and
 * pn_session_cancel() work as for pn_session_eval(), and so does "same bits". */
PN_API pn_status pn_session_embed(pn_session *s, const pn_token *tokens, size_t n, pn_pooling pooling, int normalize,
                                  float *out, pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Sampling
 * ------------------------------------------------------------------------------------------ */

typedef enum pn_sampler_kind {
    PN_SAMPLER_END = 0,         /* ends `order` */
    PN_SAMPLER_PENALTIES, PN_SAMPLER_TEMPERATURE, PN_SAMPLER_TOP_K, PN_SAMPLER_TOP_P, PN_SAMPLER_MIN_P,
    PN_SAMPLER_TYPICAL, PN_SAMPLER_TOP_N_SIGMA, PN_SAMPLER_XTC, PN_SAMPLER_DRY,
    PN_SAMPLER_KIND_COUNT
} pn_sampler_kind;

#define PN_SAMPLER_ORDER_MAX 16

typedef struct pn_logit_bias {
    pn_token token;
    float bias;                 /* added to the logit; -INFINITY bans */
} pn_logit_bias;

/* Zeroed: greedy, no truncation, no penalty. */
typedef struct pn_sampling {
    size_t size;
    float temperature;          /* 0: greedy (ties: lowest id) */
    int32_t top_k;              /* <= 0: off */
    float top_p;                /* 0 or >= 1: off */
    float min_p;                /* 0: off */
    float repeat_penalty;       /* 0 or 1: off; over the last repeat_last_n tokens, prompt included */
    int32_t repeat_last_n;      /* 0: 64; -1: the whole session */
    float presence_penalty;     /* over generated tokens */
    float frequency_penalty;
    uint64_t seed;              /* used when has_seed; else one is drawn from the system */
    int has_seed;
    int ignore_eos;             /* never choose a token that ends an answer */
    uint32_t min_tokens;        /* no end before this many */
    const pn_logit_bias *bias;  /* borrowed while the sampler lives */
    size_t n_bias;
    uint8_t order[PN_SAMPLER_ORDER_MAX];    /* pn_sampler_kind; all zero: penalties, DRY, top-n-sigma,
                                               temperature, top-k, typical, top-p, min-p, XTC */
    float typical_p;            /* 0 or >= 1: off */
    float top_n_sigma;          /* <= 0: off; keep logits within n standard deviations of the best */
    float xtc_probability;      /* 0: off; how often all of the likely tokens but the least go */
    float xtc_threshold;        /* 0: 0.1; what "likely" is; above 0.5: off */
    float dry_multiplier;       /* 0: off; against repeating passages */
    float dry_base;             /* 0: 1.75; below 1: off */
    int32_t dry_allowed_length; /* 0: 2; shorter repetitions go unpunished */
    int32_t dry_penalty_last_n; /* 0: 64; -1: the whole session */
    const char *const *dry_breakers;    /* texts that passages do not reach across; NULL: line end, ':',
                                           '"' and '*'.  Borrowed during pn_sampler_new */
    size_t n_dry_breakers;      /* 0 with dry_breakers not NULL: none */
    float dynatemp_range;       /* <= 0: off; the temperature varies by so much with the entropy */
    float dynatemp_exponent;    /* 0: 1 */
    int32_t mirostat;           /* 0: off; 2: mirostat v2 instead of the truncating samplers */
    float mirostat_tau;         /* 0: 5; surprise aimed at, bits */
    float mirostat_eta;         /* 0: 0.1; how fast */
    uint32_t min_keep;          /* candidates that top-p, min-p, typical and XTC leave at least */
} pn_sampling;

/* Program defaults (temperature 0.8, top-k 40, top-p 0.95, min-p 0.05), then what the model's file
 * recommends (general.sampling.*). */
PN_API void pn_sampling_default(const pn_model *m, pn_sampling *out);

/* "penalties;temperature;top_k" to order[]; names as in docs/cli.md. */
PN_API pn_status pn_sampling_parse_order(const char *text, uint8_t order[PN_SAMPLER_ORDER_MAX], pn_err *err);

typedef struct pn_sampler pn_sampler;
PN_API pn_status pn_sampler_new(const pn_model *m, const pn_sampling *p, pn_sampler **out, pn_err *err);
PN_API void pn_sampler_free(pn_sampler *s);
PN_API uint64_t pn_sampler_seed(const pn_sampler *s);

/* Choose from logits [n_vocab], which are not changed.  Randomness is a function of the seed and of
 * how many tokens were accepted, so the same seed and text give the same tokens. */
PN_API pn_status pn_sampler_pick(pn_sampler *s, const float *logits, pn_token *out, pn_err *err);

/* Tell the sampler a token is now part of the text; `generated` 0 for the prompt's. */
PN_API pn_status pn_sampler_accept(pn_sampler *s, pn_token t, int generated, pn_err *err);

/* Log-probabilities (natural, of the raw logits [n_vocab], before bias, temperature and the rest).
 * ids, lp [n_top]: the likeliest tokens, best first, ties by id; chosen_lp (may be NULL): that of
 * `chosen`, which need not be among them. */
PN_API pn_status pn_logprobs(const pn_model *m, const float *logits, pn_token chosen, uint32_t n_top, pn_token *ids,
                             float *lp, float *chosen_lp, pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Grammars
 * ------------------------------------------------------------------------------------------ */

/* What a text has to look like, compiled once; any number of threads may use it.  Free it before its
 * engine. */
typedef struct pn_grammar pn_grammar;

/* GBNF, as llama.cpp writes it.  PN_E_INVALID: the error names line and column, or the limit. */
PN_API pn_status pn_grammar_gbnf(pn_engine *e, const char *text, size_t len, pn_grammar **out, pn_err *err);

/* JSON Schema, draft 2020-12: the text is one JSON document that satisfies it.  PN_E_UNSUPPORTED: a
 * keyword that cannot be enforced; PN_E_INVALID: not a schema, or nothing satisfies it; PN_E_FORMAT:
 * not JSON.  The error begins with the JSON pointer. */
PN_API pn_status pn_grammar_json_schema(pn_engine *e, const char *text, size_t len, pn_grammar **out, pn_err *err);
PN_API void pn_grammar_free(pn_grammar *g);

typedef enum pn_tool_choice {
    PN_TOOLS_AUTO = 0,          /* text, calls or both, as the model likes; what begins as a call is one */
    PN_TOOLS_NONE,              /* text; no call can begin */
    PN_TOOLS_REQUIRED           /* a call, and no text */
} pn_tool_choice;

typedef struct pn_tools_params {
    size_t size;
    const char *tools;          /* JSON array of OpenAI function tools */
    size_t tools_len;           /* 0: strlen */
    const char *chat_template;  /* source text that tells the syntax of calls; NULL: the model's own */
    size_t chat_template_len;   /* 0: strlen */
    const char *syntax;         /* a syntax by name ("hermes", "harmony", ...), wins over the template */
    pn_tool_choice choice;
    const char *name;           /* PN_TOOLS_REQUIRED: the one function to call; NULL: any */
    int single;                 /* 1: no parallel calls */
} pn_tools_params;

/* Tool calls in the syntax of the model's family, with names and arguments as the tools' schemas want
 * them.  m NULL: markers are bytes, not tokens (for pn_grammar_matches); else the grammar is for sessions of
 * m, or of a model with the same vocabulary.  PN_E_UNSUPPORTED: a keyword that
 * cannot be enforced, after its JSON pointer into the array of tools; for tools that are not strict and
 * PN_TOOLS_AUTO it is left out instead, and pn_grammar_widened has the pointer. */
PN_API pn_status pn_grammar_tools(pn_engine *e, const pn_model *m, const pn_tools_params *p, pn_grammar **out, pn_err *err);

/* JSON pointers of what was left out, a line each; "" for none.  Borrowed from g. */
PN_API const char *pn_grammar_widened(const pn_grammar *g);

/* 1: the whole text is a sentence of the grammar; 0: it is not, or memory or a limit stopped us. */
PN_API int pn_grammar_matches(pn_grammar *g, const char *text, size_t len);

/* The grammar as GBNF through `write` (return nonzero to stop): what it came to, with rules of its
 * own naming.  pn_grammar_gbnf reads it back. */
PN_API pn_status pn_grammar_print(const pn_grammar *g, pn_write_fn write, void *user, pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Generation
 * ------------------------------------------------------------------------------------------ */

/* Called for each token with the new whole characters (perhaps none: len 0), not terminated, valid
 * during the call.  Return nonzero to stop. */
typedef int (*pn_text_fn)(void *user, const char *text, size_t len, pn_token token);

/* What a token's text is.  Of a token that is several things ("</think>Hi") the last here counts. */
typedef enum pn_text_part {
    PN_PART_MARKUP = 0,         /* nothing that is delivered: markers, trimmed white space, control tokens */
    PN_PART_REASONING,
    PN_PART_CALL,               /* a tool call, its syntax included */
    PN_PART_CONTENT             /* the answer; in pn_session_generate all text is */
} pn_text_part;

/* A token with its log-probability: natural, of the raw logits of the step that chose it, before bias,
 * temperature and the rest, and before a grammar's mask; so a token that a grammar forced may be very
 * unlikely, and -INFINITY is possible. */
typedef struct pn_token_logprob {
    pn_token token;
    float logprob;
    const char *bytes;          /* its own, as they stand in the text, perhaps half a character; all of them
                                   even when a stop string begins inside.  Not terminated; valid during the call */
    size_t len;
    pn_text_part part;          /* of an alternative: 0 */
    const struct pn_token_logprob *top;     /* [n_top] likeliest tokens of that step, best first, ties by id;
                                               `token` need not be among them.  Of an alternative: NULL */
    uint32_t n_top;
} pn_token_logprob;

/* Called once for each token whose text is delivered, at least in part, and for those that have no text,
 * in order; before the first of its content is delivered.  Never for a token that belongs to a stop string
 * entirely.  A token whose text is held back comes when that is decided.  Return nonzero to stop. */
typedef int (*pn_logprob_fn)(void *user, const pn_token_logprob *t);

typedef enum pn_finish {
    PN_FINISH_NONE = 0,
    PN_FINISH_STOP,             /* the model ended its answer, or a stop string was met */
    PN_FINISH_LENGTH,           /* max_tokens */
    PN_FINISH_CONTEXT,          /* the context is full */
    PN_FINISH_CALLBACK,         /* on_text or on_logprob said so */
    PN_FINISH_CANCELLED
} pn_finish;

typedef struct pn_generate_params {
    size_t size;
    const pn_token *prompt;     /* appended to what the session holds; may be empty when logits exist */
    size_t n_prompt;
    uint32_t max_tokens;        /* 0: until the end or the context is full */
    const pn_sampling *sampling;    /* NULL: greedy */
    const char *const *stop;    /* stop strings, never part of the text delivered, as bytes.  The one that
                                   starts first counts, of those starting together the longest.  Empty ones
                                   and NULL never match */
    size_t n_stop;
    pn_text_fn on_text;
    void *user;
    pn_grammar *grammar;        /* the answer has to be one of its sentences; NULL: anything */
    const char *grammar_after;  /* the grammar holds behind this text (at most 63 bytes), e.g. "</think>";
                                   NULL: from the first token on, in a conversation behind the model's
                                   reasoning, if any; "": from the first token on in any case */
    const char *think_open, *think_close;   /* with a grammar: markers between which the model may reason
                                   before its answer, if it opens them; NULL: it may not */
    pn_logprob_fn on_logprob;   /* NULL: log-probabilities are not computed */
    void *logprob_user;
    uint32_t n_top;             /* alternatives with each token, at most the vocabulary */
    uint64_t client;            /* whose request it is, a number of the caller's: where not all can be worked on at
                                   once, the next to begin is of the client with the fewest under way */
    void (*on_done)(void *user);    /* of a request: called once, after every other callback, when pn_request_done() has
                                   become true; from the thread that steps, or from within pn_request_new when nothing
                                   had to be computed.  No lock of the engine is held: the request may be freed, by any
                                   thread.  Not called for one that pn_request_free ended.  NULL: nobody is told */
    void *done_user;
    uint64_t salt;              /* prompts share what was computed only with those of the same salt: tenants that must
                                   not learn of each other have one each */
    int no_cache;               /* 1: the prefix cache is neither asked nor told */
    uint32_t grant;             /* by the turn: memory for so many tokens of the answer is reserved before it begins, for more
                                   in pieces of 1,024 while there is memory; then it ends with PN_FINISH_LENGTH and
                                   stopped_by_memory.  0: for max_tokens at once, and it never ends for memory */
    int may_shrink;             /* 1: max_tokens that could not be had even alone become as many as can, at least 16;
                                   pn_generate_result.max_tokens tells.  0: such a turn is refused; -1: and one with more
                                   max_tokens than the context has left, too (PN_E_CONTEXT) */
} pn_generate_params;

typedef struct pn_generate_result {
    pn_finish finish;
    uint32_t n_prompt;          /* tokens given; in a conversation those that the session did not keep */
    uint32_t n_generated;
    double prefill_seconds, decode_seconds;
    uint64_t seed;
    int32_t stop_index;         /* the stop string that ended it; -1: none did */
    uint32_t n_kept;            /* of n_generated, those that belong to the session: all (but a last one that
                                   was cancelled or found the context full), or after a stop string those
                                   whose text was delivered wholly */
    uint32_t n_context;         /* tokens in the session before the answer */
    uint32_t n_cached;          /* of n_context, those that were not computed: the session held them, or they were
                                   taken from the prefix cache */
    uint32_t n_reasoning;       /* of n_generated, those whose text is reasoning, without its markers (PN_PART_REASONING) */
    uint32_t max_tokens;        /* in effect: what was asked for, the context, and memory allow */
    int stopped_by_memory;      /* 1: it ended (PN_FINISH_LENGTH) because memory for more was not to be had */
    pn_dtype kv_type;           /* the session's keys and values */
    int kv_degraded;            /* 1: some became smaller than that while it ran, or before */
    double parked_seconds;      /* it stood still so long for want of memory */
    pn_level level_max;         /* the worst while it ran */
} pn_generate_result;

/* Evaluate the prompt, then sample until something ends it.  `result` (may be NULL) is filled on
 * failure too.  Every sampled token but a final end token is part of the session afterwards.  When a stop
 * string cut the answer, the session is truncated to the n_kept tokens whose text was delivered wholly, so
 * that it agrees with what the caller saw; as after pn_session_truncate there may be no logits then.
 * Where a window or recurrent state makes truncating impossible, the tokens of the stop string stay (pn_session_length
 * tells), and only starting again from 0 removes them. */
PN_API pn_status pn_session_generate(pn_session *s, const pn_generate_params *p, pn_generate_result *result,
                                     pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Conversations
 * ------------------------------------------------------------------------------------------ */

/* Messages in, answers out: the model's own chat template renders the prompt, the session keeps what it
 * has computed, and the answer is taken apart into reasoning, content and tool calls while it comes.
 * What the model said stays in the session as it was sampled. */
typedef struct pn_chat pn_chat;

typedef struct pn_chat_params {
    size_t size;
    const char *template_text;  /* Jinja source; NULL: the model's own, else a built-in format */
    size_t template_len;
    const char *format;         /* a built-in format by name (pn_chat_format) instead of any template */
    const char *variables;      /* JSON object: template variables such as enable_thinking; NULL: none */
    size_t variables_len;       /* 0: strlen */
    const char *tools;          /* JSON array of OpenAI function tools; NULL: none */
    size_t tools_len;
    const char *syntax;         /* how the model writes reasoning and calls, by name ("hermes", "harmony", ...);
                                   NULL: as its template tells */
} pn_chat_params;

/* A conversation in `s`, which must outlive it and which nobody else uses meanwhile.  params may be
 * NULL; its strings are copied.  Tools are checked here: see pn_grammar_tools for what is refused. */
PN_API pn_status pn_chat_new(pn_session *s, const pn_chat_params *params, pn_chat **out, pn_err *err);
PN_API void pn_chat_free(pn_chat *c);

/* JSON pointers into the tools, a line each, of what PN_TOOLS_AUTO does not enforce; "" for none.
 * Borrowed from c. */
PN_API const char *pn_chat_widened(const pn_chat *c);

/* Append a message: as OpenAI's JSON object (any role, parts, tool calls, tool results), or as plain
 * text.  len 0: strlen. */
PN_API pn_status pn_chat_add(pn_chat *c, const char *message_json, size_t len, pn_err *err);
PN_API pn_status pn_chat_say(pn_chat *c, const char *role, const char *content, size_t len, pn_err *err);

/* Messages so far; the i-th as JSON, borrowed until the next call on c (NULL: no such message); forget
 * those from n on. */
PN_API size_t pn_chat_length(const pn_chat *c);
PN_API const char *pn_chat_message(const pn_chat *c, size_t i, size_t *len);
PN_API void pn_chat_forget(pn_chat *c, size_t n);

typedef struct pn_chat_reply_params {
    size_t size;
    const pn_generate_params *generate;     /* sampling, max_tokens, stop, grammar, on_logprob; prompt, on_text
                                       and its user are ours.  NULL: greedy, until the end */
    pn_output_fn on_event;          /* may be NULL; nonzero stops */
    void *user;
    int has_reasoning_budget;       /* 1: reasoning is closed after reasoning_budget tokens (0: at once), and
                                       before it leaves fewer than answer_reserve of max_tokens */
    uint32_t reasoning_budget, answer_reserve;
    pn_tool_choice tool_choice;     /* for a conversation with tools */
    const char *tool_name;          /* PN_TOOLS_REQUIRED: the one function to call; NULL: any */
    int single_call;                /* 1: no parallel calls */
} pn_chat_reply_params;

/* Let the model answer; the answer becomes the last message.  On failure there is no answer, and the
 * messages are as before.
 *
 * Calls are held to the tools' schemas, whatever the choice.  A grammar of the caller's takes their place:
 * it holds the answer behind the model's reasoning, in the final channel where a model has channels.  What
 * is held to a JSON Schema is content even if it looks like a call; what GBNF makes the model write is
 * read as ever.
 *
 * Stop strings apply to the content, as it is delivered: not to reasoning, markers or calls, and none
 * reaches across those two.  The message's content is what was delivered, the first part of a token that
 * the session had to give up included; the next turn goes on from that text (and computes anew what a
 * window does not let it take back).  on_logprob is called for all tokens but those of a stop string;
 * `part` says which of them are content. */
PN_API pn_status pn_chat_reply(pn_chat *c, const pn_chat_reply_params *params, pn_generate_result *result, pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Requests: many answers at once
 * ------------------------------------------------------------------------------------------ */

/* A generation that is under way: pn_engine_step() computes a token of every request that has begun its
 * answer, and a chunk of the prompts, in one pass over the weights.  What comes out is what
 * pn_session_generate() and pn_chat_reply() would have given.
 *
 *     pn_request_new(...) for each session, pn_request_chat(...) for each conversation
 *     do pn_engine_step(engine, 0, &active, &err); while (active);
 *     pn_request_result(...), pn_request_free(...)
 *
 * While a request is not done, its session and conversation belong to it: other calls on them return
 * PN_E_STATE.  Free requests before their session and conversation. */
typedef struct pn_request pn_request;

/* The prompt and the sampling parameters are copied; stop strings, grammar, markers and what callbacks need
 * stay valid until the request is freed.  From any thread.  Callbacks come from pn_engine_step(). */
PN_API pn_status pn_request_new(pn_session *s, const pn_generate_params *p, pn_request **out, pn_err *err);

/* The same for an answer in a conversation; params' generate and all it points to stay valid, too. */
PN_API pn_status pn_request_chat(pn_chat *c, const pn_chat_reply_params *params, pn_request **out, pn_err *err);

PN_API int pn_request_done(const pn_request *r);       /* from any thread */
PN_API int pn_request_parked(const pn_request *r);     /* 1: it stands aside until there is memory; from any thread */

/* Tokens in the session before the answer, and how many of them need not be computed.  Known from the
 * beginning; from any thread.  Either may be NULL. */
PN_API void pn_request_prompt(const pn_request *r, uint32_t *n_prompt, uint32_t *n_cached);

/* What it came to: the status and error of this request alone.  PN_E_STATE: it is not done. */
PN_API pn_status pn_request_result(const pn_request *r, pn_generate_result *out, pn_err *err);

/* It ends with the step in progress, PN_FINISH_CANCELLED.  From any thread. */
PN_API void pn_request_cancel(pn_request *r);

/* Paused, it is in no step that begins from now on, and its place under pn_model_caps.concurrent goes to
 * others; what its reader is too slow for is not computed.  pn_request_cancel and _free end it.  Steps of an engine
 * whose requests are all paused do nothing and return at once.  From any thread; in a callback, too. */
PN_API void pn_request_pause(pn_request *r, int paused);

/* Cancels it when it is not done.  From any thread; waits for the step or the on_done that another thread is
 * working on, so hold no lock that a callback takes.  From a callback it does not wait.  No callback comes after it. */
PN_API void pn_request_free(pn_request *r);

/* One step for all requests of the engine, by the calling thread and the engine's own.  seconds: return
 * after about that long, in the middle of the step if need be; the next call goes on with it.  0: to its end.
 * With several dies a step on each that has work; it returns with the first that is finished, so none waits for a
 * slower one.  *n_active (may be NULL): requests that are not done.  One thread at a time, and not from a callback:
 * PN_E_STATE.  What goes wrong with a request is its own result. */
PN_API pn_status pn_engine_step(pn_engine *e, double seconds, uint32_t *n_active, pn_err *err);

/* Let the engine drive its steps itself, on a thread of its own that sleeps while there is no request;
 * callbacks come from it.  PN_E_STATE: it does already.  stop waits for the step in progress; requests
 * that are not done stay for the next driver. */
PN_API pn_status pn_engine_start(pn_engine *e, pn_err *err);
PN_API void pn_engine_stop(pn_engine *e);

/* ------------------------------------------------------------------------------------------
 * Making files
 * ------------------------------------------------------------------------------------------ */

typedef struct pn_quantize_params {
    size_t size;
    pn_dtype type;              /* for every matrix, the output included; presets by name below */
    const char *preset;         /* "Q4_K_M", "Q8_0", ...: the usual mixtures; wins over `type`.  The
                                   name of a format alone ("Q4_K"): that and a finer output matrix */
    int keep_output_type;       /* leave the output matrix (the embedding where it serves as one) */
    pn_progress_fn progress;
    void *progress_user;
} pn_quantize_params;

/* Write `in` (all its parts; a file or a Hugging Face folder) with its matrices converted, to one GGUF file.  Rows that do not divide into
 * the type's blocks get the next type with smaller ones.  Peak memory: a few MiB.  `out` appears, or
 * is replaced, when it is complete; it may not be the file read. */
PN_API pn_status pn_quantize(pn_engine *e, const char *in, const char *out, const pn_quantize_params *p, pn_err *err);

typedef struct pn_convert_params {
    size_t size;
    pn_progress_fn progress;
    void *progress_user;
} pn_convert_params;

/* Write the tensors of a file of torch (`in`: .pth, .pt, .bin; a state_dict, at the top or under "state_dict", "model" or
 * "module") as safetensors.  Nothing in the file is run: what is more than tensors is refused by name (PN_E_UNSUPPORTED) or
 * left out with a line in the log.  Values stay as they are; a tensor under two names is written once and the metadata tell
 * the other name.  Peak memory: 32 MiB and the tables.  `out` appears, or is replaced, when it is complete; it may not be
 * the file read. */
PN_API pn_status pn_convert(pn_engine *e, const char *in, const char *out, const pn_convert_params *p, pn_err *err);

typedef struct pn_synth_params {
    size_t size;
    const char *shape;          /* "135m", "1b", "3b", "8b", "moe64", "tiny" */
    const char *type;           /* a preset or a type; NULL: "Q4_K_M" */
    uint32_t n_vocab;           /* at least 261; 0: 32000 ("tiny": 512) */
    uint32_t n_ctx;             /* trained context to declare; 0: 8192 */
    uint64_t seed;
    pn_progress_fn progress;
    void *progress_user;
} pn_synth_params;

/* A model of a known shape with random weights and a usable byte vocabulary: plan and measure
 * without a download. */
PN_API pn_status pn_synth(pn_engine *e, const char *out, const pn_synth_params *p, pn_err *err);

/* ------------------------------------------------------------------------------------------
 * Backends
 * ------------------------------------------------------------------------------------------ */

/* A device backend (pantheon_cuda.c, pantheon_tt.c) hands its table to the core, usually from a
 * constructor; probing happens at pn_engine_open.  The struct is internal and versioned: a mismatch
 * gives PN_E_ABI.  At most 8 per process. */
typedef struct pn_device_ops pn_device_ops;
PN_API pn_status pn_backend_register(const pn_device_ops *ops);

/* "cpu", or the first registered backend with a usable device; static. */
PN_API const char *pn_backend_name(const pn_engine *e);

/* ------------------------------------------------------------------------------------------
 * Server (pantheon_serve.c)
 * ------------------------------------------------------------------------------------------ */

/* An OpenAI-compatible server inside your process: models by name, any number of connections, one thread.
 *
 *     pn_server_new, _load (each model), _listen (each address)
 *     while (pn_server_poll(server, -1, &err) == PN_OK && pn_server_running(server)) continue;
 *     pn_server_free
 *
 * It belongs to the thread that polls it; only pn_server_stop() may be called from elsewhere.  Unless told
 * otherwise it has the engine drive its steps (pn_engine_start) and two threads of its own for what takes long:
 * prompts and loading. */
typedef struct pn_server pn_server;

typedef enum pn_metrics_names { PN_METRICS_DEFAULT = 0, PN_METRICS_VLLM, PN_METRICS_OFF } pn_metrics_names;

typedef struct pn_server_params {
    size_t size;
    const char *api_keys;           /* text of a key file: a key a line, comments from '#'; NULL: open to all */
    const char *admin_keys;         /* the same for /admin; NULL: from this host only */
    const char *const *cors;        /* [n_cors] origins whose pages may call us, or "*" */
    size_t n_cors;
    uint32_t queue;                 /* requests of a model that may wait for their turn; 0: 64 */
    uint32_t ctx_floor;             /* each model keeps memory for one turn of so many tokens; 0: 4096, fewer where short */
    uint32_t default_max_new;       /* tokens that are reserved for an answer without a limit, more as it grows; 0: 2048 */
    uint32_t idle_ms;               /* a connection without a request is closed after; 0: 60,000 */
    uint32_t drain_ms;              /* what is under way when the server stops may take; 0: 30,000 */
    uint32_t max_body;              /* bytes of a request; 0: 32 MiB */
    uint32_t max_connections;       /* 0: 4096 */
    pn_metrics_names metrics;
    int inline_work;                /* 1: no threads; pn_server_poll computes, too, some milliseconds at a time */
    const char *build;              /* what "/" tells as build; NULL: "none" */
    pn_log_fn log;                  /* a line a request and what else happens; from the thread that polls */
    void *log_user;
    int log_json;                   /* 1: lines are JSON objects */
} pn_server_params;

PN_API pn_status pn_server_new(pn_engine *e, const pn_server_params *params, pn_server **out, pn_err *err);

/* Closes everything at once: what is under way ends with an error.  Its models are freed, before the engine. */
PN_API void pn_server_free(pn_server *s);

typedef struct pn_server_model {
    size_t size;
    const char *path;
    const char *name;               /* NULL: the file's name without ".gguf" */
    const char *const *aliases;     /* [n_aliases] more names */
    size_t n_aliases;
    uint32_t ctx_cap;               /* most tokens of a conversation; 0: as trained and as memory allows */
    uint32_t max_sessions;          /* 0: no cap */
    uint32_t max_concurrent;        /* requests worked on at once; 0: 8 */
    int has_reasoning_budget;
    uint32_t reasoning_budget;      /* most tokens of reasoning */
    pn_dtype kv_type;               /* with has_kv_type; else F16 */
    int has_kv_type;
    pn_residency residency;         /* this and the next ones as for pn_model_params */
    uint64_t pin_bytes, stream_block, expert_cache_bytes;
    uint32_t stream_depth;
    const char *template_text;      /* Jinja instead of the model's own template; NULL: its own */
    const uint32_t *dies;           /* [n_dies]; none: the server chooses */
    size_t n_dies;
    const char *load_type;          /* as for pn_model_params */
} pn_server_model;

/* Begin to load a model, on a thread of the server; pn_server_poll goes on meanwhile, and requests for it get 503.
 * Strings are copied.  PN_E_INVALID: the name is taken. */
PN_API pn_status pn_server_load(pn_server *s, const pn_server_model *m, pn_err *err);

/* PN_OK: every model is ready; PN_E_STATE: some are loading; else what the first one failed with. */
PN_API pn_status pn_server_ready(const pn_server *s, pn_err *err);

/* Listen on "HOST:PORT", "[ADDRESS]:PORT", "unix:PATH" or "fd:NUMBER" (a listening socket that was handed over).
 * Port 0: any; bound (may be NULL) [cap] gets what it came to. */
PN_API pn_status pn_server_listen(pn_server *s, const char *address, char *bound, size_t cap, pn_err *err);

/* Handle what is due, waiting for it up to timeout_ms (-1: for ever; 0: not at all). */
PN_API pn_status pn_server_poll(pn_server *s, int timeout_ms, pn_err *err);

/* For loops of your own: a descriptor that is readable when pn_server_poll has something to do (-1: this system
 * has none), and milliseconds until it has in any case (-1: never). */
PN_API int pn_server_fd(const pn_server *s);
PN_API int pn_server_timeout(const pn_server *s);

/* Take no more requests, finish what is under way (drain_ms), then pn_server_running is 0.  The second call ends
 * at once.  From any thread and from signal handlers. */
PN_API void pn_server_stop(pn_server *s);
PN_API int pn_server_running(const pn_server *s);

/* A request on a route of yours; texts are valid during the call. */
typedef struct pn_server_request {
    const char *method, *path;      /* decoded, without the query */
    const char *query;              /* as sent; "" */
    const char *body;
    size_t body_len;
    const char *peer;               /* address of the client */
    const void *fields;             /* for pn_server_field */
} pn_server_request;

typedef struct pn_server_response {
    int status;                     /* 0: 200 */
    const char *content_type;       /* NULL: "application/json" */
    const char *body;               /* copied when the handler returns */
    size_t body_len;
} pn_server_response;

typedef void (*pn_server_handler)(void *user, const pn_server_request *request, pn_server_response *response);

/* A header field of the request, NULL: absent. */
PN_API const char *pn_server_field(const pn_server_request *request, const char *name);

/* Routes of your own beside ours, and before them: GET, HEAD by GET, POST, PUT, PATCH, DELETE; API keys count for
 * them unless `open`.  The path is copied and compared whole.  The handler runs in pn_server_poll: it should be
 * quick. */
PN_API pn_status pn_server_handle(pn_server *s, const char *method, const char *path, int open, pn_server_handler fn,
                                  void *user, pn_err *err);

#endif /* PANTHEON_H */
