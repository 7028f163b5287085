/*
 * pn_err.h - writing a pn_err where the fault is seen.
 *
 * Every function that can fail ends with `return pn_fail(err, PN_E_..., "...")`.  `err` may be NULL;
 * nothing is allocated.  Messages name file, tensor or key, offset, what was expected and what was
 * found.
 */
#ifndef PN_ERR_H
#define PN_ERR_H

#include "base/pn_base.h"

/* Fill *err (when not NULL) and return `status`. */
PN_INTERNAL pn_status pn_fail(pn_err *err, pn_status status, const char *fmt, ...) PN_PRINTF(3, 4);

/* "out of memory: <what> needs N bytes" with PN_E_NOMEM. */
PN_INTERNAL pn_status pn_fail_nomem(pn_err *err, const char *what, uint64_t bytes);

/* Put "context: " in front of an existing message, e.g. the file's name.  Returns err's status,
 * PN_E_INTERNAL when err is NULL. */
PN_INTERNAL pn_status pn_err_prefix(pn_err *err, pn_status status, const char *fmt, ...) PN_PRINTF(3, 4);

#endif /* PN_ERR_H */
