/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * bench_stream.c - decode greedily with weights mapped or streamed and tell, as one JSON object, the ids, the speed
 * and what the disk gave.  tests/bench/stream.py runs it under memory limits and judges.
 *
 *     bench_stream FILE map|anon|stream PIN_BYTES EXPERT_BYTES TOKENS THREADS [random|join=PROCS]
 *
 * random: the tokens that are evaluated are not those decoded but random ones, so that experts are, too.
 * join=PROCS: a control group to enter after loading.  For mapped weights that do not fit: they would be refused, and
 * how slow they are is what we want to know.
 */
#include "pantheon.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double stream_now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int stream_fail(const char *what, const pn_err *err)
{
    fprintf(stderr, "bench_stream: %s: %s\n", what, err->text);
    return 1;
}

static pn_token stream_best(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (pn_token)best;
}

int main(int argc, char **argv)
{
    if (argc != 7 && argc != 8) {
        if (argc == 1)      /* `make bench` runs every program without arguments */
            return 0;
        fprintf(stderr, "usage: bench_stream FILE map|anon|stream PIN_BYTES EXPERT_BYTES TOKENS THREADS [random|join=PROCS]\n");
        return 2;
    }
    pn_err err = {0};
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_session *s = NULL;
    uint32_t n = (uint32_t)strtoul(argv[5], NULL, 10);
    const pn_model_params mp = {
        .residency = strcmp(argv[2], "stream") == 0 ? PN_RESIDENCY_STREAM : strcmp(argv[2], "anon") == 0 ? PN_RESIDENCY_ANON : PN_RESIDENCY_MAP,
        .pin_bytes = strtoull(argv[3], NULL, 10), .expert_cache_bytes = strtoull(argv[4], NULL, 10)};
    double load = stream_now();
    if (pn_engine_open(&e, &(pn_engine_params){.n_threads = (uint32_t)strtoul(argv[6], NULL, 10)}, &err) ||
        pn_model_load(e, argv[1], &mp, &m, &err) || pn_session_new(m, &(pn_session_params){.n_ctx = n + 64, .n_batch = 16}, &s, &err))
        return stream_fail("load", &err);
    load = stream_now() - load;
    if (argc == 8 && strncmp(argv[7], "join=", 5) == 0) {
        FILE *f = fopen(argv[7] + 5, "w");
        if (!f || fputs("0", f) < 0 || fclose(f))
            return 1;
    }
    uint32_t vocab = pn_vocab_size(m);
    pn_token t[8];
    for (uint32_t i = 0; i < 8; i++)
        t[i] = (pn_token)((i * 2654435761u + 17) % vocab);
    if (pn_session_eval(s, t, 8, &err))
        return stream_fail("prompt", &err);
    pn_residency_info was, is;
    pn_model_residency(m, &was);
    double from = stream_now();
    printf("{\"ids\":[");
    for (uint32_t i = 0; i < n; i++) {
        t[0] = stream_best(pn_session_logits(s), vocab);
        printf("%s%d", i ? "," : "", (int)t[0]);
        if (argc == 8 && argv[7][0] == 'r')
            t[0] = (pn_token)((i * 2654435761u >> 7) % vocab);
        if (pn_session_eval(s, t, 1, &err))
            return stream_fail("step", &err);
    }
    double took = stream_now() - from;
    pn_model_residency(m, &is);
    printf("],\"load\":%.3f,\"tps\":%.4f,\"expected_tps\":%.4f,\"compute\":%.5f,\"disk\":%.0f,\"pinned\":%" PRIu64 ",\"step_bytes\":%" PRIu64
           ",\"read\":%" PRIu64 ",\"wait\":%.3f,\"took\":%.3f,\"hits\":%" PRIu64 ",\"misses\":%" PRIu64 "}\n", load, n / took, is.expected_tps,
           is.compute_seconds, is.disk_bytes_per_second, is.pinned_bytes, is.step_bytes, is.stream_bytes - was.stream_bytes,
           is.stream_wait_seconds - was.stream_wait_seconds, took, is.expert_hits - was.expert_hits, is.expert_misses - was.expert_misses);
    pn_session_free(s);
    pn_model_free(m);
    pn_engine_close(e);
    return 0;
}
