/* SPDX-License-Identifier: AGPL-3.0-only */
#include "mem/pn_msrc.h"

#include "base/pn_err.h"
#include "base/pn_os.h"

#include <inttypes.h>

#define MSRC_SCRIPT_MAX ((uint64_t)1 << 20)     /* bytes; a script is some lines, not a data set */

static double msrc_now(const pn_msrc *s) { return s->params.now ? s->params.now(s->params.user) : pn_os_now(); }

static pn_status msrc_load_script(pn_msrc *s, const char *path, pn_err *err)
{
    pn_os_file f;
    pn_status st = pn_os_open(&f, path, err);
    if (st != PN_OK)
        return st;
    char *text = NULL;
    size_t n = (size_t)f.size;
    if (f.size > MSRC_SCRIPT_MAX)
        st = pn_fail(err, PN_E_INVALID, "%s: %" PRIu64 " bytes are no pressure script", path, f.size);
    else if (!(text = pn_mem_alloc(s->params.mem, PN_ACCT_MISC, n)))
        st = pn_fail_nomem(err, "a pressure script", n);
    else if ((st = pn_os_read(&f, 0, text, n, err)) == PN_OK)
        st = pn_mscript_init(&s->script, s->params.mem, path, text, n, err);
    pn_mem_free(s->params.mem, PN_ACCT_MISC, text, n);
    pn_os_close(&f);
    return st;
}

PN_INTERNAL pn_status pn_msrc_open(pn_msrc *s, const pn_msrc_params *params, pn_err *err)
{
    pn_status st = PN_OK;
    memset(s, 0, sizeof *s);
    s->params = *params;
    s->params.root = params->root ? params->root : "";
    s->scripted = params->script_path || params->script_text;
    if (params->script_path)
        st = msrc_load_script(s, params->script_path, err);
    else if (params->script_text)
        st = pn_mscript_init(&s->script, params->mem, "pressure script", params->script_text,
                             strlen(params->script_text), err);
    pn_host_open(&s->host, s->params.root);
    s->started = msrc_now(s);
    return st;
}

PN_INTERNAL void pn_msrc_close(pn_msrc *s)
{
    pn_host_close(&s->host);
    pn_mscript_fini(&s->script);
}

static uint64_t msrc_cap(const pn_msrc_use *use) { return use->user_cap ? use->user_cap : PN_HOST_UNKNOWN; }

/* A system whose free memory we cannot ask for. */
static void msrc_guess(const pn_host_reading *r, const pn_msrc_use *use, pn_mem_sample *out)
{
    uint64_t half = r->total == PN_HOST_UNKNOWN ? PN_HOST_UNKNOWN : r->total / 2;
    uint64_t budget = use->user_cap ? PN_MIN(use->user_cap, r->total) : half;
    out->budget = budget == PN_HOST_UNKNOWN ? 0 : budget;
    out->hard = out->soft = budget == PN_HOST_UNKNOWN ? budget : pn_sub_sat(budget, use->ledger_total);
    out->limited_by = use->user_cap ? PN_MEM_TERM_CAP : half != PN_HOST_UNKNOWN ? PN_MEM_TERM_HOST : PN_MEM_TERM_NONE;
}

static void msrc_measure(const pn_host_reading *r, const pn_msrc_use *use, pn_mem_sample *out)
{
    uint64_t cap_left = use->user_cap ? pn_sub_sat(use->user_cap, use->ledger_total) : PN_HOST_UNKNOWN;
    uint64_t budget = PN_MIN(pn_host_budget(r), msrc_cap(use));
    out->budget = budget == PN_HOST_UNKNOWN ? 0 : budget;
    out->hard = PN_MIN(pn_host_free(r, 0, NULL), cap_left);
    out->soft = pn_host_free(r, use->r_map, &out->limited_by);
    if (cap_left < out->soft) {
        out->soft = cap_left;
        out->limited_by = PN_MEM_TERM_CAP;
    }
}

static bool msrc_read_machine(pn_msrc *s, const pn_msrc_use *use, pn_mem_sample *out)
{
    pn_host_reading r;
    pn_host_read(&s->host, out->t, &r);
    if (r.lost)
        return false;
    out->host_total = r.total == PN_HOST_UNKNOWN ? 0 : r.total;
    if (r.available == PN_HOST_UNKNOWN && r.n_groups == 0)
        msrc_guess(&r, use, out);
    else
        msrc_measure(&r, use, out);
    out->unused = pn_host_unused(&r);
    out->known = r.known;
    out->counted = r.counted;
    out->refault = r.refault;
    out->swapin = r.swapin;
    out->psi_us = r.psi_us;
    out->oom = r.oom;
    return true;
}

static bool msrc_read_script(pn_msrc *s, const pn_msrc_use *use, pn_mem_sample *out)
{
    pn_mscript_state state;
    pn_mscript_at(&s->script, out->t - s->started, &state);
    if (state.lost)
        return false;
    uint64_t cap = msrc_cap(use);
    out->host_total = s->script.budget;
    out->budget = PN_MIN(s->script.budget, cap);
    out->hard = PN_MIN(state.hard, cap);
    out->soft = PN_MIN(state.soft, cap);
    out->limited_by = cap < state.soft ? PN_MEM_TERM_CAP : PN_MEM_TERM_HOST;
    out->known = PN_HOST_REFAULT | PN_HOST_SWAPIN | PN_HOST_PSI | PN_HOST_OOM;
    out->counted = out->t;
    out->refault = state.refault;
    out->swapin = state.swapin;
    out->psi_us = state.psi_us;
    out->oom = state.oom;
    return true;
}

PN_INTERNAL void pn_msrc_read(pn_msrc *s, const pn_msrc_use *use, pn_mem_sample *out)
{
    memset(out, 0, sizeof *out);
    out->t = msrc_now(s);
    if (s->scripted ? msrc_read_script(s, use, out) : msrc_read_machine(s, use, out)) {
        s->last = *out;
        return;
    }
    double t = out->t;
    *out = s->last;
    out->t = t;
    out->lost = true;
}

PN_INTERNAL uint32_t pn_msrc_cores(const pn_msrc *s) { return pn_host_cores(s->params.root, pn_os_cores()); }

#undef MSRC_SCRIPT_MAX
