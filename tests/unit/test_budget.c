/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * The reasoning budget: what is forced when, over token ids.
 */
#include "pn_test.h"

#include "sample/pn_budget.h"

enum { OPEN_A = 100, OPEN_B = 101, CLOSE_A = 200, CLOSE_B = 201, MSG = 300 };

static const pn_token start_seq[] = {OPEN_A, OPEN_B}, end_seq[] = {CLOSE_A, CLOSE_B}, message[] = {MSG, MSG + 1};

static pn_budget *make(pn_mem *mem, int64_t budget, bool open, bool with_message, uint32_t limit, uint32_t reserve)
{
    pn_budget_params p = {.start = start_seq, .n_start = 2, .end = end_seq, .n_end = 2, .budget = budget, .open = open,
                          .limit = limit, .reserve = reserve};
    if (with_message) {
        p.message = message;
        p.n_message = 2;
    }
    pn_budget *b = NULL;
    pn_err err;
    PN_CHECK(pn_budget_new(&b, mem, &p, &err) == PN_OK, "%s", err.text);
    return b;
}

/* Accept tokens; -1 where nothing may be forced afterwards. */
static void feed(pn_budget *b, const pn_token *t, size_t n, const pn_token *want)
{
    for (size_t i = 0; i < n; i++) {
        pn_token got = pn_budget_accept(b, t[i], true);
        PN_CHECK(got == want[i], "after token %zu (%d): %d, not %d", i, (int)t[i], (int)got, (int)want[i]);
        PN_CHECK(got == pn_budget_next(b));
    }
}

#define FEED(b, tokens, want) feed(b, tokens, PN_COUNT_OF(tokens), want)

static void test_end_is_forced_when_the_budget_is_spent(pn_mem *mem)
{
    static const pn_token t[] = {5, OPEN_A, OPEN_B, 1, 2, 3, CLOSE_A, CLOSE_B, 4, 4, 4};
    static const pn_token w[] = {-1, -1, -1, -1, -1, CLOSE_A, CLOSE_B, -1, -1, -1, -1};
    pn_budget *b = make(mem, 3, false, false, 0, 0);
    FEED(b, t, w);
    PN_CHECK(pn_budget_where(b) == PN_BUDGET_IDLE && pn_budget_spent(b) == 3 && pn_budget_was_forced(b));
    pn_budget_free(b);
}

static void test_natural_end_forces_nothing(pn_mem *mem)
{
    static const pn_token t[] = {1, CLOSE_A, 1, CLOSE_A, CLOSE_A, CLOSE_B, 9, 9, 9, 9, 9, 9};
    static const pn_token w[] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    pn_budget *b = make(mem, 10, true, false, 0, 0);
    FEED(b, t, w);
    PN_CHECK(!pn_budget_was_forced(b) && pn_budget_entries(b) == 1 && pn_budget_spent(b) == 5);
    pn_budget_free(b);
}

static void test_zero_closes_at_once_and_the_message_comes_first(pn_mem *mem)
{
    static const pn_token t[] = {MSG, MSG + 1, CLOSE_A, CLOSE_B, 7};
    static const pn_token w[] = {MSG + 1, CLOSE_A, CLOSE_B, -1, -1};
    pn_budget *b = make(mem, 0, true, true, 0, 0);
    PN_CHECK(pn_budget_next(b) == MSG);
    FEED(b, t, w);
    pn_budget_free(b);
}

static void test_a_half_written_end_is_completed(pn_mem *mem)
{
    static const pn_token t[] = {1, CLOSE_A, CLOSE_B, 7};
    static const pn_token w[] = {-1, CLOSE_B, -1, -1};
    pn_budget *b = make(mem, 2, true, false, 0, 0);
    FEED(b, t, w);
    PN_CHECK(pn_budget_where(b) == PN_BUDGET_IDLE);
    pn_budget_free(b);
}

static void test_a_character_is_finished_first(pn_mem *mem)
{
    pn_budget *b = make(mem, 1, true, false, 0, 0);
    PN_CHECK(pn_budget_accept(b, 1, false) == -1);
    PN_CHECK(pn_budget_accept(b, 2, false) == -1);
    PN_CHECK(pn_budget_accept(b, 3, true) == CLOSE_A);
    pn_budget_free(b);
}

static void test_blocks_share_one_budget(pn_mem *mem)
{
    static const pn_token t[] = {1, CLOSE_A, CLOSE_B, 9, OPEN_A, OPEN_B, 1, CLOSE_A, CLOSE_B, OPEN_A, OPEN_A, OPEN_B, CLOSE_A, CLOSE_B};
    static const pn_token w[] = {-1, -1, -1, -1, -1, -1, CLOSE_A, CLOSE_B, -1, -1, -1, CLOSE_A, CLOSE_B, -1};
    pn_budget *b = make(mem, 3, true, false, 0, 0);     /* 1, half an end, 1 */
    FEED(b, t, w);
    PN_CHECK(pn_budget_entries(b) == 3);
    pn_budget_free(b);
}

static void test_the_answer_keeps_its_reserve(pn_mem *mem)
{
    static const pn_token t[] = {1, 2, 3, 4};           /* 10 in all: 4 for the answer, 2 for the end */
    static const pn_token w[] = {-1, -1, -1, CLOSE_A};
    pn_budget *b = make(mem, -1, true, false, 10, 4);
    FEED(b, t, w);
    pn_budget_free(b);
}

static void test_another_token_does_not_count_as_the_forced_one(pn_mem *mem)
{
    static const pn_token t[] = {8, CLOSE_A, 8, CLOSE_B};
    static const pn_token w[] = {CLOSE_A, CLOSE_B, CLOSE_B, -1};
    pn_budget *b = make(mem, 0, true, false, 0, 0);
    FEED(b, t, w);
    pn_budget_free(b);
}

static void test_bad_parameters_and_no_memory(pn_mem *mem)
{
    pn_budget_params p = {.budget = 1};
    pn_budget *b = NULL;
    pn_err err;
    PN_CHECK(pn_budget_new(&b, mem, &p, &err) == PN_E_INVALID && strstr(err.text, "end sequence"));
    p.end = end_seq;
    p.n_end = 2;
    p.budget = -2;
    PN_CHECK(pn_budget_new(&b, mem, &p, &err) == PN_E_INVALID && strstr(err.text, "-2"));
    p.budget = 1;
    for (long k = 1; k < 20; k++) {
        pn_test_mem tm;
        pn_test_mem_init(&tm, k);
        pn_status st = pn_budget_new(&b, &tm.mem, &p, &err);
        PN_CHECK(st == (tm.n_calls >= k ? PN_E_NOMEM : PN_OK));
        if (!st)
            pn_budget_free(b);
        PN_CHECK(tm.outstanding == 0);
    }
    pn_budget_free(NULL);
}

int main(void)
{
    pn_test_mem tm;
    pn_test_mem_init(&tm, 0);
    test_end_is_forced_when_the_budget_is_spent(&tm.mem);
    test_natural_end_forces_nothing(&tm.mem);
    test_zero_closes_at_once_and_the_message_comes_first(&tm.mem);
    test_a_half_written_end_is_completed(&tm.mem);
    test_a_character_is_finished_first(&tm.mem);
    test_blocks_share_one_budget(&tm.mem);
    test_the_answer_keeps_its_reserve(&tm.mem);
    test_another_token_does_not_count_as_the_forced_one(&tm.mem);
    test_bad_parameters_and_no_memory(&tm.mem);
    PN_CHECK(tm.outstanding == 0);
    return pn_test_end();
}
