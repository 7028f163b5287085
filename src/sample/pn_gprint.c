/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gprint.c - a program written out as GBNF, to be read by people and by other engines.
 *
 * Each place in the program that is reached becomes a rule; jumps and the ends of rules and loop
 * bodies vanish.  Bytes are put together to characters again: from a lead byte on, all ways through the
 * continuation bytes are followed to the code points they stand for.
 */
#include "sample/pn_gram_impl.h"

typedef struct gprint_range { uint32_t lo, hi, to; } gprint_range;

typedef struct gprint {
    const pn_gram *g;
    pn_mem *mem;
    pn_str *out;
    pn_status status;
    pn_err *err;
    uint8_t *seen;              /* [code] */
    uint32_t *todo;             /* [code] */
    size_t n_todo;
    PN_GVEC(gprint_range) ranges;
    uint64_t steps;
} gprint;

enum { GPRINT_STEPS = 20000000 };

static bool gprint_fail(gprint *p, const char *why)
{
    if (p->status == PN_OK)
        p->status = pn_fail(p->err, PN_E_UNSUPPORTED, "this grammar cannot be written as GBNF: %s", why);
    return false;
}

static uint32_t gprint_resolve(const gprint *p, uint32_t pc)
{
    while (p->g->p.code.v[pc].op == PN_GOP_JUMP)
        pc = p->g->p.code.v[pc].a;
    return pc;
}

/* " p12", or nothing where a rule or a loop's body ends. */
static void gprint_name(gprint *p, uint32_t pc)
{
    pc = gprint_resolve(p, pc);
    uint8_t op = p->g->p.code.v[pc].op;
    if (op == PN_GOP_RET || op == PN_GOP_LOOP)
        return;
    if (!p->seen[pc]) {
        p->seen[pc] = 1;
        p->todo[p->n_todo++] = pc;
    }
    pn_str_addf(p->out, " p%lu", (unsigned long)pc);
}

/* An empty alternative is written as "": the line could not end after "|". */
static void gprint_alternative(gprint *p, uint32_t pc)
{
    size_t before = p->out->len;
    gprint_name(p, pc);
    if (p->out->len == before)
        pn_str_addz(p->out, " \"\"");
}

/* ---- bytes to characters ---------------------------------------------------------------------------- */

static bool gprint_add(gprint *p, uint32_t lo, uint32_t hi, uint32_t to)
{
    if (++p->steps > GPRINT_STEPS)
        return gprint_fail(p, "it has too many characters");
    if (p->ranges.n && p->ranges.v[p->ranges.n - 1].hi + 1 == lo && p->ranges.v[p->ranges.n - 1].to == to) {
        p->ranges.v[p->ranges.n - 1].hi = hi;
        return true;
    }
    if (!pn_mem_grow(p->mem, PN_ACCT_GRAMMAR, (void **)&p->ranges.v, &p->ranges.cap, p->ranges.n + 1, sizeof *p->ranges.v)) {
        p->status = pn_fail_nomem(p->err, "printing a grammar", p->ranges.n * sizeof *p->ranges.v);
        return false;
    }
    p->ranges.v[p->ranges.n++] = (gprint_range){lo, hi, to};
    return true;
}

/* The next place for this byte, UINT32_MAX: none. */
static uint32_t gprint_byte(const gprint *p, const pn_ginstr *in, uint32_t byte)
{
    if (in->op == PN_GOP_RANGE)
        return in->lo <= byte && byte <= in->hi ? in->a : UINT32_MAX;
    if (in->op == PN_GOP_SET)
        return pn_gset_has(p->g->p.sets.v[in->b].w, byte) ? in->a : UINT32_MAX;
    for (uint32_t i = 0; in->op == PN_GOP_EDGES && i < in->n; i++)
        if (p->g->p.edges.v[in->b + i].lo <= byte && byte <= p->g->p.edges.v[in->b + i].hi)
            return p->g->p.edges.v[in->b + i].to;
    return UINT32_MAX;
}

/* All characters that go on from place `pc` with `more` (at most 3) continuation bytes. */
static bool gprint_rest(gprint *p, uint32_t pc, uint32_t more, uint32_t base)
{
    const pn_ginstr *in = &p->g->p.code.v[gprint_resolve(p, pc)];
    if ((in->op != PN_GOP_RANGE && in->op != PN_GOP_SET && in->op != PN_GOP_EDGES) || in->flags & PN_GF_ACCEPT)
        return gprint_fail(p, "it branches inside a character");
    for (uint32_t byte = 0x80; byte <= 0xBF; byte++) {
        uint32_t to = gprint_byte(p, in, byte), cp = base << 6 | (byte & 0x3F);
        if (to != UINT32_MAX && !(more == 1 ? gprint_add(p, cp, cp, to) : gprint_rest(p, to, more - 1, cp)))
            return false;
    }
    return true;
}

static bool gprint_collect(gprint *p, const pn_ginstr *in)
{
    p->ranges.n = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t to = gprint_byte(p, in, byte);
        bool ok = true;
        if (to == UINT32_MAX)
            continue;
        if (byte < 0x80)
            ok = gprint_add(p, byte, byte, to);
        else if (byte < 0xC2 || byte > 0xF4)
            ok = gprint_fail(p, "it has bytes that are no characters");
        else
            ok = byte < 0xE0 ? gprint_rest(p, to, 1, byte & 0x1F) : byte < 0xF0 ? gprint_rest(p, to, 2, byte & 0x0F)
                                                                               : gprint_rest(p, to, 3, byte & 0x07);
        if (!ok)
            return false;
    }
    return true;
}

static void gprint_char(gprint *p, uint32_t cp)
{
    bool plain = (cp >= '0' && cp <= '9') || (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z');
    if (plain)
        pn_str_addc(p->out, (char)cp);
    else
        pn_str_addf(p->out, cp < 0x100 ? "\\x%02lX" : cp < 0x10000 ? "\\u%04lX" : "\\U%08lX", (unsigned long)cp);
}

/* One alternative for each place the characters lead to. */
static void gprint_bytes(gprint *p, const pn_ginstr *in)
{
    if (!gprint_collect(p, in))
        return;
    for (size_t i = 0; i < p->ranges.n; i++) {
        uint32_t to = p->ranges.v[i].to;
        if (to == UINT32_MAX)                   /* written with an earlier one */
            continue;
        pn_str_addz(p->out, i ? " | [" : " [");
        for (size_t j = i; j < p->ranges.n; j++) {
            gprint_range r = p->ranges.v[j];
            if (r.to != to)
                continue;
            gprint_char(p, r.lo);
            if (r.hi > r.lo) {
                pn_str_addc(p->out, '-');
                gprint_char(p, r.hi);
            }
            p->ranges.v[j].to = UINT32_MAX;
        }
        pn_str_addc(p->out, ']');
        gprint_name(p, to);
    }
    if (in->flags & PN_GF_ACCEPT) {
        pn_str_addz(p->out, " |");
        gprint_alternative(p, in->a);
    }
}

/* ---- rules ------------------------------------------------------------------------------------------------ */

static void gprint_count(gprint *p, const pn_ginstr *in)
{
    const pn_ginstr *loop = &p->g->p.code.v[in->a];
    gprint_name(p, loop->a);
    if (loop->max == PN_GIR_MANY)
        pn_str_addf(p->out, "{%lu,}", (unsigned long)loop->min);
    else
        pn_str_addf(p->out, "{%lu,%lu}", (unsigned long)loop->min, (unsigned long)loop->max);
    gprint_name(p, loop->b);
}

static void gprint_rule(gprint *p, uint32_t pc)
{
    const pn_ginstr *in = &p->g->p.code.v[pc];
    pn_str_addf(p->out, "p%lu ::=", (unsigned long)pc);
    switch ((pn_gop)in->op) {
    case PN_GOP_RANGE: case PN_GOP_SET: case PN_GOP_EDGES:
        gprint_bytes(p, in);
        break;
    case PN_GOP_TOKEN:
        pn_str_addf(p->out, in->flags & PN_GF_NEGATED ? " !<[%lu]>" : " <[%lu]>", (unsigned long)in->b);
        gprint_name(p, in->a);
        break;
    case PN_GOP_SPLIT:
        for (uint32_t i = 0; i < in->n; i++) {
            pn_str_addz(p->out, i ? " |" : "");
            gprint_alternative(p, p->g->p.list.v[in->b + i]);
        }
        break;
    case PN_GOP_CALL:
        gprint_name(p, in->a);
        gprint_name(p, in->b);
        break;
    case PN_GOP_COUNT:
        gprint_count(p, in);
        break;
    case PN_GOP_RET: case PN_GOP_LOOP: case PN_GOP_JUMP:
        break;
    }
    pn_str_addc(p->out, '\n');
}

PN_INTERNAL pn_status pn_gram_print(pn_gram *g, pn_str *out, pn_err *err)
{
    gprint p;
    size_t n = g->p.code.n;
    memset(&p, 0, sizeof p);
    p.g = g;
    p.mem = out->mem;
    p.out = out;
    p.err = err;
    p.seen = pn_mem_calloc(p.mem, PN_ACCT_GRAMMAR, n, 1);
    p.todo = pn_mem_calloc(p.mem, PN_ACCT_GRAMMAR, n, sizeof *p.todo);
    if (!p.seen || !p.todo)
        p.status = pn_fail_nomem(err, "printing a grammar", 5 * (uint64_t)n);
    if (!p.status) {
        pn_str_addz(out, "root ::=");
        gprint_name(&p, g->p.entry);
        pn_str_addc(out, '\n');
    }
    while (!p.status && p.n_todo && !out->failed)
        gprint_rule(&p, p.todo[--p.n_todo]);
    if (!p.status && out->failed)
        p.status = pn_fail_nomem(err, "printing a grammar", out->len);
    pn_mem_free(p.mem, PN_ACCT_GRAMMAR, p.seen, n);
    pn_mem_free(p.mem, PN_ACCT_GRAMMAR, p.todo, n * sizeof *p.todo);
    pn_mem_free(p.mem, PN_ACCT_GRAMMAR, p.ranges.v, p.ranges.cap * sizeof *p.ranges.v);
    return p.status;
}
