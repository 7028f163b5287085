/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_reply.c - what the replies of all APIs share.
 */
#include "serve/pn_reply.h"

#include <stdio.h>

#include "base/pn_err.h"
#include "base/pn_hash.h"

PN_INTERNAL pn_reply *pn_reply_alloc(size_t size, const pn_reply_ops *ops, const pn_reply_params *p, pn_err *err)
{
    pn_reply *r = pn_mem_calloc(p->mem, PN_ACCT_CONN, 1, size);
    if (!r) {
        pn_fail_nomem(err, "an answer", size);
        return NULL;
    }
    r->ops = ops;
    r->p = *p;
    pn_str_init(&r->out, p->mem, PN_ACCT_CONN);
    return r;
}

PN_INTERNAL void pn_reply_dispose(pn_reply *r, size_t size)
{
    pn_str_fini(&r->out);
    pn_mem_free(r->p.mem, PN_ACCT_CONN, r, size);
}

PN_INTERNAL bool pn_reply_send(pn_reply *r, const char *event)
{
    if (!r->dead)
        r->dead = r->out.failed || r->p.emit(r->p.user, event, pn_str_cstr(&r->out), r->out.len) != 0;
    pn_str_clear(&r->out);
    return !r->dead;
}

PN_INTERNAL bool pn_reply_kept(pn_reply *r, const pn_str *s)
{
    r->dead |= s->failed;
    return !r->dead;
}

PN_INTERNAL void pn_reply_report(pn_reply *r)
{
    if (!r->p.report)
        return;
    pn_json_key(&r->out, "pantheon");
    pn_str_addc(&r->out, '{');
    pn_str_addz(&r->out, r->p.report);
    pn_str_addc(&r->out, '}');
}

PN_INTERNAL void pn_reply_id(const pn_reply *r, const char *prefix, uint32_t a, uint32_t b, char out[40])
{
    uint64_t x = pn_hash(r->p.id, strlen(r->p.id), r->p.seed + a), y = pn_hash(&x, sizeof x, (uint64_t)b + 1);
    snprintf(out, 40, "%s%012llx%012llx", prefix, (unsigned long long)(x & 0xffffffffffffu), (unsigned long long)(y & 0xffffffffffffu));
}
