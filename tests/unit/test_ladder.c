/*
 * test_ladder.c - rungs made of numbers: which one moves, in which order, when it goes back, never to and fro.
 */
#include "mem/pn_ladder.h"

#include "pn_test.h"

/* A rung that holds `bytes`, gives `slice` at once, and takes a piece of `piece` back in each step. */
typedef struct fake {
    uint64_t bytes, given, slice, piece;
    uint32_t n_applied, n_undone;
    uint32_t before;            /* slices of applying that give nothing yet */
    uint32_t slices, done;      /* slices that taking a piece back takes; of the piece under way */
    double turned_at;           /* when its direction changed last */
    int direction;
} fake;

static double the_time;
static int turned_too_soon;

static void turn(fake *f, int direction)
{
    if (f->direction && f->direction != direction) {
        turned_too_soon += the_time - f->turned_at < 10;
        f->turned_at = the_time;
    }
    if (!f->direction)
        f->turned_at = the_time;
    f->direction = direction;
}

static uint64_t fake_gain(void *user, uint32_t resource)
{
    const fake *f = user;
    return resource == 0 ? f->bytes - f->given : 0;
}

static pn_rung_state fake_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    fake *f = user;
    (void)resource, (void)deadline;
    uint64_t n = PN_MIN(PN_MIN(f->slice, want), f->bytes - f->given);
    turn(f, 1);
    f->n_applied++;
    if (f->before) {
        f->before--;
        return PN_RUNG_SLICE;
    }
    f->given += n;
    *freed = n;
    return n < want && f->given < f->bytes ? PN_RUNG_MORE : PN_RUNG_DONE;
}

static uint64_t fake_retake(void *user, uint32_t resource)
{
    const fake *f = user;
    (void)resource;
    return PN_MIN(f->piece, f->given);
}

static pn_rung_state fake_undo(void *user, uint32_t resource, double deadline)
{
    fake *f = user;
    (void)deadline;
    turn(f, -1);
    if (++f->done < f->slices)
        return PN_RUNG_SLICE;
    f->done = 0;
    f->n_undone++;
    f->given -= fake_retake(f, resource);
    return f->given ? PN_RUNG_MORE : PN_RUNG_DONE;
}

static pn_rung fake_rung(fake *f, uint32_t rank, uint8_t level)
{
    return (pn_rung){.rank = rank, .name = "fake", .level = level, .gain = fake_gain, .apply = fake_apply, .retake = fake_retake,
                     .undo = fake_undo, .user = f};
}

static pn_ladder_view view(double now, uint32_t level, uint64_t available)
{
    return (pn_ladder_view){.now = now, .level = level, .available = available, .threshold = {0, 1000, 500, 200}};
}

static void test_order_is_by_rank_and_a_rung_is_finished_before_the_next(void)
{
    fake f[3] = {{.bytes = 300, .slice = 100, .piece = 300}, {.bytes = 900, .slice = 100, .piece = 100}, {.bytes = 5000, .slice = 5000}};
    pn_ladder l;
    pn_ladder_change c;
    uint32_t order[64], n = 0;
    pn_ladder_init(&l);
    const pn_rung a = fake_rung(&f[0], 2, 1), b = fake_rung(&f[1], 7, 1), t = fake_rung(&f[2], 9, 2);
    PN_CHECK(pn_ladder_add(&l, &b) && pn_ladder_add(&l, &t) && pn_ladder_add(&l, &a), "a ladder takes three rungs");
    pn_ladder_view v = view(1, 1, 600);     /* WATCH: 1,300 wanted */
    while (n < 64 && pn_ladder_step(&l, 0, &v, 0, &c))
        order[n++] = c.rung->rank;
    PN_CHECK(n == 7, "%u slices", (unsigned)n);
    for (uint32_t i = 0; i < n; i++)
        PN_CHECK(order[i] == (i < 3 ? 2u : 7u), "slice %u was of rung %u", (unsigned)i, (unsigned)order[i]);
    PN_CHECK(v.available == 1300 && f[0].given == 300 && f[1].given == 400, "%llu available", (unsigned long long)v.available);
    PN_CHECK(f[2].n_applied == 0, "a rung of TIGHT moved at WATCH");
    v = view(2, 2, 100);
    n = 0;
    while (n < 64 && pn_ladder_step(&l, 0, &v, 0, &c))
        order[n++] = c.rung->rank;
    PN_CHECK(f[1].given == 900 && f[2].n_applied == 1, "TIGHT takes what WATCH left, then its own");
}

static void test_small_gains_and_other_resources_are_left(void)
{
    fake small = {.bytes = 5, .slice = 5}, big = {.bytes = 5000, .slice = 5000, .piece = 5000};
    pn_ladder l;
    pn_ladder_change c;
    pn_ladder_init(&l);
    const pn_rung a = fake_rung(&small, 1, 1), b = fake_rung(&big, 2, 1);
    pn_ladder_add(&l, &a);
    pn_ladder_add(&l, &b);
    pn_ladder_view v = view(1, 1, 0);
    PN_CHECK(pn_ladder_step(&l, 0, &v, 0, &c) && c.rung->rank == 2, "5 of 1,300 bytes are not worth an event");
    v = view(1, 3, 0);
    PN_CHECK(!pn_ladder_step(&l, 1, &v, 0, &c), "nothing to gain on a die");
    PN_CHECK(pn_ladder_find(&l, 2, 0)->in_force && !pn_ladder_find(&l, 2, 1)->in_force && !pn_ladder_find(&l, 3, 0), "states are kept apart");
}

static void test_undo_waits_and_asks_what_it_takes(void)
{
    fake f[2] = {{.bytes = 800, .slice = 800, .piece = 400}, {.bytes = 800, .slice = 800, .piece = 800}};
    pn_ladder l;
    pn_ladder_change c;
    pn_ladder_init(&l);
    const pn_rung a = fake_rung(&f[0], 1, 1), b = fake_rung(&f[1], 2, 1);
    pn_ladder_add(&l, &a);
    pn_ladder_add(&l, &b);
    pn_ladder_view v = view(0, 1, 0);
    while (pn_ladder_step(&l, 0, &v, 0, &c))
        ;
    v = view(9.9, 0, 9000);
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c), "not within 10 s");
    v = view(10, 0, 1400);
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c), "100 above the mark, undoing takes more");
    v = view(10, 1, 9000);
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c), "not while the level holds");
    v = view(10, 0, 2100);
    PN_CHECK(pn_ladder_step(&l, 0, &v, 0, &c) && c.undone && c.rung->rank == 2 && v.available == 1600, "the highest first");
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c) && f[0].given == 800, "what is left is not enough for the other");
    v = view(11, 0, 5000);
    PN_CHECK(pn_ladder_step(&l, 0, &v, 0, &c) && c.rung->rank == 1 && f[0].given == 400, "a step of two");
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c), "the second ten seconds later");
    v = view(21, 0, 5000);
    PN_CHECK(pn_ladder_step(&l, 0, &v, 0, &c) && f[0].given == 0 && !pn_ladder_find(&l, 1, 0)->in_force, "all of it is back");
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c), "nothing is left to undo");
}

static void test_a_rung_that_gives_nothing_rests(void)
{
    fake stops = {.bytes = 1000, .slice = 0, .piece = 0};
    pn_ladder l;
    pn_ladder_change c;
    uint32_t n = 0;
    pn_ladder_init(&l);
    const pn_rung a = fake_rung(&stops, 10, 2);
    pn_ladder_add(&l, &a);
    for (int i = 0; i < 300; i++) {         /* 30 s of TIGHT */
        pn_ladder_view v = view(0.1 * i, 2, 0);
        while (n < 100 && pn_ladder_step(&l, 0, &v, 0, &c))
            n++;
    }
    PN_CHECK(n == 3, "applied %u times in 30 s", (unsigned)n);
}

/* A rung that has to make ready first, and takes back in slices: it is not left in the middle for 10 s. */
static void test_slices_follow_each_other(void)
{
    fake f = {.bytes = 400, .slice = 100, .piece = 200, .before = 3, .slices = 4};
    pn_ladder l;
    pn_ladder_change c;
    uint32_t n = 0;
    pn_ladder_init(&l);
    const pn_rung a = fake_rung(&f, 13, 2);
    pn_ladder_add(&l, &a);
    PN_CHECK(!pn_ladder_goes_on(&l), "nothing was begun");
    for (; n < 3; n++) {
        pn_ladder_view v = view(0.01 * n, 2, 0);
        PN_CHECK(pn_ladder_step(&l, 0, &v, 0, &c) && c.freed == 0 && pn_ladder_goes_on(&l), "slice %u", (unsigned)n);
    }
    pn_ladder_view v = view(0.04, 2, 0);
    while (n < 20 && pn_ladder_step(&l, 0, &v, 0, &c))
        n++;
    PN_CHECK(n == 7 && f.given == 400 && !pn_ladder_goes_on(&l), "%u slices", (unsigned)n);
    v = view(20, 0, 849);
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c), "there is no room for a step back");
    v.available = 850;
    PN_CHECK(pn_ladder_step(&l, 0, &v, 0, &c) && c.undone && pn_ladder_goes_on(&l) && v.available == 650, "the first slice takes what the step takes");
    v.level = 2;
    v.now = 25;
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c) && f.done == 1, "it waits while the level holds");
    v.level = 0;
    for (n = 0; n < 3; n++)
        PN_CHECK(pn_ladder_step(&l, 0, &v, 0, &c) && c.undone, "slice %u, at once", (unsigned)n);
    PN_CHECK(f.given == 200 && v.available == 650 && !pn_ladder_goes_on(&l) && pn_ladder_find(&l, 13, 0)->in_force, "a step of two is taken back");
    v.available = 9000;
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c), "the next one in ten seconds");
    v.now = 35;
    for (n = 0; n < 20 && pn_ladder_step(&l, 0, &v, 0, &c);)
        n++;
    PN_CHECK(n == 4 && f.given == 0 && !pn_ladder_find(&l, 13, 0)->in_force, "%u slices", (unsigned)n);
}

/* Levels that no bytes explain: refaults, a failed allocation. */
static void test_signals_count_as_something_missing(void)
{
    fake f = {.bytes = 50, .slice = 50, .piece = 50};
    pn_ladder l;
    pn_ladder_change c;
    pn_ladder_init(&l);
    const pn_rung a = fake_rung(&f, 1, 1);
    pn_ladder_add(&l, &a);
    pn_ladder_view v = view(0, 2, 100000);
    PN_CHECK(!pn_ladder_step(&l, 0, &v, 0, &c), "no bytes are missing");
    v.goal = 100010;
    PN_CHECK(pn_ladder_step(&l, 0, &v, 0, &c) && !pn_ladder_step(&l, 0, &v, 0, &c) && f.given == 10, "%llu were given", (unsigned long long)f.given);
}

/* Whatever happens: nobody turns round twice in 10 s, each slice frees what it says, and the ladder comes to rest. */
static void test_random_weather(void)
{
    uint64_t x = 12345;
    fake f[8];
    pn_ladder l;
    pn_ladder_change c;
    pn_ladder_init(&l);
    for (uint32_t i = 0; i < 8; i++) {
        f[i] = (fake){.bytes = 100 + 150 * i, .slice = 70, .piece = 1 + 90 * (i % 3), .slices = i % 4};
        const pn_rung r = fake_rung(&f[i], i + 1, (uint8_t)(1 + i / 3));
        pn_ladder_add(&l, &r);
    }
    turned_too_soon = 0;
    for (int i = 0; i < 20000; i++) {
        uint64_t given = 0, after = 0;
        x = x * 6364136223846793005u + 1442695040888963407u;
        the_time = 0.25 * i;
        for (uint32_t k = 0; k < 8; k++)
            given += f[k].given;
        uint64_t available = (x >> 33) % (i % 400 < 200 ? 700 : 6000) + given;
        uint32_t level = available < 200 ? 3 : available < 500 ? 2 : available < 1000 ? 1 : 0, steps = 0;
        pn_ladder_view v = view(the_time, level, available);
        while (steps < 1000 && pn_ladder_step(&l, 0, &v, 0, &c))
            steps++;
        PN_CHECK(steps < 1000, "the ladder does not come to rest");
        for (uint32_t k = 0; k < 8; k++)
            after += f[k].given;
        PN_CHECK(v.available - available == after - given, "available moved by %lld, given by %lld", (long long)(v.available - available),
                 (long long)(after - given));
    }
    PN_CHECK(turned_too_soon == 0, "%d turns within 10 s", turned_too_soon);
    uint32_t applied = 0, undone = 0;
    for (uint32_t k = 0; k < 8; k++) {
        applied += f[k].n_applied;
        undone += f[k].n_undone;
    }
    PN_CHECK(applied > 500 && undone > 100, "the weather was too fine: %u applied, %u undone", (unsigned)applied, (unsigned)undone);
}

int main(void)
{
    test_order_is_by_rank_and_a_rung_is_finished_before_the_next();
    test_small_gains_and_other_resources_are_left();
    test_undo_waits_and_asks_what_it_takes();
    test_a_rung_that_gives_nothing_rests();
    test_slices_follow_each_other();
    test_signals_count_as_something_missing();
    test_random_weather();
    return pn_test_end();
}
