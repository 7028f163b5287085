/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_floor.c - memory for one turn of a model that is split: each die keeps its layers' share, to the byte, and a turn finishes
 * on it when a die has nothing else.
 */
#include "engine/pn_engine_int.h"

#include "pn_test.h"

enum { FLOOR_NEW = 40, FLOOR_PROMPT = 60 };

/* full attention; recurrent layers */
static const char *const floor_models[] = {"models/demo.gguf", "tests/vectors/golden/arch/lfm2.gguf"};
static const uint32_t floor_dies[] = {0, 1};

static uint64_t floor_used(pn_engine *e, uint32_t die) { return e->dies[die].sim.bytes - pn_sim_free_bytes(&e->dies[die].memory); }

static uint64_t floor_account(pn_engine *e, pn_account a) { return atomic_load(&e->ledger.used[a]); }

static bool floor_open(const char *path, const char *sim, uint32_t tokens, pn_engine **e, pn_model **m)
{
    pn_err err = {0};
    *e = NULL;
    *m = NULL;
    return PN_CHECK(pn_engine_open(e, &(pn_engine_params){.n_threads = 1, .sim_dies = sim}, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_model_load(*e, path, &(pn_model_params){.dies = floor_dies, .n_dies = 2, .floor_tokens = tokens}, m, &err) == PN_OK, "%s", err.text);
}

static pn_session *floor_session(pn_model *m, uint32_t n_ctx)
{
    pn_session *s = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = n_ctx, .n_batch = 16, .by_turn = 1}, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

/* What each die holds more than without a floor is what a turn of so many tokens takes there. */
static void each_die_keeps_its_share(const char *path)
{
    pn_engine *e;
    pn_model *m;
    uint64_t bare[2] = {0}, turn[2] = {0};
    for (int with = 0; with < 2; with++) {
        if (floor_open(path, "2;bytes=64M", with ? 512 : 1, &e, &m)) {
            uint32_t tokens = m->floor_tokens;
            for (uint32_t i = 0; i < 2; i++) {
                PN_CHECK(m->floor_part[i] > 0 && floor_used(e, i) >= m->floor_part[i], "%s: die %u has none of it", path, (unsigned)i);
                PN_CHECK(!with || floor_used(e, i) - m->floor_part[i] == bare[i], "%s: die %u: %llu bytes", path, (unsigned)i, (unsigned long long)floor_used(e, i));
                bare[i] = floor_used(e, i) - m->floor_part[i];
            }
            PN_CHECK(floor_account(e, PN_ACCT_FLOOR) == m->floor_part[0] + m->floor_part[1] && m->floor_bytes == floor_account(e, PN_ACCT_FLOOR), "the sum");
            pn_session *s = floor_session(m, tokens);
            for (uint32_t i = 0; i < 2; i++) {
                turn[i] = pn_kv_turn_bytes(&s->kv, tokens, i);
                PN_CHECK(m->floor_part[i] == turn[i], "%s: die %u keeps %llu, a turn takes %llu", path, (unsigned)i, (unsigned long long)m->floor_part[i],
                         (unsigned long long)turn[i]);
            }
            pn_session_free(s);
        }
        pn_model_free(m);
        for (uint32_t i = 0; e && i < 2; i++)
            PN_CHECK(floor_used(e, i) == e->dies[i].work_bytes, "die %u: something stays", (unsigned)i);
        PN_CHECK(!e || (floor_account(e, PN_ACCT_FLOOR) == 0 && atomic_load(&e->floor_bytes) == 0 && atomic_load(&e->floor_owed) == 0), "counted for nobody");
        pn_engine_close(e);
    }
}

static pn_status floor_turn(pn_session *s, const pn_token *prompt, pn_token *said)
{
    static const pn_sampling how = {.size = sizeof how, .ignore_eos = 1};
    const pn_generate_params p = {.prompt = prompt, .n_prompt = FLOOR_PROMPT, .max_tokens = FLOOR_NEW, .sampling = &how, .no_cache = 1};
    pn_generate_result g = {0};
    pn_err err = {0};
    pn_status st = pn_session_truncate(s, 0, NULL);
    st = st ? st : pn_session_generate(s, &p, &g, &err);
    memcpy(said, pn_session_tokens(s), pn_session_length(s) * sizeof *said);
    return st ? st : g.n_generated == FLOOR_NEW ? PN_OK : PN_E_STATE;
}

/* All that is free on one die is somebody else's: it is CRITICAL, and a turn runs on what is kept; also the next one, and what
 * that one leaves is nobody else's meanwhile. */
static void a_turn_finishes_on_it(const char *path, uint32_t full)
{
    pn_engine *e;
    pn_model *m;
    pn_token prompt[FLOOR_PROMPT], alone[FLOOR_PROMPT + FLOOR_NEW] = {0}, said[FLOOR_PROMPT + FLOOR_NEW] = {0};
    if (floor_open(path, "2;bytes=64M", 128, &e, &m)) {
        pn_session *s = floor_session(m, m->floor_tokens), *t = floor_session(m, m->floor_tokens);
        pn_mem_state state = {0};
        pn_err err = {0};
        for (size_t i = 0; i < FLOOR_PROMPT; i++)
            prompt[i] = (pn_token)((i * 7 + 3) % pn_vocab_size(m));
        PN_CHECK(floor_turn(s, prompt, alone) == PN_OK && pn_session_truncate(s, 0, NULL) == PN_OK, "alone");
        uint64_t before[2] = {floor_used(e, 0), floor_used(e, 1)}, rest = pn_die_free_bytes(&e->dies[full]);
        void *hog = pn_mem_alloc(pn_die_mem(&e->dies[full]), PN_ACCT_MISC, (size_t)rest);
        PN_CHECK(hog && pn_die_free_bytes(&e->dies[full]) == 0, "%llu bytes", (unsigned long long)rest);
        for (int i = 0; i < 8; i++)
            pn_mem_poll(e);
        PN_CHECK(pn_mem_get(e, 1 + full, &state) == PN_OK && state.level == PN_LEVEL_CRITICAL, "level %d", (int)state.level);
        for (int i = 0; i < 2; i++) {
            PN_CHECK(floor_turn(s, prompt, said) == PN_OK && memcmp(said, alone, sizeof alone) == 0, "%s: a turn with die %u full", path, (unsigned)full);
            PN_CHECK(pn_session_truncate(s, 0, NULL) == PN_OK && m->floor_kept, "it is not kept again");
        }
        /* Half a turn: the other half is owed, where the pages are. */
        PN_CHECK(pn_session_reserve(s, m->floor_tokens / 2, &err) == PN_OK && s->on_floor && !m->floor_kept, "%s", err.text);
        PN_CHECK(pn_die_free_bytes(&e->dies[full]) == 0 && pn_sim_free_bytes(&e->dies[full].memory) == m->floor_owed[full] && m->floor_owed[0] + m->floor_owed[1] > 0,
                 "%llu bytes for anybody", (unsigned long long)pn_die_free_bytes(&e->dies[full]));
        PN_CHECK(pn_session_reserve(t, 64, &err) == PN_E_BUDGET && t->budget.limited_by == PN_BY_DEVICE && t->budget.die == (int32_t)full && t->budget.retryable, "%s",
                 err.text);
        PN_CHECK(pn_session_reserve(s, m->floor_tokens, &err) == PN_OK, "the rest of it: %s", err.text);
        pn_session_end_turn(s);
        PN_CHECK(m->floor_kept && floor_used(e, 0) - before[0] == (full ? 0 : rest) && floor_used(e, 1) - before[1] == (full ? rest : 0), "not as before");
        PN_CHECK(pn_session_reserve(t, 64, &err) == PN_OK, "%s", err.text);
        pn_session_end_turn(t);
        pn_mem_free(pn_die_mem(&e->dies[full]), PN_ACCT_MISC, hog, (size_t)rest);
        pn_session_free(s);
        pn_session_free(t);
    }
    pn_model_free(m);
    pn_engine_close(e);
}

/* Whichever memory fails while it is taken, on either die: refused and nothing lost, or there. */
static void each_half_may_fail(void)
{
    int bad = 0;
    for (int at = 1; at < 12; at++)
        for (uint32_t die = 0; die < 2; die++) {
            char sim[64];
            pn_engine *e = NULL;
            pn_model *m = NULL;
            pn_err err = {0};
            snprintf(sim, sizeof sim, "2;die%u.fail_alloc=%d", (unsigned)die, at);
            PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .sim_dies = sim}, &err) == PN_OK, "%s", err.text);
            pn_status st = pn_model_load(e, floor_models[1], &(pn_model_params){.dies = floor_dies, .n_dies = 2, .floor_tokens = 64}, &m, &err);
            PN_CHECK(st == PN_OK ? m->floor_kept && m->floor[0] && m->floor[1] : (st == PN_E_NOMEM || st == PN_E_BUDGET), "%s", err.text);
            bad += st != PN_OK;
            pn_model_free(m);
            for (uint32_t i = 0; i < 2; i++)
                PN_CHECK(floor_used(e, i) == e->dies[i].work_bytes, "die %u: something stays", (unsigned)i);
            pn_engine_close(e);
        }
    PN_CHECK(bad > 4, "%d failed", bad);
}

int main(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(floor_models); i++) {
        each_die_keeps_its_share(floor_models[i]);
        a_turn_finishes_on_it(floor_models[i], 0);
        a_turn_finishes_on_it(floor_models[i], 1);
    }
    each_half_may_fail();
    return pn_test_end();
}
