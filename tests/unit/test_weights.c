/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_weights.c - models from memory, callbacks and files; split models; sources that fail.
 */
#include "gguf_image.h"

#include "format/pn_weights.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- readers that fail ---------------------------------------------------------------------------- */

static void each_read_may_fail(void)
{
    img m = array(0, 300000, 300000);           /* several fetches */
    for (long k = 1;; k++) {
        pn_test_mem mem;
        pn_weights w;
        pn_err err = {0};
        reader r = {.b = m.b, .n = m.n, .fail_at = k};
        pn_reader pr = {reader_read, &r, m.n, "remote"};
        pn_test_mem_init(&mem, 0);
        pn_status st = pn_weights_open_reader(&w, &mem.mem, &pr, &err);
        pn_weights_close(&w);
        PN_CHECK(mem.outstanding == 0);
        if (st == PN_OK) {
            PN_CHECK(k > 3);
            break;
        }
        PN_CHECK(st == PN_E_IO && strstr(err.text, "remote: reading"), "%s", err.text);
    }
    /* a source that is shorter than it says */
    pn_test_mem mem;
    pn_weights w;
    pn_err err = {0};
    reader r = {.b = m.b, .n = 1000};
    pn_reader pr = {reader_read, &r, m.n, NULL};
    pn_test_mem_init(&mem, 0);
    PN_CHECK(pn_weights_open_reader(&w, &mem.mem, &pr, &err) == PN_E_IO && strstr(err.text, "(reader)"), "%s", err.text);
    PN_CHECK(mem.outstanding == 0);
    pr.read = NULL;
    PN_CHECK(pn_weights_open_reader(&w, &mem.mem, &pr, &err) == PN_E_INVALID);
    pn_weights_close(&w);
    free(m.b);
}

static void a_lying_callback_file_takes_little_memory(void)
{
    /* 2^40 bytes are promised; only zeroes come.  Nothing near that size may be asked for. */
    pn_test_mem mem;
    pn_weights w;
    pn_err err = {0};
    img m = head(3, 0, 1);
    puts_(&m, "text");
    put32(&m, 8);
    put64(&m, (uint64_t)1 << 30);
    reader r = {.b = m.b, .n = m.n};
    pn_reader pr = {reader_read, &r, (uint64_t)1 << 40, "liar"};
    pn_test_mem_init(&mem, 0);
    PN_CHECK(pn_weights_open_reader(&w, &mem.mem, &pr, &err) == PN_E_IO, "%s", err.text);
    PN_CHECK(r.largest <= 65536 && mem.outstanding == 0);
    free(m.b);
}

/* --- weights: memory, reader, files, split models -------------------------------------------------------------- */

static void weights_from_memory_and_reader(void)
{
    img m = sample_image();
    uint8_t buf[20];
    for (int callback = 0; callback < 2; callback++) {
        pn_test_mem mem;
        pn_weights w;
        pn_err err = {0};
        reader r = {.b = m.b, .n = m.n};
        pn_reader pr = {reader_read, &r, m.n, "remote"};
        pn_test_mem_init(&mem, 0);
        pn_status st = callback ? pn_weights_open_reader(&w, &mem.mem, &pr, &err)
                                : pn_weights_open_memory(&w, &mem.mem, m.b, m.n, &err);
        if (!PN_CHECK(st == PN_OK, "%s", err.text))
            continue;
        const pn_dir_tensor *t = pn_weights_find(&w, "vector");
        PN_CHECK(t && !pn_weights_find(&w, "absent") && w.n_tensors == 2 && w.n_parts == 1 && w.file_bytes == m.n);
        PN_CHECK(pn_weights_meta(&w, "flag") != NULL);
        PN_CHECK(pn_weights_read(&w, t, 1, buf, 19, &err) == PN_OK && buf[0] == 129 && buf[18] == 147);
        PN_CHECK(pn_weights_read(&w, t, 20, buf, 0, &err) == PN_OK);
        PN_CHECK(pn_weights_read(&w, t, 2, buf, 19, &err) == PN_E_INVALID && strstr(err.text, "'vector'"));
        PN_CHECK(pn_weights_read(&w, t, UINT64_MAX, buf, 2, &err) == PN_E_INVALID);
        PN_CHECK(pn_weights_map(&w, &err) == (callback ? PN_E_UNSUPPORTED : PN_OK));
        const uint8_t *p = pn_weights_ptr(&w, t);
        PN_CHECK(callback ? p == NULL : p == m.b + t->t->offset);
        if (callback) {
            r.fail_at = r.calls + 1;
            PN_CHECK(pn_weights_read(&w, t, 0, buf, 4, &err) == PN_E_IO && strstr(err.text, "remote: tensor 'vector'"),
                     "%s", err.text);
        }
        pn_weights_close(&w);
        pn_weights_close(&w);
        PN_CHECK(mem.outstanding == 0);
    }
    pn_test_mem mem;
    pn_weights w;
    pn_err err;
    pn_test_mem_init(&mem, 0);
    PN_CHECK(pn_weights_open_memory(&w, &mem.mem, NULL, 0, &err) == PN_E_FORMAT);
    PN_CHECK(mem.outstanding == 0);
    pn_weights_close(NULL);
    free(m.b);
}

static char test_dir[256];

static const char *path_in(char buf[512], const char *name)
{
    snprintf(buf, 512, "%s/%s", test_dir, name);
    return buf;
}

static void save(const char *name, const void *bytes, size_t n)
{
    char path[512];
    FILE *f = fopen(path_in(path, name), "wb");
    if (!PN_CHECK(f && fwrite(bytes, 1, n, f) == n))
        return;
    fclose(f);
}

/* Part `no` of `count`; a key is left out when its value is negative. */
static void save_part(const char *name, int no, int count, int total, const char *tensor_name)
{
    img m = head(3, tensor_name ? 1 : 0, (no >= 0) + (count >= 0) + (total >= 0) + 1);
    kv32(&m, "some.key", 4, (uint32_t)no);
    if (no >= 0) {
        puts_(&m, "split.no");
        put32(&m, 2);
        put8(&m, (unsigned)no);
        put8(&m, 0);
    }
    if (count >= 0) {
        puts_(&m, "split.count");
        put32(&m, 2);
        put8(&m, (unsigned)count & 255);
        put8(&m, (unsigned)count >> 8);
    }
    if (total >= 0)
        kv32(&m, "split.tensors.count", 5, (uint32_t)total);
    if (tensor_name)
        tensor1(&m, tensor_name, 8, 0, 0);
    data(&m, 32, 0);
    for (unsigned i = 0; i < 32; i++)
        put8(&m, i + 32 * (unsigned)no);
    save(name, m.b, m.n);
    free(m.b);
}

static void expect_open(const char *what, const char *name, pn_status status, const char *piece)
{
    pn_test_mem mem;
    pn_weights w;
    pn_err err = {0};
    char path[512];
    pn_test_mem_init(&mem, 0);
    pn_status st = pn_weights_open_path(&w, &mem.mem, path_in(path, name), true, &err);
    PN_CHECK(st == status, "%s: %d %s", what, (int)st, err.text);
    PN_CHECK(st == PN_OK || (strstr(err.text, piece) && err.status == st), "%s: no '%s' in: %s", what, piece, err.text);
    pn_weights_close(&w);
    PN_CHECK(mem.outstanding == 0, "%s", what);
}

static void split_models_are_joined(void)
{
    uint8_t buf[32];
    char path[512];
    save_part("m-00001-of-00003.gguf", 0, 3, 3, "a");
    save_part("m-00002-of-00003.gguf", 1, 3, 3, "b");
    save_part("m-00003-of-00003.gguf", 2, -1, -1, "c");
    for (long k = 0;; k++) {                    /* k 0: without failure */
        pn_test_mem mem;
        pn_weights w;
        pn_err err = {0};
        pn_test_mem_init(&mem, k);
        pn_status st = pn_weights_open_path(&w, &mem.mem, path_in(path, "m-00001-of-00003.gguf"), true, &err);
        if (k == 0 && PN_CHECK(st == PN_OK, "%s", err.text)) {
            const pn_dir_tensor *c = pn_weights_find(&w, "c");
            uint64_t v = 9;
            PN_CHECK(w.n_parts == 3 && w.n_tensors == 3 && c && c->part == 2 && w.tensors[1].part == 1);
            PN_CHECK(pn_gguf_u64(pn_weights_meta(&w, "some.key"), 0, &v) && v == 0);
            PN_CHECK(pn_weights_read(&w, c, 4, buf, 28, &err) == PN_OK && buf[0] == 68 && buf[27] == 95);
            PN_CHECK(pn_weights_map(&w, &err) == PN_OK);
            const uint8_t *p = pn_weights_ptr(&w, c);
            PN_CHECK(p && p[0] == 64 && (uintptr_t)p % 32 == 0);
        }
        pn_weights_close(&w);
        PN_CHECK(mem.outstanding == 0, "allocation %ld", k);
        if (k && st == PN_OK)
            break;
        PN_CHECK(k == 0 || st == PN_E_NOMEM, "allocation %ld: %s", k, err.text);
    }
    expect_open("second part", "m-00002-of-00003.gguf", PN_E_INVALID, "part 2 of a model of 3 parts");
}

static void split_models_are_checked(void)
{
    char path[512];
    save_part("m-00003-of-00003.gguf", 2, 4, 3, "c");
    expect_open("counts disagree", "m-00001-of-00003.gguf", PN_E_FORMAT, "part 3 of 3");
    expect_open("counts disagree", "m-00001-of-00003.gguf", PN_E_FORMAT, "'split.count': expected 3 as in the first part, found 4");
    save_part("m-00003-of-00003.gguf", 1, 3, 3, "c");
    expect_open("number wrong", "m-00001-of-00003.gguf", PN_E_FORMAT, "'split.no': expected 2, found 1");
    save_part("m-00003-of-00003.gguf", -1, 3, 3, "c");
    expect_open("number absent", "m-00001-of-00003.gguf", PN_E_FORMAT, "expected key 'split.no' with value 2");
    save_part("m-00003-of-00003.gguf", 2, 3, 3, "a");
    expect_open("name in two parts", "m-00001-of-00003.gguf", PN_E_FORMAT, "tensor 'a' is also in part 1");
    save_part("m-00003-of-00003.gguf", 2, 3, 3, NULL);
    expect_open("a tensor missing", "m-00001-of-00003.gguf", PN_E_FORMAT, "expected 3 tensors, the 3 parts have 2");
    save("m-00003-of-00003.gguf", "GGUF", 4);
    expect_open("broken part", "m-00001-of-00003.gguf", PN_E_FORMAT, "part 3 of 3: ");
    unlink(path_in(path, "m-00003-of-00003.gguf"));
    expect_open("part missing", "m-00001-of-00003.gguf", PN_E_IO, "part 3 of 3: cannot open");
    unlink(path_in(path, "m-00002-of-00003.gguf"));
    expect_open("part 2 missing", "m-00001-of-00003.gguf", PN_E_IO, "part 2 of 3");
    unlink(path_in(path, "m-00001-of-00003.gguf"));
    save_part("renamed.gguf", 0, 3, 3, "a");
    expect_open("renamed", "renamed.gguf", PN_E_INVALID, "must end in -00001-of-00003.gguf");
    save_part("renamed.gguf", 0, 1, 1, "a");
    expect_open("count 1", "renamed.gguf", PN_OK, "");
    save_part("renamed.gguf", 0, 0, -1, "a");
    expect_open("count 0", "renamed.gguf", PN_OK, "");
    save_part("n-00001-of-00002.gguf", 0, 2, -1, "a");
    expect_open("no total", "n-00001-of-00002.gguf", PN_E_FORMAT, "split.tensors.count");
    unlink(path_in(path, "n-00001-of-00002.gguf"));
    save_part("q-00001-of-65535.gguf", 0, 65535, 1, "a");
    expect_open("65535 parts", "q-00001-of-65535.gguf", PN_E_IO, "part 2 of 65535");
    unlink(path_in(path, "q-00001-of-65535.gguf"));

    img m = head(3, 0, 1);
    kv32(&m, "split.count", 4, 2);
    pn_test_mem mem;
    pn_weights w;
    pn_err err = {0};
    pn_test_mem_init(&mem, 0);
    PN_CHECK(pn_weights_open_memory(&w, &mem.mem, m.b, m.n, &err) == PN_E_UNSUPPORTED, "%s", err.text);
    PN_CHECK(mem.outstanding == 0);
    save("renamed.gguf", m.b, m.n);
    free(m.b);
    expect_open("split and not first", "renamed.gguf", PN_E_INVALID, "must end in");
    m = head(3, 0, 1);
    kv32(&m, "split.count", 6, 2);
    save("renamed.gguf", m.b, m.n);
    expect_open("count as float", "renamed.gguf", PN_E_FORMAT, "'split.count' at offset");
    m.n = 24;
    m.b[16] = 0;
    kv32(&m, "split.count", 4, 70000);
    m.b[16] = 1;
    save("renamed.gguf", m.b, m.n);
    expect_open("70000 parts", "renamed.gguf", PN_E_FORMAT, "at most 65535, found 70000");
    free(m.b);
    unlink(path_in(path, "renamed.gguf"));
}

static void paths_that_are_no_models(void)
{
    char path[512];
    expect_open("absent", "absent.gguf", PN_E_IO, "no such file");
    expect_open("directory", ".", PN_E_FORMAT, "there is no config.json, so this is no model folder");
    save("empty.gguf", "", 0);
    expect_open("empty", "empty.gguf", PN_E_FORMAT, "empty.gguf: not a GGUF file: expected at least 24 bytes, found 0");
    unlink(path_in(path, "empty.gguf"));
    if (mkfifo(path_in(path, "fifo.gguf"), 0600) == 0) {
        expect_open("fifo", "fifo.gguf", PN_E_IO, "not a regular file");
        unlink(path);
    }
}

static void a_file_that_shrank_gives_a_status(void)
{
    img m = sample_image();
    char path[512];
    uint8_t buf[16];
    pn_test_mem mem;
    pn_weights w;
    pn_err err = {0};
    pn_test_mem_init(&mem, 0);
    save("shrinks.gguf", m.b, m.n);
    if (PN_CHECK(pn_weights_open_path(&w, &mem.mem, path_in(path, "shrinks.gguf"), true, &err) == PN_OK, "%s", err.text)) {
        const pn_dir_tensor *t = pn_weights_find(&w, "vector");
        PN_CHECK(truncate(path, (off_t)t->t->offset + 4) == 0);
        PN_CHECK(pn_weights_read(&w, t, 0, buf, 16, &err) == PN_E_IO && strstr(err.text, "the file ends at byte"), "%s", err.text);
    }
    pn_weights_close(&w);
    PN_CHECK(mem.outstanding == 0);
    unlink(path);
    free(m.b);
}

/* A sparse 16 GiB file in a process that may have 4 GiB of address space: mapping fails, reading by
 * position does not. */
static void what_cannot_be_mapped_is_read(void)
{
    char path[512];
    uint8_t buf[20];
    pn_test_mem mem;
    pn_weights w;
    pn_err err = {0};
    struct rlimit old, small = {0};
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lu", &pages) != 1 || pages > 1ul << 18 || getrlimit(RLIMIT_AS, &old) != 0) {
        pn_test_skip("no room to limit the address space (a sanitizer holds it)");
        if (f)
            fclose(f);
        return;
    }
    fclose(f);
    img m = sample_image();
    save("large.gguf", m.b, m.n);
    small.rlim_cur = (rlim_t)0xf0000000u;
    small.rlim_max = old.rlim_max;
    pn_test_mem_init(&mem, 0);
    pn_os_file file = {-1, 0};
    const void *map = NULL;
    if (sizeof(off_t) < 8 || truncate(path_in(path, "large.gguf"), (off_t)((uint64_t)1 << 34)) != 0 ||
        setrlimit(RLIMIT_AS, &small) != 0) {
        pn_test_skip("no sparse files here");
    } else if (pn_os_open(&file, path, &err) == PN_OK && pn_os_map(&file, &map, NULL) == PN_OK) {
        pn_os_unmap(map, file.size);
        setrlimit(RLIMIT_AS, &old);
        pn_test_skip("RLIMIT_AS does not bind (an emulator)");
    } else {
        pn_status st = pn_weights_open_path(&w, &mem.mem, path, true, &err);
        if (PN_CHECK(st == PN_OK, "%s", err.text)) {
            const pn_dir_tensor *t = pn_weights_find(&w, "vector");
            PN_CHECK(t && pn_weights_ptr(&w, t) == NULL && w.file_bytes == (uint64_t)1 << 34);
            PN_CHECK(pn_weights_read(&w, t, 0, buf, 20, &err) == PN_OK && buf[0] == 128, "%s", err.text);
            PN_CHECK(pn_weights_map(&w, &err) == PN_E_NOMEM && strstr(err.text, "mapping"), "%s", err.text);
        }
        pn_weights_close(&w);
        PN_CHECK(mem.outstanding == 0);
        setrlimit(RLIMIT_AS, &old);
    }
    pn_os_close(&file);
    unlink(path_in(path, "large.gguf"));
    free(m.b);
}

static void the_demo_model_opens(void)
{
    pn_test_mem mem;
    pn_weights w;
    pn_err err = {0};
    pn_bytes arch = {0};
    pn_test_mem_init(&mem, 0);
    if (access("models/demo.gguf", R_OK) != 0) {
        pn_test_skip("models/demo.gguf is not here");
        return;
    }
    if (PN_CHECK(pn_weights_open_path(&w, &mem.mem, "models/demo.gguf", true, &err) == PN_OK, "%s", err.text)) {
        PN_CHECK(pn_gguf_str(pn_weights_meta(&w, "general.architecture"), 0, &arch) && arch.len == 5);
        const pn_gguf_kv *tokens = pn_weights_meta(&w, "tokenizer.ggml.tokens");
        PN_CHECK(tokens && tokens->count == 1024 && w.n_tensors > 30 && pn_weights_find(&w, "token_embd.weight"));
    }
    pn_weights_close(&w);
    PN_CHECK(mem.outstanding == 0);
}

static void a_stack_may_lie_scattered(void)
{
    pn_test_mem mem;
    pn_weights w;
    pn_err err = {0};
    pn_test_mem_init(&mem, 0);
    if (!PN_CHECK(pn_weights_open_path(&w, &mem.mem, "tests/vectors/golden/arch/llama_moe.gguf", true, &err) == PN_OK, "%s", err.text))
        return;
    const pn_dir_tensor *stack = pn_weights_find(&w, "blk.0.ffn_gate_exps.weight");
    size_t n = (size_t)stack->t->ne[2], all = (size_t)stack->t->bytes, each = all / n;
    pn_piece *pieces = malloc(n * sizeof *pieces);
    for (size_t i = 0; i < n; i++)          /* the last first */
        pieces[i] = pn_weights_piece(stack, n - 1 - i);
    const pn_dir_tensor turned = {.t = stack->t, .file = stack->file, .part = stack->part, .pieces = pieces};
    const uint8_t *base = pn_weights_ptr(&w, stack);
    PN_CHECK(n > 2 && base && !pn_weights_ptr(&w, &turned));
    uint8_t *want = malloc(all), *got = malloc(all);
    for (size_t i = 0; i < n; i++) {
        PN_CHECK(pn_weights_piece_ptr(&w, stack, i) == base + i * each && pn_weights_piece_ptr(&w, &turned, i) == base + (n - 1 - i) * each);
        memcpy(want + i * each, base + (n - 1 - i) * each, each);
    }
    static const double ranges[][2] = {{0, 1}, {0.4, 1}, {0, 0.1}, {0.3, 0.7}, {1, 1}};
    for (size_t k = 0; k < sizeof ranges / sizeof *ranges; k++) {
        size_t from = (size_t)(ranges[k][0] * (double)all), to = (size_t)(ranges[k][1] * (double)all);
        PN_CHECK(pn_weights_read(&w, &turned, from, got, to - from, &err) == PN_OK && memcmp(got, want + from, to - from) == 0, "%zu to %zu", from, to);
    }
    PN_CHECK(pn_weights_read(&w, &turned, 1, got, all, &err) == PN_E_INVALID);
    free(want);
    free(got);
    free(pieces);
    pn_weights_close(&w);
    PN_CHECK(mem.outstanding == 0);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(test_dir, sizeof test_dir, "%.200s/pn_test_weights_XXXXXX", tmp ? tmp : "/tmp");
    if (!PN_CHECK(mkdtemp(test_dir) != NULL))
        return pn_test_end();
    each_read_may_fail();
    a_lying_callback_file_takes_little_memory();
    weights_from_memory_and_reader();
    split_models_are_joined();
    split_models_are_checked();
    paths_that_are_no_models();
    a_file_that_shrank_gives_a_status();
    what_cannot_be_mapped_is_read();
    the_demo_model_opens();
    PN_CHECK(rmdir(test_dir) == 0, "files left in %s", test_dir);
    a_stack_may_lie_scattered();
    return pn_test_end();
}
