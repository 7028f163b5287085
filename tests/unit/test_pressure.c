/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_pressure.c - levels of memory pressure in simulated time.
 *
 * Most tests play a script (mem/pn_mscript.h) at 250 ms and note when the level changed.  With a
 * budget of 8 GiB WATCH begins below 1638 MiB, TIGHT below 819 MiB, CRITICAL below 327 MiB; they are
 * left at 2129, 1064 and 425 MiB.
 */
#include "pn_test.h"

#include "mem/pn_pressure.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static const pn_level OK = PN_LEVEL_OK, WATCH = PN_LEVEL_WATCH, TIGHT = PN_LEVEL_TIGHT, CRITICAL = PN_LEVEL_CRITICAL;

/* --- playing a script ---------------------------------------------------------------------------- */

static double clock_now;

static double test_clock(void *user)
{
    (void)user;
    return clock_now;
}

static pn_test_mem memory;
static pn_pressure pressure;

/* Play `seconds` of a script and write the changes as "T:LEVEL/why ..." to out. */
static void play(const char *text, double disk, double seconds, char out[512])
{
    pn_msrc s;
    pn_mem_sample a;
    pn_err err = {0};
    size_t n = 0;
    pn_test_mem_init(&memory, 0);
    clock_now = 0;
    out[0] = 0;
    pn_msrc_params params = {.script_text = text, .now = test_clock, .mem = &memory.mem};
    if (!PN_CHECK(pn_msrc_open(&s, &params, &err) == PN_OK, "%s", err.text))
        return;
    pn_pressure_init(&pressure, false, 0);
    pn_pressure_disk(&pressure, disk);
    for (int i = 0; i * 0.25 <= seconds; i++) {
        pn_level before = pressure.level;
        clock_now = i * 0.25;
        pn_msrc_read(&s, &(pn_msrc_use){0}, &a);
        pn_level l = pn_pressure_feed(&pressure, &a, PN_WORK_ACTIVE);
        if (l != before && n < 480)
            n += (size_t)snprintf(out + n, 512 - n, "%s%g:%s/%s", n ? " " : "", clock_now, pn_level_name(l), pressure.why);
        PN_CHECK(l == pressure.level && (l == before || pressure.changed == clock_now));
    }
    pn_msrc_close(&s);
}

static void expect_play(const char *text, double disk, double seconds, const char *changes)
{
    char got[512];
    play(text, disk, seconds, got);
    PN_CHECK(strcmp(got, changes) == 0, "%s\n  got      %s\n  expected %s", text, got, changes);
}

/* --- thresholds ---------------------------------------------------------------------------------- */

static void expect_thresholds(bool device, uint64_t budget, uint64_t w, uint64_t t, uint64_t c)
{
    pn_pressure p;
    pn_pressure_init(&p, device, 0);
    PN_CHECK(pn_pressure_threshold(&p, PN_LEVEL_WATCH) == 0 && pn_pressure_deficit(&p) == 0);
    pn_pressure_feed(&p, &(pn_mem_sample){.t = 1, .budget = budget, .soft = UINT64_MAX}, PN_WORK_ACTIVE);
    uint64_t gw = pn_pressure_threshold(&p, PN_LEVEL_WATCH), gt = pn_pressure_threshold(&p, PN_LEVEL_TIGHT);
    uint64_t gc = pn_pressure_threshold(&p, PN_LEVEL_CRITICAL);
    PN_CHECK(pn_pressure_threshold(&p, PN_LEVEL_OK) == 0);
    PN_CHECK(gw == w && gt == t && gc == c, "%" PRIu64 " MiB: %" PRIu64 " %" PRIu64 " %" PRIu64, budget / MIB, gw, gt, gc);
}

static void thresholds_follow_the_budget(void)
{
    expect_thresholds(false, 8 * GIB, 8 * GIB / 100 * 20 + 18, 8 * GIB / 100 * 10 + 9, 8 * GIB / 100 * 4 + 3);
    expect_thresholds(false, 100 * GIB, 4 * GIB, 2 * GIB, 768 * MIB);           /* upper clamps */
    expect_thresholds(false, UINT64_MAX, 4 * GIB, 2 * GIB, 768 * MIB);
    expect_thresholds(false, 1536 * MIB, 322122547, 161061273, 64 * MIB);       /* a lower clamp, of C */
    expect_thresholds(false, 1000 * MIB, 200 * MIB, 100 * MIB, 40 * MIB);       /* small hosts: shares */
    expect_thresholds(false, 100 * MIB, 20 * MIB, 10 * MIB, 8 * MIB);
    expect_thresholds(false, 50 * MIB, 10 * MIB, 8 * MIB, 8 * MIB);             /* no level begins below a worse one */
    expect_thresholds(false, 30 * MIB, 8 * MIB, 8 * MIB, 8 * MIB);
    expect_thresholds(true, 1000 * MIB, 120 * MIB, 60 * MIB, 20 * MIB);
    expect_thresholds(true, 100 * GIB, 12 * GIB, 6 * GIB, 2 * GIB);
    expect_thresholds(false, 0, 0, 0, 0);                                       /* unknown: never short */
}

static void the_deficit_leads_out_of_the_level(void)
{
    pn_pressure p;
    pn_pressure_init(&p, false, 0);
    pn_mem_sample s = {.t = 1, .budget = 1000 * MIB, .soft = 300 * MIB};
    pn_pressure_feed(&p, &s, PN_WORK_ACTIVE);
    PN_CHECK(p.level == OK && pn_pressure_deficit(&p) == 0);
    s.t = 2, s.soft = 30 * MIB;
    PN_CHECK(pn_pressure_feed(&p, &s, PN_WORK_ACTIVE) == CRITICAL && pn_pressure_deficit(&p) == 22 * MIB);
    s.t = 3, s.soft = 60 * MIB;
    PN_CHECK(pn_pressure_feed(&p, &s, PN_WORK_ACTIVE) == CRITICAL && pn_pressure_deficit(&p) == 0);
    s.t = 6;
    PN_CHECK(pn_pressure_feed(&p, &s, PN_WORK_ACTIVE) == TIGHT && pn_pressure_deficit(&p) == 70 * MIB);
}

/* --- hysteresis ---------------------------------------------------------------------------------- */

static void steps_go_up_at_once_and_down_one_by_one(void)      /* A5, the level part; A6's times */
{
    /* up: CRITICAL with the sample, WATCH and TIGHT with the next one; down 3 s, 5 s, and 2 s later */
    expect_play("budget 8G\n0 6G\n10 100M\n20 6G\n", 0, 40,
                "10:CRITICAL/avail 23:TIGHT/avail 25:WATCH/avail 27:OK/avail");
    expect_play("budget 8G\n0 6G\n10 1G\n20 6G\n", 0, 40, "10.25:WATCH/avail 25:OK/avail");
    expect_play("budget 8G\n0 6G\n10 600M\n20 6G\n", 0, 40, "10.25:TIGHT/avail 25:WATCH/avail 27:OK/avail");
}

static void a_ramp_visits_every_level(void)
{
    expect_play("budget 8G\n0 6G\n1 3G\n2 1500M\n3 1G\n4 700M\n5 400M\n6 200M\n"
                "20 430M\n30 1100M\n40 2200M\n50 6G\n", 0, 60,
                "2.25:WATCH/avail 4.25:TIGHT/avail 6:CRITICAL/avail "
                "23:TIGHT/avail 35:WATCH/avail 45:OK/avail");
}

static void between_the_thresholds_nothing_moves(void)
{
    expect_play("budget 8G\n0 6G\n1 700M\n5 900M\n60 1060M\n120 1070M\n", 0, 180, "1.25:TIGHT/avail 125:WATCH/avail");
}

static void a_spike_shorter_than_the_confirmation_is_nothing(void)
{
    expect_play("budget 8G\n0 6G\n1 600M\n1.25 6G\n2 1G\n2.2 6G\n", 0, 10, "");
    /* samples of an admission come 50 ms apart: the second must be 200 ms after the first */
    pn_pressure p;
    pn_pressure_init(&p, false, 0);
    pn_mem_sample s = {.budget = 1000 * MIB, .soft = 70 * MIB};
    for (s.t = 1; s.t < 1.19; s.t += 0.05)
        PN_CHECK(pn_pressure_feed(&p, &s, PN_WORK_ACTIVE) == OK);
    s.t = 1.2001;
    PN_CHECK(pn_pressure_feed(&p, &s, PN_WORK_ACTIVE) == TIGHT);
    /* one in between that is fine begins anew */
    pn_pressure_init(&p, false, 0);
    s.t = 1;
    pn_pressure_feed(&p, &s, PN_WORK_ACTIVE);
    s.t = 1.1, s.soft = GIB;
    pn_pressure_feed(&p, &s, PN_WORK_ACTIVE);
    s.t = 1.25, s.soft = 70 * MIB;
    PN_CHECK(pn_pressure_feed(&p, &s, PN_WORK_ACTIVE) == OK);
}

static void a_dip_restarts_the_calm(void)
{
    expect_play("budget 8G\n0 100M\n1 6G\n3 400M\n3.25 6G\n", 0, 20,
                "0:CRITICAL/avail 6.25:TIGHT/avail 8.25:WATCH/avail 10.25:OK/avail");
}

static void a_sawtooth_stays_where_it_bites(void)
{
    char text[2000] = "budget 8G\n";
    size_t n = strlen(text);
    for (int i = 0; i < 40; i++)                /* 4 s of plenty, 0.5 s of TIGHT */
        n += (size_t)snprintf(text + n, sizeof text - n, "%d 6G\n%d.0 600M\n", i ? i * 5 : 0, i * 5 + 4);
    expect_play(text, 0, 190, "4.25:TIGHT/avail");
}

static void time_that_stands_still_changes_nothing(void)
{
    pn_pressure p;
    pn_pressure_init(&p, false, 0);
    pn_mem_sample s = {.t = 1, .budget = 1000 * MIB, .soft = 70 * MIB};
    pn_pressure_feed(&p, &s, PN_WORK_ACTIVE);
    pn_pressure before = p;
    for (int i = 0; i < 10; i++)
        pn_pressure_feed(&p, &s, PN_WORK_ACTIVE);
    PN_CHECK(memcmp(&before, &p, sizeof p) == 0);
}

/* --- sensors ------------------------------------------------------------------------------------- */

static void a_lost_sensor_keeps_the_level_then_watches(void)   /* 14.1 */
{
    expect_play("budget 8G\n0 6G\n10 lost\n30 6G\n", 0, 60, "15:WATCH/lost 35:OK/avail");
    expect_play("budget 8G\n0 6G\n1 100M\n2 lost\n40 6G\n", 0, 60,
                "1:CRITICAL/avail 43:TIGHT/avail 45:WATCH/avail 47:OK/avail");
    expect_play("budget 8G\n0 6G\n10 lost\n14.75 6G\n", 0, 60, "");
    expect_play("budget 8G\n0 lost\n", 0, 10, "5:WATCH/lost");
    /* four calm seconds before a gap and four after it are not eight */
    expect_play("budget 8G\n0 1G\n4 6G\n8 lost\n9 6G\n", 0, 30, "0.25:WATCH/avail 14:OK/avail");
    /* one sample before a gap and one after it are not consecutive */
    expect_play("budget 8G\n0 6G\n1 1G\n1.25 lost\n2 1G\n2.25 6G\n", 0, 30, "");
}

static void a_stuck_sensor_cannot_hide_thrashing(void)
{
    expect_play("budget 8G\n0 6G\n10 6G refault=600M\n", 1e9, 30, "12:TIGHT/refault");
}

/* --- overrides ----------------------------------------------------------------------------------- */

static void refaults_are_measured_by_the_disk(void)
{
    expect_play("budget 8G\n0 6G\n10 6G refault=49000000\n", 1e9, 30, "");
    expect_play("budget 8G\n0 6G\n10 6G refault=51000000\n20 6G\n", 1e9, 40, "12:WATCH/refault 25.25:OK/avail");
    expect_play("budget 8G\n0 6G\n10 6G refault=251000000\n20 6G\n", 1e9, 40,
                "12:TIGHT/refault 25.25:WATCH/avail 27.25:OK/avail");
    expect_play("budget 8G\n0 6G\n10 6G refault=251000000\n11.75 6G\n12 6G refault=251000000\n13.75 6G\n", 1e9, 40, "");
    expect_play("budget 8G\n0 6G\n10 6G refault=51000000\n", 0, 30, "");       /* B_disk unknown */
    char got[512];
    play("budget 8G\n0 6G\n1 6G refault=51000000\n", 1e9, 2.75, got);
    PN_CHECK(!pressure.thrashing);
    play("budget 8G\n0 6G\n1 6G refault=51000000\n", 1e9, 3, got);
    PN_CHECK(pressure.thrashing);
    play("budget 8G\n0 6G\n1 6G refault=51000000\n5 6G\n", 1e9, 5.25, got);
    PN_CHECK(!pressure.thrashing);
}

static void stalls_raise_by_their_share(void)
{
    expect_play("budget 8G\n0 6G\n10 6G psi=4.9\n", 0, 30, "");
    expect_play("budget 8G\n0 6G\n10 6G psi=6\n20 6G\n", 0, 40, "11.75:WATCH/psi 25.5:OK/avail");
    expect_play("budget 8G\n0 6G\n10 6G psi=21\n", 0, 30, "10.5:WATCH/psi 11.5:TIGHT/psi");
    expect_play("budget 8G\n0 6G\n10 6G psi=100\n10.25 6G\n", 0, 11, "10.25:WATCH/psi");
    expect_play("budget 8G\n0 6G\n10 6G psi=90\n11 6G\n", 0, 40,
                "10.25:WATCH/psi 10.5:TIGHT/psi 11:CRITICAL/psi 15.25:TIGHT/avail 17.75:WATCH/avail 19.75:OK/avail");
    expect_play("budget 8G\n0 6G psi=90\n1.75 6G\n", 0, 1.75, "");             /* less than two seconds are known */
}

static void swapping_in_is_tight(void)
{
    expect_play("budget 8G\n0 6G\n10 6G swapin=1M\n", 0, 30, "");
    expect_play("budget 8G\n0 6G\n10 6G swapin=1100K\n20 6G\n", 0, 40, "12:TIGHT/swapin 25.25:WATCH/avail 27.25:OK/avail");
    expect_play("budget 8G\n0 6G\n10 6G swapin=100M\n11.75 6G\n", 0, 40, "");
}

static void an_oom_event_is_critical_for_half_a_minute(void)
{
    expect_play("budget 8G\n0 6G oom=7\n10 6G oom=1\n", 0, 60,
                "10:CRITICAL/oom 43:TIGHT/avail 45:WATCH/avail 47:OK/avail");
    expect_play("budget 8G\n0 6G\n10 6G oom=1\n30 6G oom=1\n", 0, 80,
                "10:CRITICAL/oom 63:TIGHT/avail 65:WATCH/avail 67:OK/avail");
}

static void feed_until(pn_pressure *p, double from, double to, double every)
{
    for (int i = 0; from + i * every <= to; i++)
        pn_pressure_feed(p, &(pn_mem_sample){.t = from + i * every, .budget = 1000 * MIB, .soft = 900 * MIB}, PN_WORK_ACTIVE);
}

static void a_failed_allocation_is_believed(void)
{
    for (int device = 0; device < 2; device++) {
        pn_pressure p;
        pn_pressure_init(&p, device, 0);
        feed_until(&p, 1, 10, 0.25);
        PN_CHECK(pn_pressure_failed_alloc(&p, 10.1, false) == TIGHT && p.level == TIGHT && p.changed == 10.1);
        PN_CHECK(strcmp(p.why, "alloc") == 0 && p.floor_failures == 0);
        feed_until(&p, 10.25, 20.0, 0.25);      /* 5 s, then 5 s of calm from the next sample on */
        PN_CHECK(p.level == TIGHT);
        feed_until(&p, 20.25, 20.25, 0.25);
        PN_CHECK(p.level == WATCH);
        feed_until(&p, 20.5, 22.25, 0.25);
        PN_CHECK(p.level == OK);
        PN_CHECK(pn_pressure_failed_alloc(&p, 30, true) == CRITICAL && p.floor_failures == 1);
        PN_CHECK(pn_pressure_failed_alloc(&p, 31, false) == CRITICAL && p.floor_failures == 1);
        feed_until(&p, 31.25, 38.75, 0.25);     /* the milder failure prolongs the graver one */
        PN_CHECK(p.level == CRITICAL);
        feed_until(&p, 39, 39, 0.25);
        PN_CHECK(p.level == TIGHT);
    }
    /* no sample while the failure is in force: the calm before it does not count */
    pn_pressure p;
    pn_pressure_init(&p, false, 0);
    feed_until(&p, 1, 10, 0.25);
    pn_pressure_failed_alloc(&p, 10.1, false);
    feed_until(&p, 16, 20.75, 0.25);
    PN_CHECK(p.level == TIGHT);
    feed_until(&p, 21, 21, 0.25);
    PN_CHECK(p.level == WATCH);
}

static void a_hint_holds_until_it_is_taken_back(void)
{
    pn_pressure p;
    pn_pressure_init(&p, false, 0);
    feed_until(&p, 1, 10, 0.25);
    PN_CHECK(pn_pressure_hint(&p, PN_LEVEL_TIGHT, 10) == TIGHT && strcmp(p.why, "hint") == 0);
    feed_until(&p, 10.25, 100, 0.25);
    PN_CHECK(p.level == TIGHT);
    PN_CHECK(pn_pressure_hint(&p, PN_LEVEL_WATCH, 100) == TIGHT);
    feed_until(&p, 100.25, 105.25, 0.25);
    PN_CHECK(p.level == WATCH);
    feed_until(&p, 105.5, 120, 0.25);
    PN_CHECK(p.level == WATCH);
    PN_CHECK(pn_pressure_hint(&p, PN_LEVEL_OK, 120) == WATCH);
    feed_until(&p, 120.25, 125, 0.25);
    PN_CHECK(p.level == WATCH);
    feed_until(&p, 125.25, 125.25, 0.25);
    PN_CHECK(p.level == OK && strcmp(p.why, "avail") == 0);
}

static void a_device_has_no_share_in_the_hosts_troubles(void)
{
    pn_pressure p;
    pn_pressure_init(&p, true, 0);
    pn_pressure_disk(&p, 1e9);
    for (int i = 0; i < 100; i++) {
        uint64_t n = (uint64_t)i;
        pn_mem_sample s = {.t = i * 0.25, .counted = i * 0.25, .budget = GIB, .soft = GIB, .known = 15,
                           .refault = n * GIB, .swapin = n * GIB, .psi_us = n * 250000, .oom = n};
        PN_CHECK(pn_pressure_feed(&p, &s, PN_WORK_ACTIVE) == OK);
    }
    PN_CHECK(!p.thrashing);
}

/* Memory lies unused, and still pages are read again: a box beside us is too small, not ours. */
static void refaults_of_others_are_not_ours(void)
{
    for (uint64_t unused = GIB / 16; unused <= GIB / 8; unused += GIB / 16) {
        pn_pressure p;
        pn_level most = OK;
        pn_pressure_init(&p, false, 0);
        pn_pressure_disk(&p, 1e9);
        for (int i = 0; i < 40; i++) {
            uint64_t n = (uint64_t)i;
            pn_mem_sample s = {.t = i * 0.25, .counted = i * 0.25, .budget = GIB, .soft = GIB, .unused = unused,
                               .known = PN_HOST_REFAULT | PN_HOST_SWAPIN, .refault = n * GIB, .swapin = n * GIB};
            most = PN_MAX(most, pn_pressure_feed(&p, &s, PN_WORK_ACTIVE));
        }
        PN_CHECK(most == (unused > GIB / 16 ? OK : PN_LEVEL_TIGHT), "%llu unused: level %d", (unsigned long long)unused, (int)most);
    }
}

static void counters_that_fall_are_another_groups(void)
{
    pn_pressure p;
    pn_pressure_init(&p, false, 0);
    pn_pressure_disk(&p, 1e9);
    for (int i = 0; i < 100; i++) {
        pn_mem_sample s = {.t = i * 0.25, .counted = i * 0.25, .budget = GIB, .soft = GIB, .known = 15,
                           .refault = (uint64_t)(100 - i) * GIB, .swapin = (uint64_t)(100 - i) * GIB,
                           .psi_us = (uint64_t)(100 - i) * 250000, .oom = (uint64_t)(100 - i)};
        PN_CHECK(pn_pressure_feed(&p, &s, PN_WORK_ACTIVE) == OK);
    }
}

/* memory.stat is read once a second: a rate is that of the readings, not of the samples between. */
static void rates_go_by_the_time_of_counting(void)
{
    pn_pressure p;
    pn_pressure_init(&p, false, 0);
    pn_pressure_disk(&p, 1e9);
    for (int i = 0; i < 40; i++) {
        pn_mem_sample s = {.t = i * 0.25, .counted = i / 4, .budget = GIB, .soft = GIB, .known = PN_HOST_REFAULT,
                           .refault = (uint64_t)(i / 4) * 45000000};
        PN_CHECK(pn_pressure_feed(&p, &s, PN_WORK_ACTIVE) == OK);
    }
}

/* --- cadence ------------------------------------------------------------------------------------- */

static void samples_are_due_as_often_as_it_matters(void)
{
    pn_pressure p;
    pn_mem_sample s = {.budget = 1000 * MIB, .soft = 900 * MIB};
    pn_pressure_init(&p, false, 0);
    PN_CHECK(isinf(pn_pressure_due(&p, 0)));            /* nothing is loaded */
    s.t = 100;
    pn_pressure_feed(&p, &s, PN_WORK_ACTIVE);
    PN_CHECK(pn_pressure_due(&p, 100) == 0.25 && pn_pressure_due(&p, 100.125) == 0.125 && pn_pressure_due(&p, 200) == 0);
    s.t = 101;
    pn_pressure_feed(&p, &s, PN_WORK_IDLE);
    PN_CHECK(pn_pressure_due(&p, 101) == 1);
    s.t = 159.5;
    pn_pressure_feed(&p, &s, PN_WORK_IDLE);
    PN_CHECK(pn_pressure_due(&p, 159.5) == 1);
    s.t = 160.5;
    pn_pressure_feed(&p, &s, PN_WORK_IDLE);
    PN_CHECK(pn_pressure_due(&p, 160.5) == 5);
    s.t = 165.5, s.soft = 30 * MIB;
    pn_pressure_feed(&p, &s, PN_WORK_IDLE);
    PN_CHECK(p.level == CRITICAL && pn_pressure_due(&p, 165.5) == 0.25);
    s.t = 166, s.lost = true;                           /* a lost sensor is not asked in a loop */
    pn_pressure_feed(&p, &s, PN_WORK_IDLE);
    PN_CHECK(pn_pressure_due(&p, 166) == 0.25);
    s.t = 167;
    pn_pressure_feed(&p, &s, PN_WORK_NONE);
    PN_CHECK(isinf(pn_pressure_due(&p, 167)));
}

/* --- properties ---------------------------------------------------------------------------------- */

/* What must hold after any call, whatever the samples. */
static void check_change(const pn_pressure *p, const pn_pressure *before, double now, const char *what)
{
    if (p->level == before->level)
        return;
    PN_CHECK(p->changed == now, "%s", what);
    if (p->level < before->level) {
        PN_CHECK(before->level - p->level == 1, "%s: fell from %d to %d", what, before->level, p->level);
        PN_CHECK(now - before->changed >= 2, "%s: fell after %g s", what, now - before->changed);
        PN_CHECK(p->available >= pn_pressure_threshold(p, before->level), "%s: fell while short", what);
        PN_CHECK(strcmp(p->why, "avail") == 0);
    }
}

static void random_sample(uint64_t *seed, const pn_mem_sample *last, pn_mem_sample *s)
{
    uint64_t r = pn_test_rand(seed);
    *s = *last;
    s->t += (double)(r % 400) / 1000;
    r = pn_test_rand(seed);
    s->lost = r % 31 == 0;
    if (r % 5 == 0)                             /* mostly it stays for a while */
        s->soft = (pn_test_rand(seed) >> 33) % (3 * s->budget / 10);
    if (r % 97 == 0)
        s->budget = 64 * MIB << pn_test_rand(seed) % 10;
    s->known = (uint32_t)(r >> 20) % 29 ? 15 : (uint32_t)(r >> 40) % 16;
    s->counted = s->t;
    s->refault += (r >> 8) % 7 == 0 ? pn_test_rand(seed) % (200 * MIB) : 0;
    s->psi_us += (r >> 12) % 9 == 0 ? pn_test_rand(seed) % 400000 : 0;
    s->swapin += (r >> 16) % 23 == 0 ? pn_test_rand(seed) % (4 * MIB) : 0;
    s->oom += (r >> 24) % 997 == 0;
}

static void whatever_comes_the_rules_hold(void)
{
    uint64_t seed = 20240607, falls = 0, seen[4] = {0};
    for (int run = 0; run < 40; run++) {
        pn_pressure p;
        pn_mem_sample s = {.budget = GIB << run % 6, .soft = GIB};
        pn_pressure_init(&p, run % 4 == 3, 0);
        pn_pressure_disk(&p, 1e9);
        for (int i = 0; i < 5000; i++) {
            pn_pressure before = p;
            uint64_t r = pn_test_rand(&seed);
            random_sample(&seed, &s, &s);
            pn_pressure_feed(&p, &s, (pn_work)(r % 3));
            check_change(&p, &before, s.t, "feed");
            PN_CHECK(!s.lost || p.level >= before.level);
            PN_CHECK(s.lost || s.t <= before.t || s.soft >= pn_pressure_threshold(&p, PN_LEVEL_CRITICAL) || p.level == CRITICAL);
            falls += p.level < before.level;
            seen[p.level]++;
            before = p;
            if (r % 701 == 0) {
                pn_pressure_failed_alloc(&p, s.t, r % 3 == 0);
                PN_CHECK(p.level >= TIGHT && p.level >= before.level);
            } else if (r % 709 == 0) {
                pn_pressure_hint(&p, (pn_level)(r / 709 % 8 > 3 ? 0 : r / 709 % 8), s.t);
                PN_CHECK(p.level >= before.level);
            }
            check_change(&p, &before, s.t, "event");
            PN_CHECK(pn_pressure_due(&p, s.t) >= 0);
        }
    }
    PN_CHECK(falls > 500 && seen[OK] && seen[WATCH] && seen[TIGHT] && seen[CRITICAL], "%" PRIu64, falls);
}

static void levels_have_names(void)
{
    PN_CHECK(strcmp(pn_level_name(PN_LEVEL_OK), "OK") == 0 && strcmp(pn_level_name(PN_LEVEL_WATCH), "WATCH") == 0);
    PN_CHECK(strcmp(pn_level_name(PN_LEVEL_TIGHT), "TIGHT") == 0 && strcmp(pn_level_name(PN_LEVEL_CRITICAL), "CRITICAL") == 0);
    PN_CHECK(strcmp(pn_level_name((pn_level)99), "?") == 0);
}

int main(void)
{
    thresholds_follow_the_budget();
    the_deficit_leads_out_of_the_level();
    steps_go_up_at_once_and_down_one_by_one();
    a_ramp_visits_every_level();
    between_the_thresholds_nothing_moves();
    a_spike_shorter_than_the_confirmation_is_nothing();
    a_dip_restarts_the_calm();
    a_sawtooth_stays_where_it_bites();
    time_that_stands_still_changes_nothing();
    a_lost_sensor_keeps_the_level_then_watches();
    a_stuck_sensor_cannot_hide_thrashing();
    refaults_are_measured_by_the_disk();
    refaults_of_others_are_not_ours();
    stalls_raise_by_their_share();
    swapping_in_is_tight();
    an_oom_event_is_critical_for_half_a_minute();
    a_failed_allocation_is_believed();
    a_hint_holds_until_it_is_taken_back();
    a_device_has_no_share_in_the_hosts_troubles();
    counters_that_fall_are_another_groups();
    rates_go_by_the_time_of_counting();
    samples_are_due_as_often_as_it_matters();
    whatever_comes_the_rules_hold();
    levels_have_names();
    return pn_test_end();
}
