/*
 * test_state.c - the slots of a sequence against a plain record of what they should hold, over random steps, torn
 * steps, snapshots, other places and failing allocations.
 *
 * No model: a "step" reads the number in `in` and writes to `out`, and to each mark, what it is after so many tokens.
 */
#include "store/pn_state.h"

#include "base/pn_hash.h"

#include "pn_test.h"

enum { SLOT = 1000, SNAPS = 40 };

/* What the state of a sequence is at a position: of this way, not of another. */
static uint64_t state_after(uint64_t before, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        before = pn_hash(&before, sizeof before, 7);
    return before;
}

/* At both ends of both parts, as far as there are any. */
static uint64_t slot_read(const pn_state_spec *spec, const void *first, const void *second)
{
    const uint64_t bytes[2] = {spec->slot_bytes - spec->slot_second, spec->slot_second};
    const char *slot[2] = {first, second};
    uint64_t v, seen = 0;
    PN_CHECK(!second || spec->slot_second, "a part that is none");
    for (int part = 0; part < 2; part++)
        for (uint64_t at = 0; slot[part] && bytes[part] && at <= bytes[part] - 8; at += bytes[part] - 8) {
            memcpy(&v, slot[part] + at, 8);
            PN_CHECK(!seen || seen == v, "a slot is half written");
            seen = v;
        }
    return seen;
}

static void slot_write(const pn_state_spec *spec, void *first, void *second, uint64_t v)
{
    const uint64_t bytes[2] = {spec->slot_bytes - spec->slot_second, spec->slot_second};
    char *slot[2] = {first, second};
    for (int part = 0; part < 2; part++)
        for (uint64_t at = 0; bytes[part] && at <= bytes[part] - 8; at += bytes[part] - 8)
            memcpy(slot[part] + at, &v, 8);
}

static uint64_t snap_read(const pn_state_spec *spec, const pn_snap *s) { return slot_read(spec, pn_snap_data(s, 0), pn_snap_data(s, 1)); }

typedef struct rig {
    pn_state_spec spec;
    pn_test_mem m[2];           /* each part's */
    pn_state s;
    uint64_t value;             /* of the sequence at `length` */
    uint32_t length;
    pn_snap *snap[SNAPS];       /* ours, as a cache holds them */
    uint64_t snap_value[SNAPS];
    uint32_t snap_pos[SNAPS], n_snaps;
} rig;

/* One step of n tokens; torn: it leaves anything in what it may write. */
static void rig_step(rig *r, uint32_t n, bool torn, bool last_only)
{
    pn_checkpoint marks[PN_STATE_MARKS];
    pn_run run = {.n_rows = n};
    uint32_t n_marks = pn_state_mark_step(&r->s, r->length, n, last_only, marks);
    pn_state_run(&r->s, &run);
    PN_CHECK(run.slot_out[0] && run.slot_out[0] != run.slot_in[0], "a step has nowhere to write");
    PN_CHECK(slot_read(&r->spec, run.slot_in[0], run.slot_in[1]) == r->value, "the state is another");
    for (uint32_t i = 0; i < n_marks; i++) {
        PN_CHECK(marks[i].rows >= 1 && marks[i].rows <= n && (r->length + marks[i].rows) % PN_KV_PAGE_TOKENS == 0, "a mark inside a page");
        PN_CHECK(marks[i].slot[0] != run.slot_in[0] && marks[i].slot[0] != run.slot_out[0], "a mark is the state itself");
        slot_write(&r->spec, marks[i].slot[0], marks[i].slot[1], torn ? 99 : state_after(r->value, marks[i].rows));
    }
    slot_write(&r->spec, run.slot_out[0], run.slot_out[1], torn ? 98 : state_after(r->value, n));
    if (torn)
        return;
    r->value = state_after(r->value, n);
    r->length += n;
    pn_state_commit(&r->s);
}

/* The marks that count become ours. */
static void rig_take(rig *r)
{
    uint32_t pos = 0, before = 0;
    for (pn_snap *s; (s = pn_state_take(&r->s, true, &pos)) != NULL; before = pos) {
        PN_CHECK(pos > before && pos <= r->length && pos % PN_KV_PAGE_TOKENS == 0, "a mark behind %u of %u tokens", (unsigned)pos, (unsigned)r->length);
        if (r->n_snaps == SNAPS) {
            pn_snap_release(s);
            continue;
        }
        r->snap[r->n_snaps] = s;
        r->snap_value[r->n_snaps] = snap_read(&r->spec, s);
        r->snap_pos[r->n_snaps++] = pos;
    }
}

static void rig_drop(rig *r, uint32_t i)
{
    PN_CHECK(snap_read(&r->spec, r->snap[i]) == r->snap_value[i], "a snapshot was written");
    pn_snap_release(r->snap[i]);
    r->n_snaps--;
    r->snap[i] = r->snap[r->n_snaps];
    r->snap_value[i] = r->snap_value[r->n_snaps];
    r->snap_pos[i] = r->snap_pos[r->n_snaps];
}

static void rig_close(rig *r)
{
    while (r->n_snaps)
        rig_drop(r, 0);
    pn_state_unload(&r->s);
    for (int i = 0; i < 2; i++)
        PN_CHECK(r->m[i].outstanding == 0 && r->m[i].bytes == 0, "%ld slots left", r->m[i].outstanding);
}

static void rig_open(rig *r, uint64_t second)
{
    *r = (rig){.spec = {.slot_bytes = SLOT, .slot_second = second}};
    pn_test_mem_init(&r->m[0], 0);
    pn_test_mem_init(&r->m[1], 0);
    pn_state_init(&r->s, (pn_mem *const[2]){&r->m[0].mem, &r->m[1].mem}, &r->spec);
}

static bool rig_reserve(rig *r)
{
    uint64_t want[2] = {pn_state_reserve_bytes(&r->s, 0), pn_state_reserve_bytes(&r->s, 1)}, before[2] = {r->m[0].bytes, r->m[1].bytes};
    bool ok = pn_state_reserve(&r->s);
    for (uint32_t i = 0; i < 2; i++) {
        PN_CHECK(r->m[i].bytes - before[i] == (ok ? want[i] : 0), "took %u of %u bytes", (unsigned)(r->m[i].bytes - before[i]), (unsigned)want[i]);
        PN_CHECK(!ok || pn_state_reserve_bytes(&r->s, i) == 0, "reserved, and not");
    }
    return ok;
}

/* What is said in the header of every call holds whatever the order. */
static void any_order_of_calls_keeps_the_state(uint64_t seed, long fail_every, uint64_t second)
{
    rig r;
    rig_open(&r, second);
    for (int i = 0; i < 3000; i++) {
        uint64_t dice = pn_test_rand(&seed) % 16;
        for (int k = 0; k < 2; k++)
            r.m[k].fail_at = fail_every && i % fail_every == 0 ? r.m[k].n_calls + 1 + (long)(pn_test_rand(&seed) % 3) : 0;
        uint32_t n = pn_test_rand(&seed) % 4 ? 1 + (uint32_t)(pn_test_rand(&seed) % 20) : 1 + (uint32_t)(pn_test_rand(&seed) % 900);
        if (dice < 9) {
            if (rig_reserve(&r))
                for (int k = 0; k < 4; k++)
                    rig_step(&r, n, pn_test_rand(&seed) % 4 == 0, dice == 8);
        } else if (dice < 11) {
            rig_take(&r);
        } else if (dice < 12) {
            pn_state_trim(&r.s);
        } else if (dice < 13 && r.n_snaps) {
            rig_drop(&r, (uint32_t)(pn_test_rand(&seed) % r.n_snaps));
        } else if (dice < 14 && r.n_snaps) {
            uint32_t k = (uint32_t)(pn_test_rand(&seed) % r.n_snaps);
            pn_state_set(&r.s, r.snap[k]);
            r.value = r.snap_value[k];
            r.length = r.snap_pos[k];
        } else if (dice == 14) {
            pn_state_set(&r.s, NULL);
            r.value = r.length = 0;
        } else if (dice == 15 && r.s.in) {          /* away and back */
            pn_state_unload(&r.s);
            pn_snap *in = pn_state_put(&r.s);
            if (in)
                slot_write(&r.spec, pn_snap_data(in, 0), pn_snap_data(in, 1), r.value);
            else
                r.value = r.length = 0;
        }
        uint64_t most = 2 + PN_STATE_MARKS + SNAPS + 1;
        for (uint32_t k = 0; k < 2; k++)
            PN_CHECK(r.m[k].bytes <= most * pn_snap_cost_part(SLOT, second, k), "%u bytes", (unsigned)r.m[k].bytes);
    }
    rig_close(&r);
}

/* Snapshots are behind every PN_STATE_EVERY tokens and behind the last boundary, however the prompt is cut. */
static void marks_are_where_somebody_goes_on(void)
{
    static const uint32_t cuts[] = {1, 7, 64, 100, 250, 1000};
    for (size_t c = 0; c < PN_COUNT_OF(cuts); c++)
        for (int last_only = 0; last_only < 2; last_only++) {
            rig r;
            uint32_t want[] = {256, 512, 768, 960}, seen = 0;
            rig_open(&r, 0);
            PN_CHECK(rig_reserve(&r));
            while (r.length < 1000)
                rig_step(&r, PN_MIN(cuts[c], 1000 - r.length), false, last_only);
            rig_take(&r);
            for (size_t k = 0; k < PN_COUNT_OF(want); k++)
                for (uint32_t i = 0; i < r.n_snaps; i++)
                    seen += r.snap_pos[i] == want[k] && r.snap_value[i] == state_after(0, want[k]);
            if (last_only)
                PN_CHECK(r.n_snaps == 1 && r.snap_pos[0] == 960, "steps of %u: %u snapshots", (unsigned)cuts[c], (unsigned)r.n_snaps);
            else
                PN_CHECK(r.n_snaps == 4 && seen == 4, "steps of %u: %u snapshots, %u right", (unsigned)cuts[c], (unsigned)r.n_snaps, (unsigned)seen);
            rig_close(&r);
        }
}

/* Many boundaries in one step: as many marks as there is room for, the sequence none the worse. */
static void a_long_step_has_as_many_as_fit(void)
{
    rig r;
    rig_open(&r, 0);
    PN_CHECK(rig_reserve(&r));
    rig_step(&r, 200, false, false);
    rig_step(&r, 4096, false, false);
    rig_take(&r);
    PN_CHECK(r.n_snaps == 17 && r.snap_pos[0] == 256 && r.snap_pos[16] == 4288, "%u marks", (unsigned)r.n_snaps);
    rig_close(&r);
}

static void without_state_there_is_nothing(void)
{
    pn_test_mem m;
    pn_state s;
    pn_run run = {.n_rows = 3};
    pn_checkpoint marks[PN_STATE_MARKS];
    uint32_t pos;
    pn_test_mem_init(&m, 1);
    pn_state_init(&s, (pn_mem *const[2]){&m.mem, &m.mem}, &(pn_state_spec){0});
    PN_CHECK(pn_state_reserve(&s) && pn_state_reserve_bytes(&s, 0) + pn_state_reserve_bytes(&s, 1) == 0 && pn_state_turn_bytes(0) == 0 && pn_state_mark_step(&s, 0, 500, false, marks) == 0);
    pn_state_run(&s, &run);
    pn_state_commit(&s);
    pn_state_set(&s, NULL);
    PN_CHECK(!run.slot_in[0] && !run.slot_out[0] && !pn_state_take(&s, true, &pos) && m.n_calls == 0);
    pn_state_unload(&s);
}

int main(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        for (uint64_t second = 0; second <= SLOT; second += SLOT / 2)      /* on one die, on both, on the second alone */
            any_order_of_calls_keeps_the_state(seed, seed % 4 ? 0 : 5, second);
    marks_are_where_somebody_goes_on();
    a_long_step_has_as_many_as_fit();
    without_state_there_is_nothing();
    return pn_test_end();
}
