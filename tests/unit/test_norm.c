/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Rewriting of text: normal forms by hand-picked cases of UAX 15, the other steps, where bytes come from,
 * texts that are all marks, every allocation failing in turn.
 */
#include "pn_test.h"
#include "text/pn_norm.h"

static pn_mem libc_mem;

static pn_bytes z(const char *text) { return (pn_bytes){text, strlen(text)}; }

static void gives(pn_norm_step step, const char *in, const char *want)
{
    pn_norm nm;
    pn_norm_init(&nm, &libc_mem);
    bool ok = pn_norm_run(&nm, &step, 1, in, strlen(in), true);
    const pn_str *o = &nm.out.text;
    PN_CHECK(ok && o->len == strlen(want) && memcmp(pn_str_cstr(o), want, o->len) == 0, "step %d: \"%s\" gave \"%s\", wanted \"%s\"",
             (int)step.kind, in, pn_str_cstr(o), want);
    for (size_t i = 1; i < o->len; i++)
        PN_CHECK(nm.out.src[i - 1] <= nm.out.src[i] && nm.out.src[i] < strlen(in), "step %d, byte %zu", (int)step.kind, i);
    pn_norm_fini(&nm);
}

static void form(pn_norm_kind kind, const char *in, const char *want) { gives((pn_norm_step){.kind = kind}, in, want); }

static void normal_forms_are_those_of_unicode(void)
{
    /* U+00E9 and e + U+0301 */
    form(PN_NORM_NFC, "caf\u00E9 e\u0301x", "caf\u00E9 \u00E9x");
    form(PN_NORM_NFD, "caf\u00E9x", "cafe\u0301x");
    /* marks change places by class: U+0323 (220) before U+0307 (230) */
    form(PN_NORM_NFD, "q\u0307\u0323", "q\u0323\u0307");
    form(PN_NORM_NFC, "s\u0307\u0323", "\u1E69");
    form(PN_NORM_NFC, "\u1E0B\u0323", "\u1E0D\u0307");
    /* blocked: two marks of one class, the second stays */
    form(PN_NORM_NFC, "a\u0301\u0301", "\u00E1\u0301");
    /* marks with nothing before them; a singleton; one that composition leaves out */
    form(PN_NORM_NFC, "\u0323\u0301", "\u0323\u0301");
    form(PN_NORM_NFC, "\u212B\u2126", "\u00C5\u03A9");
    form(PN_NORM_NFC, "\u0958", "\u0915\u093C");
    /* Hangul by arithmetic, and two starters that compose */
    form(PN_NORM_NFC, "\u1100\u1161\u11A8\u1112\u1161", "\uAC01\uD558");
    form(PN_NORM_NFD, "\uAC01", "\u1100\u1161\u11A8");
    form(PN_NORM_NFC, "\u09C7\u09BE", "\u09CB");
    /* compatibility */
    form(PN_NORM_NFKC, "\uFB01 \u2460 \uFF21", "fi 1 A");
    form(PN_NORM_NFKD, "\u1E9B\u0323", "s\u0323\u0307");
    form(PN_NORM_NFKC, "\u1E9B\u0323", "\u1E69");
    form(PN_NORM_NFC, "\u1E9B\u0323", "\u1E9B\u0323");
    /* beyond U+FFFF, bytes that are no characters, nothing */
    form(PN_NORM_NFC, "\U0001D15E\U0001F642", "\U0001D157\U0001D165\U0001F642");
    form(PN_NORM_NFC, "e\xFF\u0301\xC3", "e\xFF\u0301\xC3");
    form(PN_NORM_NFC, "", "");
}

static void the_other_steps_do_what_they_say(void)
{
    form(PN_NORM_LOWERCASE, "\u00C9COLE \u0130 \u03A3 x\xFFY", "\u00E9cole i\u0307 \u03C3 x\xFFy");
    form(PN_NORM_STRIP_MARKS, "e\u0301\u0903x", "ex");
    gives((pn_norm_step){.kind = PN_NORM_TRIM, .left = true, .right = true}, "\u3000 a b \n", "a b");
    gives((pn_norm_step){.kind = PN_NORM_TRIM, .left = true}, "  a ", "a ");
    gives((pn_norm_step){.kind = PN_NORM_TRIM, .right = true}, "  ", "");
    gives((pn_norm_step){.kind = PN_NORM_REPLACE, .from = z(" "), .to = z("\u2581")}, " a  b", "\u2581a\u2581\u2581b");
    gives((pn_norm_step){.kind = PN_NORM_REPLACE, .from = z("aa"), .to = z("b")}, "aaaaa", "bba");
    gives((pn_norm_step){.kind = PN_NORM_REPLACE, .from = z("long"), .to = z("")}, "lon", "lon");
    gives((pn_norm_step){.kind = PN_NORM_PREPEND, .to = z("\u2581")}, "a", "\u2581""a");
    gives((pn_norm_step){.kind = PN_NORM_PREPEND, .to = z("\u2581")}, "", "");
}

/* Half a megabyte of marks in the wrong order: sorted, and in no time. */
static void a_text_of_marks_is_no_trouble(void)
{
    enum { N = 100000 };
    pn_norm nm;
    pn_str s;
    pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
    pn_str_addc(&s, 'a');
    for (int i = 0; i < N; i++)
        pn_str_addz(&s, i % 2 ? "\u0323" : "\u0307");
    pn_norm_init(&nm, &libc_mem);
    PN_CHECK(pn_norm_run(&nm, &(pn_norm_step){.kind = PN_NORM_NFC}, 1, s.data, s.len, false));
    const pn_str *o = &nm.out.text;
    /* a with a dot below, the other dots below, the dots above (blocked) */
    PN_CHECK(o->len == s.len && memcmp(o->data, "\u1EA1\u0323", 5) == 0 && memcmp(o->data + o->len - 2, "\u0307", 2) == 0);
    pn_norm_fini(&nm);
    pn_str_fini(&s);
}

static void every_failing_allocation_is_said_and_no_leak(void)
{
    const pn_norm_step steps[] = {{.kind = PN_NORM_NFKC}, {.kind = PN_NORM_REPLACE, .from = z("a"), .to = z("bcd")}, {.kind = PN_NORM_NFD}};
    const char *text = "aaaaaaaaaaaaaaa q\u0307\u0323\u0307\u0323 \uFDFA aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    bool done = false;
    for (long at = 1; !done && at < 100; at++) {
        pn_test_mem tm;
        pn_norm nm;
        pn_test_mem_init(&tm, at);
        pn_norm_init(&nm, &tm.mem);
        bool ok = pn_norm_run(&nm, steps, PN_COUNT_OF(steps), text, strlen(text), true);
        done = tm.n_calls < at;
        PN_CHECK(ok == done, "allocation %ld", at);
        pn_norm_fini(&nm);
        PN_CHECK(tm.outstanding == 0, "allocation %ld", at);
    }
    PN_CHECK(done);
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    normal_forms_are_those_of_unicode();
    the_other_steps_do_what_they_say();
    a_text_of_marks_is_no_trouble();
    every_failing_allocation_is_said_and_no_leak();
    return pn_test_end();
}
