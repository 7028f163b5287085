/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_guide.c - an answer between reasoning, text and grammar: what may come, where states change inside
 * a token, and that a refused token changes nothing.
 */
#include "pn_test.h"

#include "sample/pn_guide.h"

static pn_mem libc_mem;

/* Single bytes, then these; 256 ends an answer, <tool_call> and <think> are control tokens without text. */
enum { T_END = 256, T_CALL, T_CLOSE, T_THINK, T_NOTHINK, T_CALL_MORE, T_CALL_BAD, T_LINES, T_OPEN_JSON, T_COUNT };

static const char *const words[T_COUNT - 256] = {
    "", "<tool_call>", "</tool_call>", "<think>", "</think>", "x<tool_call>\n{", "<tool_call>no", "\n\n", "\n{"};

static pn_gtrie *trie;

static pn_bytes piece_of(pn_token t)
{
    static char byte[256];
    if (t >= 256)
        return (pn_bytes){words[t - 256], strlen(words[t - 256])};
    byte[t] = (char)t;
    return (pn_bytes){byte + t, 1};
}

static pn_token find(void *user, const char *text, size_t len)
{
    (void)user;
    for (pn_token t = T_CALL; t <= T_NOTHINK; t++)
        if (len == strlen(words[t - 256]) && memcmp(text, words[t - 256], len) == 0)
            return t;
    return -1;
}

static void make_trie(void)
{
    static pn_bytes pieces[T_COUNT];
    static const pn_token ends[] = {T_END};
    uint32_t exclude[16] = {0};
    for (pn_token t = 0; t < T_COUNT; t++)
        pieces[t] = piece_of(t);
    for (pn_token t = T_CALL; t <= T_NOTHINK; t++)
        exclude[t / 32] |= 1u << (t % 32);
    const pn_gtrie_source src = {pieces, T_COUNT, T_COUNT, exclude, ends, 1};
    PN_CHECK(pn_gtrie_new(&trie, &libc_mem, &src, NULL) == PN_OK);
}

static bool allowed(pn_guide *g, pn_token t)
{
    const uint32_t *bits;
    pn_err err = {0};
    PN_CHECK(pn_guide_mask(g, &bits, &err) == PN_OK, "%s", err.text);
    return !bits || (bits[t / 32] >> (t % 32) & 1);
}

/* Takes a token that has to be allowed, or be refused where the mask lets it through. */
static pn_status take(pn_guide *g, pn_token t)
{
    pn_err err = {0};
    PN_CHECK(allowed(g, t), "token %d is not allowed", (int)t);
    return pn_guide_accept(g, t, piece_of(t), &err);
}

static void say(pn_guide *g, const char *text)
{
    for (; *text; text++)
        PN_CHECK(take(g, (unsigned char)*text) == PN_OK, "at '%s'", text);
}

/* ------------------------------------------------------------------------------------------
 * Tool calls
 * ------------------------------------------------------------------------------------------ */

static const char tools_json[] = "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},"
                                 "\"required\":[\"n\"]}}]";

static void make_calls(pn_calls *c, const char *family, bool required, bool none)
{
    pn_json_doc d;
    pn_out_format f;
    pn_err err = {0};
    PN_CHECK(pn_out_find(&f, family) && pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, tools_json, sizeof tools_json - 1, NULL, NULL) == PN_OK);
    const pn_calls_params p = {.format = &f, .tools = &d, .required = required, .none = none, .find = find};
    PN_CHECK(pn_calls_new(c, &libc_mem, &p, &err) == PN_OK, "%s", err.text);
    pn_json_fini(&d);
}

static pn_guide *guide(const pn_calls *c, pn_guide_params p)
{
    pn_guide *g = NULL;
    pn_err err = {0};
    p.gram = c->gram;
    p.trie = trie;
    p.triggers = c->triggers;
    p.n_triggers = c->n_triggers;
    p.watch = c->watch;
    p.lanes = true;
    p.find = find;
    PN_CHECK(pn_guide_new(&g, &libc_mem, &p, &err) == PN_OK, "%s", err.text);
    return g;
}

static void text_is_free_until_a_call_begins(void)
{
    pn_calls c;
    make_calls(&c, "hermes", false, false);
    pn_guide *g = guide(&c, (pn_guide_params){0});
    const uint32_t *bits;
    PN_CHECK(pn_guide_mask(g, &bits, NULL) == PN_OK && bits == NULL, "free text has a mask");
    say(g, "Look <tool_cal and");
    PN_CHECK(pn_guide_may_end(g) && allowed(g, T_END));
    PN_CHECK(take(g, T_CALL) == PN_OK);
    PN_CHECK(!allowed(g, 'x') && !allowed(g, T_END) && !pn_guide_may_end(g), "a call may be anything");
    say(g, "\n{\"name\": \"f\", \"arguments\": {\"n\": 12}}\n");
    PN_CHECK(allowed(g, T_CLOSE) && !allowed(g, '<'), "the closer may be spelled from pieces");
    PN_CHECK(take(g, T_CLOSE) == PN_OK && pn_guide_may_end(g) && !pn_guide_done(g));
    say(g, " and again ");
    say(g, "<tool_call");
    PN_CHECK(take(g, '>') == PN_OK && !allowed(g, 'x'), "a trigger in ordinary tokens is none");
    pn_guide_free(g);
    pn_calls_fini(&c);
}

static void a_token_may_carry_a_trigger_and_more(void)
{
    pn_calls c;
    make_calls(&c, "hermes", false, false);
    pn_guide *g = guide(&c, (pn_guide_params){0});
    PN_CHECK(take(g, T_CALL_BAD) == PN_E_STATE, "'<tool_call>no' was taken");
    PN_CHECK(take(g, T_CALL_BAD) == PN_E_STATE, "refused once, taken later");
    pn_guide_ban(g, T_CALL_BAD);
    PN_CHECK(!allowed(g, T_CALL_BAD) && allowed(g, 'x') && allowed(g, T_END), "the ban holds for more, or for nothing");
    PN_CHECK(take(g, 'x') == PN_OK && allowed(g, T_CALL_BAD), "the ban outlives its step");
    PN_CHECK(take(g, T_CALL_MORE) == PN_OK && !allowed(g, 'x') && allowed(g, '"'), "the rest of the token is not in the call");
    pn_guide_free(g);
    pn_calls_fini(&c);
}

static void reasoning_comes_to_no_call(void)
{
    pn_calls c;
    make_calls(&c, "hermes", false, false);
    pn_guide *g = guide(&c, (pn_guide_params){.after = "</think>", .think_open = "<think>", .think_close = "</think>"});
    PN_CHECK(take(g, T_CALL) == PN_E_STATE && take(g, 'x') == PN_OK && allowed(g, T_END));
    say(g, "<tool_call");
    PN_CHECK(take(g, '>') == PN_E_STATE && take(g, ' ') == PN_OK, "spelled, it is an opener too");
    PN_CHECK(take(g, T_NOTHINK) == PN_OK && take(g, T_CALL) == PN_OK && !allowed(g, 'x'));
    pn_guide_free(g);
    g = guide(&c, (pn_guide_params){.think_open = "<think>", .think_close = "</think>"});    /* opened by the model */
    PN_CHECK(take(g, T_THINK) == PN_OK && take(g, T_CALL) == PN_E_STATE && allowed(g, 'x'));
    say(g, "</think>");
    PN_CHECK(take(g, T_CALL) == PN_OK && !allowed(g, 'x'));
    pn_guide_free(g);
    pn_calls_fini(&c);
    make_calls(&c, "hermes", true, false);
    g = guide(&c, (pn_guide_params){.after = "</think>", .think_open = "<think>", .think_close = "</think>", .owed = true});
    PN_CHECK(take(g, T_CALL) == PN_E_STATE && take(g, 'x') == PN_OK && !allowed(g, T_END));
    PN_CHECK(take(g, T_NOTHINK) == PN_OK && allowed(g, T_CALL) && !allowed(g, 'x') && take(g, T_CALL) == PN_OK);
    say(g, "{\"name\": \"f\", \"arguments\": {\"n\": 1}}");
    PN_CHECK(take(g, T_CLOSE) == PN_OK && !pn_guide_done(g) && pn_guide_may_end(g));
    pn_guide_free(g);
    pn_calls_fini(&c);
}

static void one_call_and_none(void)
{
    pn_calls c;
    make_calls(&c, "hermes", false, false);
    pn_guide *g = guide(&c, (pn_guide_params){.single = true});
    PN_CHECK(take(g, T_CALL) == PN_OK);
    say(g, "{\"name\": \"f\", \"arguments\": {\"n\": 1}}");
    PN_CHECK(!pn_guide_done(g) && take(g, T_CLOSE) == PN_OK && pn_guide_done(g));
    pn_guide_free(g);
    pn_calls_fini(&c);
    make_calls(&c, "hermes", false, true);
    g = guide(&c, (pn_guide_params){.forbid = true});
    PN_CHECK(take(g, T_CALL) == PN_E_STATE && take(g, T_CALL_MORE) == PN_E_STATE);
    say(g, "<tool_call");
    PN_CHECK(take(g, '>') == PN_E_STATE && take(g, '!') == PN_OK);
    pn_guide_free(g);
    pn_calls_fini(&c);
}

static void bare_objects_are_calls_at_the_start_alone(void)
{
    pn_calls c;
    make_calls(&c, "llama3", false, false);
    pn_guide *g = guide(&c, (pn_guide_params){0});
    say(g, "\n {\"name\": \"f");
    PN_CHECK(allowed(g, 'g'), "a name may go on");
    say(g, "\"");
    PN_CHECK(!allowed(g, 'x') && allowed(g, ','));
    pn_guide_free(g);
    g = guide(&c, (pn_guide_params){0});
    say(g, "See {\"name\": \"f\"");
    PN_CHECK(allowed(g, 'x') && allowed(g, T_END));
    pn_guide_free(g);
    g = guide(&c, (pn_guide_params){0});
    say(g, "{\"name\": \"Ada\"");               /* an answer in JSON */
    PN_CHECK(allowed(g, 'x') && allowed(g, T_END));
    pn_guide_free(g);
    pn_calls_fini(&c);
}

/* ------------------------------------------------------------------------------------------
 * A grammar alone
 * ------------------------------------------------------------------------------------------ */

static pn_guide *held(const char *gbnf, pn_guide_params p)
{
    pn_guide *g = NULL;
    pn_gram *gram = NULL;
    pn_err err = {0};
    PN_CHECK(pn_gram_from_gbnf(&gram, &libc_mem, gbnf, strlen(gbnf), NULL, NULL, NULL, &err) == PN_OK, "%s", err.text);
    p.gram = gram;
    p.trie = trie;
    p.find = find;
    PN_CHECK(pn_guide_new(&g, &libc_mem, &p, &err) == PN_OK, "%s", err.text);
    pn_gram_release(gram);
    return g;
}

static const char object[] = "root ::= \"{\" [a-z]* \"}\"";

static void a_sentence_is_owed(void)
{
    pn_guide *g = held(object, (pn_guide_params){.after = "</think>"});
    PN_CHECK(!allowed(g, T_END) && allowed(g, T_CALL) && allowed(g, 'x'), "reasoning may end the answer");
    say(g, "hm</think");
    PN_CHECK(take(g, '>') == PN_OK && !allowed(g, T_END) && !allowed(g, 'x') && allowed(g, '{'));
    PN_CHECK(allowed(g, T_LINES) && allowed(g, ' ') && take(g, T_LINES) == PN_OK, "no blank lines behind the reasoning");
    PN_CHECK(!allowed(g, '\n') && !allowed(g, ' '), "blanks without end");
    say(g, "{ab");
    PN_CHECK(!allowed(g, ' ') && take(g, '}') == PN_OK && pn_guide_done(g));
    PN_CHECK(pn_guide_accept(g, 'x', piece_of('x'), NULL) == PN_E_STATE);
    pn_guide_free(g);
}

static void a_model_may_open_its_reasoning(void)
{
    pn_guide *g = held(object, (pn_guide_params){.think_open = "<think>", .think_close = "</think>"});
    PN_CHECK(allowed(g, '{') && allowed(g, T_THINK) && !allowed(g, 'x') && !allowed(g, '<') && !allowed(g, T_END) && !allowed(g, ' '));
    PN_CHECK(take(g, T_THINK) == PN_OK && allowed(g, 'x') && !allowed(g, T_END));
    say(g, "{}");
    PN_CHECK(take(g, T_NOTHINK) == PN_OK && !allowed(g, T_THINK) && allowed(g, '{'));
    say(g, "{}");
    PN_CHECK(pn_guide_done(g));
    pn_guide_free(g);
    g = held(object, (pn_guide_params){.think_open = "<r>", .think_close = "</r>"});        /* no token: spelled */
    say(g, "<r");
    PN_CHECK(!allowed(g, '{') && !allowed(g, 'r') && allowed(g, '>'), "half a marker, and then something else");
    say(g, ">x</r>{}");
    PN_CHECK(pn_guide_done(g));
    pn_guide_free(g);
    g = held("root ::= \"<r>\" [a-z]* \"!\"", (pn_guide_params){.think_open = "<r>", .think_close = "</r>"});
    say(g, "<r>x");                             /* the grammar says the marker itself */
    PN_CHECK(!allowed(g, '<') && allowed(g, '!'));
    pn_guide_free(g);
}

static void a_token_may_end_the_reasoning_and_begin_the_answer(void)
{
    pn_guide *g = held(object, (pn_guide_params){.after = "r"});
    const pn_bytes more = {"hr\n{a", 5}, wrong = {"hr\nx", 4};
    PN_CHECK(pn_guide_accept(g, 'h', wrong, NULL) == PN_E_STATE && allowed(g, 'x'));
    PN_CHECK(pn_guide_accept(g, 'h', more, NULL) == PN_OK && !allowed(g, 'X') && allowed(g, '}'));
    pn_guide_free(g);
}

static void nothing_left_is_an_error(void)
{
    pn_guide *g = held("root ::= \"a\"", (pn_guide_params){0});
    const uint32_t *bits;
    pn_err err = {0};
    pn_guide_ban(g, 'a');
    PN_CHECK(pn_guide_mask(g, &bits, &err) == PN_E_NUMERIC && strstr(err.text, "no token"), "%s", err.text);
    pn_guide_free(g);
    char marker[80] = {0};
    memset(marker, 'm', 70);
    PN_CHECK(pn_guide_new(&g, &libc_mem, &(pn_guide_params){.trie = trie, .after = marker}, &err) == PN_E_INVALID && strstr(err.text, "64 bytes"),
             "%s", err.text);
}

static void every_allocation_may_fail(void)
{
    pn_gram *gram = NULL;
    PN_CHECK(pn_gram_from_gbnf(&gram, &libc_mem, object, sizeof object - 1, NULL, NULL, NULL, NULL) == PN_OK);
    for (long k = 1; k < 400; k++) {
        pn_test_mem mem;
        pn_guide *g = NULL;
        pn_test_mem_init(&mem, k);
        pn_status st = pn_guide_new(&g, &mem.mem, &(pn_guide_params){.gram = gram, .trie = trie, .think_open = "<think>",
                                                                     .think_close = "</think>", .find = find}, NULL);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "allocation %ld failing gives %d", k, (int)st);
        if (!st)
            pn_guide_free(g);
        PN_CHECK(mem.outstanding == 0, "allocation %ld failing leaks %ld blocks", k, mem.outstanding);
        if (!st) {
            PN_CHECK(k > 10);
            break;
        }
    }
    pn_gram_release(gram);
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    make_trie();
    text_is_free_until_a_call_begins();
    a_token_may_carry_a_trigger_and_more();
    reasoning_comes_to_no_call();
    one_call_and_none();
    bare_objects_are_calls_at_the_start_alone();
    a_sentence_is_owed();
    a_model_may_open_its_reasoning();
    a_token_may_end_the_reasoning_and_begin_the_answer();
    nothing_left_is_an_error();
    every_allocation_may_fail();
    pn_gtrie_free(trie);
    return pn_test_end();
}
