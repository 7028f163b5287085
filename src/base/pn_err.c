/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_err.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

PN_INTERNAL pn_status pn_fail(pn_err *err, pn_status status, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        err->status = status;
    }
    return status;
}

PN_INTERNAL pn_status pn_fail_nomem(pn_err *err, const char *what, uint64_t bytes)
{
    return pn_fail(err, PN_E_NOMEM, "out of memory: %s needs %" PRIu64 " bytes", what, bytes);
}

PN_INTERNAL pn_status pn_err_prefix(pn_err *err, pn_status status, const char *fmt, ...)
{
    if (err) {
        char old[sizeof err->text];
        memcpy(old, err->text, sizeof old);
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n + 3 < sizeof err->text) {
            size_t left = sizeof err->text - (size_t)n - 1;
            memcpy(err->text + n, ": ", PN_MIN(left, (size_t)3));
            left -= 2;
            size_t len = PN_MIN(strlen(old), left);
            memcpy(err->text + n + 2, old, len);
            err->text[(size_t)n + 2 + len] = 0;
        }
        err->status = status;
    }
    return status;
}
