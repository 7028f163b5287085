/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_host.h"

#include "base/pn_os.h"

PN_INTERNAL uint64_t pn_host_budget(const pn_host_reading *r)
{
    uint64_t budget = PN_MIN(PN_MIN(r->total, r->rlimit), r->commit_limit);
    for (uint32_t i = 0; i < r->n_groups; i++)
        budget = PN_MIN(budget, r->groups[i].limit);
    return budget;
}

/* limit - usage + reclaim, floor 0.  Reclaim is an older reading than usage and may exceed it, but
 * nobody has more than the limit.  Grouped so that nothing wraps. */
static uint64_t host_headroom(const pn_host_group *g)
{
    return pn_sub_sat(g->limit, pn_sub_sat(g->usage, g->reclaim));
}

static void host_term(uint64_t *least, pn_mem_term *by, uint64_t v, pn_mem_term term)
{
    if (v < *least) {
        *least = v;
        *by = term;
    }
}

/* Page cache is charged to the group that touched it first, hence the smaller of r_map and what is
 * mapped there; the machine as a whole cannot hold more of our weights than it has mapped either. */
PN_INTERNAL uint64_t pn_host_free(const pn_host_reading *r, uint64_t r_map, pn_mem_term *by)
{
    uint64_t least = PN_HOST_UNKNOWN;
    pn_mem_term term = PN_MEM_TERM_NONE;
    if (r->available != PN_HOST_UNKNOWN)
        host_term(&least, &term, pn_sub_sat(r->available, PN_MIN(r_map, r->mapped)), PN_MEM_TERM_HOST);
    for (uint32_t i = 0; i < r->n_groups; i++)
        host_term(&least, &term, pn_sub_sat(host_headroom(&r->groups[i]), PN_MIN(r_map, r->groups[i].mapped)),
                  PN_MEM_TERM_CGROUP);
    host_term(&least, &term, r->rlimit_left, PN_MEM_TERM_RLIMIT);
    host_term(&least, &term, r->commit_left, PN_MEM_TERM_OVERCOMMIT);
    if (by)
        *by = term;
    return least;
}

PN_INTERNAL uint64_t pn_host_unused(const pn_host_reading *r)
{
    uint64_t least = r->unused;
    for (uint32_t i = 0; i < r->n_groups; i++)
        least = PN_MIN(least, pn_sub_sat(r->groups[i].limit, r->groups[i].usage));
    return least;
}

/* pn_os.h's convention: 0 is "unknown", so a known nothing becomes one byte. */
static uint64_t host_known(uint64_t v) { return v == PN_HOST_UNKNOWN ? 0 : PN_MAX(v, (uint64_t)1); }

PN_INTERNAL void pn_os_memory(uint64_t *total, uint64_t *available)
{
    pn_host h;
    pn_host_reading r;
    pn_host_open(&h, "");
    pn_host_read(&h, pn_os_now(), &r);
    pn_host_close(&h);
    *total = r.lost ? 0 : host_known(pn_host_budget(&r));
    *available = r.lost ? 0 : host_known(pn_host_free(&r, 0, NULL));
}
