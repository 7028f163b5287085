/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_schema_num.c - numbers with bounds, as automata over their digits.
 *
 * A bound is kept as the decimal text of the schema, never as a double: 0.1 is a tenth and 2^53 + 1
 * is odd.  The automaton reads a number from the left and remembers how what it has read compares
 * with the digits of each bound in the same places (less, equal, greater), and the remainder for
 * multipleOf.  The length of the integer part decides before its digits do, and is known when the
 * part ends; a fraction is compared digit by digit, a bound continued with zeros.  Nothing is
 * enumerated and nothing is approximated.
 *
 *     state = {phase, digits read in this part, order against lo, order against hi, remainder}
 *
 * The sign is the first character, so positive and negative numbers are two automata of magnitudes
 * behind one start, bounds exchanged.  A negative zero has only the unbounded form.  Exponents
 * have only the unbounded form too (what they shift is unknown while the digits are read).
 */
#include "sample/pn_schema_int.h"

enum {
    SCHNUM_DIGITS = 16,         /* most digits of a part, to stop runaways (a double has 17 at most) */
    SCHNUM_BOUND = 64,          /* most digits of a part of a bound */
    SCHNUM_MOD = 1000           /* largest multipleOf, in units of its last decimal */
};

/* --- decimals --------------------------------------------------------------------------------- */

/* Exponents beyond a billion are clamped: no text is long enough to tell the difference. */
static int64_t schnum_exponent(const char *p, const char *end)
{
    int64_t e = 0;
    bool neg = false;
    if (p < end && (*p == '+' || *p == '-'))
        neg = *p++ == '-';
    for (; p < end; p++)
        e = PN_MIN(e * 10 + (*p - '0'), 1000000000);
    return neg ? -e : e;
}

PN_INTERNAL bool pn_sch_dec_parse(pn_sch *s, pn_bytes text, pn_sch_dec *out)
{
    const char *p = text.data, *end = text.data + text.len;
    memset(out, 0, sizeof *out);
    char *digits = pn_sch_alloc(s, text.len + 1, 1);
    if (!digits)
        return false;
    uint32_t n = 0;
    bool point = false;
    if (p < end && *p == '-')
        out->neg = true, p++;
    for (; p < end && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.') {
            point = true;
        } else if (n == 0 && *p == '0') {
            out->point -= point;                        /* a leading zero; of a fraction it counts */
        } else {
            digits[n++] = *p;
            out->point += !point;
        }
    }
    if (p < end)
        out->point += schnum_exponent(p + 1, end);
    while (n > 0 && digits[n - 1] == '0')
        n--;
    out->digits = digits;
    out->n = n;
    if (n == 0)
        out->point = 0, out->neg = false;
    return true;
}

static int schnum_cmp_magnitude(const pn_sch_dec *a, const pn_sch_dec *b)
{
    if (a->n == 0 || b->n == 0)
        return (a->n > 0) - (b->n > 0);
    if (a->point != b->point)
        return a->point < b->point ? -1 : 1;
    const int c = memcmp(a->digits, b->digits, PN_MIN(a->n, b->n));
    return c != 0 ? (c < 0 ? -1 : 1) : (a->n > b->n) - (a->n < b->n);
}

PN_INTERNAL int pn_sch_dec_cmp(const pn_sch_dec *a, const pn_sch_dec *b)
{
    if (a->neg != b->neg)
        return a->neg ? -1 : 1;
    return a->neg ? schnum_cmp_magnitude(b, a) : schnum_cmp_magnitude(a, b);
}

static uint32_t schnum_int_digits(const pn_sch_dec *d) { return d->point > 0 ? (uint32_t)d->point : 1; }

static uint32_t schnum_frac_digits(const pn_sch_dec *d)
{
    const int64_t n = (int64_t)d->n - d->point;
    return n > 0 && d->n > 0 ? (uint32_t)n : 0;
}

/* Digit i after the first of the integer part; the fraction follows the point at i = int_digits. */
static int schnum_digit(const pn_sch_dec *d, int64_t i)
{
    if (d->point <= 0)
        i += d->point - 1;                              /* 0.00ddd: one zero before the point */
    return i >= 0 && i < (int64_t)d->n ? d->digits[i] - '0' : 0;
}

static bool schnum_reasonable(const pn_sch_dec *d)
{
    return d->n == 0 || (d->point <= SCHNUM_BOUND && (int64_t)d->n - d->point <= SCHNUM_BOUND);
}

/* Generated numbers are below 10^64 and have at most 64 decimals: a bound beyond the former always
 * or never holds, one closer to zero than the latter might as well be zero. */
PN_INTERNAL bool pn_sch_dec_fits(pn_sch_dec *v, bool lower, bool *open, bool *drop)
{
    *drop = false;
    if (schnum_reasonable(v))
        return true;
    if (v->point > SCHNUM_BOUND && v->neg == lower)
        return *drop = true;
    if (v->point > -SCHNUM_BOUND)
        return false;
    *open = v->neg != lower;                            /* above +tiny: above 0; above -tiny: from 0 on */
    memset(v, 0, sizeof *v);
    return true;
}

/* --- one value ---------------------------------------------------------------------------------- */

static uint32_t schnum_pow10_mod(uint32_t e, uint32_t mod)
{
    uint32_t p = 1 % mod;
    while (e-- > 0)
        p = p * 10 % mod;
    return p;
}

static bool schnum_divides(const pn_sch_num *r, const pn_sch_dec *v)
{
    if (r->mod == 0 || v->n == 0)
        return true;
    if (!schnum_reasonable(v) || schnum_frac_digits(v) > r->mod_digits)
        return false;
    const int64_t places = v->point + (int64_t)r->mod_digits;
    uint32_t rem = 0;
    for (int64_t i = 0; i < places; i++)
        rem = (rem * 10 + (uint32_t)(i < (int64_t)v->n ? v->digits[i] - '0' : 0)) % r->mod;
    return rem == 0;
}

PN_INTERNAL bool pn_sch_num_has(const pn_sch_num *r, const pn_sch_dec *v)
{
    if (r->has_lo) {
        const int c = pn_sch_dec_cmp(v, &r->lo);
        if (c < 0 || (c == 0 && r->lo_open))
            return false;
    }
    if (r->has_hi) {
        const int c = pn_sch_dec_cmp(v, &r->hi);
        if (c > 0 || (c == 0 && r->hi_open))
            return false;
    }
    return schnum_divides(r, v);
}

/* --- multipleOf --------------------------------------------------------------------------------- */

static uint64_t schnum_gcd(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

PN_INTERNAL bool pn_sch_num_join_mod(pn_sch *s, uint32_t node, pn_sch_num *r, const pn_sch_dec *v)
{
    if (v->neg || v->n == 0)
        return pn_sch_fail(s, PN_E_INVALID, node, "multipleOf", "expected a number above 0");
    const uint32_t places = schnum_reasonable(v) ? schnum_frac_digits(v) : SCHNUM_DIGITS + 1;
    uint64_t m = 0, mine = 1;
    if (places <= SCHNUM_DIGITS && v->point <= SCHNUM_DIGITS) {
        const uint32_t top = places > r->mod_digits || !r->mod ? places : r->mod_digits;
        for (int64_t i = 0; i < v->point + (int64_t)places && m <= SCHNUM_MOD; i++)
            m = m * 10 + (uint64_t)(i < (int64_t)v->n ? v->digits[i] - '0' : 0);
        for (uint32_t i = places; i < top && m <= SCHNUM_MOD; i++)
            m *= 10;
        mine = r->mod ? r->mod : 1;
        for (uint32_t i = r->mod_digits; r->mod && i < top && mine <= SCHNUM_MOD; i++)
            mine *= 10;
        if (m > 0 && m <= SCHNUM_MOD && mine <= SCHNUM_MOD)
            m = r->mod ? m / schnum_gcd(m, mine) * mine : m;
        else
            m = SCHNUM_MOD + 1;
        if (m <= SCHNUM_MOD) {
            r->mod = (uint32_t)m;
            r->mod_digits = top;
            return true;
        }
    }
    return pn_sch_refuse(s, node, "multipleOf", "only up to 1000 (or 1000 units of its last decimal)");
}

/* --- the automaton ------------------------------------------------------------------------------ */

enum { SCHNUM_LT, SCHNUM_EQ, SCHNUM_GT };
enum { SCHNUM_FIRST, SCHNUM_ZERO, SCHNUM_INT, SCHNUM_POINT, SCHNUM_FRAC };

typedef struct schnum_state {
    uint8_t phase, pos, lo, hi;
    uint32_t rem;
} schnum_state;

/* Magnitudes between two bounds. */
typedef struct schnum_side {
    pn_sch_dec lo, hi;
    bool has_lo, has_hi, lo_open, hi_open;
} schnum_side;

typedef struct schnum_build {
    pn_sch *s;
    const pn_sch_num *r;
    const schnum_side *side;
    uint32_t int_max, frac_max; /* most digits of each part */
    pn_map ids;                 /* state to number, of this side */
    schnum_state *states;       /* [n] in order of their numbers */
    size_t n, cap;
    pn_gedge *edges;
    size_t n_edges, cap_edges;
    uint8_t *accept;
    size_t n_accept, cap_accept;
} schnum_build;

static uint8_t schnum_order(int digit, int bound) { return digit < bound ? SCHNUM_LT : digit > bound ? SCHNUM_GT : SCHNUM_EQ; }

/* How the finished integer part of `pos` digits compares: length first. */
static uint8_t schnum_by_length(uint32_t pos, const pn_sch_dec *bound, uint8_t so_far)
{
    const uint32_t n = schnum_int_digits(bound);
    return pos < n ? SCHNUM_LT : pos > n ? SCHNUM_GT : so_far;
}

static bool schnum_step_digit(const schnum_build *b, const schnum_state *from, int digit, schnum_state *to)
{
    const schnum_side *side = b->side;
    const bool frac = from->phase == SCHNUM_POINT || from->phase == SCHNUM_FRAC;
    *to = *from;
    if (from->phase == SCHNUM_ZERO || from->pos >= (frac ? b->frac_max : b->int_max))
        return false;
    to->phase = frac ? SCHNUM_FRAC : from->phase == SCHNUM_FIRST && digit == 0 ? SCHNUM_ZERO : SCHNUM_INT;
    to->pos = (uint8_t)(from->pos + 1);
    if (side->has_lo && from->lo == SCHNUM_EQ && (frac || from->pos < schnum_int_digits(&side->lo)))
        to->lo = schnum_order(digit, schnum_digit(&side->lo, from->pos + (frac ? schnum_int_digits(&side->lo) : 0)));
    if (side->has_hi && from->hi == SCHNUM_EQ && (frac || from->pos < schnum_int_digits(&side->hi)))
        to->hi = schnum_order(digit, schnum_digit(&side->hi, from->pos + (frac ? schnum_int_digits(&side->hi) : 0)));
    if (b->r->mod)
        to->rem = (from->rem * 10 + (uint32_t)digit) % b->r->mod;
    return true;
}

static bool schnum_step_point(const schnum_build *b, const schnum_state *from, schnum_state *to)
{
    if ((from->phase != SCHNUM_ZERO && from->phase != SCHNUM_INT) || b->frac_max == 0)
        return false;
    *to = *from;
    to->phase = SCHNUM_POINT;
    to->pos = 0;
    if (b->side->has_lo)
        to->lo = schnum_by_length(from->pos, &b->side->lo, from->lo);
    if (b->side->has_hi)
        to->hi = schnum_by_length(from->pos, &b->side->hi, from->hi);
    return true;
}

/* The order of the whole number, given that it ends here. */
static uint8_t schnum_final(const schnum_state *st, const pn_sch_dec *bound, uint8_t order)
{
    const bool frac = st->phase == SCHNUM_FRAC;
    if (!frac)
        order = schnum_by_length(st->pos, bound, order);
    if (order == SCHNUM_EQ && (frac ? st->pos : 0) < schnum_frac_digits(bound))
        order = SCHNUM_LT;                              /* the bound goes on and does not end in zeros */
    return order;
}

static bool schnum_accepts(const schnum_build *b, const schnum_state *st)
{
    const schnum_side *side = b->side;
    if (st->phase == SCHNUM_FIRST || st->phase == SCHNUM_POINT)
        return false;
    if (side->has_lo) {
        const uint8_t o = schnum_final(st, &side->lo, st->lo);
        if (o == SCHNUM_LT || (o == SCHNUM_EQ && side->lo_open))
            return false;
    }
    if (side->has_hi) {
        const uint8_t o = schnum_final(st, &side->hi, st->hi);
        if (o == SCHNUM_GT || (o == SCHNUM_EQ && side->hi_open))
            return false;
    }
    if (b->r->mod) {
        const uint32_t left = b->r->mod_digits - (st->phase == SCHNUM_FRAC ? st->pos : 0);
        return st->rem * schnum_pow10_mod(left, b->r->mod) % b->r->mod == 0;
    }
    return true;
}

/* The number of a state, made when it is new.  UINT32_MAX: failed. */
static uint32_t schnum_id(schnum_build *b, const schnum_state *st)
{
    schnum_state *key = pn_sch_alloc(b->s, 1, sizeof *key);
    bool existed = false;
    if (!key)
        return UINT32_MAX;
    key->phase = st->phase;
    key->pos = st->pos;
    key->lo = st->lo;
    key->hi = st->hi;
    key->rem = st->rem;
    const uint32_t id = (uint32_t)b->n;
    uint32_t *slot = pn_map_put(&b->ids, (const char *)key, sizeof *key, id, &existed);
    if (!slot)
        return pn_sch_nomem(b->s), UINT32_MAX;
    if (existed)
        return *slot;
    if (!pn_mem_grow(b->s->mem, PN_ACCT_GRAMMAR, (void **)&b->states, &b->cap, b->n + 1, sizeof *b->states) ||
        !pn_mem_grow(b->s->mem, PN_ACCT_GRAMMAR, (void **)&b->accept, &b->cap_accept, b->n_accept + 1, 1))
        return pn_sch_nomem(b->s), UINT32_MAX;
    b->states[b->n++] = *key;
    b->accept[b->n_accept++] = schnum_accepts(b, key);
    return id;
}

static bool schnum_edge(schnum_build *b, uint32_t from, uint32_t to, char c)
{
    if (!pn_mem_grow(b->s->mem, PN_ACCT_GRAMMAR, (void **)&b->edges, &b->cap_edges, b->n_edges + 1, sizeof *b->edges))
        return pn_sch_nomem(b->s);
    pn_gedge *last = b->n_edges > 0 ? &b->edges[b->n_edges - 1] : NULL;
    if (last && last->from == from && last->to == to && last->hi + 1 == (uint8_t)c) {
        last->hi++;
        return true;
    }
    const pn_gedge e = {from, to, (uint8_t)c, (uint8_t)c};
    b->edges[b->n_edges++] = e;
    return true;
}

static bool schnum_expand(schnum_build *b, uint32_t node)
{
    for (size_t i = 0; i < b->n; i++) {
        const schnum_state st = b->states[i];
        schnum_state to;
        if (!pn_sch_steps(b->s, node, 40))              /* a map look-up for each digit */
            return false;
        for (int digit = 0; digit <= 9; digit++) {
            if (!schnum_step_digit(b, &st, digit, &to))
                continue;
            const uint32_t id = schnum_id(b, &to);
            if (id == UINT32_MAX || !schnum_edge(b, (uint32_t)i, id, (char)('0' + digit)))
                return false;
        }
        if (schnum_step_point(b, &st, &to)) {
            const uint32_t id = schnum_id(b, &to);
            if (id == UINT32_MAX || !schnum_edge(b, (uint32_t)i, id, '.'))
                return false;
        }
    }
    return true;
}

/* Magnitudes of one side as a node. */
static pn_gnode schnum_magnitudes(pn_sch *s, uint32_t node, const pn_sch_num *r, const schnum_side *side, bool fractions)
{
    schnum_build b;
    memset(&b, 0, sizeof b);
    b.s = s;
    b.r = r;
    b.side = side;
    b.int_max = b.frac_max = SCHNUM_DIGITS;
    if (side->has_lo) {
        b.int_max = PN_MAX(b.int_max, schnum_int_digits(&side->lo));
        b.frac_max = PN_MAX(b.frac_max, schnum_frac_digits(&side->lo));
    }
    if (side->has_hi) {
        b.int_max = PN_MAX(b.int_max, schnum_int_digits(&side->hi));
        b.frac_max = PN_MAX(b.frac_max, schnum_frac_digits(&side->hi));
    }
    if (r->mod)
        b.frac_max = r->mod_digits;
    if (!fractions)
        b.frac_max = 0;
    pn_map_init(&b.ids, s->mem, PN_ACCT_GRAMMAR);
    pn_gnode out = PN_GNODE_NONE;
    schnum_state start;
    memset(&start, 0, sizeof start);
    start.phase = SCHNUM_FIRST;
    start.lo = start.hi = SCHNUM_EQ;
    if (schnum_id(&b, &start) != UINT32_MAX && schnum_expand(&b, node))
        out = pn_gir_dfa(s->g, b.edges, b.n_edges, b.accept, (uint32_t)b.n);
    pn_map_fini(&b.ids);
    pn_mem_free(s->mem, PN_ACCT_GRAMMAR, b.states, b.cap * sizeof *b.states);
    pn_mem_free(s->mem, PN_ACCT_GRAMMAR, b.edges, b.cap_edges * sizeof *b.edges);
    pn_mem_free(s->mem, PN_ACCT_GRAMMAR, b.accept, b.cap_accept);
    return out;
}

static schnum_side schnum_positive(const pn_sch_num *r)
{
    schnum_side p;
    memset(&p, 0, sizeof p);
    if (r->has_lo && !r->lo.neg)
        p.lo = r->lo, p.has_lo = true, p.lo_open = r->lo_open;
    if (r->has_hi)
        p.hi = r->hi, p.has_hi = true, p.hi_open = r->hi_open;
    return p;
}

static schnum_side schnum_negative(const pn_sch_num *r)
{
    schnum_side n;
    memset(&n, 0, sizeof n);
    n.has_lo = true;                                    /* of the magnitude: above zero at least */
    n.lo_open = true;
    if (r->has_hi && r->hi.neg)
        n.lo = r->hi, n.lo_open = r->hi_open;
    if (r->has_lo)
        n.hi = r->lo, n.has_hi = true, n.hi_open = r->lo_open;
    return n;
}

static pn_gnode schnum_bounded(pn_sch *s, const pn_sch_leaf *l, bool fractions)
{
    const pn_sch_num *r = &l->num;
    const uint32_t at = l->n_base ? l->base[0] : s->root;
    pn_gnode positive = pn_gir_never(s->g), negative = positive;
    if (!r->has_hi || !r->hi.neg) {
        const schnum_side side = schnum_positive(r);
        positive = schnum_magnitudes(s, at, r, &side, fractions);
    }
    if (!r->has_lo || r->lo.neg) {
        const schnum_side side = schnum_negative(r);
        negative = pn_gir_seq2(s->g, pn_gir_text(s->g, "-"), schnum_magnitudes(s, at, r, &side, fractions));
    }
    return pn_gir_alt2(s->g, positive, negative);
}

static pn_gnode schnum_digits(pn_sch *s, uint32_t min, uint32_t max)
{
    return pn_gir_repeat(s->g, pn_gir_byte_range(s->g, '0', '9'), min, max);
}

static pn_gnode schnum_plain_integer(pn_sch *s)
{
    pn_gir *g = s->g;
    if (s->integer == PN_GNODE_NONE) {
        const pn_gnode nonzero = pn_gir_seq2(g, pn_gir_byte_range(g, '1', '9'), schnum_digits(s, 0, SCHNUM_DIGITS - 1));
        s->integer = pn_gir_seq2(g, pn_gir_opt(g, pn_gir_text(g, "-")), pn_gir_alt2(g, pn_gir_text(g, "0"), nonzero));
    }
    return s->integer;
}

static pn_gnode schnum_plain_number(pn_sch *s)
{
    pn_gir *g = s->g;
    if (s->number == PN_GNODE_NONE) {
        const pn_gnode integer = schnum_plain_integer(s);
        const pn_gnode frac = pn_gir_seq2(g, pn_gir_text(g, "."), schnum_digits(s, 1, SCHNUM_DIGITS));
        const pn_gnode e = pn_gir_alt2(g, pn_gir_text(g, "e"), pn_gir_text(g, "E"));
        const pn_gnode sign = pn_gir_alt2(g, pn_gir_text(g, "+"), pn_gir_text(g, "-"));
        const pn_gnode exponent = pn_gir_seq3(g, e, pn_gir_opt(g, sign), schnum_digits(s, 1, 3));
        s->number = pn_gir_seq3(g, integer, pn_gir_opt(g, frac), pn_gir_opt(g, exponent));
    }
    return s->number;
}

static bool schnum_same(const pn_sch_num *a, const pn_sch_num *b)
{
    return a->has_lo == b->has_lo && a->has_hi == b->has_hi && a->mod == b->mod && a->mod_digits == b->mod_digits &&
           (!a->has_lo || (a->lo_open == b->lo_open && pn_sch_dec_cmp(&a->lo, &b->lo) == 0)) &&
           (!a->has_hi || (a->hi_open == b->hi_open && pn_sch_dec_cmp(&a->hi, &b->hi) == 0));
}

/* "minimum": 0 stands in a schema a hundred times: the last few are kept. */
static pn_gnode schnum_shared(pn_sch *s, const pn_sch_leaf *l, bool fractions)
{
    for (uint32_t i = 0; i < s->n_numbers && i < PN_SCH_NUMBERS; i++)
        if (s->numbers[i].fractions == fractions && schnum_same(&s->numbers[i].num, &l->num))
            return s->numbers[i].node;
    pn_sch_made *made = &s->numbers[s->n_numbers++ % PN_SCH_NUMBERS];
    made->num = l->num;
    made->fractions = fractions;
    made->node = schnum_bounded(s, l, fractions);
    return made->node;
}

PN_INTERNAL pn_gnode pn_sch_number(pn_sch *s, const pn_sch_leaf *l)
{
    const bool fractions = (l->types & PN_SCH_FRAC) != 0;
    if (!l->num.has_lo && !l->num.has_hi && l->num.mod == 0)
        return fractions ? schnum_plain_number(s) : schnum_plain_integer(s);
    return schnum_shared(s, l, fractions);
}
