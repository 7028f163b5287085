/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_run.c - `pantheon run`: continue a prompt, or talk.
 *
 * A chat is a pn_chat: the model's own template renders it, and the session keeps the tokens of
 * earlier answers as the model chose them.
 *
 * Ctrl-C while the model speaks ends the answer, and the chat goes on; at the prompt it ends the
 * program with 130.
 */
#include "cli/pn_cli.h"

#include "base/pn_json.h"

#ifdef PANTHEON_CLI

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/select.h>
#include <unistd.h>

static const pn_flag run_flags[] = {
    PN_ROW_MODEL,
    {"prompt", NULL, 'p', PN_FLAG_TEXT, false, 0, 0, "TEXT", NULL,
     "what to continue; with --chat, the one message"},
    {"file", NULL, 'f', PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "the prompt from a file; - is standard input"},
    {"max-tokens", NULL, 'n', PN_FLAG_INT, false, 0, 1 << 30, "N", "until the end or the context is full",
     "most tokens of an answer; 0 evaluates the prompt only"},
    {"chat", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL,
     "a conversation in the model's format, one message a line"},
    {"system", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "TEXT", NULL, "system message of a chat"},
    {"chat-format", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "NAME", "found from the model",
     "format of a chat: chatml, llama3, gemma, ... (docs/cli.md)"},
    {"template", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", "the model's own", "chat template (Jinja) of a chat"},
    {"tools", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "tools of a chat: a JSON array as OpenAI has it"},
    {"tool-choice", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "auto|none|required|NAME", "auto", "whether tools are called, or which one"},
    {"single-call", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "at most one call in an answer"},
    {"syntax", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "NAME", "found from the template", "how the model writes reasoning and calls: hermes, llama3, ..."},
    {"reasoning-budget", NULL, 0, PN_FLAG_INT, false, 0, 1 << 30, "N", "no limit", "most tokens of reasoning in a chat; 0: none"},
    {"json", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "the answer is one JSON object"},
    {"json-schema", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "the answer satisfies this JSON Schema"},
    {"grammar", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "the answer is a sentence of this grammar (GBNF)"},
    {"special", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL,
     "control tokens written in a prompt count as such (not in a chat)"},
    {"no-stream", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "print an answer when it is complete"},
    {"logprobs", NULL, 0, PN_FLAG_INT, false, 0, 20, "N", NULL,
     "a JSON line on stderr for each token: log-probability and the N likeliest"},
    PN_ROW_CTX("as trained, or what memory allows", "most tokens the conversation may hold"),
    PN_ROW_BATCH,
    PN_ROW_THREADS,
    PN_ROW_KV_TYPE,
    PN_ROW_MEM_LIMIT,
    PN_ROW_MEM_RESERVE,
    PN_ROWS_KV_LEAST,
    PN_ROW_PRESSURE_SCRIPT,
    PN_ROW_PREFIX_CACHE("none; with --session-dir a tenth of memory"),
    PN_ROW_SESSION_DIR,
    PN_ROW_SESSION_QUOTA,
    PN_ROWS_RESIDENCY(false),
    PN_ROW_EXACT,
    {"temp", NULL, 0, PN_FLAG_REAL, false, 0, 1000, "T", "0.8 or the model's", "temperature; 0 is greedy"},
    {"top-k", NULL, 0, PN_FLAG_INT, false, -1, INT32_MAX, "N", "40 or the model's", "keep the N likeliest; 0: off"},
    {"top-p", NULL, 0, PN_FLAG_REAL, false, 0, 1, "P", "0.95 or the model's",
     "keep the likeliest that sum up to P; 1: off"},
    {"min-p", NULL, 0, PN_FLAG_REAL, false, 0, 1, "P", "0.05 or the model's",
     "keep what is at least P times as likely as the likeliest; 0: off"},
    {"repeat-penalty", NULL, 0, PN_FLAG_REAL, false, 1e-3, 1000, "X", "1.0 or the model's",
     "make tokens of the last --repeat-last-n less likely; 1: off"},
    {"repeat-last-n", NULL, 0, PN_FLAG_INT, false, -1, INT32_MAX, "N", "64 or the model's",
     "tokens the repeat penalty looks back; 0: off, -1: all"},
    {"presence-penalty", NULL, 0, PN_FLAG_REAL, false, -100, 100, "X", "0",
     "subtracted once from tokens generated before"},
    {"frequency-penalty", NULL, 0, PN_FLAG_REAL, false, -100, 100, "X", "0",
     "subtracted for each time a token was generated"},
    {"typical", NULL, 0, PN_FLAG_REAL, false, 0, 1, "P", "1", "keep the most typical that sum up to P; 1: off"},
    {"top-n-sigma", NULL, 0, PN_FLAG_REAL, false, -1, 1000, "N", "-1",
     "keep logits within N standard deviations of the best; 0 or less: off"},
    {"xtc-probability", NULL, 0, PN_FLAG_REAL, false, 0, 1, "P", "0 or the model's",
     "how often to drop all of the likely tokens but the least; 0: off"},
    {"xtc-threshold", NULL, 0, PN_FLAG_REAL, false, 0, 1, "P", "0.1 or the model's",
     "what is likely for --xtc-probability; above 0.5: off"},
    {"dry-multiplier", NULL, 0, PN_FLAG_REAL, false, 0, 1000, "X", "0", "punish repeated passages; 0: off"},
    {"dry-base", NULL, 0, PN_FLAG_REAL, false, 1, 1000, "X", "1.75", "growth of that with the passage's length"},
    {"dry-allowed-length", NULL, 0, PN_FLAG_INT, false, 1, 1 << 30, "N", "2", "shorter repetitions go unpunished"},
    {"dry-penalty-last-n", NULL, 0, PN_FLAG_INT, false, -1, INT32_MAX, "N", "64",
     "tokens --dry-multiplier looks back; 0: off, -1: all"},
    {"dynatemp-range", NULL, 0, PN_FLAG_REAL, false, 0, 1000, "R", "0",
     "let the temperature vary by R with the entropy; 0: off"},
    {"dynatemp-exp", NULL, 0, PN_FLAG_REAL, false, 1e-3, 1000, "X", "1", "exponent of that"},
    {"mirostat", NULL, 0, PN_FLAG_CHOICE, false, 0, 0, "0|2", "0 or the model's",
     "2: hold the surprise at --mirostat-tau instead of truncating"},
    {"mirostat-tau", NULL, 0, PN_FLAG_REAL, false, 1e-3, 1000, "X", "5 or the model's", "surprise to hold, bits"},
    {"mirostat-eta", NULL, 0, PN_FLAG_REAL, false, 1e-6, 1000, "X", "0.1 or the model's", "how fast it follows"},
    {"samplers", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "ORDER",
     "penalties;dry;top_n_sigma;temperature;top_k;typical;top_p;min_p;xtc", "which samplers, in which order"},
    {"logit-bias", NULL, 0, PN_FLAG_TEXT, true, 0, 0, "ID=V", NULL,
     "add V to a token's logit, -inf bans it; repeatable"},
    {"seed", NULL, 0, PN_FLAG_U64, false, 0, 0, "N", "random, told in the last line", "same seed, same text"},
    {"stop", NULL, 0, PN_FLAG_TEXT, true, 0, 0, "TEXT", NULL, "end the answer before this text; repeatable"},
    {"ignore-eos", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "never choose a token that ends the answer"},
    {"min-tokens", NULL, 0, PN_FLAG_INT, false, 0, 1 << 30, "N", "0", "do not end before this many"},
    PN_ROW_QUIET,
    PN_ROW_END
};

typedef struct run_state {
    pn_cli *c;
    pn_generate_params gen;     /* prompt set for each answer */
    pn_sampling sampling;
    const char **stop;          /* owned, [n_stop]; the texts are the arguments' */
    pn_logit_bias *bias;        /* owned, [n_bias] */
    size_t n_stop, n_bias;
    pn_chat *chat;
    pn_grammar *grammar;
    bool thinking;              /* the last event was reasoning */
    pn_str prompt, answer;
    pn_str line;                /* of --logprobs */
    pn_ids ids;
    bool no_stream, prompt_only;
    pn_generate_result total;   /* sums over all answers; finish and seed of the last */
} run_state;

/* --- reading the flags ------------------------------------------------------------------------ */

static int run_read_stops(run_state *r)
{
    const pn_args *a = &r->c->args;
    while (pn_args_nth(a, "stop", r->n_stop))
        r->n_stop++;
    r->stop = pn_mem_calloc(&r->c->mem, PN_ACCT_MISC, r->n_stop, sizeof *r->stop);
    if (!r->stop)
        return pn_cli_nomem(r->c);
    for (size_t i = 0; i < r->n_stop; i++) {
        r->stop[i] = pn_args_nth(a, "stop", i);
        if (!*r->stop[i])
            return pn_cli_usage(r->c, "--stop: '' is not allowed: expected some text");
    }
    r->gen.stop = r->stop;
    r->gen.n_stop = r->n_stop;
    return PN_EXIT_OK;
}

/* "17=-1.5", "17=-inf" */
static bool run_parse_bias(const char *text, pn_logit_bias *out)
{
    const char *eq = strchr(text, '='), *stop = text + strlen(text), *end;
    char id[16];
    int64_t token;
    double v;
    if (!eq || (size_t)(eq - text) >= sizeof id)
        return false;
    memcpy(id, text, (size_t)(eq - text));
    id[eq - text] = 0;
    if (!pn_parse_i64(id, 0, INT32_MAX, &token))
        return false;
    if (strcmp(eq + 1, "-inf") == 0)
        v = -(double)INFINITY;
    else if (!pn_parse_f64(eq + 1, stop, &v, &end) || end != stop || v < -1e30 || v > 1e30)
        return false;
    out->token = (pn_token)token;
    out->bias = (float)v;
    return true;
}

static int run_read_bias(run_state *r)
{
    const pn_args *a = &r->c->args;
    while (pn_args_nth(a, "logit-bias", r->n_bias))
        r->n_bias++;
    r->bias = pn_mem_calloc(&r->c->mem, PN_ACCT_MISC, r->n_bias, sizeof *r->bias);
    if (!r->bias)
        return pn_cli_nomem(r->c);
    for (size_t i = 0; i < r->n_bias; i++) {
        const char *text = pn_args_nth(a, "logit-bias", i);
        if (!run_parse_bias(text, &r->bias[i]))
            return pn_cli_usage(r->c, "--logit-bias: '%s' is not allowed: expected ID=V, V a number or -inf", text);
    }
    return PN_EXIT_OK;
}

static void run_read_real(const pn_args *a, const char *flag, float *v)
{
    *v = (float)pn_args_real(a, flag, (double)*v);
}

/* Where 0 means "off" or "the default" in the API, and the smallest number on the command line. */
static void run_read_share(const pn_args *a, const char *flag, float *v)
{
    if (pn_args_has(a, flag))
        *v = PN_MAX((float)pn_args_real(a, flag, 1), 1e-30f);
}

/* How many tokens a penalty looks back.  True: 0 was given, so the penalty is off; in the API 0 means 64. */
static bool run_read_window(const pn_args *a, const char *name, int32_t *window)
{
    if (!pn_args_has(a, name))
        return false;
    *window = (int32_t)pn_args_int(a, name, 64);
    return *window == 0;
}

static void run_read_more_samplers(const pn_args *a, pn_sampling *s)
{
    run_read_share(a, "typical", &s->typical_p);
    run_read_real(a, "top-n-sigma", &s->top_n_sigma);
    run_read_real(a, "xtc-probability", &s->xtc_probability);
    run_read_share(a, "xtc-threshold", &s->xtc_threshold);
    run_read_real(a, "dry-multiplier", &s->dry_multiplier);
    run_read_real(a, "dry-base", &s->dry_base);
    s->dry_allowed_length = (int32_t)pn_args_int(a, "dry-allowed-length", s->dry_allowed_length);
    if (run_read_window(a, "dry-penalty-last-n", &s->dry_penalty_last_n))
        s->dry_multiplier = 0;
    run_read_real(a, "dynatemp-range", &s->dynatemp_range);
    run_read_real(a, "dynatemp-exp", &s->dynatemp_exponent);
    if (pn_args_has(a, "mirostat"))
        s->mirostat = pn_args_text(a, "mirostat", "0")[0] == '2' ? 2 : 0;
    run_read_real(a, "mirostat-tau", &s->mirostat_tau);
    run_read_real(a, "mirostat-eta", &s->mirostat_eta);
}

/* The model's recommendation, then what the flags say. */
static int run_read_sampling(run_state *r)
{
    const pn_args *a = &r->c->args;
    pn_sampling *s = &r->sampling;
    pn_sampling_default(r->c->model, s);
    s->size = sizeof *s;
    run_read_real(a, "temp", &s->temperature);
    s->top_k = (int32_t)pn_args_int(a, "top-k", s->top_k);
    run_read_real(a, "min-p", &s->min_p);
    run_read_share(a, "top-p", &s->top_p);
    run_read_real(a, "repeat-penalty", &s->repeat_penalty);
    if (run_read_window(a, "repeat-last-n", &s->repeat_last_n))
        s->repeat_penalty = 1;
    run_read_real(a, "presence-penalty", &s->presence_penalty);
    run_read_real(a, "frequency-penalty", &s->frequency_penalty);
    run_read_more_samplers(a, s);
    if (pn_args_has(a, "seed")) {
        s->seed = pn_args_u64(a, "seed", 0);
        s->has_seed = 1;
    }
    s->ignore_eos = pn_args_on(a, "ignore-eos");
    s->min_tokens = (uint32_t)pn_args_int(a, "min-tokens", s->min_tokens);
    s->bias = r->bias;
    s->n_bias = r->n_bias;
    const char *order = pn_args_text(a, "samplers", NULL);
    if (order && pn_sampling_parse_order(order, s->order, &r->c->err))
        return pn_cli_usage(r->c, "--samplers: %s", r->c->err.text);
    for (size_t i = 0; i < r->n_bias; i++)
        if ((uint32_t)r->bias[i].token >= pn_vocab_size(r->c->model))
            return pn_cli_usage(r->c, "--logit-bias: token %" PRId32 " is not allowed: the model has ids from 0 to %"
                                PRIu32, r->bias[i].token, pn_vocab_size(r->c->model) - 1);
    return PN_EXIT_OK;
}

/* What can be refused before a model is loaded. */
static int run_read_flags(run_state *r)
{
    const pn_args *a = &r->c->args;
    bool chat = pn_args_on(a, "chat");
    uint8_t order[PN_SAMPLER_ORDER_MAX];
    const char *samplers = pn_args_text(a, "samplers", NULL);
    if (pn_args_has(a, "prompt") && pn_args_has(a, "file"))
        return pn_cli_usage(r->c, "--prompt and --file: give one of them");
    if (!chat && !pn_args_has(a, "prompt") && !pn_args_has(a, "file"))
        return pn_cli_usage(r->c, "run needs --prompt TEXT, --file FILE or --chat");
    if (!chat && (pn_args_has(a, "system") || pn_args_has(a, "chat-format") || pn_args_has(a, "tools")))
        return pn_cli_usage(r->c, "--system, --chat-format and --tools need --chat");
    if (!pn_args_has(a, "tools") && (pn_args_has(a, "tool-choice") || pn_args_has(a, "single-call")))
        return pn_cli_usage(r->c, "--tool-choice and --single-call need --tools FILE");
    if (samplers && pn_sampling_parse_order(samplers, order, &r->c->err))
        return pn_cli_usage(r->c, "--samplers: %s", r->c->err.text);
    int64_t n = pn_args_int(a, "max-tokens", -1);
    r->prompt_only = n == 0;
    r->gen.max_tokens = n > 0 ? (uint32_t)n : 0;
    r->no_stream = pn_args_on(a, "no-stream");
    int code = run_read_stops(r);
    return code ? code : run_read_bias(r);
}

/* --prompt or --file into r->prompt. */
static int run_read_prompt(run_state *r)
{
    const char *text = pn_args_text(&r->c->args, "prompt", NULL);
    if (!text)
        return pn_cli_read_file(r->c, pn_args_text(&r->c->args, "file", NULL), &r->prompt);
    pn_str_addz(&r->prompt, text);
    return r->prompt.failed ? pn_cli_nomem(r->c) : PN_EXIT_OK;
}

/* --- one answer ------------------------------------------------------------------------------- */

static int run_on_text(void *user, const char *text, size_t len, pn_token token)
{
    run_state *r = user;
    (void)token;
    pn_cli_bar_end(r->c);
    pn_str_add(&r->answer, text, len);
    if (!r->no_stream && len) {
        fwrite(text, 1, len, stdout);
        fflush(stdout);
    }
    return pn_cli_interrupted() || r->answer.failed || ferror(stdout);
}

/* "token":"Hi","id":42,"logprob":-0.5,"bytes":[72,105] as OpenAI has it, and the id; -9999 is minus infinity. */
static void run_put_token(pn_str *s, const pn_token_logprob *t)
{
    pn_json_key(s, "token");
    pn_json_write_str(s, t->bytes, t->len);
    pn_out_json_u64(s, "id", (uint64_t)t->token);
    pn_json_key(s, "logprob");
    pn_json_write_f32(s, t->logprob < -9999 ? -9999 : t->logprob);
    pn_json_key(s, "bytes");
    pn_str_addc(s, '[');
    for (size_t i = 0; i < t->len; i++) {
        pn_json_item(s);
        pn_json_write_u64(s, (uint8_t)t->bytes[i]);
    }
    pn_str_addc(s, ']');
}

static int run_on_logprob(void *user, const pn_token_logprob *t)
{
    static const char *const parts[] = {"markup", "reasoning", "call", "content"};
    run_state *r = user;
    pn_str *s = &r->line;
    pn_cli_bar_end(r->c);
    pn_str_clear(s);
    pn_str_addc(s, '{');
    run_put_token(s, t);
    pn_out_json_text(s, "part", parts[t->part]);
    pn_json_key(s, "top_logprobs");
    pn_str_addc(s, '[');
    for (uint32_t i = 0; i < t->n_top; i++) {
        pn_json_item(s);
        pn_str_addc(s, '{');
        run_put_token(s, &t->top[i]);
        pn_str_addc(s, '}');
    }
    pn_str_addz(s, "]}\n");
    fwrite(pn_str_cstr(s), 1, s->len, stderr);
    return s->failed;
}

static void run_add_result(run_state *r, const pn_generate_result *g)
{
    r->total.finish = g->finish;
    r->total.stop_index = g->stop_index;
    r->total.n_prompt += g->n_context - g->n_cached;        /* what was computed */
    r->total.n_generated += g->n_generated;
    r->total.prefill_seconds += g->prefill_seconds;
    r->total.decode_seconds += g->decode_seconds;
    r->total.seed = g->seed;
}

static int run_prompt_only(run_state *r, const pn_token *tokens, size_t n)
{
    pn_generate_result g;
    memset(&g, 0, sizeof g);
    double start = pn_out_now();
    pn_status st = pn_session_eval(r->c->session, tokens, n, &r->c->err);
    pn_cli_bar_end(r->c);
    if (st == PN_E_CANCELLED && pn_cli_interrupted())
        return PN_EXIT_OK;
    if (st)
        return pn_cli_fail(r->c, st);
    g.n_context = (uint32_t)n;
    g.prefill_seconds = pn_out_now() - start;
    g.finish = PN_FINISH_LENGTH;
    run_add_result(r, &g);
    return PN_EXIT_OK;
}

/* After an answer with result g: end its line, say what went wrong.  0 also when Ctrl-C cut it. */
static int run_answered(run_state *r, pn_status st, pn_generate_result g)
{
    pn_cli *c = r->c;
    pn_cli_bar_end(c);
    run_add_result(r, &g);
    if (r->no_stream)
        fwrite(pn_str_cstr(&r->answer), 1, r->answer.len, stdout);
    if (r->answer.len == 0 || r->answer.data[r->answer.len - 1] != '\n')
        putchar('\n');
    int code = pn_cli_flush(c, PN_EXIT_OK);
    if (code)
        return code;
    if (st && !(st == PN_E_CANCELLED && pn_cli_interrupted()))
        return pn_cli_fail(c, st);
    if (r->answer.failed || r->line.failed)
        return pn_cli_nomem(c);
    /* One seed for the whole chat, so that the one in the last line repeats all of it. */
    if (st == PN_OK) {
        r->sampling.seed = g.seed;
        r->sampling.has_seed = 1;
    }
    if (g.finish == PN_FINISH_CONTEXT)
        pn_cli_note(c, "the answer was cut: the context of %" PRIu32 " tokens is full (--ctx)",
                    pn_session_capacity(c->session));
    return PN_EXIT_OK;
}

/* Evaluate tokens and print the answer. */
static int run_answer(run_state *r, const pn_token *tokens, size_t n)
{
    pn_generate_result g;
    memset(&g, 0, sizeof g);
    pn_str_clear(&r->answer);
    if (r->prompt_only)
        return run_prompt_only(r, tokens, n);
    r->gen.prompt = tokens;
    r->gen.n_prompt = n;
    pn_status st = pn_session_generate(r->c->session, &r->gen, &g, &r->c->err);
    return run_answered(r, st, g);
}

static int run_raw(run_state *r)
{
    unsigned flags = PN_TOKENIZE_BOS;
    if (pn_args_on(&r->c->args, "special"))
        flags |= PN_TOKENIZE_SPECIAL;
    int code = pn_cli_tokenize(r->c, pn_str_cstr(&r->prompt), r->prompt.len, flags, &r->ids);
    if (!code && r->ids.n == 0)
        code = pn_cli_failed(r->c, "the prompt is empty: expected at least one token");
    if (!code)
        code = run_answer(r, r->ids.data, r->ids.n);
    return code;
}

/* --- chat ------------------------------------------------------------------------------------- */

/* Reasoning goes between tags, a call of a tool on a line of its own as JSON. */
static int run_on_event(void *user, const pn_output_event *e)
{
    run_state *r = user;
    const char *before = "", *after = "";
    bool quoted = e->kind == PN_OUTPUT_CALL_BEGIN;
    if (e->kind == PN_OUTPUT_REASONING && !r->thinking)
        before = "<think>\n";
    else if (e->kind != PN_OUTPUT_REASONING && r->thinking)
        before = "\n</think>\n\n";
    r->thinking = e->kind == PN_OUTPUT_REASONING;
    int stop = run_on_text(r, before, strlen(before), -1);
    if (quoted) {
        pn_str name;
        pn_str_init(&name, &r->c->mem, PN_ACCT_MISC);
        pn_str_addz(&name, r->answer.len && r->answer.data[r->answer.len - 1] != '\n' ? "\n{\"name\":" : "{\"name\":");
        pn_json_write_str(&name, e->text, e->len);
        pn_str_addz(&name, ",\"arguments\":");
        stop |= run_on_text(r, pn_str_cstr(&name), name.len, -1);
        pn_str_fini(&name);
    } else if (e->len)
        stop |= run_on_text(r, e->text, e->len, -1);
    if (e->kind == PN_OUTPUT_CALL_END)
        after = "}\n";
    return stop | run_on_text(r, after, strlen(after), -1);
}

/* One message and its answer.  *full: nothing was evaluated, the context cannot hold it. */
static int run_turn(run_state *r, const char *text, size_t len, bool *full)
{
    pn_cli *c = r->c;
    size_t before = pn_chat_length(r->chat);
    pn_generate_result g;
    memset(&g, 0, sizeof g);
    *full = false;
    pn_str_clear(&r->answer);
    r->thinking = false;
    pn_status st = pn_chat_say(r->chat, "user", text, len, &c->err);
    const pn_chat_reply_params p = {.size = sizeof p, .generate = &r->gen, .on_event = run_on_event, .user = r,
                                    .has_reasoning_budget = pn_args_has(&c->args, "reasoning-budget"),
                                    .reasoning_budget = (uint32_t)pn_args_int(&c->args, "reasoning-budget", 0),
                                    .tool_choice = pn_cli_tool_choice(c), .tool_name = pn_cli_tool_name(c),
                                    .single_call = pn_args_on(&c->args, "single-call")};
    if (!st)
        st = pn_chat_reply(r->chat, &p, &g, &c->err);
    if (st)
        pn_chat_forget(r->chat, before);
    if (st == PN_E_CONTEXT) {
        *full = true;
        return pn_cli_failed(c, "the context is full: %s; start a new chat, or one with a larger --ctx", c->err.text);
    }
    if (!st && pn_cli_interrupted() && g.n_generated == 0)
        pn_chat_forget(r->chat, before);        /* stopped before the first token: as if not asked */
    if (!st && r->thinking)
        run_on_text(r, "\n</think>", 9, -1);
    return run_answered(r, st, g);
}

/* A line of standard input, without its end, into r->prompt.  SIGINT is let in only while waiting
 * in pselect, so it cannot slip between the check and the read. */
typedef enum run_line { RUN_LINE, RUN_LINE_EOF, RUN_LINE_INTERRUPTED, RUN_LINE_ERROR } run_line;

typedef struct run_input {
    char buf[4096];
    size_t at, n;
    bool eof;
} run_input;

static run_line run_fill(run_input *in)
{
    sigset_t block, before;
    fd_set set;
    run_line got = RUN_LINE;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigprocmask(SIG_BLOCK, &block, &before);
    for (;;) {
        FD_ZERO(&set);
        FD_SET(STDIN_FILENO, &set);
        if (pn_cli_interrupted()) {
            got = RUN_LINE_INTERRUPTED;
            break;
        }
        if (pselect(STDIN_FILENO + 1, &set, NULL, NULL, NULL, &before) < 0) {
            if (errno == EINTR)
                continue;
            got = RUN_LINE_ERROR;
            break;
        }
        ssize_t n = read(STDIN_FILENO, in->buf, sizeof in->buf);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        got = n < 0 ? RUN_LINE_ERROR : RUN_LINE;
        in->eof = n == 0;
        in->at = 0;
        in->n = n > 0 ? (size_t)n : 0;
        break;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return got;
}

static run_line run_read_line(run_input *in, pn_str *line)
{
    pn_str_clear(line);
    for (;;) {
        const char *start = in->buf + in->at, *nl = memchr(start, '\n', in->n - in->at);
        size_t len = nl ? (size_t)(nl - start) : in->n - in->at;
        pn_str_add(line, start, len);
        in->at += len + (nl != NULL);
        if (nl || in->eof) {
            while (line->len && line->data[line->len - 1] == '\r')
                line->data[--line->len] = 0;
            return nl || line->len ? RUN_LINE : RUN_LINE_EOF;
        }
        run_line got = run_fill(in);
        if (got != RUN_LINE)
            return got;
    }
}

static bool run_blank(const pn_str *s)
{
    return strspn(pn_str_cstr(s), " \t") == s->len;
}

/* Messages from standard input until it ends.  A terminal gets a prompt and another try after a
 * message that did not fit; a pipe fails. */
static int run_converse(run_state *r)
{
    bool terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO), full;
    run_input in;
    memset(&in, 0, sizeof in);
    for (;;) {
        if (terminal) {
            fputs("> ", stderr);
            fflush(stderr);
        }
        run_line got = run_read_line(&in, &r->prompt);
        if (terminal && got != RUN_LINE)
            fputc('\n', stderr);
        if (got == RUN_LINE_ERROR)
            return pn_cli_failed(r->c, "cannot read standard input");
        if (got != RUN_LINE)
            return got == RUN_LINE_EOF ? PN_EXIT_OK : PN_EXIT_INTERRUPTED;
        if (r->prompt.failed)
            return pn_cli_nomem(r->c);
        if (run_blank(&r->prompt))
            continue;
        int code = run_turn(r, pn_str_cstr(&r->prompt), r->prompt.len, &full);
        if (code && !(full && terminal) && code != PN_EXIT_INTERRUPTED)
            return code;
        pn_cli_interrupt_done();
    }
}

/* The conversation, with what the flags say about it. */
static int run_open_chat(run_state *r)
{
    pn_cli *c = r->c;
    const char *system = pn_args_text(&c->args, "system", NULL), *format = pn_args_text(&c->args, "chat-format", NULL);
    pn_str tmpl, tools;
    pn_str_init(&tmpl, &c->mem, PN_ACCT_MISC);
    pn_str_init(&tools, &c->mem, PN_ACCT_MISC);
    int code = PN_EXIT_OK;
    if (pn_args_has(&c->args, "template"))
        code = pn_cli_read_file(c, pn_args_text(&c->args, "template", NULL), &tmpl);
    if (!code && pn_args_has(&c->args, "tools"))
        code = pn_cli_read_file(c, pn_args_text(&c->args, "tools", NULL), &tools);
    if (!code) {
        const pn_chat_params p = {.size = sizeof p, .format = format,
                                  .template_text = tmpl.len ? tmpl.data : NULL, .template_len = tmpl.len,
                                  .tools = tools.len ? tools.data : NULL, .tools_len = tools.len,
                                  .syntax = pn_args_text(&c->args, "syntax", NULL)};
        pn_status st = pn_chat_new(c->session, &p, &r->chat, &c->err);
        if (st == PN_E_INVALID && format)
            code = pn_cli_usage(c, "--chat-format: '%s' is not allowed: %s", format, c->err.text);
        else if (st)
            code = pn_cli_refused(c, st);
        else if (*pn_chat_widened(r->chat))
            pn_cli_note(c, "not enforced in calls: %s", pn_chat_widened(r->chat));
        if (!code && system && *system && pn_chat_say(r->chat, "system", system, 0, &c->err))
            code = pn_cli_fail(c, c->err.status);
    }
    pn_str_fini(&tmpl);
    pn_str_fini(&tools);
    return code;
}

static int run_chat(run_state *r)
{
    bool full;
    int code = run_open_chat(r);
    if (code)
        return code;
    if (pn_args_has(&r->c->args, "prompt") || pn_args_has(&r->c->args, "file"))
        return run_turn(r, pn_str_cstr(&r->prompt), r->prompt.len, &full);
    return run_converse(r);
}

/* --- the command ------------------------------------------------------------------------------ */

static void run_tell_start(run_state *r)
{
    pn_cli *c = r->c;
    pn_model_info m;
    pn_model_describe(c->model, &m);
    pn_cli_note(c, "%s: %s %s, %s parameters, %s; context %" PRIu32 " of %" PRIu32 " trained; %" PRIu32 " threads, %s",
                m.name[0] ? m.name : pn_out_basename(pn_args_text(&c->args, "model", "")), m.arch, m.type,
                pn_out_count(m.n_params).text, pn_out_bytes(m.weight_bytes).text,
                pn_session_capacity(c->session), m.n_ctx_train, pn_engine_threads(c->engine), pn_cpu_isa());
}

static const char *run_finish_name(const pn_generate_result *g)
{
    switch (g->finish) {
    case PN_FINISH_STOP: return g->stop_index < 0 ? "end" : "stop string";
    case PN_FINISH_LENGTH: return "max tokens";
    case PN_FINISH_CONTEXT: return "context full";
    case PN_FINISH_CALLBACK:
    case PN_FINISH_CANCELLED: return "interrupted";
    case PN_FINISH_NONE: break;
    }
    return "nothing generated";
}

static double run_rate(uint32_t n, double seconds) { return seconds > 0 ? n / seconds : 0; }

static void run_tell_end(run_state *r)
{
    pn_cli *c = r->c;
    const pn_generate_result *t = &r->total;
    pn_mem_info mem;
    pn_engine_memory(c->engine, &mem);
    pn_cli_note(c, "prefill %" PRIu32 " tokens %.1f tok/s, decode %" PRIu32 " tokens %.1f tok/s, context %" PRIu32
                "/%" PRIu32 ", KV %s, peak %s + %s mapped, seed %" PRIu64 ", %s",
                t->n_prompt, run_rate(t->n_prompt, t->prefill_seconds), t->n_generated,
                run_rate(t->n_generated, t->decode_seconds), pn_session_length(c->session),
                pn_session_capacity(c->session), pn_out_bytes(mem.used[PN_ACCT_KV]).text,
                pn_out_bytes(mem.total_peak).text, pn_out_bytes(mem.peak[PN_ACCT_WEIGHTS_MAP]).text, t->seed,
                run_finish_name(t));
}

/* --json, --json-schema FILE, --grammar FILE: at most one.  3: a schema that cannot be enforced. */
static int run_read_grammar(run_state *r)
{
    pn_cli *c = r->c;
    static const char any[] = "{\"type\":\"object\"}";
    const char *schema = pn_args_text(&c->args, "json-schema", NULL), *gbnf = pn_args_text(&c->args, "grammar", NULL);
    bool json = pn_args_on(&c->args, "json");
    if (json + (schema != NULL) + (gbnf != NULL) == 0)
        return PN_EXIT_OK;
    if (json + (schema != NULL) + (gbnf != NULL) > 1)
        return pn_cli_usage(c, "only one of --json, --json-schema and --grammar is allowed");
    pn_str text;
    pn_str_init(&text, &c->mem, PN_ACCT_MISC);
    int code = json ? PN_EXIT_OK : pn_cli_read_file(c, schema ? schema : gbnf, &text);
    if (!code) {
        pn_status st = json     ? pn_grammar_json_schema(c->engine, any, sizeof any - 1, &r->grammar, &c->err)
                       : schema ? pn_grammar_json_schema(c->engine, pn_str_cstr(&text), text.len, &r->grammar, &c->err)
                                : pn_grammar_gbnf(c->engine, pn_str_cstr(&text), text.len, &r->grammar, &c->err);
        r->gen.grammar = r->grammar;
        if (st)
            code = pn_cli_refused(c, st);
    }
    pn_str_fini(&text);
    return code;
}

static int run_open(run_state *r)
{
    pn_cli *c = r->c;
    uint64_t cache = pn_args_size(&c->args, "prefix-cache", 0);
    int code = pn_cli_open_engine_kept(c, &(pn_engine_params){.n_threads = (uint32_t)pn_args_int(&c->args, "threads", 0),
                                                              .prefix_bytes = cache,
                                                              .no_prefix = cache == 0 && !pn_args_has(&c->args, "session-dir")});
    if (!code)
        code = run_read_grammar(r);
    if (!code)
        code = pn_cli_open_model(c);
    if (!code)
        code = run_read_sampling(r);
    if (!code)
        code = pn_cli_open_session(c, (uint32_t)pn_args_int(&c->args, "ctx", 0));
    if (!code)
        run_tell_start(r);
    return code;
}

static int run_go(run_state *r)
{
    pn_cli *c = r->c;
    bool one = pn_args_has(&c->args, "prompt") || pn_args_has(&c->args, "file");
    int code = run_read_flags(r);
    if (!code && one)
        code = run_read_prompt(r);
    if (!code)
        code = run_open(r);
    if (code)
        return code;
    code = pn_args_on(&c->args, "chat") ? run_chat(r) : run_raw(r);
    if (one && !code && pn_cli_interrupted())
        code = PN_EXIT_INTERRUPTED;
    if (code == PN_EXIT_OK || code == PN_EXIT_INTERRUPTED)
        run_tell_end(r);
    return code;
}

static int run_main(pn_cli *c)
{
    run_state r;
    memset(&r, 0, sizeof r);
    r.c = c;
    r.gen.size = sizeof r.gen;
    r.gen.sampling = &r.sampling;
    r.gen.on_text = run_on_text;
    r.gen.user = &r;
    if (pn_args_has(&c->args, "logprobs"))
        r.gen.on_logprob = run_on_logprob;
    r.gen.logprob_user = &r;
    r.gen.n_top = (uint32_t)pn_args_int(&c->args, "logprobs", 0);
    pn_str_init(&r.prompt, &c->mem, PN_ACCT_MISC);
    pn_str_init(&r.answer, &c->mem, PN_ACCT_MISC);
    pn_str_init(&r.line, &c->mem, PN_ACCT_MISC);
    pn_ids_init(&r.ids, &c->mem);
    pn_cli_catch_interrupt();
    int code = run_go(&r);
    pn_chat_free(r.chat);
    pn_grammar_free(r.grammar);
    pn_mem_free(&c->mem, PN_ACCT_MISC, (void *)r.stop, r.n_stop * sizeof *r.stop);
    pn_mem_free(&c->mem, PN_ACCT_MISC, r.bias, r.n_bias * sizeof *r.bias);
    pn_ids_fini(&r.ids);
    pn_str_fini(&r.line);
    pn_str_fini(&r.answer);
    pn_str_fini(&r.prompt);
    return code;
}

PN_INTERNAL const pn_cmd *pn_cmd_run(void)
{
    static const pn_cmd cmd = {"run", "-m FILE (-p TEXT | -f FILE | --chat) [FLAGS]", "continue a prompt, or chat",
                               run_flags, 0, 0, run_main};
    return &cmd;
}

#endif /* PANTHEON_CLI */
