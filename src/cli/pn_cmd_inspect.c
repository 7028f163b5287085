/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_inspect.c - `pantheon inspect` and `pantheon plan`: what a file holds, what it would need.
 *
 * Both read the header only.  Everything printed here was written by a stranger: texts are masked
 * and cut for the terminal, and escaped in JSON.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include "base/pn_json.h"

#include <inttypes.h>
#include <stdio.h>

static const pn_flag inspect_flags[] = {
    PN_ROW_MODEL,
    {"tensors", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "list every tensor"},
    PN_ROW_JSON,
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static const pn_flag plan_flags[] = {
    PN_ROW_MODEL,
    PN_ROW_CTX("as trained", "tokens a conversation may hold"),
    {"max-concurrent", NULL, 0, PN_FLAG_INT, false, 1, 65536, "N", "1", "conversations at once"},
    PN_ROW_BATCH,
    PN_ROW_THREADS,
    PN_ROW_KV_TYPE,
    PN_ROWS_RESIDENCY(false),
    PN_ROW_MEM_LIMIT,
    PN_ROW_EXACT,
    {"dot", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "print the ops of a step of --batch rows as Graphviz text"},
    PN_ROW_JSON,
    PN_ROW_QUIET,
    PN_ROW_END
};

enum { INSPECT_HEAD = 8, INSPECT_HEAD_JSON = 16, INSPECT_WIDTH = 100 };

/* --- metadata --------------------------------------------------------------------------------- */

static const char *inspect_type_name(pn_meta_type t)
{
    static const char names[][8] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array",
                                    "u64", "i64", "f64"};
    return (size_t)t < PN_COUNT_OF(names) ? names[t] : "?";
}

static bool inspect_is_real(pn_meta_type t) { return t == PN_META_F32 || t == PN_META_F64; }

/* One element, for the terminal. */
static void inspect_value(pn_str *out, const pn_file *f, const char *key, pn_meta_type t, uint64_t i)
{
    const char *text;
    size_t len;
    double v;
    if (t == PN_META_STRING) {
        if (pn_file_meta_string(f, key, i, &text, &len) == PN_OK) {
            pn_str_addc(out, '"');
            pn_out_safe(out, text, len, INSPECT_WIDTH);
            pn_str_addc(out, '"');
        }
    } else if (pn_file_meta_number(f, key, i, &v) != PN_OK) {
        pn_str_addc(out, '?');
    } else if (t == PN_META_BOOL) {
        pn_str_addz(out, v != 0 ? "true" : "false");
    } else {
        pn_str_addf(out, inspect_is_real(t) ? "%.9g" : "%.0f", v);
    }
}

static void inspect_value_json(pn_str *out, const pn_file *f, const char *key, pn_meta_type t, uint64_t i)
{
    const char *text;
    size_t len;
    double v;
    if (t == PN_META_STRING) {
        if (pn_file_meta_string(f, key, i, &text, &len) == PN_OK)
            pn_json_write_str(out, text, len);
        else
            pn_json_write_strz(out, NULL);
    } else if (pn_file_meta_number(f, key, i, &v) != PN_OK) {
        pn_json_write_strz(out, NULL);
    } else if (t == PN_META_BOOL) {
        pn_json_write_bool(out, v != 0);
    } else if (t == PN_META_F32) {
        pn_json_write_f32(out, (float)v);
    } else if (t == PN_META_F64) {
        pn_json_write_f64(out, v);
    } else {
        pn_str_addf(out, "%.0f", v);
    }
}

/* "general.name   string   "Demo"" */
static void inspect_meta(pn_str *out, const pn_file *f, const pn_meta *m, const char *key)
{
    pn_str_addz(out, "  ");
    size_t start = out->len;
    pn_out_safe(out, key, m->key_len, INSPECT_WIDTH);
    while (!out->failed && out->len - start < 42)
        pn_str_addc(out, ' ');
    if (m->type != PN_META_ARRAY) {
        pn_str_addf(out, " %-7s ", inspect_type_name(m->type));
        inspect_value(out, f, key, m->type, 0);
    } else {
        pn_str_addf(out, " %s[%" PRIu64 "] ", inspect_type_name(m->elem), m->count);
        for (uint64_t i = 0; i < m->count && i < INSPECT_HEAD && m->elem != PN_META_ARRAY; i++) {
            if (i)
                pn_str_addz(out, ", ");
            inspect_value(out, f, key, m->elem, i);
        }
        if (m->count > INSPECT_HEAD)
            pn_str_addz(out, ", ...");
    }
    pn_str_addc(out, '\n');
}

/* Scalars as they are; arrays as their type, length and first elements, because a vocabulary of
 * 150,000 strings is no answer to "what is this file?". */
static void inspect_meta_json(pn_str *out, const pn_file *f, const pn_meta *m, const char *key)
{
    if (m->type != PN_META_ARRAY) {
        inspect_value_json(out, f, key, m->type, 0);
        return;
    }
    pn_str_addc(out, '{');
    pn_out_json_text(out, "array", inspect_type_name(m->elem));
    pn_out_json_u64(out, "count", m->count);
    pn_json_key(out, "head");
    pn_str_addc(out, '[');
    for (uint64_t i = 0; i < m->count && i < INSPECT_HEAD_JSON && m->elem != PN_META_ARRAY; i++) {
        pn_json_item(out);
        inspect_value_json(out, f, key, m->elem, i);
    }
    pn_str_addz(out, "]}");
}

/* Keys carry a length; the look-ups want a terminator. */
static void inspect_all_meta(pn_cli *c, pn_str *out, bool json)
{
    pn_str key;
    pn_str_init(&key, &c->mem, PN_ACCT_MISC);
    for (size_t i = 0; i < pn_file_meta_count(c->file); i++) {
        pn_meta m;
        if (pn_file_meta_at(c->file, i, &m) != PN_OK)
            continue;
        pn_str_clear(&key);
        pn_str_add(&key, m.key, m.key_len);
        if (json) {
            pn_json_item(out);
            pn_json_write_str(out, m.key, m.key_len);
            pn_str_addc(out, ':');
            inspect_meta_json(out, c->file, &m, pn_str_cstr(&key));
        } else {
            inspect_meta(out, c->file, &m, pn_str_cstr(&key));
        }
    }
    out->failed = out->failed || key.failed;
    pn_str_fini(&key);
}

/* --- tensors ---------------------------------------------------------------------------------- */

static void inspect_tensor(pn_str *out, const pn_tensor_info *t)
{
    char shape[96];
    int n = snprintf(shape, sizeof shape, "%" PRIu64, t->ne[0]);
    for (uint32_t d = 1; d < t->n_dims && d < 4 && n > 0 && (size_t)n < sizeof shape; d++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, " x %" PRIu64, t->ne[d]);
    pn_str_addf(out, "  %-8s %-24s %10s  ", t->type, shape, pn_out_bytes(t->bytes).text);
    pn_out_safe(out, t->name, strlen(t->name), INSPECT_WIDTH);
    pn_str_addc(out, '\n');
}

static void inspect_tensor_json(pn_str *out, const pn_tensor_info *t)
{
    pn_json_item(out);
    pn_str_addc(out, '{');
    pn_out_json_text(out, "name", t->name);
    pn_out_json_text(out, "type", t->type);
    pn_json_key(out, "shape");
    pn_str_addc(out, '[');
    for (uint32_t d = 0; d < t->n_dims && d < 4; d++) {
        pn_json_item(out);
        pn_json_write_u64(out, t->ne[d]);
    }
    pn_str_addc(out, ']');
    pn_out_json_u64(out, "bytes", t->bytes);
    pn_out_json_u64(out, "offset", t->offset);
    pn_out_json_u64(out, "part", t->part);
    pn_str_addc(out, '}');
}

static void inspect_all_tensors(pn_cli *c, pn_str *out, bool json)
{
    for (size_t i = 0; i < pn_file_tensor_count(c->file); i++) {
        pn_tensor_info t;
        if (pn_file_tensor_at(c->file, i, &t) != PN_OK)
            continue;
        if (json)
            inspect_tensor_json(out, &t);
        else
            inspect_tensor(out, &t);
    }
}

/* How many tensors, elements and bytes of each number format; what we do not compute with is one, and called by its name
 * where all of it has the same. */
static void inspect_types(pn_cli *c, pn_str *out, bool json)
{
    struct { uint64_t n, elems, bytes; } sum[PN_DTYPE_COUNT + 1];
    const char *other = NULL;
    memset(sum, 0, sizeof sum);
    for (size_t i = 0; i < pn_file_tensor_count(c->file); i++) {
        pn_tensor_info t;
        if (pn_file_tensor_at(c->file, i, &t) != PN_OK || (unsigned)t.dtype > PN_DTYPE_COUNT)
            continue;
        if (t.dtype == PN_DTYPE_COUNT)
            other = !other || strcmp(other, t.type) == 0 ? t.type : "other";
        sum[t.dtype].n++;
        sum[t.dtype].elems += t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3];
        sum[t.dtype].bytes += t.bytes;
    }
    for (size_t k = 0; k <= PN_DTYPE_COUNT; k++) {
        const char *name = k < PN_DTYPE_COUNT ? pn_dtype_name((pn_dtype)k) : other;
        if (!sum[k].n)
            continue;
        if (!json) {
            pn_str_addf(out, "  %-8s %6" PRIu64 " tensors  %10s elements  %10s\n", name, sum[k].n, pn_out_count(sum[k].elems).text, pn_out_bytes(sum[k].bytes).text);
            continue;
        }
        pn_json_key(out, name);
        pn_str_addc(out, '{');
        pn_out_json_u64(out, "tensors", sum[k].n);
        pn_out_json_u64(out, "elements", sum[k].elems);
        pn_out_json_u64(out, "bytes", sum[k].bytes);
        pn_str_addc(out, '}');
    }
}

/* --- the plan --------------------------------------------------------------------------------- */

/* Members of pn_plan_info by their names. */
static void plan_json(pn_str *s, const pn_plan_info *p, bool fits)
{
    pn_out_json_text(s, "arch", p->arch);
    pn_out_json_u64(s, "n_params", p->n_params);
    pn_out_json_u64(s, "weight_bytes", p->weight_bytes);
    pn_out_json_u64(s, "weight_bytes_per_token", p->weight_bytes_per_token);
    pn_out_json_u64(s, "file_bytes", p->file_bytes);
    pn_out_json_u64(s, "vocab_bytes", p->vocab_bytes);
    pn_out_json_u64(s, "kv_bytes_per_token", p->kv_bytes_per_token);
    pn_out_json_u64(s, "kv_bytes_per_session", p->kv_bytes_per_session);
    pn_out_json_u64(s, "kv_bytes", p->kv_bytes);
    pn_out_json_u64(s, "state_bytes", p->state_bytes);
    pn_out_json_u64(s, "scratch_bytes", p->scratch_bytes);
    pn_out_json_u64(s, "total_bytes", p->total_bytes);
    pn_out_json_u64(s, "anon_bytes", p->anon_bytes);
    pn_out_json_u64(s, "floor_bytes", p->floor_bytes);
    pn_out_json_u64(s, "pinned_bytes", p->pinned_bytes);
    pn_out_json_u64(s, "stage_bytes", p->stage_bytes);
    pn_out_json_u64(s, "expert_bytes", p->expert_bytes);
    pn_out_json_u64(s, "expert_floor_bytes", p->expert_floor_bytes);
    pn_out_json_u64(s, "streamed_bytes", p->streamed_bytes);
    pn_out_json_u64(s, "load_bytes", p->load_bytes);
    pn_out_json_u64(s, "available_bytes", p->available_bytes);
    pn_out_json_u64(s, "n_ctx", p->n_ctx);
    pn_out_json_u64(s, "n_ctx_train", p->n_ctx_train);
    pn_out_json_u64(s, "n_ctx_fits", p->n_ctx_fits);
    pn_out_json_u64(s, "n_layers", p->n_layers);
    pn_out_json_u64(s, "n_embd", p->n_embd);
    pn_out_json_u64(s, "n_heads", p->n_heads);
    pn_out_json_u64(s, "n_heads_kv", p->n_heads_kv);
    pn_out_json_u64(s, "n_vocab", p->n_vocab);
    pn_out_json_u64(s, "n_batch", p->n_batch);
    pn_out_json_u64(s, "n_threads", p->n_threads);
    pn_out_json_u64(s, "n_sessions", p->n_sessions);
    pn_out_json_text(s, "kv_type", pn_kv_type_name(p->kv_type));
    pn_out_json_bool(s, "fits", fits);
}

static void plan_row(pn_str *s, const char *what, uint64_t bytes, const char *note)
{
    pn_str_addf(s, "  %-26s %12s   %s\n", what, pn_out_bytes(bytes).text, note);
}

static void plan_table(pn_str *s, const pn_plan_info *p, bool fits)
{
    char note[96];
    pn_str_addf(s, "%s: %" PRIu32 " layers, width %" PRIu32 ", %" PRIu32 " heads (%" PRIu32 " kv), vocabulary %" PRIu32
                ", %s parameters\n", p->arch, p->n_layers, p->n_embd, p->n_heads, p->n_heads_kv, p->n_vocab,
                pn_out_count(p->n_params).text);
    pn_str_addf(s, "context %" PRIu32 " of %" PRIu32 " trained, %" PRIu32 " at once, batch %" PRIu32 ", %" PRIu32
                " threads, KV %s\n\n", p->n_ctx, p->n_ctx_train, p->n_sessions, p->n_batch, p->n_threads,
                pn_kv_type_name(p->kv_type));
    snprintf(note, sizeof note, "%s read for each token", pn_out_bytes(p->weight_bytes_per_token).text);
    plan_row(s, "weights", p->weight_bytes, note);
    if (p->stage_bytes) {
        snprintf(note, sizeof note, "%s read in every step", pn_out_bytes(p->streamed_bytes).text);
        plan_row(s, "  of them pinned", p->pinned_bytes, note);
        plan_row(s, "  buffers", p->stage_bytes, "");
        snprintf(note, sizeof note, "at least %s", pn_out_bytes(p->expert_floor_bytes).text);
        if (p->expert_bytes)
            plan_row(s, "  experts", p->expert_bytes, note);
    }
    plan_row(s, "vocabulary", p->vocab_bytes, "estimated");
    snprintf(note, sizeof note, "%s a token, %s a conversation", pn_out_bytes(p->kv_bytes_per_token).text,
             pn_out_bytes(p->kv_bytes_per_session).text);
    plan_row(s, "keys and values", p->kv_bytes, note);
    plan_row(s, "recurrent state", p->state_bytes, "");
    plan_row(s, "scratch", p->scratch_bytes, "");
    plan_row(s, "total", p->total_bytes, "");
    plan_row(s, "of it not page cache", p->anon_bytes, p->load_bytes ? "" : "when weights are mapped");
    if (p->load_bytes)
        plan_row(s, "while loading", p->load_bytes, "most, with the weights and a block of rows that change their type");
    plan_row(s, "floor", p->floor_bytes, "one conversation, smallest context and batch");
    if (p->available_bytes)
        plan_row(s, "available now", p->available_bytes, "");
    pn_str_addf(s, "  %-26s %12" PRIu32 "   tokens\n\n", "context that fits now", p->n_ctx_fits);
    pn_str_addz(s, fits ? "fits" : "does not fit");
}

static void plan_params(pn_cli *c, pn_plan_params *p)
{
    const pn_args *a = &c->args;
    memset(p, 0, sizeof *p);
    p->size = sizeof *p;
    p->n_ctx = (uint32_t)pn_args_int(a, "ctx", 0);
    p->n_sessions = (uint32_t)pn_args_int(a, "max-concurrent", 0);
    p->n_batch = (uint32_t)pn_args_int(a, "batch", 0);
    p->exact = pn_args_on(a, "exact");
    p->has_kv_type = pn_cli_kv_type(c, &p->kv_type);
    p->residency = pn_cli_residency(pn_args_text(a, "residency", "auto"));
    p->pin_bytes = pn_args_size(a, "pin-bytes", 0);
    p->stream_block = pn_args_size(a, "stream-block", 0);
    p->stream_depth = (uint32_t)pn_args_int(a, "stream-depth", 0);
    p->expert_cache_bytes = pn_args_size(a, "expert-cache", 0);
    p->load_type = pn_args_text(a, "load-type", NULL);
}

static int plan_make(pn_cli *c, pn_plan_info *out)
{
    pn_plan_params p;
    plan_params(c, &p);
    pn_status st = pn_file_plan(c->file, &p, out, &c->err);
    return st ? pn_cli_fail_load(c, st) : PN_EXIT_OK;
}

static int plan_write(void *user, const char *text, size_t len)
{
    pn_str_add(user, text, len);
    return 0;
}

/* The ops of a step of --batch rows as Graphviz text. */
static int plan_dot(pn_cli *c)
{
    pn_plan_params p;
    pn_str s;
    plan_params(c, &p);
    pn_str_init(&s, &c->mem, PN_ACCT_MISC);
    pn_status st = pn_file_plan_dot(c->file, &p, plan_write, &s, &c->err);
    if (!st && s.len)
        s.data[--s.len] = 0;            /* pn_out_print ends the line */
    int code = st ? pn_cli_fail(c, st) : pn_out_print(c, &s);
    pn_str_fini(&s);
    return code;
}

static int plan_main(pn_cli *c)
{
    pn_plan_info p;
    int code = pn_cli_open_engine(c, (uint32_t)pn_args_int(&c->args, "threads", 0));
    if (!code)
        code = pn_cli_open_file(c);
    if (!code && pn_args_on(&c->args, "dot"))
        return plan_dot(c);
    if (!code)
        code = plan_make(c, &p);
    if (code)
        return code;
    uint64_t limit = pn_args_size(&c->args, "mem-limit", 0);
    bool fits = p.fits && !(limit && p.anon_bytes > limit);
    pn_str s;
    pn_str_init(&s, &c->mem, PN_ACCT_MISC);
    if (pn_args_on(&c->args, "json")) {
        pn_str_addc(&s, '{');
        plan_json(&s, &p, fits);
        pn_str_addc(&s, '}');
    } else {
        plan_table(&s, &p, fits);
    }
    code = pn_out_print(c, &s);
    pn_str_fini(&s);
    return code || fits ? code : PN_EXIT_REFUSED;
}

/* --- inspect ---------------------------------------------------------------------------------- */

/* The plan's numbers, or why there are none: a file of an architecture we cannot run can still be
 * looked into. */
static void inspect_plan(pn_cli *c, pn_str *out, bool json)
{
    pn_plan_info p;
    pn_status st = pn_file_plan(c->file, NULL, &p, &c->err);
    if (json) {
        pn_json_key(out, "plan");
        if (st) {
            pn_json_write_strz(out, NULL);
            pn_out_json_text(out, "plan_error", c->err.text);
        } else {
            pn_str_addc(out, '{');
            plan_json(out, &p, p.fits);
            pn_str_addc(out, '}');
        }
    } else if (st) {
        pn_str_addz(out, "this build cannot run it: ");
        pn_out_safe(out, c->err.text, strlen(c->err.text), sizeof c->err.text);
        pn_str_addc(out, '\n');
    } else {
        pn_str_addf(out, "%s parameters in %s, context %" PRIu32 ", KV %s a token (f16)\n",
                    pn_out_count(p.n_params).text, pn_out_bytes(p.weight_bytes).text, p.n_ctx_train,
                    pn_out_bytes(p.kv_bytes_per_token).text);
    }
}

static void inspect_text(pn_cli *c, pn_str *out)
{
    inspect_plan(c, out, false);
    if (pn_file_meta_count(c->file))
        pn_str_addf(out, "\nmetadata: %zu entries in %" PRIu32 " file%s\n", pn_file_meta_count(c->file),
                    pn_file_part_count(c->file), pn_file_part_count(c->file) == 1 ? "" : "s");
    inspect_all_meta(c, out, false);
    pn_str_addf(out, "\ntensors: %zu\n", pn_file_tensor_count(c->file));
    inspect_types(c, out, false);
    if (pn_args_on(&c->args, "tensors")) {
        pn_str_addc(out, '\n');
        inspect_all_tensors(c, out, false);
    }
    if (!out->failed && out->len)
        out->data[--out->len] = 0;      /* pn_out_print ends the line */
}

static void inspect_json(pn_cli *c, pn_str *out)
{
    pn_str_addc(out, '{');
    pn_out_json_u64(out, "parts", pn_file_part_count(c->file));
    inspect_plan(c, out, true);
    pn_json_key(out, "metadata");
    pn_str_addc(out, '{');
    inspect_all_meta(c, out, true);
    pn_str_addc(out, '}');
    pn_out_json_u64(out, "n_tensors", pn_file_tensor_count(c->file));
    pn_json_key(out, "types");
    pn_str_addc(out, '{');
    inspect_types(c, out, true);
    pn_str_addc(out, '}');
    if (pn_args_on(&c->args, "tensors")) {
        pn_json_key(out, "tensors");
        pn_str_addc(out, '[');
        inspect_all_tensors(c, out, true);
        pn_str_addc(out, ']');
    }
    pn_str_addc(out, '}');
}

static int inspect_main(pn_cli *c)
{
    int code = pn_cli_open_engine(c, 0);
    if (!code)
        code = pn_cli_open_file(c);
    if (code)
        return code;
    pn_str s;
    pn_str_init(&s, &c->mem, PN_ACCT_MISC);
    if (pn_args_on(&c->args, "json"))
        inspect_json(c, &s);
    else
        inspect_text(c, &s);
    code = pn_out_print(c, &s);
    pn_str_fini(&s);
    return code;
}

PN_INTERNAL const pn_cmd *pn_cmd_inspect(void)
{
    static const pn_cmd cmd = {"inspect", "FILE [FLAGS]", "metadata, tensors and sizes of a model file",
                               inspect_flags, 0, 1, inspect_main};
    return &cmd;
}

PN_INTERNAL const pn_cmd *pn_cmd_plan(void)
{
    static const pn_cmd cmd = {"plan", "FILE [FLAGS]", "the memory a model needs, before it is loaded; 3: does not fit",
                               plan_flags, 0, 1, plan_main};
    return &cmd;
}

#endif /* PANTHEON_CLI */
