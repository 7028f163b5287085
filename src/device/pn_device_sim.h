/*
 * pn_device_sim.h - dies that are not there, for tests of placement, replicas and device memory.
 *
 * A simulated die computes on the CPU, with a device of its own, and has three things a real one has: a memory
 * of so many bytes, a speed, and allocations that fail.
 *
 *     "2;bytes=512M;tps=100;fail_alloc=0;die1.bytes=64M"
 *
 *     2               dies, first; 1 to PN_SIM_DIES
 *     bytes=SIZE      memory of each; default 1G
 *     tps=N           rows a second as long as they come one by one (below); default 100
 *     fail_alloc=N    the N-th time memory is taken on a die, counted from 1, there is none; default 0: never
 *     dieI.KEY=V      for die I alone, and stronger than the same for all
 *
 * A step of n rows takes max(1, n / 16) / tps seconds of the die's virtual clock: up to sixteen rows are bound by
 * reading the weights, as on real devices.  When a clock runs is the engine's to say (engine/pn_die.h).
 */
#ifndef PN_DEVICE_SIM_H
#define PN_DEVICE_SIM_H

#include "base/pn_err.h"
#include "base/pn_thread.h"

enum { PN_SIM_DIES = 16 };

typedef struct pn_sim_params {
    uint64_t bytes;
    double tps;
    uint64_t fail_alloc;
} pn_sim_params;

/* dies [*n] of them are filled.  PN_E_INVALID names key and value. */
PN_INTERNAL pn_status pn_sim_parse(const char *text, pn_sim_params dies[PN_SIM_DIES], uint32_t *n, pn_err *err);

/* Virtual seconds of a step of so many rows. */
PN_INTERNAL double pn_sim_seconds(const pn_sim_params *p, uint32_t rows);

/* The memory of one die.  Threads: any. */
typedef struct pn_sim_memory {
    pn_mutex lock;
    uint64_t bytes, used, n_taken, fail_at;
} pn_sim_memory;

typedef enum pn_sim_taken { PN_SIM_OK = 0, PN_SIM_FULL, PN_SIM_FAILED } pn_sim_taken;

PN_INTERNAL void pn_sim_memory_init(pn_sim_memory *m, const pn_sim_params *p);
PN_INTERNAL void pn_sim_memory_fini(pn_sim_memory *m);
PN_INTERNAL pn_sim_taken pn_sim_take(pn_sim_memory *m, uint64_t bytes);         /* not OK: nothing was taken */
PN_INTERNAL void pn_sim_give(pn_sim_memory *m, uint64_t bytes);
PN_INTERNAL uint64_t pn_sim_free_bytes(pn_sim_memory *m);

#endif /* PN_DEVICE_SIM_H */
