/*
 * test_load_type.c - matrices quantised while they are loaded: the bits of the quantised file, in the memory planned.
 *
 * Folders of the llama family: quantize permutes rows of q and k there, and with them the order in which a head's products
 * are added, so their files differ in last bits of logits; the folder's file of the same type is loaded by load_type too,
 * and that agrees.
 */
#define _XOPEN_SOURCE 700       /* mkdtemp */
#include "pantheon.h"
#include "pn_api_test.h"

#include <math.h>
#include <unistd.h>

static char lt_dir[64] = "/tmp/pn-load-XXXXXX";
static const char lt_qwen[] = "tests/vectors/hf/qwen3_tied", lt_llama[] = "tests/vectors/hf/llama_bf16", lt_experts[] = "tests/vectors/hf/mixtral_f32";
static const pn_token lt_tokens[] = {1, 30, 77, 112, 3, 9, 54};
enum { LT_TOKENS = sizeof lt_tokens / sizeof *lt_tokens };

/* "<dir>/<name>", good until the fourth call from here. */
static const char *lt_path(const char *name)
{
    static char slots[4][128];
    static unsigned next;
    char *p = slots[next++ % 4];
    snprintf(p, sizeof slots[0], "%s/%s", lt_dir, name);
    return p;
}

static void lt_remove(const char *name) { PN_CHECK(unlink(lt_path(name)) == 0, "%s", name); }

static int lt_synth(const char *name, const char *shape, const char *type)
{
    pn_engine *e = NULL;
    pn_err err = {0};
    int ok = PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_synth(e, lt_path(name), &(pn_synth_params){.shape = shape, .type = type, .seed = 7}, &err) == PN_OK,
                      "%s", err.text);
    pn_engine_close(e);
    return ok;
}

static int lt_quantize(const char *in, const char *out, const char *type)
{
    pn_engine *e = NULL;
    pn_err err = {0};
    int ok = PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_quantize(e, in, lt_path(out), &(pn_quantize_params){.preset = type}, &err) == PN_OK, "%s", err.text);
    pn_engine_close(e);
    return ok;
}

typedef struct lt_out {
    float *logits;              /* owned, [n] of all tokens */
    size_t n;
    pn_model_info info;
    pn_residency_info where;
} lt_out;

static void lt_free(lt_out *o) { free(o->logits); }

static lt_out lt_run(const char *path, uint32_t threads, const pn_model_params *p)
{
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_err err = {0};
    lt_out o = {0};
    const pn_session_params sp = {.n_ctx = 64};
    if (PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = threads}, &err) == PN_OK, "%s", err.text) &&
        PN_CHECK(pn_model_load(e, path, p, &m, &err) == PN_OK, "%s", err.text) && PN_CHECK(pn_session_new(m, &sp, &s, &err) == PN_OK, "%s", err.text)) {
        pn_model_describe(m, &o.info);
        pn_model_residency(m, &o.where);
        o.n = LT_TOKENS * pn_vocab_size(m);
        o.logits = malloc(o.n * sizeof *o.logits);
        PN_CHECK(pn_session_eval_all(s, lt_tokens, LT_TOKENS, o.logits, &err) == PN_OK, "%s", err.text);
    }
    pn_session_free(s);
    pn_model_free(m);
    pn_engine_close(e);
    return o;
}

static int lt_same(const lt_out *a, const lt_out *b)
{
    return a->logits && b->logits && a->n == b->n && memcmp(a->logits, b->logits, a->n * sizeof *a->logits) == 0;
}

static double lt_distance(const lt_out *a, const lt_out *b)
{
    double worst = a->logits && b->logits && a->n == b->n ? 0 : INFINITY;
    for (size_t i = 0; worst < INFINITY && i < a->n; i++)
        worst = fmax(worst, fabs((double)a->logits[i] - (double)b->logits[i]));
    return worst;
}

/* Vectors of 16 bits are f32 in a quantised file; loaded, they are counted as they lie in theirs. */
static uint64_t lt_wider(const char *path)
{
    pn_engine *e = NULL;
    pn_file *f = NULL;
    uint64_t bytes = 0;
    PN_CHECK(pn_engine_open(&e, NULL, NULL) == PN_OK && pn_file_open(e, path, &f, NULL) == PN_OK, "%s", path);
    for (size_t i = 0; f && i < pn_file_tensor_count(f); i++) {
        pn_tensor_info t;
        PN_CHECK(pn_file_tensor_at(f, i, &t) == PN_OK, "%s", path);
        bytes += t.n_dims == 1 && (t.dtype == PN_DTYPE_BF16 || t.dtype == PN_DTYPE_F16) ? t.bytes : 0;
    }
    pn_file_close(f);
    pn_engine_close(e);
    return bytes;
}

/* ------------------------------------------------------------------------------------------ */

static void bits_are_those_of_the_quantised_file(const char *path, const char *type, int same)
{
    const pn_model_params ways[] = {{.load_type = type}, {.load_type = type, .residency = PN_RESIDENCY_ANON}, {.load_type = type, .lease_rows = 3}};
    if (!lt_quantize(path, "q.gguf", type))
        return;
    lt_out want = lt_run(lt_path("q.gguf"), 1, NULL), first = lt_run(path, 1, &ways[0]), plain = lt_run(path, 1, NULL);
    double d = lt_distance(&want, &first);
    PN_CHECK(same ? lt_same(&want, &first) : d < 1e-3, "%s as %s: |d| %g", path, type, d);
    PN_CHECK(!lt_same(&plain, &first) && first.where.mode == PN_RESIDENCY_ANON && first.info.weight_bytes + lt_wider(path) == want.info.weight_bytes &&
             strcmp(first.info.type, type) == 0, "%s as %s: %s", path, type, first.info.type);
    for (size_t i = 0; i < 6; i++) {
        lt_out got = lt_run(path, 1 + (uint32_t)i % 2, &ways[i / 2]);
        PN_CHECK(lt_same(&first, &got), "%s as %s, way %zu, %zu threads: other bits", path, type, i / 2, 1 + i % 2);
        lt_free(&got);
    }
    printf("%s as %s: |d| %g\n", path, type, d);
    lt_free(&want);
    lt_free(&first);
    lt_free(&plain);
    lt_remove("q.gguf");
}

/* A file of a folder of the llama family, whose pairs are the file's: also from 32 bits. */
static void a_folders_file_is_as_exact(const char *path, const char *type)
{
    if (!lt_quantize(path, "f32.gguf", "F32"))
        return;
    bits_are_those_of_the_quantised_file(lt_path("f32.gguf"), type, 1);
    lt_remove("f32.gguf");
}

static pn_status lt_read(void *user, uint64_t offset, void *dst, size_t n)
{
    memcpy(dst, (const char *)user + offset, n);
    return PN_OK;
}

/* From memory, through a callback, on two dies. */
static void it_does_not_matter_where_it_comes_from_or_goes(const char *path)
{
    size_t len = 0;
    char *bytes = api_read_file(path, &len);
    static const uint32_t dies[] = {1, 0};
    lt_out want = lt_run(path, 1, &(pn_model_params){.load_type = "q8_0"});
    for (int way = 0; way < 3; way++) {
        pn_engine *e = NULL;
        pn_file *f = NULL;
        pn_model *m = NULL;
        pn_session *s = NULL;
        pn_err err = {0};
        lt_out got = {.n = want.n, .logits = malloc(want.n * sizeof *got.logits)};
        const pn_reader r = {.read = lt_read, .user = bytes, .size = len, .name = "callback"};
        pn_model_params p = {.load_type = "q8_0", .dies = way == 2 ? dies : NULL, .n_dies = way == 2 ? 2 : 0};
        pn_status st = pn_engine_open(&e, &(pn_engine_params){.sim_dies = way == 2 ? "2;bytes=64M" : NULL}, &err);
        if (!st)
            st = way == 0 ? pn_file_open_memory(e, bytes, len, &f, &err) : way == 1 ? pn_file_open_reader(e, &r, &f, &err) : pn_file_open(e, path, &f, &err);
        if (!st)
            st = pn_model_load_file(f, &p, &m, &err);
        if (!st)
            st = pn_session_new(m, &(pn_session_params){.n_ctx = 64}, &s, &err);
        if (!st)
            st = pn_session_eval_all(s, lt_tokens, LT_TOKENS, got.logits, &err);
        PN_CHECK(st == PN_OK && lt_same(&want, &got), "way %d: %s", way, err.text);
        pn_session_free(s);
        pn_model_free(m);
        pn_file_close(f);
        pn_engine_close(e);
        lt_free(&got);
    }
    lt_free(&want);
    free(bytes);
}

/* Weights and the block under way to the byte; the whole but for tables. */
static void the_peak_is_what_was_planned(const char *path, uint32_t threads, const char *type, int exact)
{
    pn_engine *e = NULL;
    pn_file *f = NULL;
    pn_model *m = NULL;
    pn_err err = {0};
    pn_plan_info p = {0}, plain = {0};
    pn_mem_info mem;
    if (PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = threads}, &err) == PN_OK && pn_file_open(e, path, &f, &err) == PN_OK, "%s", err.text)) {
        PN_CHECK(pn_file_plan(f, &(pn_plan_params){.n_ctx = 64, .load_type = type}, &p, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_file_plan(f, &(pn_plan_params){.n_ctx = 64}, &plain, &err) == PN_OK && plain.load_bytes == 0, "%s", err.text);
        PN_CHECK(p.residency == PN_RESIDENCY_ANON && p.weight_bytes < plain.weight_bytes && p.total_bytes >= p.load_bytes && p.floor_bytes >= p.load_bytes &&
                 p.anon_bytes == p.total_bytes);
    }
    if (PN_CHECK(pn_model_load_file(f, &(pn_model_params){.load_type = type}, &m, &err) == PN_OK, "%s", err.text)) {
        pn_engine_memory(e, &mem);
        uint64_t got = mem.peak[PN_ACCT_WEIGHTS] + mem.peak[PN_ACCT_STAGE], want = p.load_bytes - p.vocab_bytes;
        PN_CHECK(exact ? got == want : got >= want && got < want + (1 << 20), "%s: weights and stage %llu, planned %llu", path, (unsigned long long)got, (unsigned long long)want);
        PN_CHECK(mem.total_peak < p.load_bytes + p.load_bytes / 20 + (1 << 20), "%s: %llu, planned %llu", path, (unsigned long long)mem.total_peak,
                 (unsigned long long)p.load_bytes);
        PN_CHECK(mem.used[PN_ACCT_STAGE] == 0 && mem.used[PN_ACCT_WEIGHTS_MAP] == 0 && mem.used[PN_ACCT_WEIGHTS] == mem.peak[PN_ACCT_WEIGHTS]);
        printf("%s as %s, %u threads: peak %llu, planned %llu\n", path, type, (unsigned)threads, (unsigned long long)mem.total_peak, (unsigned long long)p.load_bytes);
    }
    pn_model_free(m);
    pn_file_close(f);
    pn_engine_close(e);
}

static void a_file_still_says_what_is_in_it(void)
{
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_file *f = NULL;
    pn_err err = {0};
    if (PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_model_load(e, lt_qwen, &(pn_model_params){.load_type = "q8_0"}, &m, &err) == PN_OK &&
                 pn_file_open(e, lt_qwen, &f, &err) == PN_OK, "%s", err.text))
        for (size_t i = 0; i < pn_file_tensor_count(f); i++) {
            pn_tensor_info a, b;
            PN_CHECK(pn_file_tensor_at(f, i, &a) == PN_OK && pn_file_tensor_at(pn_model_file(m), i, &b) == PN_OK && a.dtype == b.dtype && a.bytes == b.bytes &&
                     a.offset == b.offset);
        }
    pn_file_close(f);
    pn_model_free(m);
    pn_engine_close(e);
}

/* ------------------------------------------------------------------------------------------ */

typedef struct lt_log { char text[400]; } lt_log;

static void lt_logged(void *user, pn_log_level level, const char *text)
{
    lt_log *l = user;
    if (level <= PN_LOG_WARN)
        snprintf(l->text, sizeof l->text, "%s", text);
}

static void what_is_quantised_already_stays(void)
{
    static const char demo[] = "models/demo.gguf";
    lt_log log = {""};
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_err err = {0};
    pn_residency_info where;
    if (PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.log = lt_logged, .log_user = &log}, &err) == PN_OK &&
                 pn_model_load(e, demo, &(pn_model_params){.load_type = "q8_0"}, &m, &err) == PN_OK, "%s", err.text)) {
        pn_model_residency(m, &where);
        PN_CHECK(where.mode == PN_RESIDENCY_MAP && strstr(log.text, "loaded as it is") && strstr(log.text, "Q8_0"), "%s", log.text);
    }
    pn_model_free(m);
    pn_engine_close(e);
}

static void what_cannot_be_is_refused(void)
{
    static const struct { pn_model_params p; pn_status st; const char *has; } rows[] = {
        {{.load_type = "q4_9"}, PN_E_INVALID, "Q4_K_M"},
        {{.load_type = "iq2_xs"}, PN_E_INVALID, "IQ4_NL"},
        {{.load_type = ""}, PN_E_INVALID, "Q8_0"},
        {{.load_type = "q8_0", .residency = PN_RESIDENCY_MAP}, PN_E_INVALID, "anon"},
        {{.load_type = "q8_0", .residency = PN_RESIDENCY_STREAM}, PN_E_INVALID, "anon"},
    };
    pn_engine *e = NULL;
    pn_file *f = NULL;
    pn_err err = {0};
    if (!PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_file_open(e, lt_qwen, &f, &err) == PN_OK, "%s", err.text))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pn_model *m = NULL;
        pn_plan_info info;
        PN_CHECK(pn_model_load(e, lt_qwen, &rows[i].p, &m, &err) == rows[i].st && strstr(err.text, rows[i].has), "%zu: %s", i, err.text);
        pn_model_free(m);
        PN_CHECK(pn_file_plan(f, &(pn_plan_params){.load_type = rows[i].p.load_type, .residency = rows[i].p.residency}, &info, &err) == rows[i].st &&
                 strstr(err.text, rows[i].has), "%zu: %s", i, err.text);
    }
    pn_file_close(f);
    pn_engine_close(e);
}

/* Half of what is needed: told before anything is read. */
static void what_does_not_fit_is_refused(const char *path)
{
    static const pn_residency how[] = {PN_RESIDENCY_AUTO, PN_RESIDENCY_ANON};
    pn_engine *e = NULL;
    pn_file *f = NULL;
    pn_err err = {0};
    pn_plan_info p = {0};
    if (PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_file_open(e, path, &f, &err) == PN_OK, "%s", err.text))
        PN_CHECK(pn_file_plan(f, &(pn_plan_params){.load_type = "q8_0"}, &p, &err) == PN_OK, "%s", err.text);
    pn_file_close(f);
    pn_engine_close(e);
    for (size_t i = 0; i < 2; i++) {
        pn_model *m = NULL;
        const pn_engine_params ep = {.mem_limit = p.weight_bytes};
        if (PN_CHECK(pn_engine_open(&e, &ep, &err) == PN_OK, "%s", err.text))
            PN_CHECK(pn_model_load(e, path, &(pn_model_params){.load_type = "q8_0", .residency = how[i]}, &m, &err) == PN_E_BUDGET, "%s", err.text);
        pn_model_free(m);
        pn_engine_close(e);
    }
}

/* ------------------------------------------------------------------------------------------ */

static int lt_stop_at(void *user, uint64_t done, uint64_t total)
{
    PN_CHECK(done <= total);
    return --*(int *)user == 0;
}

static void a_stopped_load_leaves_nothing(const char *path)
{
    pn_status st = PN_E_CANCELLED;
    int n = 0;
    for (int at = 1; st == PN_E_CANCELLED; at += pn_test_quick() ? 1 + at / 4 : 1, n++) {
        api_heap h = {0};
        int left = at;
        pn_engine *e = NULL;
        pn_model *m = NULL;
        pn_err err = {0};
        pn_mem_info before, after;
        if (!PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.allocator = {api_heap_alloc, api_heap_free, &h}}, &err) == PN_OK, "%s", err.text))
            return;
        pn_engine_memory(e, &before);
        st = pn_model_load(e, path, &(pn_model_params){.load_type = "q4_k_m", .progress = lt_stop_at, .progress_user = &left}, &m, &err);
        PN_CHECK(st == PN_OK || st == PN_E_CANCELLED, "%s", err.text);
        pn_model_free(m);
        pn_engine_memory(e, &after);
        PN_CHECK(before.total_used == after.total_used);
        pn_engine_close(e);
        PN_CHECK(h.out == 0, "%ld blocks", h.out);
    }
    PN_CHECK(n > 3, "%d", n);
}

/* Each allocation in turn, alone and with all after it. */
static void a_failing_load_leaves_nothing(const char *path, int on)
{
    pn_status st = PN_E_NOMEM;
    long k = 1;
    for (; st == PN_E_NOMEM; k += k < (pn_test_quick() ? 10 : 60) ? 1 : 1 + k / 20) {
        api_heap h = {0};
        pn_engine *e = NULL;
        pn_model *m = NULL;
        pn_file *f = NULL;
        pn_err err = {0};
        pn_mem_info before, after;
        pn_plan_info info;
        if (!PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = 2, .allocator = {api_heap_alloc, api_heap_free, &h}}, &err) == PN_OK, "%s", err.text))
            return;
        pn_engine_memory(e, &before);
        h.fail_at = h.calls + k;
        h.fail_on = on;
        st = pn_file_open(e, path, &f, &err);
        if (!st)
            st = pn_file_plan(f, &(pn_plan_params){.load_type = "q8_0", .n_ctx = 64}, &info, &err);
        if (!st)
            st = pn_model_load_file(f, &(pn_model_params){.load_type = "q8_0"}, &m, &err);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "allocation %ld: %s", k, err.text);
        if (!st && h.calls >= h.fail_at)
            st = PN_E_NOMEM;                    /* it went without */
        pn_model_free(m);
        pn_file_close(f);
        pn_engine_memory(e, &after);
        PN_CHECK(before.total_used == after.total_used, "allocation %ld", k);
        h.fail_at = 0;
        pn_engine_close(e);
        PN_CHECK(h.out == 0, "allocation %ld: %ld blocks", k, h.out);
    }
    PN_CHECK(k > 50, "%ld", k);
}

int main(void)
{
    static const char *const types[] = {"Q8_0", "Q4_K_M"};
    if (!PN_CHECK(mkdtemp(lt_dir)) || !lt_synth("f16.gguf", "tiny", "F16"))
        return pn_test_end();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bits_are_those_of_the_quantised_file(lt_qwen, types[i], 1);
        bits_are_those_of_the_quantised_file(lt_path("f16.gguf"), types[i], 1);
        bits_are_those_of_the_quantised_file(lt_llama, types[i], 0);
        bits_are_those_of_the_quantised_file(lt_experts, types[i], 0);
        a_folders_file_is_as_exact(lt_experts, types[i]);
    }
    the_peak_is_what_was_planned(lt_path("f16.gguf"), 1, "q8_0", 1);
    the_peak_is_what_was_planned(lt_path("f16.gguf"), 2, "q4_k_m", 1);
    the_peak_is_what_was_planned(lt_experts, 2, "q8_0", 0);
    it_does_not_matter_where_it_comes_from_or_goes(lt_path("f16.gguf"));
    a_file_still_says_what_is_in_it();
    what_is_quantised_already_stays();
    what_cannot_be_is_refused();
    what_does_not_fit_is_refused(lt_path("f16.gguf"));
    a_stopped_load_leaves_nothing(lt_path("f16.gguf"));
    for (int on = 0; on < 2; on++) {
        a_failing_load_leaves_nothing(lt_path("f16.gguf"), on);
        a_failing_load_leaves_nothing(lt_experts, on);
    }
    lt_remove("f16.gguf");
    PN_CHECK(rmdir(lt_dir) == 0);
    return pn_test_end();
}
