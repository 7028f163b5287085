/* SPDX-License-Identifier: AGPL-3.0-only */
/* Which server answers: what is read from a request, what is remembered, and the choice. */
#include "pn_test.h"

#include "serve/pn_affinity.h"

static pn_test_mem mem;

static bool is(pn_bytes b, const char *want)
{
    return want ? b.data && b.len == strlen(want) && memcmp(b.data, want, b.len) == 0 : !b.data;
}

/* An exact copy, so that sanitizers see a byte too many. */
static void scan(const char *body, pn_affinity_fields *f, char **keep)
{
    size_t n = strlen(body);
    *keep = malloc(n ? n : 1);
    if (n)
        memcpy(*keep, body, n);
    pn_affinity_scan(*keep, n, f);
}

static void members_are_found(void)
{
    static const struct { const char *body, *model, *messages, *session; } cases[] = {
        {"{\"model\":\"m\",\"messages\":[1,[2,\"]\"],{\"model\":\"x\"}],\"session_id\":\"s\"}", "\"m\"", "[1,[2,\"]\"],{\"model\":\"x\"}]", "\"s\""},
        {" { \"a\" : { \"model\" : 1 } , \"model\" : \"m\\\"n\" } ", "\"m\\\"n\"", NULL, NULL},
        {"{\"model\":\"a\",\"model\":\"b\"}", "\"b\"", NULL, NULL},
        {"{\"model\":\"a\",\"model\":null}", NULL, NULL, NULL},
        {"{\"model\":12.5e3,\"session_id\":true}", "12.5e3", NULL, "true"},
        {"{\"model\":\"a\",\"messages\":[", "\"a\"", NULL, NULL},
        {"{\"model\":\"a\",\"messages\":\"abc\\", "\"a\"", NULL, NULL},
        {"{\"model\":\"a\",\"messages\":\"abc\\\"", "\"a\"", NULL, NULL},
        {"{\"model\":\"a\"", "\"a\"", NULL, NULL}, {"{\"model\":", NULL, NULL, NULL}, {"{\"model\"", NULL, NULL, NULL}, {"{\"mod", NULL, NULL, NULL},
        {"{", NULL, NULL, NULL}, {"", NULL, NULL, NULL}, {"[{\"model\":\"a\"}]", NULL, NULL, NULL}, {"null", NULL, NULL, NULL},
        {"{model:\"a\"}", NULL, NULL, NULL}, {"{\"model\":\"a\",}", "\"a\"", NULL, NULL}, {"{\"model\":}", NULL, NULL, NULL}, {"{\"model\":,}", NULL, NULL, NULL},
        {"{}", NULL, NULL, NULL}, {"{\"x\":{}}}}}},\"model\":\"a\"}", NULL, NULL, NULL}, {"{\"messages\":[]}", NULL, "[]", NULL},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_affinity_fields f;
        char *keep;
        scan(cases[i].body, &f, &keep);
        PN_CHECK(is(f.model, cases[i].model) && is(f.messages, cases[i].messages) && is(f.session_id, cases[i].session), "%s", cases[i].body);
        for (size_t n = 0; n < strlen(cases[i].body); n++) {    /* cut anywhere: no harm */
            char *cut = malloc(n ? n : 1);
            memcpy(cut, cases[i].body, n);
            pn_affinity_scan(cut, n, &f);
            free(cut);
        }
        free(keep);
    }
}

static void names_are_unescaped(void)
{
    static const struct { const char *json, *want; } cases[] = {
        {"\"a\\/b\"", "a/b"}, {"\"\\u0061\"", "a"}, {"\"\"", ""}, {"12", NULL}, {"\"\\q\"", NULL}, {"\"\\ud800\"", "\xEF\xBF\xBD"}, {"[\"a\"]", NULL}, {"", NULL},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_str s;
        pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
        bool ok = pn_affinity_text(&mem.mem, (pn_bytes){cases[i].json, strlen(cases[i].json)}, &s);
        PN_CHECK(ok == (cases[i].want != NULL) && strcmp(pn_str_cstr(&s), ok ? cases[i].want : "") == 0, "%s", cases[i].json);
        pn_str_fini(&s);
    }
    PN_CHECK(mem.outstanding == 0);
}

/* ------------------------------------------------------------------------------------------ */

static pn_affinity_keys keys_of(const char *body, const char *session, uint64_t seed)
{
    pn_affinity_fields f;
    pn_affinity_keys k;
    pn_affinity_scan(body, strlen(body), &f);
    pn_affinity_read(&k, &f, f.model, session ? (pn_bytes){session, strlen(session)} : (pn_bytes){NULL, 0}, seed);
    return k;
}

static bool holds(const pn_affinity_keys *k, uint64_t mark)
{
    for (uint32_t i = 0; i < k->n_marks; i++)
        if (k->mark[i] == mark)
            return true;
    return false;
}

#define U(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define A(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define ASK(model, messages) "{\"model\":\"" model "\",\"messages\":[" messages "]}"

static void a_turn_holds_the_turn_before(void)
{
    pn_affinity_keys one = keys_of(ASK("m", U("hi")), NULL, 7), two = keys_of(ASK("m", U("hi") "," A("ho") "," U("he")), NULL, 7);
    PN_CHECK(one.n_marks == 1 && one.n_keep == 1 && one.keep[0] == one.mark[0] && one.session == 0);
    PN_CHECK(two.n_marks == 3 && two.n_keep == 1 && two.mark[2] == one.keep[0] && two.keep[0] == two.mark[0]);
    pn_affinity_keys other = keys_of(ASK("n", U("hi")), NULL, 7), seeded = keys_of(ASK("m", U("hi")), NULL, 8);
    PN_CHECK(!holds(&two, other.keep[0]) && !holds(&two, seeded.keep[0]));
    PN_CHECK(seeded.shape == one.shape && other.shape != one.shape);    /* routers agree */
    pn_affinity_keys s = keys_of(ASK("m", U("hi")), "s", 7), t = keys_of(ASK("m", U("ho")), "s", 8), u = keys_of(ASK("m", U("hi")), "t", 7);
    PN_CHECK(s.session && s.session == t.session && s.session != u.session);
    PN_CHECK(keys_of("{}", NULL, 7).n_marks == 0 && keys_of("", NULL, 7).n_marks == 0);
    PN_CHECK(keys_of("{\"messages\":[}", NULL, 7).n_marks == 0 && keys_of("{\"messages\":[]}", NULL, 7).n_marks == 0);
}

static void long_beginnings_have_marks_by_bytes(void)
{
    static char body[3 << 20], other[3 << 20];
    char *to = body + sprintf(body, "{\"model\":\"m\",\"prompt\":\"");
    memset(to, 'x', 2 << 20);
    strcpy(to + (2 << 20), "\"}");
    pn_affinity_keys k = keys_of(body, NULL, 1);
    PN_CHECK(k.n_marks == 6 && k.n_keep == 6, "%u", k.n_marks);         /* 1 K .. 1 M */
    memcpy(other, body, sizeof other);
    other[(to - body) + 5000] = 'y';
    pn_affinity_keys l = keys_of(other, NULL, 1);
    PN_CHECK(l.n_marks == 6 && l.mark[5] == k.mark[5] && l.mark[4] == k.mark[4] && l.mark[3] != k.mark[3] && l.mark[0] != k.mark[0]);
    /* A thousand messages: the last 64 of them, and the bytes. */
    to = body + sprintf(body, "{\"messages\":[");
    for (int i = 0; i < 1000; i++)
        to += sprintf(to, "%s{\"content\":\"%d\"}", i ? "," : "", i);
    strcpy(to, "]}");
    k = keys_of(body, NULL, 1);
    PN_CHECK(k.n_marks == 64 + 3 && k.n_keep == 3 + 1, "%u %u", k.n_marks, k.n_keep);
    strcpy(to, ",{\"content\":\"more\"}]}");
    l = keys_of(body, NULL, 1);
    PN_CHECK(l.n_marks == 64 + 3 && l.mark[1] == k.mark[0] && l.keep[3] == l.mark[0]);
    /* More elements than a conversation has: not one by one. */
    to = body + sprintf(body, "{\"input\":[");
    for (int i = 0; i < 70000; i++)
        to += sprintf(to, "%s1", i ? "," : "");
    strcpy(to, "]}");
    k = keys_of(body, NULL, 1);
    PN_CHECK(k.n_marks == 4, "%u", k.n_marks);
}

static void the_table_is_bounded_and_forgets_the_oldest(void)
{
    pn_affinity a;
    uint64_t found = 0, seed = 3;
    PN_CHECK(pn_affinity_init(&a, &mem.mem, 1024) == PN_OK && a.n == 1024);
    uint64_t bytes = mem.bytes;
    pn_affinity_add(&a, 0, 1);
    PN_CHECK(pn_affinity_find(&a, 0) == 0);
    for (uint64_t i = 1; i <= 10000; i++)
        pn_affinity_add(&a, pn_test_rand(&seed) | 1, 1);
    PN_CHECK(mem.bytes == bytes);
    seed = 3;
    for (uint64_t i = 1; i <= 10000; i++) {
        uint64_t key = pn_test_rand(&seed) | 1, has = pn_affinity_find(&a, key);
        found += has != 0;
        if (i <= 5000)
            PN_CHECK(has == 0);
    }
    PN_CHECK(found > 400 && found <= 1024, "%" PRIu64, found);
    pn_affinity_add(&a, 77, 1);
    pn_affinity_add(&a, 77, 4);
    PN_CHECK(pn_affinity_find(&a, 77) == 5);
    pn_affinity_set(&a, 77, 2);
    PN_CHECK(pn_affinity_find(&a, 77) == 2);
    pn_affinity_add(&a, 78, 3);
    pn_affinity_forget(&a, 2);
    PN_CHECK(pn_affinity_find(&a, 77) == 0 && pn_affinity_find(&a, 78) == 1);
    pn_affinity_fini(&a);
    PN_CHECK(mem.outstanding == 0);
    pn_test_mem m;
    pn_test_mem_init(&m, 1);
    PN_CHECK(pn_affinity_init(&a, &m.mem, 0) == PN_E_NOMEM);
    pn_affinity_fini(&a);
}

/* ------------------------------------------------------------------------------------------ */

static pn_affinity_server servers[PN_AFFINITY_SERVERS];

static void servers_idle(void)
{
    for (uint32_t i = 0; i < PN_AFFINITY_SERVERS; i++)
        servers[i] = (pn_affinity_server){.name = 1000 + i * 77};
}

static pn_affinity_keys conversation(int i, int turns, const char *session)
{
    char body[4096], *to = body + sprintf(body, "{\"model\":\"m\",\"messages\":[");
    for (int t = 0; t < turns; t++)
        to += sprintf(to, "%s{\"role\":\"user\",\"content\":\"question %d of %d\"}", t ? "," : "", t, i);
    strcpy(to, "]}");
    return keys_of(body, session, 5);
}

static void load_is_balanced(void)
{
    pn_affinity a;
    pn_affinity_by by;
    pn_affinity_init(&a, &mem.mem, 0);
    servers_idle();
    for (int i = 0; i < 300; i++) {
        pn_affinity_keys k = conversation(i, 1, NULL);
        uint32_t s = pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &k, servers, 7, &by);
        PN_CHECK(s < 3 && by == PN_BY_LOAD);
        servers[s].running++;
    }
    PN_CHECK(servers[0].running == 100 && servers[1].running == 100 && servers[2].running == 100);
    servers[1].running = 99;
    pn_affinity_keys k = conversation(1, 1, NULL);
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_NONE, &k, servers, 7, &by) == 1);
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_NONE, &k, servers, (uint64_t)1 << 63, &by) == 63);
    a.last = 63;
    servers_idle();                             /* without a prompt: in turn */
    k = keys_of("", NULL, 5);
    a.last = 63;
    for (uint32_t i = 0; i < 9; i++) {
        static const uint32_t turn[] = {0, 2, 5};
        PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &k, servers, 0x25, &by) == turn[i % 3]);
    }
    uint32_t n[3] = {0};                        /* idle servers share what comes one by one */
    servers_idle();
    for (int i = 0; i < 300; i++) {
        k = conversation(i, 1, NULL);
        n[pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &k, servers, 7, &by)]++;
    }
    PN_CHECK(n[0] > 60 && n[1] > 60 && n[2] > 60, "%u %u %u", n[0], n[1], n[2]);
    pn_affinity_fini(&a);
}

static void a_conversation_stays(bool session, pn_affinity_mode mode)
{
    pn_affinity a;
    pn_affinity_by by;
    uint32_t where[64], n[2] = {0};
    char name[16];
    pn_affinity_init(&a, &mem.mem, 0);
    servers_idle();
    for (int turn = 1; turn < 6; turn++)
        for (int i = 0; i < 64; i++) {
            snprintf(name, sizeof name, "s%d", i);
            servers[i & 1].running = (uint32_t)(turn & 3);      /* small differences do not matter */
            pn_affinity_keys k = conversation(i, turn, session ? name : NULL);
            uint32_t s = pn_affinity_choose(&a, mode, &k, servers, 3, &by);
            pn_affinity_learn(&a, mode, &k, s);
            if (turn == 1)
                n[where[i] = s]++;
            else
                PN_CHECK(s == where[i] && by == (session ? PN_BY_SESSION : PN_BY_PREFIX), "turn %d of %d: %u %d", turn, i, s, by);
        }
    PN_CHECK(n[0] > 12 && n[1] > 12, "%u %u", n[0], n[1]);
    pn_affinity_fini(&a);
}

static void a_session_moves_only_when_it_must(void)
{
    pn_affinity a;
    pn_affinity_by by;
    uint32_t moved = 0;
    char name[16];
    servers_idle();
    for (int i = 0; i < 256; i++) {             /* one of four goes away: nobody else moves; it comes back: neither */
        pn_affinity_init(&a, &mem.mem, 4);
        snprintf(name, sizeof name, "s%d", i);
        pn_affinity_keys k = conversation(i, 1, name);
        uint32_t before = pn_affinity_choose(&a, PN_AFFINITY_HEADER, &k, servers, 15, &by);
        uint32_t without = pn_affinity_choose(&a, PN_AFFINITY_HEADER, &k, servers, 11, &by);
        PN_CHECK(before == 2 ? without != 2 : without == before);
        moved += before != without;
        pn_affinity_learn(&a, PN_AFFINITY_HEADER, &k, without);
        PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_HEADER, &k, servers, 15, &by) == without);      /* its memory is there now */
        pn_affinity_forget(&a, (uint64_t)1 << without);
        PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_HEADER, &k, servers, 15, &by) == before);
        pn_affinity_fini(&a);
    }
    PN_CHECK(moved > 32 && moved < 96, "%u", moved);
}

static void modes_say_what_counts(void)
{
    pn_affinity a;
    pn_affinity_by by;
    pn_affinity_init(&a, &mem.mem, 0);
    servers_idle();
    pn_affinity_keys k = conversation(1, 1, NULL), s = conversation(1, 1, "s");
    pn_affinity_learn(&a, PN_AFFINITY_PREFIX, &k, 0);
    servers[0].running = 1;
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &k, servers, 3, &by) == 0 && by == PN_BY_PREFIX);
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_HEADER, &k, servers, 3, &by) == 1 && by == PN_BY_LOAD);
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_NONE, &s, servers, 3, &by) == 1 && by == PN_BY_LOAD);
    pn_affinity_choose(&a, PN_AFFINITY_HEADER, &s, servers, 3, &by);
    PN_CHECK(by == PN_BY_SESSION);
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &k, servers, 2, &by) == 1 && by == PN_BY_LOAD);     /* who knows it is away */
    servers[0].running = 4;                     /* far busier: others learn it, too */
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &k, servers, 3, &by) == 0);
    servers[0].running = 5;
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &k, servers, 3, &by) == 1 && by == PN_BY_LOAD);
    pn_affinity_learn(&a, PN_AFFINITY_PREFIX, &k, 1);
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &k, servers, 3, &by) == 1 && by == PN_BY_PREFIX);
    pn_affinity_fini(&a);
    pn_affinity_init(&a, &mem.mem, 0);
    pn_affinity_learn(&a, PN_AFFINITY_NONE, &s, 0);
    for (size_t i = 0; i < a.n; i++)
        PN_CHECK(!a.table[i].key);
    pn_affinity_fini(&a);
}

static void the_longest_beginning_wins(void)
{
    pn_affinity a;
    pn_affinity_by by;
    pn_affinity_init(&a, &mem.mem, 0);
    servers_idle();
    pn_affinity_keys one = conversation(1, 1, NULL), three = conversation(1, 3, NULL), four = conversation(1, 4, NULL), two = conversation(1, 2, NULL);
    pn_affinity_learn(&a, PN_AFFINITY_PREFIX, &one, 0);
    pn_affinity_learn(&a, PN_AFFINITY_PREFIX, &three, 1);
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &four, servers, 7, &by) == 1);
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &two, servers, 7, &by) == 0);
    PN_CHECK(pn_affinity_choose(&a, PN_AFFINITY_PREFIX, &four, servers, 5, &by) == 0);
    pn_affinity_fini(&a);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    members_are_found();
    names_are_unescaped();
    a_turn_holds_the_turn_before();
    long_beginnings_have_marks_by_bytes();
    the_table_is_bounded_and_forgets_the_oldest();
    load_is_balanced();
    a_conversation_stays(true, PN_AFFINITY_PREFIX);
    a_conversation_stays(true, PN_AFFINITY_HEADER);
    a_conversation_stays(false, PN_AFFINITY_PREFIX);
    a_session_moves_only_when_it_must();
    modes_say_what_counts();
    the_longest_beginning_wins();
    PN_CHECK(mem.outstanding == 0);
    return pn_test_end();
}
