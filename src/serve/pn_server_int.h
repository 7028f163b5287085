/*
 * pn_server_int.h - the server's own structs, for its files only.
 *
 *     pn_server.c      sockets, connections, the loop; what is public
 *     pn_routes.c      which path is whose; the short answers
 *     pn_registry.c    models by name and their replicas: loading, unloading, routing
 *     pn_replica.c     which replica answers a request
 *     pn_ask.c         a request for text: from its body to its answer
 *     pn_ask_begin.c   what of it happens on the lane: parsing, prompt, grammar, sessions
 *     pn_ask_score.c   log-probabilities of a prompt
 *     pn_ask_once.c    requests that generate nothing: tokens, embeddings
 *     pn_admin.c       /v1/models, /admin, /metrics and the like
 *
 * Who owns what.  All of it is the I/O thread's, the one in pn_server_poll, but
 *
 *     an ask while a lane has it (phase PARSING, BEGINNING, CLOSING): the lane's
 *     an ask's reply and box: whoever holds its lock; the engine's stepping thread writes, we read
 *     a replica while it is LOADING or UNLOADING: the loader's lane
 *
 * Lock order: ask->lock, then whatever the engine locks.  pn_request_free is called without ask->lock.
 */
#ifndef PN_SERVER_INT_H
#define PN_SERVER_INT_H

#include "base/pn_err.h"
#include "serve/pn_access.h"
#include "serve/pn_affinity.h"
#include "serve/pn_conn_net.h"
#include "serve/pn_lane.h"
#include "serve/pn_metrics.h"
#include "serve/pn_net.h"
#include "serve/pn_oai.h"
#include "serve/pn_reply.h"

typedef struct serve_conn serve_conn;
typedef struct serve_model serve_model;
typedef struct serve_replica serve_replica;
typedef struct serve_ask serve_ask;

enum { SERVE_LISTENERS = 8, SERVE_CHOICES = 16, SERVE_READY = 64, SERVE_GAPS = 32, SERVE_PARTS = 2 };

/* ------------------------------------------------------------------------------------------
 * Connections
 * ------------------------------------------------------------------------------------------ */

typedef enum serve_api { SERVE_OPENAI = 0, SERVE_ANTHROPIC } serve_api;         /* whose errors the client understands */

struct serve_conn {
    pn_server *server;
    pn_conn c;
    int fd;
    unsigned events;            /* what the poller waits for */
    pn_peer peer;
    serve_conn *prev, *next;    /* all of them */
    serve_conn *waiting;        /* next of those that wait for a model, see `waiters` and `gone` */
    serve_ask *ask;             /* at work for it, or NULL */
    serve_api api;
    bool dead;                  /* closed; freed at the end of the turn */
    char request_id[65];
    uint64_t began;             /* ms */
    int status;                 /* of the reply */
};

/* ------------------------------------------------------------------------------------------
 * Models
 * ------------------------------------------------------------------------------------------ */

typedef enum serve_state { SERVE_LOADING = 0, SERVE_MODEL_READY, SERVE_DRAINING, SERVE_UNLOADING, SERVE_FAILED,
                           SERVE_PARKED } serve_state;     /* unloaded for want of memory; loads again when it is asked for */

/* One copy of a model, on its die or split over two. */
struct serve_replica {
    serve_model *model;
    serve_replica *next;
    uint32_t dies[SERVE_PARTS], n_dies;
    uint64_t bit;               /* for the table of what was seen: 1 << a number of its own; 0: there is one die */
    uint32_t ctx_cap, max_sessions, max_concurrent;
    serve_state state;
    pn_model *m;                /* owned; NULL until it is ready */
    pn_template *tpl;           /* owned; NULL: the model has none */
    pn_plan_info plan;
    pn_model_info info;
    uint32_t n_ctx;             /* most tokens of a conversation */
    pn_err err;                 /* why it failed */
    pn_task task;
    serve_conn *waiters;        /* want to be told that it is loaded, or gone */
    uint32_t n_running;
    uint64_t n_served;          /* asks that ran on it */
    uint64_t used_ms;           /* when the last of them began or ended */
    bool parks;                 /* being unloaded, to be loaded again when somebody asks for it */
    bool relieved;              /* others were parked for its sake since it began to load */
};

/* A name, and its replicas.  What is not a replica's own is as the first one was loaded with. */
struct serve_model {
    pn_server *server;
    serve_model *next;
    char *name, *path, *load_type;      /* owned; load_type may be NULL */
    pn_str aliases;             /* owned: names, each followed by a NUL */
    pn_str template_text;       /* owned */
    pn_server_model params;     /* texts are not valid any more */
    serve_replica *replicas;    /* owned, oldest first; never empty */
    int64_t created;
    serve_conn *gone;           /* want to be told that the last of them is gone */
    serve_ask *queue, **queue_end;      /* asks that wait for a place */
    uint32_t n_queued, n_running;
    double seconds;             /* of a request, from begin to end: a moving average; 0: unknown */
    uint32_t metrics;           /* its index there */
};

/* ------------------------------------------------------------------------------------------
 * Asks
 * ------------------------------------------------------------------------------------------ */

typedef enum serve_kind {
    SERVE_CHAT = 0, SERVE_COMPLETION, SERVE_RESPONSES, SERVE_MESSAGES,  /* generate */
    SERVE_EMBED, SERVE_TOKENIZE, SERVE_DETOKENIZE, SERVE_TEMPLATE,      /* answer at once */
    SERVE_COUNT, SERVE_COUNT_RESPONSES, SERVE_COUNT_MESSAGES
} serve_kind;

typedef enum serve_phase { SERVE_PARSING = 0, SERVE_QUEUED, SERVE_BEGINNING, SERVE_RUNNING, SERVE_CLOSING } serve_phase;

typedef struct serve_tokens {
    pn_token *list;             /* owned, [n] */
    size_t n;
} serve_tokens;

/* One answer of the model. */
typedef struct serve_choice {
    serve_ask *ask;
    uint32_t index;
    pn_session *session;        /* owned, like the next two */
    pn_chat *chat;
    pn_request *request;
    pn_generate_params generate;
    pn_chat_reply_params reply;
    pn_sampling sampling;
    serve_tokens prompt;        /* of a completion */
    bool begun, done;           /* under the ask's lock: there is a request, and it is done */
    bool told;                  /* its end has been told to the reply */
    bool calls;                 /* it has called a tool */
    bool led;                   /* under the lock: its prompt is computed */
} serve_choice;

struct serve_ask {
    pn_server *server;
    serve_kind kind;
    serve_phase phase;
    serve_conn *conn;           /* NULL: the client has gone */
    serve_ask *prev, *next;     /* all of them */
    serve_ask *behind;          /* in the queue of its model */
    serve_model *model;         /* once it is known */
    serve_replica *at;          /* while it has a place */
    uint64_t client;            /* whose it is: for fairness */
    pn_str session;             /* owned: the head's X-Session-Id */
    pn_affinity_keys keys;      /* what it is known by, where there are several dies */
    pn_task task;
    pn_str body;                /* owned: what was sent */
    struct serve_request *req;  /* owned by the lane's files: what it says */
    pn_bytes model_name;        /* of it */
    bool stream;
    bool computes;              /* on the lane, not in a request */
    bool retry;                 /* there was no memory for it beside the others: wait until n_closed is not retry_at */
    uint64_t retry_at;
    bool no_wait;               /* does not want to wait for it */
    uint32_t overtaken;         /* by others that needed less, since */
    pn_budget_info budget;      /* size 0: no turn of it was refused */
    atomic_bool cancelled;
    pn_oai_error error;         /* status 0: none */

    char id[25];
    pn_str report, served;      /* texts the reply borrows: "pantheon"'s members, the model's name */
    size_t report_head;         /* bytes of report that are known from the beginning */
    pn_generate_result worst;   /* of what choices report: the worst */
    serve_choice choice[SERVE_CHOICES];
    uint32_t n_choices, n_begun;
    pn_grammar *grammar;        /* owned */
    pn_oai_usage usage;

    pn_mutex lock;              /* the next ones, while RUNNING */
    pn_reply *reply;            /* owned */
    pn_str box;                 /* events that have not been fetched: records, see ask_emit */
    bool paused;                /* the box is full: its requests are paused */
    uint32_t n_done;
    uint32_t n_led, n_leaders;  /* choices that were begun at once: one for each prompt */
    bool more_due;              /* their prompts are computed: begin the others, which then find them in the cache */
    pn_status more_status;      /* what that came to, with the text in more_err */
    pn_err more_err;
    uint64_t first_ms, last_ms; /* when tokens came */
    uint16_t gaps[SERVE_GAPS];  /* ms between tokens, for the metrics, [n_gaps] */
    uint32_t n_gaps;
    bool failed;                /* the reply ran out of memory, or its reader is gone */

    atomic_bool news;           /* look into the box */
    pn_str out;                 /* the records being sent, from out_at on */
    size_t out_at;
    bool adding;                /* the lane is at it; meanwhile the ask does not end */
    bool streaming, ended;      /* the head went out; the reply has been told its end */
    bool aside;                 /* the stream has been told that its request is parked */
    bool counted;               /* in the metrics */
    uint64_t asked_ms, queued_ms, begun_ms;     /* begun 0: it has no place */
    double prefill, decode;     /* seconds */
};

/* ------------------------------------------------------------------------------------------
 * The server
 * ------------------------------------------------------------------------------------------ */

typedef struct serve_route_own {
    struct serve_route_own *next;
    char *path;                 /* owned */
    pn_method method;
    bool open;
    pn_server_handler fn;
    void *user;
} serve_route_own;

struct pn_server {
    pn_mem mem;                 /* counts in the engine's ledger, PN_ACCT_CONN; first: cast back */
    pn_engine *e;
    pn_server_params params;
    pn_conn_params conn_params;
    pn_keys keys, admin_keys;
    pn_cors cors;
    pn_str cors_text;           /* owned, as the next */
    const char **cors_list;
    char *build;
    char fingerprint[40];
    pn_listener listener[SERVE_LISTENERS];
    uint32_t n_listeners;
    bool listening;             /* the poller waits for new connections */
    pn_poller poller;
    pn_wake wake;
    pn_lane lane, slow, loader; /* slow: embeddings, which compute */
    bool drives;                /* pn_engine_start was ours */
    serve_conn *conns;
    uint32_t n_conns;
    serve_ask *asks;
    uint32_t n_asks, n_running; /* running: those that have a place */
    uint64_t n_closed;
    serve_model *models;        /* oldest first */
    serve_route_own *own;
    pn_metrics *metrics;        /* owned */
    pn_affinity seen;           /* which replica saw what; where there are several dies */
    uint64_t seed;              /* of its keys */
    uint32_t n_dies;
    atomic_uint stops;          /* calls of pn_server_stop */
    bool draining, running;
    uint64_t now;               /* ms, of this turn */
    uint64_t sweep_at;          /* when the first connection's time is up */
    uint64_t drain_until;
    uint64_t started;           /* ms */
    int64_t started_unix;
    uint64_t n_requests;
    atomic_bool parks;          /* requests were put aside, or go on: streams want to be told */
    atomic_ullong at_rest[2], relief;   /* bytes of models that nobody uses, our own and page cache; that the engine wants back: pn_relief.c */
};

/* --- pn_server.c -------------------------------------------------------------------------------- */

PN_INTERNAL void serve_logf(pn_server *s, pn_log_level level, const char *fmt, ...) PN_PRINTF(3, 4);
/* The same with a JSON object for who reads it. */
PN_INTERNAL void serve_log_object(pn_server *s, pn_log_level level, const char *event, const char *json);
/* A request has been answered, or given up; model NULL: it concerned none. */
PN_INTERNAL void serve_log_request(const serve_conn *c, const char *model, const pn_oai_usage *u);
PN_INTERNAL void serve_wake(void *server);
PN_INTERNAL void serve_random_id(char *out, size_t n);         /* n letters and digits and a NUL */

/* Work on the connection until nothing is left to do now. */
PN_INTERNAL void serve_turn(serve_conn *c);
PN_INTERNAL void serve_turn_later(serve_conn *c);              /* when the loop comes round: its next request may change anything */

/* Replies, each to the request that c is at. */
PN_INTERNAL void serve_reply(serve_conn *c, int status, const char *type, const char *body, size_t n);
PN_INTERNAL void serve_reply_give(serve_conn *c, int status, const char *type, pn_str *body, const pn_str *fields);    /* NULL: no more fields */
PN_INTERNAL void serve_error(serve_conn *c, const pn_oai_error *e);
PN_INTERNAL void serve_errorf(serve_conn *c, int status, const char *type, const char *code, const char *fmt, ...) PN_PRINTF(5, 6);
PN_INTERNAL bool serve_stream(serve_conn *c);                  /* the head of a stream of events; false: the connection is lost */

/* --- pn_routes.c -------------------------------------------------------------------------------- */

/* The head of a request is known: refuse it, or go on. */
PN_INTERNAL void serve_head(serve_conn *c);
PN_INTERNAL void serve_request_complete(serve_conn *c);

/* --- pn_registry.c ------------------------------------------------------------------------------ */

PN_INTERNAL serve_model *serve_model_find(const pn_server *s, pn_bytes name);  /* by name or alias */
PN_INTERNAL serve_model *serve_model_route(pn_server *s, pn_bytes name, pn_oai_error *e);       /* NULL: *e says why */
/* What a model is called that nobody named: the file's name without folder and ".gguf", or the last folder of a path
 * that names one or a file in one (.safetensors). */
PN_INTERNAL pn_bytes serve_file_name(const char *path);
PN_INTERNAL void serve_model_unknown(const pn_server *s, pn_bytes name, pn_oai_error *e);        /* 404 */
/* As pn_server_load.  *out (may be NULL): what is loading now. */
PN_INTERNAL pn_status serve_model_load(pn_server *s, const pn_server_model *p, serve_replica **out, pn_err *err);
PN_INTERNAL pn_status serve_replica_unload(serve_replica *r, pn_err *err);
PN_INTERNAL void serve_replica_wake(serve_replica *r);         /* parked: load it again */
PN_INTERNAL void serve_model_settle(serve_model *m);           /* one of its asks has ended */
PN_INTERNAL void serve_models_free(pn_server *s);
PN_INTERNAL const char *serve_state_name(serve_state st);
PN_INTERNAL serve_replica *serve_model_best(const serve_model *m);     /* the one in the best state: its state is the name's */
PN_INTERNAL serve_replica *serve_model_on(const serve_model *m, const uint32_t *dies, size_t n);   /* on these dies, or NULL */
PN_INTERNAL uint32_t serve_model_replicas(const serve_model *m);       /* those that are ready */
PN_INTERNAL uint32_t serve_model_slots(const serve_model *m);          /* of all that answer */
PN_INTERNAL uint32_t serve_replica_slots(const serve_replica *r);
PN_INTERNAL void serve_waiters_remove(pn_server *s, const serve_conn *c);

/* --- pn_replica.c -------------------------------------------------------------------------------- */

PN_INTERNAL pn_status serve_seen_init(pn_server *s, pn_err *err);
PN_INTERNAL void serve_ask_keys(serve_ask *a);                 /* on the lane, from its body */
PN_INTERNAL serve_replica *serve_replica_for(const serve_ask *a);      /* with a place for it now, or NULL: wait */
PN_INTERNAL bool serve_model_has_place(const serve_model *m);   /* some replica has, for somebody */
PN_INTERNAL serve_replica *serve_replica_any(const serve_model *m);    /* the least busy one, place or not */
PN_INTERNAL void serve_replica_learn(const serve_ask *a);      /* a->at answers it */

/* --- pn_ask.c ------------------------------------------------------------------------------------ */

PN_INTERNAL void serve_ask_new(serve_conn *c, serve_kind kind);
PN_INTERNAL void serve_ask_abort(serve_ask *a);                /* the client has gone */
PN_INTERNAL void serve_ask_look(pn_server *s);                 /* at all that have news */
PN_INTERNAL void serve_ask_flow(serve_ask *a);                 /* the client took bytes: send more */
PN_INTERNAL void serve_ask_pump(serve_model *m);               /* begin those there is a place for */
PN_INTERNAL void serve_asks_stop(pn_server *s);                /* cancel all: the time to drain is over */

/* --- pn_ask_begin.c: on the lane ------------------------------------------------------------------ */

PN_INTERNAL void serve_ask_parse(serve_ask *a);
PN_INTERNAL void serve_ask_begin(serve_ask *a);
PN_INTERNAL void serve_ask_more(serve_ask *a);                 /* the choices that share a prompt with one that runs */
PN_INTERNAL void serve_ask_close(serve_ask *a);                /* requests, sessions and what belongs to them */
PN_INTERNAL void serve_ask_ignored(const serve_ask *a, pn_str *fields);        /* x-pantheon-ignored, where there is something */
PN_INTERNAL void serve_ask_report(serve_ask *a, const pn_generate_result *r);   /* a choice has ended like this */
PN_INTERNAL int serve_ask_emit(void *ask, const char *event, const char *json, size_t len);     /* under its lock */

/* --- pn_admin.c ---------------------------------------------------------------------------------- */

typedef enum serve_admin {
    SERVE_ROOT, SERVE_HEALTH, SERVE_READY_, SERVE_VERSION, SERVE_METRICS, SERVE_MODELS, SERVE_MODEL,
    SERVE_ADMIN_MODELS, SERVE_ADMIN_LOAD, SERVE_ADMIN_UNLOAD, SERVE_ADMIN_DIES, SERVE_ADMIN_MEMORY
} serve_admin;

PN_INTERNAL void serve_admin_answer(serve_conn *c, serve_admin what, pn_bytes rest);
PN_INTERNAL void serve_admin_waiters(serve_conn **list, const serve_replica *r);       /* tell those who wait for it */

/* --- pn_relief.c --------------------------------------------------------------------------------- */

PN_INTERNAL pn_status serve_relief_open(pn_server *s, pn_err *err);
PN_INTERNAL void serve_relief_close(pn_server *s);
PN_INTERNAL void serve_relieve(pn_server *s);                  /* each time round the loop */
PN_INTERNAL uint64_t serve_replica_bytes(const serve_replica *r);   /* memory that goes when it is unloaded; it is ready */
PN_INTERNAL bool serve_relief_for(serve_replica *r);           /* it did not fit: another one that nobody uses goes first */

/* --- pn_memory_page.c ---------------------------------------------------------------------------- */

PN_INTERNAL void serve_memory_json(pn_server *s, pn_str *out);         /* members of an object that is open */
PN_INTERNAL void serve_memory_metrics(pn_server *s, pn_str *out);
PN_INTERNAL void serve_memory_event(void *server, const pn_mem_event *ev);     /* to the log */

#endif /* PN_SERVER_INT_H */
