/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_norm.c - the steps.
 *
 * Normal forms work on one character and its marks at a time (a segment): decompose, put the marks
 * into canonical order, for NFC and NFKC compose what is not blocked (UAX 15, D117).  A segment may
 * be as long as the text, all marks, so ordering is a counting sort, not a search for neighbours.
 * Hangul syllables are computed (The Unicode Standard, 3.12).
 */
#include "text/pn_norm.h"

#include "text/pn_unicode.h"

enum {
    UNORM_S = 0xAC00, UNORM_L = 0x1100, UNORM_V = 0x1161, UNORM_T = 0x11A7,
    UNORM_N_L = 19, UNORM_N_V = 21, UNORM_N_T = 28, UNORM_N_S = UNORM_N_L * UNORM_N_V * UNORM_N_T
};

PN_INTERNAL void pn_norm_init(pn_norm *nm, pn_mem *mem)
{
    *nm = (pn_norm){.mem = mem};
    pn_str_init(&nm->out.text, mem, PN_ACCT_MISC);
    pn_str_init(&nm->in.text, mem, PN_ACCT_MISC);
}

PN_INTERNAL void pn_norm_fini(pn_norm *nm)
{
    pn_str_fini(&nm->out.text);
    pn_str_fini(&nm->in.text);
    pn_mem_free(nm->mem, PN_ACCT_MISC, nm->out.src, nm->out.cap_src * sizeof *nm->out.src);
    pn_mem_free(nm->mem, PN_ACCT_MISC, nm->in.src, nm->in.cap_src * sizeof *nm->in.src);
    pn_mem_free(nm->mem, PN_ACCT_MISC, nm->seg, nm->cap_seg * sizeof *nm->seg);
    pn_mem_free(nm->mem, PN_ACCT_MISC, nm->sorted, nm->cap_sorted * sizeof *nm->sorted);
    *nm = (pn_norm){.mem = nm->mem};
}

/* Bytes to the result, all of them from `src`. */
static void unorm_put(pn_norm *nm, const char *s, size_t n, uint32_t src)
{
    pn_norm_text *o = &nm->out;
    size_t at = o->text.len;
    if (nm->track && !pn_mem_grow(nm->mem, PN_ACCT_MISC, (void **)&o->src, &o->cap_src, at + n, sizeof *o->src)) {
        o->text.failed = true;
        return;
    }
    pn_str_add(&o->text, s, n);
    for (size_t i = 0; nm->track && i < n; i++)
        o->src[at + i] = src;
}

static uint32_t unorm_src(const pn_norm *nm, size_t at) { return nm->track ? nm->in.src[at] : 0; }

/* Bytes of the input as they are. */
static void unorm_copy(pn_norm *nm, size_t at, size_t n)
{
    pn_norm_text *o = &nm->out;
    size_t to = o->text.len;
    if (nm->track && !pn_mem_grow(nm->mem, PN_ACCT_MISC, (void **)&o->src, &o->cap_src, to + n, sizeof *o->src)) {
        o->text.failed = true;
        return;
    }
    pn_str_add(&o->text, nm->in.text.data + at, n);
    if (nm->track && n)
        memcpy(o->src + to, nm->in.src + at, n * sizeof *o->src);
}

/* --- normal forms ------------------------------------------------------------------------- */

static uint8_t unorm_ccc(uint32_t cp)
{
    const pn_norm_tables *t = pn_norm_tab();
    size_t lo = 0, hi = t->n_classes;
    if (cp < t->classes[0].first)
        return 0;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t->classes[mid].last < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->n_classes && t->classes[lo].first <= cp ? t->classes[lo].ccc : 0;
}

/* The full decomposition of cp, or NULL: it has none. */
static const pn_norm_decomp *unorm_decomp(uint32_t cp, bool compat)
{
    const pn_norm_tables *t = pn_norm_tab();
    size_t lo = 0, hi = t->n_decomp;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t->decomp[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == t->n_decomp || t->decomp[lo].cp != cp)
        return NULL;
    if (compat && lo + 1 < t->n_decomp && t->decomp[lo + 1].cp == cp)
        return &t->decomp[lo + 1];
    return compat || !t->decomp[lo].compat ? &t->decomp[lo] : NULL;
}

/* What a and b compose to; 0: nothing. */
static uint32_t unorm_compose(uint32_t a, uint32_t b)
{
    const pn_norm_tables *t = pn_norm_tab();
    size_t lo = 0, hi = t->n_comp;
    if (a >= UNORM_L && a < UNORM_L + UNORM_N_L && b >= UNORM_V && b < UNORM_V + UNORM_N_V)
        return UNORM_S + ((a - UNORM_L) * UNORM_N_V + (b - UNORM_V)) * UNORM_N_T;
    if (a >= UNORM_S && a < UNORM_S + UNORM_N_S && (a - UNORM_S) % UNORM_N_T == 0 && b > UNORM_T && b < UNORM_T + UNORM_N_T)
        return a + (b - UNORM_T);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const pn_norm_comp *c = &t->comp[mid];
        if (c->a < a || (c->a == a && c->b < b))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->n_comp && t->comp[lo].a == a && t->comp[lo].b == b ? t->comp[lo].to : 0;
}

/* The marks seg[from..n_seg) into canonical order: stable, by class. */
static bool unorm_order(pn_norm *nm, size_t from)
{
    size_t n = nm->n_seg - from, start[257] = {0};
    bool done = true;
    for (size_t i = 1; i < n && done; i++)
        done = nm->seg[from + i - 1].ccc <= nm->seg[from + i].ccc;
    if (done)
        return true;
    if (!pn_mem_grow(nm->mem, PN_ACCT_MISC, (void **)&nm->sorted, &nm->cap_sorted, n, sizeof *nm->sorted))
        return false;
    for (size_t i = 0; i < n; i++)
        start[nm->seg[from + i].ccc + 1]++;
    for (size_t c = 1; c < 257; c++)
        start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++)
        nm->sorted[start[nm->seg[from + i].ccc]++] = nm->seg[from + i];
    memcpy(nm->seg + from, nm->sorted, n * sizeof *nm->seg);
    return true;
}

/* Order the segment and, if asked, compose it: seg[0] with every mark that nothing blocks. */
static bool unorm_close(pn_norm *nm, bool compose)
{
    size_t from = nm->n_seg && nm->seg[0].ccc == 0 ? 1 : 0, k = from;
    if (!unorm_order(nm, from))
        return false;
    if (!compose || !from)
        return true;
    uint8_t last = 0;                           /* class of the mark that stayed, 0: none has */
    for (size_t i = 1; i < nm->n_seg; i++) {
        pn_norm_char c = nm->seg[i];
        uint32_t to = last < c.ccc ? unorm_compose(nm->seg[0].cp, c.cp) : 0;
        if (to) {
            nm->seg[0].cp = to;
            continue;
        }
        last = c.ccc;
        nm->seg[k++] = c;
    }
    nm->n_seg = k;
    return true;
}

static void unorm_emit(pn_norm *nm)
{
    for (size_t i = 0; i < nm->n_seg; i++) {
        char utf8[4];
        unorm_put(nm, utf8, pn_utf8_encode(nm->seg[i].cp, utf8), nm->seg[i].src);
    }
    nm->n_seg = 0;
}

/* One character of a decomposition joins the segment, or ends it and begins the next. */
static bool unorm_add(pn_norm *nm, uint32_t cp, uint32_t src, bool compose)
{
    uint8_t ccc = unorm_ccc(cp);
    if (ccc == 0 && nm->n_seg) {
        if (!unorm_close(nm, compose))
            return false;
        uint32_t to = compose && nm->n_seg == 1 && nm->seg[0].ccc == 0 ? unorm_compose(nm->seg[0].cp, cp) : 0;
        if (to) {
            nm->seg[0].cp = to;
            return true;
        }
        unorm_emit(nm);
    }
    if (!pn_mem_grow(nm->mem, PN_ACCT_MISC, (void **)&nm->seg, &nm->cap_seg, nm->n_seg + 1, sizeof *nm->seg))
        return false;
    if (nm->n_seg)
        src = nm->seg[0].src;                   /* marks change places; positions must ascend */
    nm->seg[nm->n_seg++] = (pn_norm_char){cp, src, ccc};
    return true;
}

static bool unorm_add_decomposed(pn_norm *nm, uint32_t cp, uint32_t src, bool compose, bool compat)
{
    if (cp >= UNORM_S && cp < UNORM_S + UNORM_N_S) {
        uint32_t s = cp - UNORM_S, t = s % UNORM_N_T;
        return unorm_add(nm, UNORM_L + s / (UNORM_N_V * UNORM_N_T), src, compose) &&
               unorm_add(nm, UNORM_V + s / UNORM_N_T % UNORM_N_V, src, compose) &&
               (!t || unorm_add(nm, UNORM_T + t, src, compose));
    }
    const pn_norm_decomp *d = cp < 0xA0 ? NULL : unorm_decomp(cp, compat);
    if (!d)
        return unorm_add(nm, cp, src, compose);
    const uint16_t *u = pn_norm_tab()->pool + d->at;
    for (size_t i = 0; i < d->n; i++) {
        uint32_t c = u[i];
        if (c >= 0xD800 && c < 0xDC00) {
            i++;
            c = 0x10000 + ((c - 0xD800) << 10) + (u[i] - 0xDC00u);
        }
        if (!unorm_add(nm, c, src, compose))
            return false;
    }
    return true;
}

static bool unorm_form(pn_norm *nm, bool compose, bool compat)
{
    const char *s = nm->in.text.data;
    size_t n = nm->in.text.len;
    nm->n_seg = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        size_t ascii = i;
        while (ascii < n && !(s[ascii] & 0x80))         /* all but the last: a mark may follow it */
            ascii++;
        len = ascii > i ? ascii - i - (ascii < n) : 0;
        if (len) {
            if (!unorm_close(nm, compose))
                return false;
            unorm_emit(nm);
            unorm_copy(nm, i, len);
            continue;
        }
        len = pn_utf8_decode(s + i, n - i, &cp);
        if (cp == PN_UTF8_BAD && len == 1) {
            if (!unorm_close(nm, compose))
                return false;
            unorm_emit(nm);
            unorm_copy(nm, i, 1);
        } else if (!unorm_add_decomposed(nm, cp, unorm_src(nm, i), compose, compat)) {
            return false;
        }
    }
    if (!unorm_close(nm, compose))
        return false;
    unorm_emit(nm);
    return true;
}

/* --- the other steps ---------------------------------------------------------------------- */

static void unorm_lowercase(pn_norm *nm)
{
    const char *s = nm->in.text.data;
    size_t n = nm->in.text.len;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        char utf8[4];
        len = pn_utf8_decode(s + i, n - i, &cp);
        if (cp == 0x130)                        /* the one character whose lower case is two */
            unorm_put(nm, "i\xCC\x87", 3, unorm_src(nm, i));
        else if (cp == PN_UTF8_BAD || pn_uni_lower(cp) == cp)
            unorm_copy(nm, i, len);
        else
            unorm_put(nm, utf8, pn_utf8_encode(pn_uni_lower(cp), utf8), unorm_src(nm, i));
    }
}

static void unorm_strip_marks(pn_norm *nm)
{
    const char *s = nm->in.text.data;
    size_t n = nm->in.text.len;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = pn_utf8_decode(s + i, n - i, &cp);
        if (!(pn_uni_class(cp) & PN_US_M))
            unorm_copy(nm, i, len);
    }
}

static void unorm_trim(pn_norm *nm, const pn_norm_step *step)
{
    const char *s = nm->in.text.data;
    size_t n = nm->in.text.len, from = n, to = 0;       /* what lies between the outermost other characters */
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = pn_utf8_decode(s + i, n - i, &cp);
        if (pn_uni_class(cp) & PN_US_WS)
            continue;
        from = PN_MIN(from, i);
        to = i + len;
    }
    from = step->left ? from : 0;
    to = step->right ? to : n;
    if (to > from)
        unorm_copy(nm, from, to - from);
}

static void unorm_replace(pn_norm *nm, const pn_norm_step *step)
{
    const char *s = nm->in.text.data;
    size_t n = nm->in.text.len, copied = 0, k = step->from.len;
    for (size_t i = 0; k && n - i >= k;) {
        const char *p = memchr(s + i, step->from.data[0], n - i - k + 1);
        if (!p)
            break;
        i = (size_t)(p - s);
        if (memcmp(p, step->from.data, k) != 0) {
            i++;
            continue;
        }
        unorm_copy(nm, copied, i - copied);
        unorm_put(nm, step->to.data, step->to.len, unorm_src(nm, i));
        i += k;
        copied = i;
    }
    unorm_copy(nm, copied, n - copied);
}

static bool unorm_step(pn_norm *nm, const pn_norm_step *step)
{
    switch (step->kind) {
    case PN_NORM_NFC: return unorm_form(nm, true, false);
    case PN_NORM_NFD: return unorm_form(nm, false, false);
    case PN_NORM_NFKC: return unorm_form(nm, true, true);
    case PN_NORM_NFKD: return unorm_form(nm, false, true);
    case PN_NORM_LOWERCASE: unorm_lowercase(nm); break;
    case PN_NORM_STRIP_MARKS: unorm_strip_marks(nm); break;
    case PN_NORM_TRIM: unorm_trim(nm, step); break;
    case PN_NORM_REPLACE: unorm_replace(nm, step); break;
    case PN_NORM_PREPEND:
        if (nm->in.text.len)
            unorm_put(nm, step->to.data, step->to.len, unorm_src(nm, 0));
        unorm_copy(nm, 0, nm->in.text.len);
        break;
    }
    return true;
}

PN_INTERNAL bool pn_norm_run(pn_norm *nm, const pn_norm_step *steps, size_t n_steps, const char *s, size_t n, bool track)
{
    pn_norm_text *o = &nm->out;
    pn_str_clear(&o->text);
    nm->track = track;
    pn_str_add(&o->text, s, n);
    if (o->text.failed || (track && !pn_mem_grow(nm->mem, PN_ACCT_MISC, (void **)&o->src, &o->cap_src, n, sizeof *o->src)))
        return false;
    for (size_t i = 0; track && i < n; i++)
        o->src[i] = (uint32_t)i;
    for (size_t k = 0; k < n_steps && o->text.len; k++) {       /* of nothing every step makes nothing */
        pn_norm_text in = nm->out;
        nm->out = nm->in;
        nm->in = in;
        pn_str_clear(&o->text);
        if (!unorm_step(nm, &steps[k]) || o->text.failed)
            return false;
    }
    return true;
}
