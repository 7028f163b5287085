/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_snapshots.c - the rung that gives up snapshots of recurrent state: what it says it gives is what the ledger has less,
 * every conversation keeps its last, and no bit changes.
 */
#include "engine/pn_cache.h"

#include "mem/pn_ladder.h"
#include "pn_test.h"

enum { SNAP_PROMPT = 440, SNAP_NEW = 10, SNAP_CTX = 512 };

static pn_token ids[SNAP_PROMPT];

typedef struct rig {
    pn_engine *e;
    pn_model *m;
} rig;

static bool rig_open(rig *r)
{
    pn_err err = {0};
    uint64_t seed = 5;
    memset(r, 0, sizeof *r);
    if (!PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = 1}, &err) == PN_OK &&
                  pn_model_load(r->e, "tests/vectors/golden/arch/lfm2.gguf", NULL, &r->m, &err) == PN_OK, "%s", err.text))
        return false;
    for (int i = 0; i < SNAP_PROMPT; i++)
        ids[i] = (pn_token)(pn_test_rand(&seed) % pn_vocab_size(r->m));
    return true;
}

static void rig_close(rig *r)
{
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

/* An answer to the first n tokens, whose first is another one; the session stays, NULL: it does not. */
static uint32_t rig_say(rig *r, pn_token first, uint32_t n, pn_session **keep, float *logits)
{
    static const pn_sampling greedy = {.size = sizeof greedy, .ignore_eos = 1};
    pn_token mine[SNAP_PROMPT];
    pn_session *s = NULL;
    pn_generate_result g = {0};
    pn_err err = {0};
    memcpy(mine, ids, sizeof mine);
    mine[0] = first;
    const pn_generate_params p = {.prompt = mine, .n_prompt = n, .max_tokens = SNAP_NEW, .sampling = &greedy};
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = SNAP_CTX, .n_batch = 100, .by_turn = 1}, &s, &err) == PN_OK &&
             pn_session_generate(s, &p, &g, &err) == PN_OK, "%s", err.text);
    if (logits)
        memcpy(logits, pn_session_logits(s), pn_vocab_size(r->m) * sizeof *logits);
    if (keep)
        *keep = s;
    else
        pn_session_free(s);
    return g.n_cached;
}

static const pn_rung *rig_rung(rig *r, uint32_t rank)
{
    const pn_ladder *l = &r->e->govern.ladder;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->rung[i].rank == rank)
            return &l->rung[i];
    return NULL;
}

static void of_each_conversation_the_last_stays(void)
{
    rig r;
    if (!rig_open(&r)) {
        rig_close(&r);
        return;
    }
    const pn_rung *rung = rig_rung(&r, 3);
    uint64_t slot = pn_snap_cost(r.m->desc.state.slot_bytes), freed = 0;
    size_t V = pn_vocab_size(r.m);
    float *cold = malloc(V * sizeof *cold), *warm = malloc(V * sizeof *warm);
    pn_session *s[3] = {NULL};
    if (!PN_CHECK(rung && strcmp(rung->name, "snapshots") == 0 && rung->level == PN_LEVEL_WATCH && rung->gain(r.e, 0) == 0,
                  "no such rung, or a gain of nothing"))
        return;
    for (int i = 0; i < 3; i++)         /* behind 256 tokens, the prompt, the answer */
        PN_CHECK(rig_say(&r, 10 + i, SNAP_PROMPT, &s[i], i ? NULL : cold) == 0, "known already");
    uint64_t gain = rung->gain(r.e, 0);
    PN_CHECK(gain == 6 * slot && rung->gain(r.e, 1) == gain && rung->gain(r.e, 2) == 0, "%u bytes, a slot is %u", (unsigned)gain, (unsigned)slot);
    uint64_t before = pn_mem_used(r.e), pages = r.e->ledger.used[PN_ACCT_PREFIX];
    PN_CHECK(rung->apply(r.e, 0, slot + 1, 0, &freed) == PN_RUNG_DONE && freed == 2 * slot && before - pn_mem_used(r.e) == freed, "%u of %u", (unsigned)freed,
             (unsigned)slot);
    freed = 0;
    before = pn_mem_used(r.e);
    PN_CHECK(rung->apply(r.e, 0, UINT64_MAX, 0, &freed) == PN_RUNG_DONE && freed == gain - 2 * slot && before - pn_mem_used(r.e) == freed &&
             rung->gain(r.e, 0) == 0 && r.e->ledger.used[PN_ACCT_PREFIX] == pages, "%u bytes", (unsigned)freed);
    /* The last of each is there; the one in the middle is not, and is not made as long as that is so. */
    PN_CHECK(rig_say(&r, 10, 400, NULL, NULL) == 0, "a snapshot in the middle stayed");
    PN_CHECK(rung->gain(r.e, 0) == slot, "%u bytes", (unsigned)rung->gain(r.e, 0));         /* at 384, of the shorter prompt: covered */
    PN_CHECK(rung->undo(r.e, 0, 0) == PN_RUNG_DONE, "not undone");
    PN_CHECK(rig_say(&r, 20, SNAP_PROMPT, NULL, warm) == 0 && rung->gain(r.e, 0) == 3 * slot, "none are made again");
    for (int i = 0; i < 3; i++)
        pn_session_free(s[i]);
    rig_say(&r, 10, SNAP_PROMPT, NULL, warm);
    PN_CHECK(memcmp(cold, warm, V * sizeof *cold) == 0, "other bits");
    free(cold);
    free(warm);
    rig_close(&r);
}

/* A session that has begun with a snapshot and not gone on yet holds it: nothing would come back. */
static void what_a_session_begins_with_stays(void)
{
    rig r;
    if (rig_open(&r)) {
        const pn_rung *rung = rig_rung(&r, 3);
        pn_err err = {0};
        pn_session *s = NULL;
        uint64_t slot = pn_snap_cost(r.m->desc.state.slot_bytes), freed = 0;
        rig_say(&r, 10, SNAP_PROMPT, NULL, NULL);
        pn_token mine[300];
        memcpy(mine, ids, sizeof mine);
        mine[0] = 10;
        PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = SNAP_CTX, .by_turn = 1}, &s, &err) == PN_OK, "%s", err.text);
        PN_CHECK(rung->gain(r.e, 0) == 2 * slot && pn_cache_adopt(s, 0, mine, 300) == 256 && rung->gain(r.e, 0) == slot, "%u bytes",
                 (unsigned)rung->gain(r.e, 0));
        uint64_t before = pn_mem_used(r.e);
        PN_CHECK(rung->apply(r.e, 0, UINT64_MAX, 0, &freed) == PN_RUNG_DONE && freed == slot && before - pn_mem_used(r.e) == slot, "%u bytes", (unsigned)freed);
        PN_CHECK(pn_session_eval(s, mine + 256, 44, &err) == PN_OK && rung->gain(r.e, 0) == slot, "it went on: %s", err.text);
        pn_session_free(s);
    }
    rig_close(&r);
}

/* What there is room for alone is what is there once all sequences are gone, their state too. */
static void state_goes_with_the_sequences(void)
{
    rig r;
    pn_err err = {0};
    pn_session *s = NULL;
    if (rig_open(&r)) {
        const atomic_ullong *used = r.e->ledger.used;
        rig_say(&r, 10, SNAP_PROMPT, &s, NULL);
        PN_CHECK(pn_mem_limit(r.e, -1, (int64_t)pn_mem_used(r.e) + (1 << 20), &err) == PN_OK, "%s", err.text);
        uint64_t gone = pn_govern_room_alone(r.e, 0) - pn_govern_room(r.e, 0, true);
        PN_CHECK(used[PN_ACCT_STATE] > 0 && gone == used[PN_ACCT_KV] + used[PN_ACCT_KV_RESERVE] + used[PN_ACCT_STATE] + used[PN_ACCT_PREFIX],
                 "%u bytes go, state has %u", (unsigned)gone, (unsigned)used[PN_ACCT_STATE]);
        pn_session_free(s);
    }
    rig_close(&r);
}

/* Pages that are little beside the state stay as they are while the sequence computes; at rest, and when nothing else is
 * left, they become smaller all the same.  F32 becomes F16 here, without a gate; the slots have room that no layer uses. */
static void small_pages_beside_much_state_stay(void)
{
    for (uint32_t kib = 0; kib <= 128; kib += 128) {
        rig r;
        pn_err err = {0};
        pn_session *s = NULL;
        pn_request *q = NULL;
        uint64_t freed = 0;
        static const pn_sampling greedy = {.size = sizeof greedy, .ignore_eos = 1};
        if (!rig_open(&r))
            return;
        const pn_rung *idle = rig_rung(&r, 7), *live = rig_rung(&r, 8), *all = rig_rung(&r, 17);
        const pn_generate_params p = {.prompt = ids, .n_prompt = SNAP_PROMPT, .max_tokens = SNAP_NEW, .sampling = &greedy, .no_cache = 1};
        r.m->desc.state.slot_bytes += kib << 10;
        PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = SNAP_CTX, .by_turn = 1, .has_kv_type = 1, .kv_type = PN_DTYPE_F32}, &s, &err) == PN_OK &&
                 pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
        while (pn_session_length(s) < SNAP_PROMPT)
            PN_CHECK(pn_engine_step(r.e, 0, NULL, &err) == PN_OK, "%s", err.text);
        PN_CHECK(live->gain(r.e, 0) == 0 && all->gain(r.e, 0) == 0, "a type that somebody chose stays");
        s->auto_type = true;            /* as if nobody had: the heads of this model fit no type below F16 */
        PN_CHECK((live->gain(r.e, 0) > 0) == (kib == 0) && all->gain(r.e, 0) > 0, "%u KiB of state more", (unsigned)kib);
        (void)live->apply(r.e, 0, UINT64_MAX, 0, &freed);
        PN_CHECK((freed > 0) == (kib == 0), "%u KiB of state more", (unsigned)kib);
        while (!pn_request_done(q))
            PN_CHECK(pn_engine_step(r.e, 0, NULL, &err) == PN_OK, "%s", err.text);
        pn_request_free(q);
        PN_CHECK(idle->gain(r.e, 0) > 0, "at rest, %u KiB of state more", (unsigned)kib);
        pn_session_free(s);
        rig_close(&r);
    }
}

/* Wherever the model is cut, what a die has less is what the plan says of it, to the byte, and the state of the layers
 * that it runs is in that: three of the four here. */
static void each_die_holds_the_state_of_its_layers(void)
{
    enum { LAYER = 2 * 48 * 4 };
    static const char *const dies[] = {"2;bytes=64M", "2;bytes=64M;die1.bytes=300K", "2;bytes=64M;die0.bytes=300K"};
    static const uint32_t both[] = {0, 1};
    uint32_t seen = 0;
    for (size_t i = 0; i < PN_COUNT_OF(dies); i++) {
        rig r = {0};
        pn_err err = {0};
        pn_session *s[2] = {NULL};
        pn_session_need need;
        uint64_t before[2];
        if (!PN_CHECK(pn_engine_open(&r.e, &(pn_engine_params){.n_threads = 1, .sim_dies = dies[i]}, &err) == PN_OK &&
                      pn_model_load(r.e, "tests/vectors/golden/arch/lfm2.gguf", &(pn_model_params){.dies = both, .n_dies = 2}, &r.m, &err) == PN_OK,
                      "%s", err.text))
            return;
        const pn_state_spec *spec = &r.m->desc.state;
        uint64_t second = 0;
        for (uint32_t il = r.m->desc.cut; il < 4; il++)
            second += il != 2 ? LAYER : 0;
        PN_CHECK(spec->slot_bytes == 3 * LAYER && spec->slot_second == second, "cut at %u: %u of %u bytes", (unsigned)r.m->desc.cut,
                 (unsigned)spec->slot_second, (unsigned)spec->slot_bytes);
        seen |= 1u << r.m->desc.cut;
        for (int k = 0; k < 2; k++) {       /* the second finds the working memory there */
            for (uint32_t d = 0; d < 2; d++)
                before[d] = pn_die_free_bytes(r.m->dies[d]);
            PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = 128, .n_batch = 16}, &s[k], &err) == PN_OK, "%s", err.text);
        }
        PN_CHECK(pn_session_needs(&r.m->desc, 128, 16, 1, PN_DTYPE_F16, false, &need, &err) == PN_OK, "%s", err.text);
        for (uint32_t d = 0; d < 2; d++) {
            uint64_t took = before[d] - pn_die_free_bytes(r.m->dies[d]);
            PN_CHECK(took == need.kv_part[d] && took >= pn_state_turn_part(spec, d), "die %u took %u bytes, %u said", (unsigned)d, (unsigned)took,
                     (unsigned)need.kv_part[d]);
        }
        pn_session_free(s[0]);
        pn_session_free(s[1]);
        rig_close(&r);
    }
    PN_CHECK((seen & (seen - 1)) != 0, "all were cut at the same layer");
}

int main(void)
{
    each_die_holds_the_state_of_its_layers();
    small_pages_beside_much_state_stay();
    of_each_conversation_the_last_stays();
    what_a_session_begins_with_stays();
    state_goes_with_the_sequences();
    return pn_test_end();
}
