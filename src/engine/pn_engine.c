/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * The engine handle, its CPU die, and the list of backends.
 */
#include "engine/pn_cache.h"
#include "engine/pn_sched.h"

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
    static const char *const names[PN_ACCT_COUNT] = {"misc", "weights", "weights_map", "vocab", "kv", "state",
                                                     "scratch", "prefix", "stage", "grammar", "conn"};
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

PN_API const char *pn_backend_name(const pn_engine *e) { return e->cpu.ops->name; }

/* ------------------------------------------------------------------------------------------
 * Memory
 * ------------------------------------------------------------------------------------------ */

static pn_engine *engine_of(pn_mem *m) { return ((pn_engine_memory_door *)(void *)m)->engine; }

/* Keys and values make room for themselves, in larger pieces, and the cache's lock may be held. */
static void *engine_take(pn_mem *m, pn_account a, size_t size)
{
    pn_engine *e = engine_of(m);
    void *p = pn_mem_alloc(&e->ledger.mem, a, size);
    bool pages = a == PN_ACCT_KV || a == PN_ACCT_PREFIX;
    return p || pages || !pn_cache_give(e, size) ? p : pn_mem_alloc(&e->ledger.mem, a, size);
}

static void engine_put(pn_mem *m, pn_account a, void *ptr, size_t size) { pn_mem_free(&engine_of(m)->ledger.mem, a, ptr, size); }

static void engine_move(pn_mem *m, pn_account from, pn_account to, size_t size)
{
    pn_mem_move(&engine_of(m)->ledger.mem, from, to, size);
}

/* ------------------------------------------------------------------------------------------
 * Engine
 * ------------------------------------------------------------------------------------------ */

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
    pn_cache_open(e, &p);
    e->log = p.log;
    e->log_user = p.log_user;
    e->cpu.ops = pn_device_cpu_ops();
    e->cpu.n_threads = p.n_threads ? p.n_threads : pn_os_cores();
    pn_mutex_init(&e->cpu.lock);
    pn_cond_init(&e->cpu.idle);
    e->sched = pn_mem_calloc(pn_engine_mem(e), PN_ACCT_MISC, 1, sizeof *e->sched);
    if (!e->sched) {
        pn_engine_close(e);
        return pn_fail_nomem(err, "an engine", sizeof *e->sched);
    }
    pn_sched_init(e->sched);
    pn_status st = e->cpu.ops->open(&e->cpu.dev, pn_engine_mem(e), e->cpu.n_threads, err);
    if (st) {
        pn_engine_close(e);
        return st;
    }
    *out = e;
    return PN_OK;
}

PN_API void pn_engine_close(pn_engine *e)
{
    if (!e)
        return;
    if (e->sched)
        pn_sched_fini(e);
    pn_cache_close(e);
    pn_mem_free(pn_engine_mem(e), PN_ACCT_MISC, e->sched, sizeof *e->sched);
    e->cpu.ops->close(e->cpu.dev);
    pn_mem_free(pn_engine_mem(e), PN_ACCT_SCRATCH, e->cpu.work, (size_t)e->cpu.work_bytes);
    pn_cond_fini(&e->cpu.idle);
    pn_mutex_fini(&e->cpu.lock);
    pn_ledger last;
    pn_ledger_init(&last, &e->ledger.under, 0);
    pn_mem_free(&last.mem, PN_ACCT_MISC, e, sizeof *e);
}

PN_API uint32_t pn_engine_threads(const pn_engine *e) { return e->cpu.n_threads; }

PN_API void pn_engine_memory(pn_engine *e, pn_mem_info *out)
{
    pn_ledger_report(&e->ledger, out);
    pn_os_memory(&out->host_total, &out->host_available);
}

PN_API void *pn_alloc(pn_engine *e, pn_account account, size_t size)
{
    return (unsigned)account < PN_ACCT_COUNT ? pn_mem_alloc(pn_engine_mem(e), account, size) : NULL;
}

PN_API void pn_free(pn_engine *e, pn_account account, void *ptr, size_t size)
{
    pn_mem_free(pn_engine_mem(e), account, ptr, size);
}

PN_INTERNAL pn_status pn_die_reserve(pn_engine *e, pn_die *die, const pn_plan *plan, pn_err *err)
{
    uint64_t need = die->ops->work_bytes(die->n_threads, plan);
    pn_status st = PN_OK;
    if (need > SIZE_MAX)
        return pn_fail(err, PN_E_NOMEM, "a step needs %" PRIu64 " bytes, more than this system can address", need);
    pn_die_take(e, die);
    if (need > die->work_bytes) {
        uint64_t had = die->work_bytes;
        pn_mem_free(pn_engine_mem(e), PN_ACCT_SCRATCH, die->work, (size_t)had);
        die->work = pn_mem_alloc(pn_engine_mem(e), PN_ACCT_SCRATCH, (size_t)need);
        die->work_bytes = die->work ? need : 0;
        if (!die->work) {
            st = pn_fail_nomem(err, "the working memory of a step", need);
            if (had)                /* what other sessions' steps need; submit() refuses if this fails, too */
                die->work = pn_mem_alloc(pn_engine_mem(e), PN_ACCT_SCRATCH, (size_t)had);
            die->work_bytes = die->work ? had : 0;
        }
    }
    pn_die_give(die);
    return st;
}

PN_INTERNAL void pn_die_take(pn_engine *e, pn_die *die)
{
    pn_mutex_lock(&die->lock);
    while (die->busy) {
        if (!die->parked) {
            pn_cond_wait(&die->idle, &die->lock);
            continue;
        }
        pn_mutex_unlock(&die->lock);
        pn_sched_settle(e);
        pn_mutex_lock(&die->lock);
    }
    die->busy = true;
    pn_mutex_unlock(&die->lock);
}

PN_INTERNAL void pn_die_give(pn_die *die)
{
    pn_mutex_lock(&die->lock);
    die->busy = die->parked = false;
    pn_cond_broadcast(&die->idle);
    pn_mutex_unlock(&die->lock);
}

PN_INTERNAL void pn_die_park(pn_die *die, bool parked)
{
    pn_mutex_lock(&die->lock);
    die->parked = parked;
    pn_cond_broadcast(&die->idle);
    pn_mutex_unlock(&die->lock);
}
