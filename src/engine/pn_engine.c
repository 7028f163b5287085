/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * The engine handle, its memory, and the list of backends.
 */
#include "engine/pn_cache.h"
#include "engine/pn_govern.h"
#include "engine/pn_tier.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "device/pn_device_cpu.h"

enum { ENGINE_MAX_BACKENDS = 8 };

/* With the chosen ISA (cpu/pn_cpu.c) the only process-wide state: backends register from
 * constructors, before any engine exists. */
static _Atomic(const pn_device_ops *) engine_backends[ENGINE_MAX_BACKENDS];

PN_API const char *pn_version(void) { return PN_VERSION; }

PN_API const char *pn_build_info(void)
{
#define ENGINE_STR2(x) #x
#define ENGINE_STR(x) ENGINE_STR2(x)
    return "threads=" ENGINE_STR(PN_ENABLE_THREADS) " files=" ENGINE_STR(PN_ENABLE_FILES)
           " simd=" ENGINE_STR(PN_ENABLE_SIMD) " kv_page=" ENGINE_STR(PN_KV_PAGE_TOKENS);
#undef ENGINE_STR
#undef ENGINE_STR2
}

PN_API const char *pn_status_name(pn_status s)
{
    static const char *const names[] = {
        "PN_OK", "PN_E_INVALID", "PN_E_NOMEM", "PN_E_IO", "PN_E_FORMAT", "PN_E_UNSUPPORTED", "PN_E_BUDGET",
        "PN_E_CONTEXT", "PN_E_CANCELLED", "PN_E_STATE", "PN_E_NUMERIC", "PN_E_ABI", "PN_E_INTERNAL"};
    unsigned i = (unsigned)-(int)s;
    return i < PN_COUNT_OF(names) ? names[i] : "PN_E_?";
}

PN_API const char *pn_account_name(pn_account a)
{
    static const char *const names[PN_ACCT_COUNT] = {"misc", "weights", "weights_map", "vocab", "kv", "kv_reserve", "floor",
                                                     "state", "scratch", "prefix", "stage", "grammar", "conn"};
    return (unsigned)a < PN_ACCT_COUNT ? names[a] : "?";
}

PN_INTERNAL void pn_engine_logf(pn_engine *e, pn_log_level level, const char *fmt, ...)
{
    if (!e->log)
        return;
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    e->log(e->log_user, level, line);
}

/* ------------------------------------------------------------------------------------------
 * Backends
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_backend_check(const pn_device_ops *ops, pn_err *err)
{
    if (!ops)
        return pn_fail(err, PN_E_INVALID, "no backend table given");
    if (ops->abi != PN_DEVICE_ABI || ops->size != sizeof(pn_device_ops) || ops->plan_abi != PN_PLAN_ABI ||
        ops->plan_size != sizeof(pn_plan) || ops->step_size != sizeof(pn_step) || ops->op_size != sizeof(pn_op))
        return pn_fail(err, PN_E_ABI, "backend '%s' was built for interface %u/%u, this core has %d/%d",
                       ops->abi == PN_DEVICE_ABI && ops->name ? ops->name : "?", (unsigned)ops->abi,
                       (unsigned)ops->plan_abi, PN_DEVICE_ABI, PN_PLAN_ABI);
    return PN_OK;
}

PN_API pn_status pn_backend_register(const pn_device_ops *ops)
{
    pn_status st = pn_backend_check(ops, NULL);
    for (size_t i = 0; !st && i < ENGINE_MAX_BACKENDS; i++) {
        const pn_device_ops *none = NULL;
        if (atomic_load(&engine_backends[i]) == ops ||
            atomic_compare_exchange_strong(&engine_backends[i], &none, ops))
            return PN_OK;
    }
    return st ? st : PN_E_NOMEM;
}

PN_INTERNAL const pn_device_ops *pn_backend_cpu(void) { return pn_device_cpu_ops(); }

PN_API const char *pn_backend_name(const pn_engine *e) { return e->dies[0].ops->name; }

/* ------------------------------------------------------------------------------------------
 * Memory
 * ------------------------------------------------------------------------------------------ */

static pn_engine *engine_of(pn_mem *m) { return ((pn_engine_memory_door *)(void *)m)->engine; }

/* Keys and values make room for themselves, in larger pieces, and the cache's lock may be held. */
static void *engine_take(pn_mem *m, pn_account a, size_t size)
{
    pn_engine *e = engine_of(m);
    void *p = pn_mem_alloc(&e->ledger.mem, a, size);
    bool pages = a == PN_ACCT_KV || a == PN_ACCT_KV_RESERVE || a == PN_ACCT_PREFIX || a == PN_ACCT_STATE;
    uint64_t over = p ? pn_ledger_over(&e->ledger) : size;
    if (over && !pages && pn_cache_give_all(e, over) && !p)
        p = pn_mem_alloc(&e->ledger.mem, a, size);
    if (!p)
        pn_govern_failed(e, 0, size);
    return p;
}

static void engine_put(pn_mem *m, pn_account a, void *ptr, size_t size) { pn_mem_free(&engine_of(m)->ledger.mem, a, ptr, size); }

static void engine_move(pn_mem *m, pn_account from, pn_account to, size_t size)
{
    pn_mem_move(&engine_of(m)->ledger.mem, from, to, size);
}

/* ------------------------------------------------------------------------------------------
 * Engine
 * ------------------------------------------------------------------------------------------ */

/* The CPU, or what the text says. */
static pn_status engine_dies(pn_engine *e, const char *sim, pn_err *err)
{
    pn_sim_params params[PN_SIM_DIES];
    uint32_t n = 1;
    pn_status st = sim ? pn_sim_parse(sim, params, &n, err) : PN_OK;
    if (st)
        return st;
    e->dies = pn_mem_calloc(pn_engine_mem(e), PN_ACCT_MISC, n, sizeof *e->dies);
    if (!e->dies)
        return pn_fail_nomem(err, "an engine", n * sizeof *e->dies);
    e->n_dies = n;
    for (uint32_t i = 0; i < n && !st; i++)
        st = pn_die_open(&e->dies[i], e, i, sim ? &params[i] : NULL, e->n_threads, err);
    return st;
}

PN_API pn_status pn_engine_open(pn_engine **out, const pn_engine_params *params, pn_err *err)
{
    pn_engine_params p;
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    if ((p.allocator.alloc == NULL) != (p.allocator.free == NULL))
        return pn_fail(err, PN_E_INVALID, "allocator: alloc and free must both be given, or neither");
    if (p.n_threads > 1024)
        return pn_fail(err, PN_E_INVALID, "n_threads is %" PRIu32 ", expected 0 to 1024", p.n_threads);
    pn_ledger boot;                 /* the engine itself comes from the allocator it will own */
    pn_ledger_init(&boot, &p.allocator, p.mem_limit);
    pn_engine *e = pn_mem_calloc(&boot.mem, PN_ACCT_MISC, 1, sizeof *e);
    if (!e)
        return pn_fail_nomem(err, "an engine", sizeof *e);
    pn_ledger_init(&e->ledger, &p.allocator, p.mem_limit);
    e->door = (pn_engine_memory_door){{engine_take, engine_put, engine_move}, e};
    e->log = p.log;
    e->log_user = p.log_user;
    e->kv_least = p.kv_min_type ? (uint32_t)p.kv_min_type : (uint32_t)PN_DTYPE_Q4_0;
    e->kv_max_kl = p.kv_max_kl;
    e->kv_min_top1 = p.kv_min_top1;
    e->n_threads = p.n_threads ? p.n_threads : pn_os_cores();
    pn_mutex_init(&e->clock_lock);
    pn_mutex_init(&e->drive.lock);
    pn_cond_init(&e->drive.work);
    pn_mutex_init(&e->govern.lock);
    pn_mutex_init(&e->admit_lock);
    pn_mutex_init(&e->models_lock);
    pn_status st = engine_dies(e, p.sim_dies, err);
    if (!st)
        st = pn_tier_open(e, &p, err);
    if (!st)
        st = pn_govern_open(e, &p, err);
    if (st) {
        pn_engine_close(e);
        return st;
    }
    pn_cache_limit(e, &p);
    *out = e;
    return PN_OK;
}

PN_API void pn_engine_close(pn_engine *e)
{
    if (!e)
        return;
    pn_engine_stop(e);
    pn_tier_close(e);
    for (uint32_t i = 0; i < e->n_dies; i++)
        pn_die_close(&e->dies[i]);
    pn_mem_free(pn_engine_mem(e), PN_ACCT_MISC, e->dies, e->n_dies * sizeof *e->dies);
    pn_govern_close(e);
    pn_mutex_fini(&e->admit_lock);
    pn_mutex_fini(&e->models_lock);
    pn_cond_fini(&e->drive.work);
    pn_mutex_fini(&e->drive.lock);
    pn_mutex_fini(&e->clock_lock);
    pn_ledger last;
    pn_ledger_init(&last, &e->ledger.under, 0);
    pn_mem_free(&last.mem, PN_ACCT_MISC, e, sizeof *e);
}

PN_API uint32_t pn_engine_threads(const pn_engine *e) { return e->n_threads; }

PN_API void pn_engine_memory(pn_engine *e, pn_mem_info *out)
{
    pn_ledger_report(&e->ledger, out);
    pn_govern_host(e, &out->host_total, &out->host_available);
}

PN_API void *pn_alloc(pn_engine *e, pn_account account, size_t size)
{
    return (unsigned)account < PN_ACCT_COUNT ? pn_mem_alloc(pn_engine_mem(e), account, size) : NULL;
}

PN_API void pn_free(pn_engine *e, pn_account account, void *ptr, size_t size)
{
    pn_mem_free(pn_engine_mem(e), account, ptr, size);
}
