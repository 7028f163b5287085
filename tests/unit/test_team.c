/*
 * test_team.c - threads that work together: everybody runs, barriers hold, any number of runs.
 */
#include "device/pn_team.h"

#include <stdatomic.h>

#include "pn_test.h"

typedef struct team_test {
    pn_team *team;
    atomic_int ran[16], in_phase;
    int phase, wrong;
} team_test;

static void next_phase(void *arg)
{
    team_test *t = arg;
    t->wrong += atomic_load(&t->in_phase) != (int)pn_team_size(t->team);
    atomic_store(&t->in_phase, 0);
    t->phase++;
}

static void phases(void *arg, uint32_t thread)
{
    team_test *t = arg;
    atomic_fetch_add(&t->ran[thread], 1);
    for (int i = 0; i < 20; i++) {
        atomic_fetch_add(&t->in_phase, 1);
        int before = t->phase;
        pn_team_barrier(t->team, next_phase, t);
        if (t->phase != before + 1)
            atomic_fetch_add(&t->ran[15], 1000000);
    }
}

int main(void)
{
    for (uint32_t n = 1; n <= 5; n++) {
        pn_test_mem m;
        pn_err err;
        team_test t = {0};
        pn_test_mem_init(&m, 0);
        if (!PN_CHECK(pn_team_new(&t.team, &m.mem, n, &err) == PN_OK, "%s", err.text))
            continue;
        PN_CHECK(pn_team_size(t.team) == (PN_ENABLE_THREADS ? n : 1), "%u of %u started", (unsigned)pn_team_size(t.team),
                 (unsigned)n);
        for (int run = 0; run < 50; run++)
            pn_team_run(t.team, phases, &t);
        for (uint32_t i = 0; i < pn_team_size(t.team); i++)
            PN_CHECK(t.ran[i] == 50, "member %u of %u ran %d times", (unsigned)i, (unsigned)n, (int)t.ran[i]);
        PN_CHECK(t.phase == 1000 && t.wrong == 0 && t.ran[15] == 0, "phase %d, %d wrong", t.phase, t.wrong);
        pn_team_free(t.team);
        PN_CHECK(m.outstanding == 0, "%ld blocks left", m.outstanding);
    }
    pn_team_free(NULL);
    return pn_test_end();
}
