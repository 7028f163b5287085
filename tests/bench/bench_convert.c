/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * bench_convert.c - how long does an answer stand still while its model's weights move?
 *
 *     bench_convert FILE          on two threads, or PN_BENCH_THREADS
 *
 * One answer runs all the time.  From the 5th to the 20th second a script says that memory is TIGHT, so mapped weights become
 * streamed ones; then there is plenty, and they are taken back.  For each phase: tokens, and the gaps between two of them;
 * those in which weights moved apart.
 */
#define _POSIX_C_SOURCE 200809L /* getpid */
#include "pantheon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CONVERT_GAPS = 100000, CONVERT_PHASES = 3, CONVERT_DOWN = CONVERT_PHASES, CONVERT_BACK, CONVERT_KINDS };

typedef struct convert_phase {
    const char *name;
    double until;
    double *gap;                /* [CONVERT_GAPS] seconds */
    size_t n;
} convert_phase;

typedef struct convert_bench {
    double began, last;
    convert_phase *moved;       /* since the last token */
    convert_phase phase[CONVERT_KINDS];
} convert_bench;

static double convert_now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int convert_token(void *user, const char *text, size_t n, pn_token token)
{
    convert_bench *b = user;
    double now = convert_now();
    convert_phase *p = b->phase;
    (void)text, (void)n, (void)token;
    while (p < b->phase + CONVERT_PHASES - 1 && now - b->began > p->until)
        p++;
    if (b->moved)
        p = b->moved;
    b->moved = NULL;
    if (b->last > 0 && p->n < CONVERT_GAPS)
        p->gap[p->n++] = now - b->last;
    b->last = now;
    return now - b->began > b->phase[CONVERT_PHASES - 1].until;
}

static void convert_event(void *user, const pn_mem_event *ev)
{
    convert_bench *b = user;
    int weights = ev->kind == PN_MEM_RUNG && (ev->rank == 13 || ev->rank == 16);
    if (weights)
        b->moved = &b->phase[ev->undone ? CONVERT_BACK : CONVERT_DOWN];
    if (ev->kind == PN_MEM_LEVEL)
        printf("%8.2f s  level %d (%s)\n", convert_now() - b->began, (int)ev->level, ev->what);
    else if (weights && getenv("PN_BENCH_EVENTS"))
        printf("%8.2f s  %s%s %.1f MiB\n", convert_now() - b->began, ev->what, ev->undone ? ", back" : "", (double)ev->bytes / (1 << 20));
}

static int convert_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int convert_fail(const char *what, const pn_err *err)
{
    fprintf(stderr, "bench_convert: %s: %s\n", what, err->text);
    return 1;
}

int main(int argc, char **argv)
{
    convert_bench b = {.phase = {{"mapped", 5, NULL, 0}, {"short of memory", 20, NULL, 0}, {"plenty", 60, NULL, 0},
                                 {"giving up", 0, NULL, 0}, {"taking back", 0, NULL, 0}}};
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_residency_info i;
    pn_err err = {0};
    char script[64];
    snprintf(script, sizeof script, "/tmp/pn_bench_convert_%ld", (long)getpid());
    FILE *f = argc == 2 ? fopen(script, "w") : NULL;
    if (!f)
        return 2;
    fputs("budget 4G\n0 3G\n5 300M\n20 3G\n", f);
    fclose(f);
    const char *threads = getenv("PN_BENCH_THREADS");
    const pn_engine_params ep = {.n_threads = (uint32_t)strtoul(threads ? threads : "2", NULL, 10), .pressure_script = script, .no_prefix = 1};
    const pn_sampling how = {.size = sizeof how, .ignore_eos = 1};
    const pn_token prompt[] = {1, 2, 3};
    const pn_generate_params p = {.prompt = prompt, .n_prompt = 3, .max_tokens = 7000, .sampling = &how, .on_text = convert_token, .user = &b};
    if (pn_engine_open(&e, &ep, &err) || pn_model_load(e, argv[1], &(pn_model_params){.residency = PN_RESIDENCY_MAP}, &m, &err) ||
        pn_session_new(m, &(pn_session_params){.n_ctx = 7100, .n_batch = 16}, &s, &err))
        return convert_fail("opening", &err);
    remove(script);
    for (size_t k = 0; k < CONVERT_KINDS; k++)
        if (!(b.phase[k].gap = malloc(CONVERT_GAPS * sizeof(double))))
            return 1;
    pn_session_eval(s, prompt, 3, &err);        /* the file is in the page cache now */
    pn_session_truncate(s, 0, &err);
    pn_mem_on_event(e, convert_event, &b);
    b.began = convert_now();
    pn_request *q = NULL;
    if (pn_request_new(s, &p, &q, &err))
        return convert_fail("a request", &err);
    while (!pn_request_done(q))
        if (pn_engine_step(e, 0, NULL, &err))
            return convert_fail("a step", &err);
    for (size_t k = 0; k < CONVERT_KINDS; k++) {
        convert_phase *c = &b.phase[k];
        qsort(c->gap, c->n, sizeof *c->gap, convert_order);
        if (c->n)
            printf("%-16s %5zu tokens, gaps %.0f ms median, %.0f ms p99, %.0f ms longest\n", c->name, c->n, 1000 * c->gap[c->n / 2],
                   1000 * c->gap[c->n * 99 / 100], 1000 * c->gap[c->n - 1]);
        free(c->gap);
    }
    pn_model_residency(m, &i);
    printf("weights are %s at the end, %.0f MiB pinned\n", i.mode == PN_RESIDENCY_MAP ? "mapped" : "streamed", (double)i.pinned_bytes / (1 << 20));
    pn_request_free(q);
    pn_session_free(s);
    pn_model_free(m);
    pn_engine_close(e);
    return 0;
}
