/* Rows that change their type while they are loaded, against one row after the other encoded by hand. */
#include "engine/pn_retype.h"
#include "engine/pn_tier.h"
#include "num/pn_quant.h"

#include "pn_test.h"

#include <math.h>

static const char *const retype_folders[] = {"tests/vectors/hf/mixtral_f32", "tests/vectors/hf/phi3_f16", "tests/vectors/hf/llama_bf16"};

static uint8_t *retype_by_hand(pn_mem *mem, const pn_weights *w, const pn_dir_tensor *d)
{
    const pn_gguf_tensor *f = d->file, *t = d->t;
    uint64_t rows = f->bytes / f->row_bytes;
    uint8_t *out = pn_mem_alloc(mem, PN_ACCT_MISC, (size_t)t->bytes), *src = pn_mem_alloc(mem, PN_ACCT_MISC, (size_t)f->row_bytes);
    float *row = pn_mem_alloc(mem, PN_ACCT_MISC, (size_t)f->ne[0] * sizeof *row);
    for (uint64_t r = 0; r < rows; r++) {
        PN_CHECK(pn_weights_read(w, d, r * f->row_bytes, src, (size_t)f->row_bytes, NULL) == PN_OK);
        pn_dequant_row(f->dtype, src, row, (size_t)f->ne[0]);
        PN_CHECK(pn_quant_row(t->dtype, row, out + r * t->row_bytes, (size_t)f->ne[0]));
    }
    pn_mem_free(mem, PN_ACCT_MISC, src, (size_t)f->row_bytes);
    pn_mem_free(mem, PN_ACCT_MISC, row, (size_t)f->ne[0] * sizeof *row);
    return out;
}

/* `some` rows a call. */
static void rows_are_those_made_by_hand(pn_mem *mem, const pn_weights *w, const pn_dir_tensor *d, uint32_t threads, uint64_t some)
{
    uint8_t *want = retype_by_hand(mem, w, d), *got = pn_mem_alloc(mem, PN_ACCT_MISC, (size_t)d->t->bytes);
    uint64_t rows = d->t->bytes / d->t->row_bytes;
    pn_retyper r;
    pn_err err = {0};
    if (PN_CHECK(pn_retyper_open(&r, mem, w, threads, &err) == PN_OK, "%s", err.text)) {
        for (uint64_t at = 0; at < rows; at += some)
            PN_CHECK(pn_retyper_rows(&r, d, at, PN_MIN(some, rows - at), got + at * d->t->row_bytes, &err) == PN_OK, "%s", err.text);
        PN_CHECK(r.stage_bytes <= pn_retype_stage(w, threads));
        pn_retyper_close(&r);
    }
    PN_CHECK(memcmp(want, got, (size_t)d->t->bytes) == 0, "%s, %u threads, %u rows a call", d->t->name, (unsigned)threads, (unsigned)some);
    pn_mem_free(mem, PN_ACCT_MISC, want, (size_t)d->t->bytes);
    pn_mem_free(mem, PN_ACCT_MISC, got, (size_t)d->t->bytes);
}

static void a_directory_of_its_own(pn_mem *mem, const char *folder, const char *type)
{
    pn_weights w, as = {0};
    pn_mix mix;
    pn_err err = {0};
    size_t scattered = 0, n = 0;
    if (!PN_CHECK(pn_weights_open_path(&w, mem, folder, true, &err) == PN_OK, "%s", err.text))
        return;
    if (PN_CHECK(pn_weights_share(&as, &w, &err) == PN_OK && pn_retype_open(&as, type, PN_RESIDENCY_AUTO, &mix, &err) == PN_OK, "%s", err.text))
        for (size_t i = 0; i < as.n_tensors; i++) {
            const pn_dir_tensor *d = &as.tensors[i];
            PN_CHECK(pn_weights_find(&as, d->t->name) == d && w.tensors[i].t == w.tensors[i].file && d->file == w.tensors[i].t);
            if (!pn_weights_retyped(d))
                continue;
            PN_CHECK(!pn_weights_ptr(&as, d) && !pn_weights_piece_ptr(&as, d, 0) && pn_weights_piece_ptr(&w, &w.tensors[i], 0), "%s has an address", d->t->name);
            n++;
            scattered += d->pieces != NULL;
            for (uint32_t threads = 1; threads <= 3; threads++)
                rows_are_those_made_by_hand(mem, &as, d, threads, threads == 1 ? UINT32_MAX : 5 * threads);
        }
    PN_CHECK(n > 4 && n == as.n_retyped && (scattered > 0) == (strstr(folder, "mixtral") != NULL), "%s: %zu, %zu scattered", folder, n, scattered);
    PN_CHECK(pn_retype_stage(&w, 2) == 0 && w.n_retyped == 0);
    pn_weights_close(&as);
    pn_weights_close(&w);
}

/* What sessions on disk are compared by: a type of the model's own is in it; and the ladder has no way to such weights. */
static void a_model_knows_its_types(void)
{
    static const char *const types[] = {NULL, "q8_0", "Q8_0", "q5_0"};
    pn_engine *e = NULL;
    pn_identity id[PN_COUNT_OF(types)];
    pn_err err = {0};
    if (!PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text))
        return;
    for (size_t i = 0; i < PN_COUNT_OF(types); i++) {
        pn_model *m = NULL;
        if (PN_CHECK(pn_model_load(e, retype_folders[0], &(pn_model_params){.load_type = types[i]}, &m, &err) == PN_OK, "%s", err.text)) {
            PN_CHECK(pn_model_identity(m, &id[i], &err) == PN_OK, "%s", err.text);
            PN_CHECK((m->mapped_bytes == 0) == (types[i] != NULL));
            for (int how = PN_RESIDENCY_MAP; types[i] && how <= PN_RESIDENCY_STREAM; how++)
                PN_CHECK(pn_model_convert(m, &(pn_model_params){.residency = (pn_residency)how}, INFINITY, &(bool){false}, &err) == PN_E_UNSUPPORTED, "%s", err.text);
        }
        pn_model_free(m);
    }
    const char *other = pn_identity_differs(&id[0], &id[1]), *another = pn_identity_differs(&id[1], &id[3]);
    PN_CHECK(other && strcmp(other, "tensor table") == 0 && another && strcmp(another, "tensor table") == 0 && !pn_identity_differs(&id[1], &id[2]));
    pn_engine_close(e);
}

int main(void)
{
    pn_mem mem;
    pn_mem_init_libc(&mem);
    for (size_t i = 0; i < PN_COUNT_OF(retype_folders); i++) {
        a_directory_of_its_own(&mem, retype_folders[i], "q8_0");
        a_directory_of_its_own(&mem, retype_folders[i], "q4_k_m");
        a_directory_of_its_own(&mem, retype_folders[i], i == 1 ? "bf16" : "f16");
    }
    a_model_knows_its_types();
    return pn_test_end();
}
