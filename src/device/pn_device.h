/*
 * pn_device.h - the backend interface: how a plan runs.
 *
 * Types only.  A backend drop fills pn_device_ops and hands it to pn_backend_register(); the core
 * gives it pn_host_ops.  PN_DEVICE_ABI and the struct sizes are compared on registration.
 *
 * Execution is an object, not a call: submit() makes an exec, advance() works on it until it is
 * done, the deadline has passed, it waits for weights, or somebody asked it to stop.  An exec that
 * ends early leaves its runs torn: the engine rolls them back.  One exec is open per die at a time.
 */
#ifndef PN_DEVICE_H
#define PN_DEVICE_H

#include "base/pn_mem.h"
#include "plan/pn_plan_types.h"

#define PN_DEVICE_ABI 1

typedef struct pn_device pn_device;
typedef struct pn_exec pn_exec;

/* ---- execution ---------------------------------------------------------------------------- */

typedef enum pn_exec_state {
    PN_EXEC_DONE = 0,
    PN_EXEC_YIELD,              /* deadline passed; call advance again */
    PN_EXEC_WAIT_IO,            /* a lease is not there yet; call advance again later */
    PN_EXEC_CANCELLED,
    PN_EXEC_FAILED              /* a lease failed: the weights cannot be read */
} pn_exec_state;

struct pn_device_ops {
    uint32_t abi, size;         /* PN_DEVICE_ABI, sizeof(pn_device_ops) */
    uint32_t plan_abi, plan_size, step_size, op_size;
    const char *name;           /* "cpu", "cuda", "tt" */

    /* n_threads: compute threads, caller included.  mem outlives the device. */
    pn_status (*open)(pn_device **out, pn_mem *mem, uint32_t n_threads, pn_err *err);
    void (*close)(pn_device *d);

    /* 1 when the device runs this op on weights of this type (PN_DTYPE_COUNT: none). */
    int (*supports)(const pn_device *d, uint32_t opcode, uint32_t dtype);

    /* Bytes of working memory for one step of `plan`: operands and every thread's tiles. */
    uint64_t (*work_bytes)(uint32_t n_threads, const pn_plan *plan);

    /* Begin a step.  Everything is borrowed until end().  work: work_bytes(), 64-aligned; NULL: PN_E_NOMEM. */
    pn_status (*submit)(pn_device *d, const pn_plan *plan, const pn_step *step, const pn_host_ops *host,
                        void *work, pn_exec **out, pn_err *err);

    /* Work on the calling thread (and the device's own) until `deadline` (pn_os_now() seconds; 0:
     * none).  At least one piece of work is done per call. */
    pn_exec_state (*advance)(pn_exec *x, double deadline);

    /* Any thread, async-signal-safe: advance() returns PN_EXEC_CANCELLED soon. */
    void (*cancel)(pn_exec *x);
    void (*end)(pn_exec *x);
};

#endif /* PN_DEVICE_H */
