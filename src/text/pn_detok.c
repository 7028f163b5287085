/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_detok.c - bytes in, whole characters out.
 *
 * A token may end in the middle of a character.  At most three bytes can be an unfinished character
 * (a fourth finishes or refutes it), so that is all that is ever held.  Bytes that are not UTF-8 pass
 * unchanged as soon as it is known that they are not.
 */
#include "text/pn_vocab.h"

#include "base/pn_utf8.h"

PN_INTERNAL void pn_detok_feed(pn_detok_state *d, const char *bytes, size_t n, pn_str *out)
{
    while (d->n_held && n) {                    /* first settle what is held, byte by byte */
        d->held[d->n_held++] = *bytes++;
        n--;
        size_t open = pn_utf8_incomplete(d->held, d->n_held), done = d->n_held - open;
        pn_str_add(out, d->held, done);
        memmove(d->held, d->held + done, open);
        d->n_held = (uint8_t)open;
    }
    if (!n)
        return;
    size_t open = pn_utf8_incomplete(bytes, n);
    pn_str_add(out, bytes, n - open);
    memcpy(d->held, bytes + n - open, open);
    d->n_held = (uint8_t)open;
}

PN_INTERNAL void pn_detok_end(pn_detok_state *d, pn_str *out)
{
    pn_str_add(out, d->held, d->n_held);
    d->n_held = 0;
}
