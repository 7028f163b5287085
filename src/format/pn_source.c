/* SPDX-License-Identifier: AGPL-3.0-only */
#include "format/pn_source.h"

#include "base/pn_err.h"

#include <inttypes.h>

PN_INTERNAL pn_status pn_source_read(const pn_source *src, uint64_t offset, void *dst, size_t n, pn_err *err)
{
    if (offset > src->size || n > src->size - offset)
        return pn_fail(err, PN_E_FORMAT, "truncated: %zu bytes are needed at offset %" PRIu64 ", the file has %" PRIu64,
                       n, offset, src->size);
    if (n == 0)
        return PN_OK;
    if (src->bytes) {
        memcpy(dst, src->bytes + offset, n);
        return PN_OK;
    }
    if (src->read(src->user, offset, dst, n) != PN_OK)
        return pn_fail(err, PN_E_IO, "reading %zu bytes at offset %" PRIu64 " failed", n, offset);
    return PN_OK;
}

PN_INTERNAL pn_status pn_source_fail(const pn_source *src, pn_status status, pn_err *err)
{
    size_t len = strlen(src->name), keep = 160;         /* leave room for the message itself */
    return pn_err_prefix(err, status, "%s%s", len > keep ? "..." : "", src->name + (len > keep ? len - keep : 0));
}

PN_INTERNAL pn_shown pn_show(const char *bytes, uint64_t len)
{
    pn_shown t;
    size_t n = (size_t)PN_MIN(len, (uint64_t)60);
    for (size_t i = 0; i < n; i++)
        t.s[i] = bytes[i] >= 32 && bytes[i] < 127 ? bytes[i] : '?';
    memcpy(t.s + n, len > n ? "..." : "", len > n ? 4 : 1);
    return t;
}
