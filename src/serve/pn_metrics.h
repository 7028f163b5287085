/*
 * pn_metrics.h - what the server counts, and its page for Prometheus (text exposition format 0.0.4).
 *
 * One fixed table in the .c file declares every family: name, help, type, labels, buckets.  Values are plain
 * doubles, so recording is an addition to a cell that has been there since the model was made known; only
 * pn_metrics_init, pn_metrics_model and pn_metrics_write take memory.
 *
 *     family          cells
 *     of the server   one for each value of its label (an account, a class of HTTP status), or a single one
 *     of a model      the same for every model, label `model`; requests have two labels more
 *     histogram       one for each bucket, then +Inf, then the sum; written out cumulatively
 *
 * Invariants
 *   1. A time series that was written once is written for ever: models are never forgotten, counters never fall.
 *   2. The number of series is bounded: PN_METRICS_MODELS models, and no label takes text from a request.
 *   3. In a histogram, bucket le="+Inf" and _count are the same number, and buckets do not fall from left to right.
 *
 * vLLM's names (and buckets) are offered beside ours because gateways and dashboards know them; they show the
 * same cells.  Sources: prometheus.io, "Exposition formats" and "Metric and label naming"; vLLM's
 * documentation of its metrics; the Gateway API Inference Extension's model server protocol.
 *
 * Threads: one owner (the server's I/O thread).
 */
#ifndef PN_METRICS_H
#define PN_METRICS_H

#include "base/pn_err.h"
#include "base/pn_str.h"

#define PN_METRICS_MODELS 256u          /* most models */
#define PN_METRICS_NAME_BYTES 512u      /* most bytes of a model's name */
#define PN_METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"      /* of the page */

typedef enum pn_metric {
    /* of a model */
    PN_METRIC_RUNNING = 0,      /* gauge: requests being worked on */
    PN_METRIC_WAITING,          /* gauge: requests that wait for their turn */
    PN_METRIC_KV_RATIO,         /* gauge: 0 to 1 */
    PN_METRIC_BLOCK_TOKENS,     /* with the next: labels of cache_config_info, which has the value 1 */
    PN_METRIC_BLOCKS,
    PN_METRIC_REQUESTS,         /* counter, labels endpoint and finished_reason: pn_metrics_ended */
    PN_METRIC_PROMPT_TOKENS,    /* counter: all tokens of prompts, */
    PN_METRIC_CACHED_TOKENS,    /* counter: those of them that were not computed anew */
    PN_METRIC_GENERATION_TOKENS,    /* counter */
    PN_METRIC_PREFIX_QUERIES,   /* counter: tokens looked up in the prefix cache, */
    PN_METRIC_PREFIX_HITS,      /* counter: and found */
    PN_METRIC_TTFT,             /* histogram, seconds: request read to first token, the queue included */
    PN_METRIC_ITL,              /* histogram, seconds: token to token */
    PN_METRIC_E2E,              /* histogram, seconds: request read to last token */
    PN_METRIC_QUEUE,            /* histogram, seconds */
    PN_METRIC_PARKED,           /* histogram, seconds: of those that stood aside for want of memory */
    PN_METRIC_PREFILL,          /* histogram, seconds */
    PN_METRIC_DECODE,           /* histogram, seconds */
    PN_METRIC_REQUEST_PROMPT,   /* histogram: tokens of a request's prompt */
    PN_METRIC_REQUEST_GENERATION,   /* histogram: tokens of an answer */
    /* of the server */
    PN_METRIC_CONNECTIONS,      /* gauge: open HTTP connections */
    PN_METRIC_RESPONSES,        /* counter, label class: status / 100 - 1 */
    PN_METRIC_MEM,              /* gauge, bytes, label account: pn_metrics_memory */
    PN_METRIC_MEM_PEAK,
    PN_METRIC_MEM_LIMIT,        /* not there without a limit */
    PN_METRIC_MEM_HOST,         /* of the host or its cgroup; not there when unknown */
    PN_METRIC_MEM_AVAILABLE,
    PN_METRIC_START,            /* gauge, Unix seconds: process_start_time_seconds; not there until set */
    PN_METRIC_BUILD,            /* always 1, labels from pn_metrics_build */
    PN_METRIC_COUNT
} pn_metric;

/* Values of the label `endpoint`. */
typedef enum pn_metric_endpoint {
    PN_ENDPOINT_CHAT = 0, PN_ENDPOINT_COMPLETIONS, PN_ENDPOINT_EMBEDDINGS, PN_ENDPOINT_RESPONSES, PN_ENDPOINT_MESSAGES,
    PN_ENDPOINT_OTHER,
    PN_ENDPOINT_COUNT
} pn_metric_endpoint;

/* Values of the label `finished_reason`. */
typedef enum pn_metric_ended {
    PN_ENDED_STOP = 0, PN_ENDED_LENGTH, PN_ENDED_TOOL_CALLS,
    PN_ENDED_ABORT,          /* cancelled, or the client went away */
    PN_ENDED_REJECTED,       /* refused before it began: the queue or the memory was full */
    PN_ENDED_ERROR,
    PN_ENDED_COUNT
} pn_metric_ended;

/* Labels of build_info.  Copied; NULL is "". */
typedef struct pn_metrics_build {
    const char *version, *build, *backend, *isa;
} pn_metrics_build;

typedef struct pn_metrics pn_metrics;

/* build may be NULL: the build is not shown then.  PN_E_NOMEM. */
PN_INTERNAL pn_status pn_metrics_new(pn_metrics **out, pn_mem *mem, const pn_metrics_build *build, pn_err *err);
PN_INTERNAL void pn_metrics_free(pn_metrics *m);

/* The model's number; the one it has when the name is known.  PN_E_NOMEM, PN_E_BUDGET (too many), PN_E_INVALID
 * (the name is empty or too long); then *model is untouched. */
PN_INTERNAL pn_status pn_metrics_model(pn_metrics *m, const char *name, size_t len, uint32_t *model, pn_err *err);

/* Recording.  `model` is ignored for families of the server, `label` (an account, a class) for those without
 * one.  What is not there (a model or label out of range, NaN) is ignored. */
PN_INTERNAL void pn_metrics_add(pn_metrics *m, pn_metric id, uint32_t model, uint32_t label, double v);
/* A gauge; or a counter whose total somebody else keeps: it takes the larger of the two. */
PN_INTERNAL void pn_metrics_set(pn_metrics *m, pn_metric id, uint32_t model, uint32_t label, double v);
/* A histogram gets a value.  Less than 0 (a clock that was set back) counts as 0. */
PN_INTERNAL void pn_metrics_observe(pn_metrics *m, pn_metric id, uint32_t model, double v);

/* A request came to its end. */
PN_INTERNAL void pn_metrics_ended(pn_metrics *m, uint32_t model, pn_metric_endpoint e, pn_metric_ended f);
/* A response with this status was sent. */
PN_INTERNAL void pn_metrics_responded(pn_metrics *m, int http_status);
/* All memory gauges at once. */
PN_INTERNAL void pn_metrics_memory(pn_metrics *m, const pn_mem_info *i);

/* A gauge's or counter's value, for reports; of a histogram the number of values seen.  0 for what is not there. */
PN_INTERNAL double pn_metrics_get(const pn_metrics *m, pn_metric id, uint32_t model, uint32_t label);

/* A label's value: the format escapes backslash, quote and line end, and wants UTF-8. */
PN_INTERNAL void pn_metrics_escape(pn_str *s, const char *value, size_t n);

/* The page, onto `out` (out->failed: memory ran out).  vllm: with vLLM's names, too. */
PN_INTERNAL void pn_metrics_write(const pn_metrics *m, pn_str *out, bool vllm);

#endif /* PN_METRICS_H */
