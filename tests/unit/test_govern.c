/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_govern.c - what the governor is told, and what it makes of it, on a clock of our own.
 */
#include "engine/pn_engine_int.h"
#include "store/pn_reads.h"

#include "pn_test.h"

#include <math.h>

#if PN_ENABLE_FILES && defined(__linux__)

#include <unistd.h>

static const char model_path[] = "models/demo.gguf";
static double now;

static double test_clock(void *user)
{
    (void)user;
    return now;
}

static pn_engine *govern_open(const char *script)
{
    char path[64];
    pn_engine *e = NULL;
    pn_err err = {0};
    snprintf(path, sizeof path, "/tmp/pn_govern_%ld", (long)getpid());
    FILE *f = fopen(path, "w");
    if (!PN_CHECK(f != NULL, "%s cannot be written", path))
        return NULL;
    fputs(script, f);
    fclose(f);
    now = 100;
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .pressure_script = path, .clock = test_clock}, &err) == PN_OK, "%s", err.text);
    remove(path);
    return e;
}

/* 63 MB a second are an eighth of what is assumed, 3 % of a fast disk and a third of a slow one. */
static void refaults_are_judged_by_the_disk_that_was_read(void)
{
    static const struct { double disk; pn_level worst; } says[] = {{0, PN_LEVEL_WATCH}, {2e9, PN_LEVEL_OK}, {200e6, PN_LEVEL_TIGHT}, {0.5, PN_LEVEL_WATCH}};
    for (size_t i = 0; i < PN_COUNT_OF(says); i++) {
        pn_engine *e = govern_open("budget 8G\n0 6G\n10 6G refault=60M\n20 6G\n");
        pn_level worst = PN_LEVEL_OK;
        if (!e)
            return;
        pn_govern_disk(e, says[i].disk);
        pn_govern_disk(e, 0);
        for (; now < 118; now += 0.25) {
            pn_mem_poll(e);
            worst = PN_MAX(worst, pn_mem_level(e));
        }
        PN_CHECK(worst == says[i].worst, "%g bytes a second: level %d, expected %d", says[i].disk, (int)worst, (int)says[i].worst);
        pn_engine_close(e);
    }
}

/* A step that streams tells what it measured; what was told stays when the weights are mapped. */
static void streaming_tells_what_it_measured(void)
{
    const pn_token some[] = {5, 6, 7};
    for (int driven = 0; driven < 2; driven++) {
        pn_engine *e = govern_open("budget 8G\n0 6G\n");
        pn_model *m = NULL;
        pn_session *s = NULL;
        pn_residency_info i;
        pn_err err = {0};
        if (!e || !PN_CHECK(pn_model_load(e, model_path, &(pn_model_params){.residency = PN_RESIDENCY_STREAM}, &m, &err) == PN_OK &&
                            pn_session_new(m, &(pn_session_params){.n_ctx = 64}, &s, &err) == PN_OK, "%s", err.text))
            return;
        PN_CHECK(atomic_load(&e->govern.disk) == 0, "before anything was read");
        if (driven)
            PN_CHECK(pn_session_generate(s, &(pn_generate_params){.prompt = some, .n_prompt = 3, .max_tokens = 2}, NULL, &err) == PN_OK, "%s", err.text);
        else
            PN_CHECK(pn_session_eval(s, some, 3, &err) == PN_OK, "%s", err.text);
        pn_model_residency(m, &i);
        if (!atomic_load(&m->store.stream->reads.files[0].direct))
            pn_test_skip("no direct reads here");
        else
            PN_CHECK(i.disk_bytes_per_second > 0 && atomic_load(&e->govern.disk) == (unsigned long long)i.disk_bytes_per_second, "%llu of %g",
                     atomic_load(&e->govern.disk), i.disk_bytes_per_second);
        unsigned long long told = atomic_load(&e->govern.disk);
        PN_CHECK(pn_model_convert(m, &(pn_model_params){.residency = PN_RESIDENCY_MAP}, INFINITY, &(bool){false}, &err) == PN_OK && pn_session_eval(s, some, 3, &err) == PN_OK &&
                 atomic_load(&e->govern.disk) == told, "mapped: %s", err.text);
        pn_session_free(s);
        pn_model_free(m);
        pn_engine_close(e);
    }
}

/* Before anything was streamed: some pieces of the file; a small one, or no memory for a piece, tells nothing. */
static void a_disk_is_tried(void)
{
    pn_engine *e = govern_open("budget 8G\n0 6G\n");
    char path[64];
    static char zeros[1 << 20];
    pn_model *m = NULL;
    pn_err err = {0};
    pn_test_mem mem;
    if (!e || !PN_CHECK(pn_model_load(e, model_path, NULL, &m, &err) == PN_OK, "%s", err.text))
        return;
    PN_CHECK(atomic_load(&e->govern.disk) == 0, "a small model was worth it");
    pn_test_mem_init(&mem, 0);
    PN_CHECK(pn_reads_try_disk(&mem.mem, &m->file.weights, 100 << 10, 1 << 20) == 0 && mem.outstanding == 0, "less than a piece of %llu bytes",
             (unsigned long long)m->file.weights.parts[0].file.size);
    snprintf(path, sizeof path, "build/pn_govern_%ld", (long)getpid());
    FILE *f = fopen(path, "wb");
    for (int i = 0; f && i < 12; i++)
        PN_CHECK(fwrite(zeros, sizeof zeros, 1, f) == 1, "writing");
    if (PN_CHECK(f != NULL && fclose(f) == 0, "%s cannot be written", path)) {
        pn_part part = {.path = path};
        pn_weights w = {.parts = &part, .n_parts = 1};
        PN_CHECK(pn_os_open(&part.file, path, &err) == PN_OK, "%s", err.text);
        double rate = pn_reads_try_disk(&mem.mem, &w, 8 << 20, 1 << 20);
        PN_CHECK(mem.outstanding == 0 && (rate == 0 || (rate > 1e5 && rate < 1e12)), "%g bytes a second", rate);
        printf("a disk that gives %.2f GB/s%s\n", rate / 1e9, rate > 0 ? "" : ": no direct reads here");
        long calls = mem.n_calls;
        PN_CHECK(pn_reads_try_disk(&mem.mem, &w, 8 << 20, 60 << 10) == 0 && mem.n_calls == calls, "little memory tells nothing");
        mem.fail_at = mem.n_calls + 1;
        PN_CHECK(pn_reads_try_disk(&mem.mem, &w, 8 << 20, 1 << 20) == 0 && mem.outstanding == 0, "no memory");
        pn_os_close(&part.file);
    }
    remove(path);
    pn_model_free(m);
    pn_engine_close(e);
}

/* Loading takes no more beside the weights than the least conversation after it. */
static void trying_takes_what_a_conversation_will(void)
{
    char path[64];
    pn_engine *e = govern_open("budget 8G\n0 6G\n");
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_err err = {0};
    snprintf(path, sizeof path, "build/pn_govern_%ld", (long)getpid());
    if (!e || !PN_CHECK(pn_synth(e, path, &(pn_synth_params){.shape = "135m", .type = "Q4_0"}, &err) == PN_OK, "%s", err.text))
        return;
    pn_engine_close(e);
    e = govern_open("budget 8G\n0 6G\n");
    if (PN_CHECK(pn_model_load(e, path, &(pn_model_params){.residency = PN_RESIDENCY_MAP}, &m, &err) == PN_OK, "%s", err.text)) {
        pn_mem_info loaded, talking;
        pn_engine_memory(e, &loaded);
        PN_CHECK(m->mapped_bytes >= 64 << 20 && loaded.peak[PN_ACCT_STAGE] > 0, "no disk was tried");
        PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 1, .n_batch = 1, .kv_type = PN_DTYPE_Q4_0}, &s, &err) == PN_OK, "%s", err.text);
        pn_engine_memory(e, &talking);
        PN_CHECK(loaded.peak[PN_ACCT_STAGE] <= talking.total_used - loaded.total_used, "%llu bytes, a conversation takes %llu",
                 (unsigned long long)loaded.peak[PN_ACCT_STAGE], (unsigned long long)(talking.total_used - loaded.total_used));
    }
    remove(path);
    pn_session_free(s);
    pn_model_free(m);
    pn_engine_close(e);
}

typedef struct slices {
    uint32_t applied, undone;
} slices;

static uint64_t slices_gain(void *user, uint32_t resource)
{
    (void)user;
    return resource ? 0 : 1 << 30;
}

/* Of twenty, each of which takes all the time it gets. */
static pn_rung_state slices_one(uint32_t *n, double deadline)
{
    PN_CHECK(deadline < pn_os_now() + 0.011, "a slice of %g s", deadline - pn_os_now());
    while (pn_os_now() < deadline)
        ;
    return ++*n % 20 ? PN_RUNG_SLICE : PN_RUNG_DONE;
}

static pn_rung_state slices_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)resource, (void)want, (void)freed;
    return slices_one(&((slices *)user)->applied, deadline);
}

static pn_rung_state slices_undo(void *user, uint32_t resource, double deadline)
{
    (void)resource;
    return slices_one(&((slices *)user)->undone, deadline);
}

/* Between two readings a rung that was begun goes on after every step, for a fifth of the time. */
static void slices_go_on_between_readings(void)
{
    pn_engine *e = govern_open("budget 8G\n0 100M\n1 6G\n");
    slices s = {0};
    const pn_rung r = {.rank = 5, .name = "slices", .level = PN_LEVEL_WATCH, .gain = slices_gain, .apply = slices_apply, .undo = slices_undo, .user = &s};
    if (!e || !PN_CHECK(pn_ladder_add(&e->govern.ladder, &r), "the ladder is full"))
        return;
    for (int back = 0; back < 2; back++) {
        const uint32_t *n = back ? &s.undone : &s.applied;
        double spent = 0, since = pn_os_now();
        pn_mem_poll(e);
        PN_CHECK(*n > 0 && *n < 20 && atomic_load(&e->govern.goes_on), "it did not begin");
        PN_CHECK(pn_govern_wait(e) <= 0.051, "nobody looks for %g s", pn_govern_wait(e));
        for (int i = 0; i < 2000 && *n < 20; i++) {
            double from = pn_os_now(), until = from + 0.002;
            while (pn_os_now() < until)
                ;
            from = pn_os_now();
            pn_govern_tick(e, true);
            spent += pn_os_now() - from;
        }
        PN_CHECK(*n == 20, "%u slices", (unsigned)*n);
        PN_CHECK(spent < 0.5 * (pn_os_now() - since), "%g of %g s on the ladder", spent, pn_os_now() - since);
        PN_CHECK(!atomic_load(&e->govern.goes_on), "it is through");
        for (now += 60; !back && pn_mem_level(e); now++)
            pn_mem_poll(e);
    }
    pn_engine_close(e);
}

int main(void)
{
    slices_go_on_between_readings();
    refaults_are_judged_by_the_disk_that_was_read();
    streaming_tells_what_it_measured();
    a_disk_is_tried();
    trying_takes_what_a_conversation_will();
    return pn_test_end();
}

#else
int main(void)
{
    pn_test_skip("no files, or not Linux");
    return pn_test_end();
}
#endif
