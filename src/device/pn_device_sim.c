/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * The text is read twice: what is for all dies first, then what is for one, so their order does not matter.
 */
#include "device/pn_device_sim.h"

#include <inttypes.h>

#include "base/pn_str.h"

enum { SIM_ITEM_MAX = 64, SIM_ROWS = 16 };

static pn_status sim_wrong(pn_err *err, const char *key, const char *value, const char *expected)
{
    return pn_fail(err, PN_E_INVALID, "simulated dies: %s: '%s' is not allowed, expected %s", key, value, expected);
}

static pn_status sim_set(pn_sim_params *p, const char *key, const char *name, const char *value, pn_err *err)
{
    int64_t n;
    double f;
    const char *end;
    if (strcmp(name, "bytes") == 0) {
        if (!pn_parse_size(value, &p->bytes) || !p->bytes)
            return sim_wrong(err, key, value, "a size, as in 512M");
    } else if (strcmp(name, "tps") == 0) {
        if (!pn_parse_f64(value, value + strlen(value), &f, &end) || *end || !(f > 0) || f > 1e9)
            return sim_wrong(err, key, value, "a number above 0, at most 1e9");
        p->tps = f;
    } else if (strcmp(name, "fail_alloc") == 0) {
        if (!pn_parse_i64(value, 0, INT64_MAX, &n))
            return sim_wrong(err, key, value, "a whole number from 0 on");
        p->fail_alloc = (uint64_t)n;
    } else {
        return sim_wrong(err, "key", key, "bytes, tps, fail_alloc, or one of them behind die0., die1., ...");
    }
    return PN_OK;
}

/* "dieI.NAME": the name, *i the die; else the key itself, *i -1.  NULL: there is no such die. */
static const char *sim_name(const char *key, uint32_t n, int64_t *i)
{
    const char *dot = strchr(key, '.');
    char digits[8] = "";
    *i = -1;
    if (strncmp(key, "die", 3) != 0 || !dot)
        return key;
    if ((size_t)(dot - key - 3) >= sizeof digits)
        return NULL;
    memcpy(digits, key + 3, (size_t)(dot - key - 3));
    return pn_parse_i64(digits, 0, (int64_t)n - 1, i) ? dot + 1 : NULL;
}

/* One KEY=VALUE; one: of those for a single die, else of those for all. */
static pn_status sim_item(char *item, bool one, pn_sim_params *dies, uint32_t n, pn_err *err)
{
    char *value = strchr(item, '=');
    int64_t i;
    pn_status st = PN_OK;
    if (!value)
        return sim_wrong(err, "option", item, "KEY=VALUE");
    *value++ = 0;
    const char *name = sim_name(item, n, &i);
    if (!name)
        return pn_fail(err, PN_E_INVALID, "simulated dies: key: '%s' is not allowed, the dies are 0 to %" PRIu32, item, n - 1);
    for (uint32_t d = 0; d < n && !st; d++)
        if (one ? i == (int64_t)d : i < 0)
            st = sim_set(&dies[d], item, name, value, err);
    return st;
}

/* The next part up to a ';' to item[SIM_ITEM_MAX]; false: it is too long. */
static bool sim_part(const char **text, char *item)
{
    size_t n = strcspn(*text, ";");
    if (n >= SIM_ITEM_MAX)
        return false;
    memcpy(item, *text, n);
    item[n] = 0;
    *text += n + ((*text)[n] == ';');
    return true;
}

PN_INTERNAL pn_status pn_sim_parse(const char *text, pn_sim_params dies[PN_SIM_DIES], uint32_t *n, pn_err *err)
{
    char item[SIM_ITEM_MAX];
    const char *rest = text;
    int64_t count;
    pn_status st = PN_OK;
    if (!sim_part(&rest, item) || !pn_parse_i64(item, 1, PN_SIM_DIES, &count))
        return pn_fail(err, PN_E_INVALID, "simulated dies: '%.60s' is not allowed, expected their number first, 1 to %d", text, PN_SIM_DIES);
    *n = (uint32_t)count;
    for (uint32_t d = 0; d < *n; d++)
        dies[d] = (pn_sim_params){.bytes = UINT64_C(1) << 30, .tps = 100};
    for (int one = 0; one < 2; one++)
        for (const char *at = rest; *at && !st;) {
            const char *here = at;
            st = sim_part(&at, item) ? sim_item(item, one != 0, dies, *n, err) : sim_wrong(err, "option", "(too long)", "KEY=VALUE");
            if (!st && !*at && here != at && at[-1] == ';')
                st = sim_wrong(err, "option", "", "KEY=VALUE");
        }
    if (!st && !*rest && rest != text && rest[-1] == ';')
        st = sim_wrong(err, "option", "", "KEY=VALUE");
    return st;
}

PN_INTERNAL double pn_sim_seconds(const pn_sim_params *p, uint32_t rows)
{
    return PN_MAX(1.0, (double)rows / SIM_ROWS) / p->tps;
}

/* ------------------------------------------------------------------------------------------
 * Memory
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_sim_memory_init(pn_sim_memory *m, const pn_sim_params *p)
{
    *m = (pn_sim_memory){.bytes = p->bytes, .fail_at = p->fail_alloc};
    pn_mutex_init(&m->lock);
}

PN_INTERNAL void pn_sim_memory_fini(pn_sim_memory *m) { pn_mutex_fini(&m->lock); }

PN_INTERNAL pn_sim_taken pn_sim_take(pn_sim_memory *m, uint64_t bytes)
{
    pn_sim_taken how = PN_SIM_OK;
    pn_mutex_lock(&m->lock);
    if (bytes > m->bytes - m->used)
        how = PN_SIM_FULL;
    else if (++m->n_taken == m->fail_at)
        how = PN_SIM_FAILED;
    else
        m->used += bytes;
    pn_mutex_unlock(&m->lock);
    return how;
}

PN_INTERNAL void pn_sim_give(pn_sim_memory *m, uint64_t bytes)
{
    pn_mutex_lock(&m->lock);
    PN_ASSERT(bytes <= m->used);
    m->used -= bytes;
    pn_mutex_unlock(&m->lock);
}

PN_INTERNAL uint64_t pn_sim_free_bytes(pn_sim_memory *m)
{
    pn_mutex_lock(&m->lock);
    uint64_t bytes = m->bytes - m->used;
    pn_mutex_unlock(&m->lock);
    return bytes;
}
