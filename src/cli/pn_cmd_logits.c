/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_logits.c - `pantheon logits` and `pantheon perplexity`: what the model thinks of a text.
 *
 * Both evaluate tokens in chunks whose logits fit LOGITS_CHUNK bytes, so memory stays bounded for
 * any length and vocabulary.  How a text is cut into chunks does not change a bit (pantheon.h, "same
 * bits"), so this is no trade.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#define LOGITS_CHUNK ((uint64_t)64 << 20)

static const pn_flag logits_flags[] = {
    PN_ROW_MODEL,
    {"tokens", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "1,2,3", NULL, "the ids to evaluate"},
    {"tokens-file", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "the ids from a file; - is standard input"},
    {"output", NULL, 'o', PN_FLAG_TEXT, false, 0, 0, "OUT.f32", NULL,
     "where the logits go: float32 little-endian [n_tokens, n_vocab]"},
    PN_ROW_CTX("the number of tokens", "most tokens the session may hold"),
    PN_ROW_BATCH,
    PN_ROW_THREADS,
    PN_ROW_KV_TYPE,
    PN_ROW_MEM_LIMIT,
    PN_ROWS_RESIDENCY(false),
    PN_ROW_EXACT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static const pn_flag perplexity_flags[] = {
    PN_ROW_MODEL,
    {"file", NULL, 'f', PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "the text; - is standard input"},
    PN_ROW_CTX("512", "tokens of a window"),
    {"chunks", NULL, 0, PN_FLAG_INT, false, 1, 1 << 30, "N", "all", "windows to count"},
    PN_ROW_JSON,
    PN_ROW_BATCH,
    PN_ROW_THREADS,
    PN_ROW_KV_TYPE,
    PN_ROW_MEM_LIMIT,
    PN_ROWS_RESIDENCY(false),
    PN_ROW_EXACT,
    PN_ROW_QUIET,
    PN_ROW_END
};

/* Rows of logits for one chunk. */
typedef struct logits_buf {
    float *data;                /* [rows, n_vocab], from the engine, counted */
    size_t rows, n_vocab, bytes;
} logits_buf;

static int logits_buf_open(pn_cli *c, logits_buf *b, size_t n)
{
    b->n_vocab = pn_vocab_size(c->model);
    uint64_t row = (uint64_t)b->n_vocab * sizeof(float);
    b->rows = (size_t)PN_MAX(PN_MIN(LOGITS_CHUNK / row, (uint64_t)n), (uint64_t)1);
    b->bytes = b->rows * (size_t)row;
    b->data = pn_alloc(c->engine, PN_ACCT_MISC, b->bytes);
    if (b->data)
        return PN_EXIT_OK;
    pn_cli_failed(c, "no memory for logits: %zu bytes", b->bytes);
    return pn_args_has(&c->args, "mem-limit") ? PN_EXIT_REFUSED : PN_EXIT_FAILED;
}

static void logits_buf_close(pn_cli *c, logits_buf *b)
{
    if (b->data)
        pn_free(c->engine, PN_ACCT_MISC, b->data, b->bytes);
    b->data = NULL;
}

static int logits_open(pn_cli *c)
{
    pn_cli_catch_interrupt();
    int code = pn_cli_open_engine(c, (uint32_t)pn_args_int(&c->args, "threads", 0));
    return code ? code : pn_cli_open_model(c);
}

/* --- logits ----------------------------------------------------------------------------------- */

/* In place to little-endian; on the usual machine that is nothing. */
static void logits_to_le(float *v, size_t n)
{
    const uint16_t probe = 1;
    uint8_t first;
    memcpy(&first, &probe, 1);
    if (first)
        return;
    uint8_t *p = (uint8_t *)v;
    for (size_t i = 0; i < n; i++, p += 4) {
        uint8_t a = p[0], b = p[1];
        p[0] = p[3], p[1] = p[2], p[2] = b, p[3] = a;
    }
}

static int logits_write(pn_cli *c, const pn_ids *ids, logits_buf *b, FILE *out, const char *path)
{
    for (size_t done = 0; done < ids->n;) {
        size_t n = PN_MIN(b->rows, ids->n - done);
        pn_cli_bar(c, "evaluating", done, ids->n);
        if (pn_cli_interrupted())
            return PN_EXIT_INTERRUPTED;
        pn_status st = pn_session_eval_all(c->session, ids->data + done, n, b->data, &c->err);
        if (st)
            return pn_cli_fail(c, st);
        logits_to_le(b->data, n * b->n_vocab);
        if (fwrite(b->data, sizeof(float), n * b->n_vocab, out) != n * b->n_vocab)
            return pn_cli_failed(c, "cannot write %s: %s", path, strerror(errno));
        done += n;
    }
    return PN_EXIT_OK;
}

/* Half a matrix helps nobody.  Only a plain file goes: OUT may be a pipe or a device. */
static void logits_discard(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode))
        remove(path);
}

static int logits_to_file(pn_cli *c, const pn_ids *ids)
{
    const char *path = pn_args_text(&c->args, "output", NULL);
    logits_buf b = {NULL, 0, 0, 0};
    bool std = strcmp(path, "-") == 0;
    int code = logits_buf_open(c, &b, ids->n);
    if (code)
        return code;
    FILE *out = std ? stdout : fopen(path, "wb");
    code = out ? logits_write(c, ids, &b, out, path)
               : pn_cli_failed(c, "cannot create %s: %s", path, strerror(errno));
    pn_cli_bar_end(c);
    logits_buf_close(c, &b);
    if (out && !std && fclose(out) != 0 && !code)
        code = pn_cli_failed(c, "cannot write %s: %s", path, strerror(errno));
    if (out && !std && code)
        logits_discard(path);
    if (!code)
        pn_cli_note(c, "wrote %zu x %zu logits to %s", ids->n, b.n_vocab, path);
    return code;
}

static int logits_go(pn_cli *c, pn_ids *ids)
{
    if (!pn_args_has(&c->args, "output"))
        return pn_cli_usage(c, "logits needs -o OUT.f32");
    int code = logits_open(c);
    if (!code)
        code = pn_cli_read_ids(c, ids);
    if (code)
        return code;
    if (ids->n == 0)
        return pn_cli_usage(c, "no tokens: expected at least one id");
    int64_t ctx = pn_args_int(&c->args, "ctx", (int64_t)ids->n);
    if ((uint64_t)ctx < ids->n)
        return pn_cli_usage(c, "--ctx: '%" PRId64 "' is not allowed: expected at least the %zu tokens given", ctx,
                            ids->n);
    code = pn_cli_open_session(c, (uint32_t)ctx);
    return code ? code : logits_to_file(c, ids);
}

static int logits_main(pn_cli *c)
{
    pn_ids ids;
    pn_ids_init(&ids, &c->mem);
    int code = logits_go(c, &ids);
    pn_ids_fini(&ids);
    return code;
}

/* --- perplexity ------------------------------------------------------------------------------- */

/* exp and log to double precision without the system's libm, so that the number printed does not
 * depend on it.  Range reduction by powers of two; Taylor's series of exp on |r| <= ln2/2 (13 terms:
 * below 2^-53) and of atanh on |t| <= 0.172 (12 odd terms). */
static double ppl_exp(double x)
{
    if (!(x > -708))
        return 0;
    if (x > 709)
        return (double)INFINITY;
    double n = rint(x * 1.4426950408889634);
    double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
    double y = 1;
    for (int k = 14; k >= 1; k--)
        y = 1 + y * r / k;
    uint64_t bits = (uint64_t)(1023 + (int64_t)n) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return y * scale;
}

/* x: a normal positive number. */
static double ppl_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & (((uint64_t)1 << 52) - 1)) | (uint64_t)1023 << 52;
    memcpy(&x, &bits, sizeof x);
    if (x > 1.4142135623730951) {
        x /= 2;
        e++;
    }
    double t = (x - 1) / (x + 1), t2 = t * t, sum = 0;
    for (int k = 23; k >= 1; k -= 2)
        sum = sum * t2 + 1.0 / k;
    return e * 0.6931471805599453 + 2 * t * sum;
}

/* -log of the probability of `target` under softmax(logits). */
static double ppl_nll(const float *logits, size_t n_vocab, pn_token target)
{
    float max = logits[0];
    double sum = 0;
    for (size_t i = 1; i < n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (size_t i = 0; i < n_vocab; i++) {
        double d = (double)logits[i] - (double)max;
        if (d > -44)                    /* less adds nothing to a double of at least 1 */
            sum += ppl_exp(d);
    }
    return ppl_log(sum) + (double)max - (double)logits[target];
}

typedef struct ppl_state {
    pn_cli *c;
    pn_ids ids;
    logits_buf buf;
    size_t ctx, windows;
    bool add_bos;
    uint64_t count;
    double sum, sum2;           /* of the negative log-likelihoods and their squares */
} ppl_state;

/* Tokens of the second half, each against the one that follows it.  The last position predicts
 * beyond the window and is not counted. */
static int ppl_score(ppl_state *p, const pn_token *window)
{
    pn_cli *c = p->c;
    for (size_t pos = p->ctx / 2; pos + 1 < p->ctx;) {
        size_t n = PN_MIN(p->buf.rows, p->ctx - 1 - pos);
        pn_status st = pn_session_eval_all(c->session, window + pos, n, p->buf.data, &c->err);
        if (st)
            return pn_cli_fail(c, st);
        for (size_t i = 0; i < n; i++) {
            double v = ppl_nll(p->buf.data + i * p->buf.n_vocab, p->buf.n_vocab, window[pos + i + 1]);
            p->sum += v;
            p->sum2 += v * v;
        }
        p->count += n;
        pos += n;
    }
    return PN_EXIT_OK;
}

static int ppl_window(ppl_state *p, size_t w)
{
    pn_cli *c = p->c;
    pn_token *window = p->ids.data + w * p->ctx, first = window[0];
    pn_status st = pn_session_truncate(c->session, 0, &c->err);
    if (p->add_bos)
        window[0] = pn_token_special(c->model, PN_SPECIAL_BOS);
    if (!st)
        st = pn_session_eval(c->session, window, p->ctx / 2, &c->err);
    int code = st ? pn_cli_fail(c, st) : ppl_score(p, window);
    window[0] = first;
    return code;
}

/* Does the model begin a text with BOS?  Ask the tokenizer. */
static int ppl_find_bos(ppl_state *p)
{
    pn_ids probe;
    pn_ids_init(&probe, &p->c->mem);
    int code = pn_cli_tokenize(p->c, "a", 1, PN_TOKENIZE_BOS, &probe);
    pn_token bos = pn_token_special(p->c->model, PN_SPECIAL_BOS);
    p->add_bos = !code && bos >= 0 && probe.n && probe.data[0] == bos;
    pn_ids_fini(&probe);
    return code;
}

static int ppl_tokens(ppl_state *p)
{
    pn_cli *c = p->c;
    pn_str text;
    pn_str_init(&text, &c->mem, PN_ACCT_MISC);
    int code = pn_cli_read_file(c, pn_args_text(&c->args, "file", NULL), &text);
    if (!code)
        code = pn_cli_tokenize(c, pn_str_cstr(&text), text.len, PN_TOKENIZE_BOS, &p->ids);
    pn_str_fini(&text);
    if (code)
        return code;
    if (p->ids.n < 2 * p->ctx)
        return pn_cli_failed(c, "the text has %zu tokens: expected at least two windows of %zu (--ctx)", p->ids.n,
                             p->ctx);
    p->windows = p->ids.n / p->ctx;
    p->windows = (size_t)PN_MIN((uint64_t)p->windows, (uint64_t)pn_args_int(&c->args, "chunks", INT32_MAX));
    return PN_EXIT_OK;
}

static int ppl_print(ppl_state *p)
{
    double mean = p->sum / (double)p->count, ppl = ppl_exp(mean), error = 0;
    double var = p->sum2 / (double)p->count - mean * mean;
    if (p->count > 1 && var > 0)
        error = sqrt(var / (double)(p->count - 1)) * ppl;
    if (!pn_args_on(&p->c->args, "json")) {
        printf("perplexity %.4f ± %.5f\n", ppl, error);
        return pn_cli_flush(p->c, PN_EXIT_OK);
    }
    pn_str s;
    pn_str_init(&s, &p->c->mem, PN_ACCT_MISC);
    pn_str_addc(&s, '{');
    pn_out_json_real(&s, "perplexity", ppl);
    pn_out_json_real(&s, "error", error);
    pn_out_json_u64(&s, "n_ctx", p->ctx);
    pn_out_json_u64(&s, "windows", p->windows);
    pn_out_json_u64(&s, "tokens", p->count);
    pn_str_addc(&s, '}');
    int code = pn_out_print(p->c, &s);
    pn_str_fini(&s);
    return code;
}

static int ppl_go(ppl_state *p)
{
    pn_cli *c = p->c;
    p->ctx = (size_t)pn_args_int(&c->args, "ctx", 512);
    if (!pn_args_has(&c->args, "file"))
        return pn_cli_usage(c, "perplexity needs --file FILE");
    if (p->ctx < 4)
        return pn_cli_usage(c, "--ctx: '%zu' is not allowed: expected a window of at least 4 tokens", p->ctx);
    int code = logits_open(c);
    if (!code)
        code = ppl_find_bos(p);
    if (!code)
        code = ppl_tokens(p);
    if (!code)
        code = pn_cli_open_session(c, (uint32_t)p->ctx);
    if (!code)
        code = logits_buf_open(c, &p->buf, p->ctx);
    if (code)
        return code;
    pn_session_on_tick(c->session, NULL, NULL);        /* one bar is enough */
    for (size_t w = 0; w < p->windows && !code; w++) {
        pn_cli_bar(c, "windows", w, p->windows);
        code = pn_cli_interrupted() ? PN_EXIT_INTERRUPTED : ppl_window(p, w);
    }
    pn_cli_bar_end(c);
    if (code)
        return code;
    pn_cli_note(c, "%zu windows of %zu tokens, %" PRIu64 " counted", p->windows, p->ctx, p->count);
    return ppl_print(p);
}

static int perplexity_main(pn_cli *c)
{
    ppl_state p;
    memset(&p, 0, sizeof p);
    p.c = c;
    pn_ids_init(&p.ids, &c->mem);
    int code = ppl_go(&p);
    logits_buf_close(c, &p.buf);
    pn_ids_fini(&p.ids);
    return code;
}

PN_INTERNAL const pn_cmd *pn_cmd_logits(void)
{
    static const pn_cmd cmd = {"logits", "-m FILE (--tokens 1,2,3 | --tokens-file FILE) -o OUT.f32 [FLAGS]",
                               "raw logits after every token", logits_flags, 0, 0, logits_main};
    return &cmd;
}

PN_INTERNAL const pn_cmd *pn_cmd_perplexity(void)
{
    static const pn_cmd cmd = {"perplexity", "-m FILE --file TEXT [FLAGS]", "how well a model predicts a text",
                               perplexity_flags, 0, 0, perplexity_main};
    return &cmd;
}

#undef LOGITS_CHUNK

#endif /* PANTHEON_CLI */
