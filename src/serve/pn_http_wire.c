/* SPDX-License-Identifier: AGPL-3.0-only */
#include "serve/pn_http_wire.h"

#include "serve/pn_http.h"

/* ------------------------------------------------------------------------------------------
 * Fields
 * ------------------------------------------------------------------------------------------ */

static const char *wire_content_length(pn_http_framing *f, pn_bytes v)
{
    uint64_t n = 0;
    for (size_t i = 0; i < v.len; i++) {
        if (v.data[i] < '0' || v.data[i] > '9')
            return "Content-Length is not a number.";
        unsigned d = (unsigned)(v.data[i] - '0');
        n = n > (UINT64_MAX - d) / 10 ? UINT64_MAX : n * 10 + d;
    }
    if (!v.len)
        return "Content-Length is empty.";
    if (f->has_length && n != f->content_length)
        return "There are two different Content-Lengths.";
    f->has_length = true;
    f->content_length = n;
    return NULL;
}

static void wire_transfer_encoding(pn_http_framing *f, pn_bytes v)
{
    pn_bytes e;
    for (size_t at = 0; pn_http_list(v, &at, &e);) {
        f->n_codings++;
        if (f->coding_chunked || !pn_http_is_token(e.data, e.len))
            f->coding_bad = true;
        f->coding_chunked = pn_http_is(e, "chunked");
        f->coding_other |= !f->coding_chunked;
    }
}

PN_INTERNAL const char *pn_http_framing_field(pn_http_framing *f, pn_bytes name, pn_bytes v)
{
    pn_bytes e;
    if (pn_http_is(name, "content-length"))
        return wire_content_length(f, v);
    if (pn_http_is(name, "transfer-encoding"))
        wire_transfer_encoding(f, v);
    if (pn_http_is(name, "connection"))
        for (size_t at = 0; pn_http_list(v, &at, &e);) {
            f->ask_close |= pn_http_is(e, "close");
            f->ask_keep |= pn_http_is(e, "keep-alive");
        }
    return NULL;
}

static bool wire_space(char c) { return c == ' ' || c == '\t'; }

PN_INTERNAL const char *pn_http_split_field(const char *s, size_t n, pn_bytes *name, pn_bytes *value)
{
    const char *colon = memchr(s, ':', n), *v = colon ? colon + 1 : s + n, *end = s + n;
    *name = (pn_bytes){s, colon ? (size_t)(colon - s) : n};
    if (wire_space(*s))
        return "A header line begins with white space (folded lines are obsolete).";
    if (colon && name->len && wire_space(colon[-1]))
        return "There is white space before the colon of a header line.";
    if (!colon || !pn_http_is_token(name->data, name->len))
        return "A header line has no valid name.";
    while (v < end && wire_space(*v))
        v++;
    while (end > v && wire_space(end[-1]))
        end--;
    *value = (pn_bytes){v, (size_t)(end - v)};
    return pn_http_is_value(v, value->len) ? NULL : "A header holds a control character.";
}

/* ------------------------------------------------------------------------------------------
 * Chunks
 * ------------------------------------------------------------------------------------------ */

#define CHUNK_DIGITS_MAX 16u            /* of a size: 64 bits */
#define CHUNK_EXTRA_MAX (16u << 10)     /* extensions of a whole body: 1-byte chunks with 1 KiB of them each are an attack */
#define CHUNK_TRAILER_MAX (8u << 10)

enum chunk_step {
    CHUNK_SIZE = 0, CHUNK_EXT_SPACE, CHUNK_EXT, CHUNK_SIZE_LF, CHUNK_DATA_CR, CHUNK_DATA_LF,
    CHUNK_TRAILER, CHUNK_TRAILER_NAME, CHUNK_TRAILER_VALUE, CHUNK_TRAILER_LF, CHUNK_LAST_LF
};

static int chunk_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The line with a size: 1*HEXDIG [ BWS ";" ... ] CRLF */
static const char *chunk_size_byte(pn_http_chunks *k, char c)
{
    int digit = chunk_hex(c);
    if (k->step == CHUNK_SIZE && digit >= 0) {
        if (++k->n_digits > CHUNK_DIGITS_MAX)
            return "The size of a chunk has too many digits.";
        k->left = k->left << 4 | (unsigned)digit;
        return NULL;
    }
    if (!k->n_digits)
        return "The size of a chunk is not a hexadecimal number.";
    bool space = wire_space(c);
    if (c == '\r' && k->step != CHUNK_EXT_SPACE)
        k->step = CHUNK_SIZE_LF;
    else if (k->step == CHUNK_EXT ? !pn_http_is_value(&c, 1) : c != ';' && !space)
        return "The line with the size of a chunk is malformed.";
    else if (++k->extra > CHUNK_EXTRA_MAX)
        return "The extensions of the chunks are longer than 16384 bytes.";
    else if (k->step != CHUNK_EXT)
        k->step = space ? CHUNK_EXT_SPACE : CHUNK_EXT;
    return NULL;
}

/* The trailer is checked as field lines are, and dropped. */
static const char *chunk_trailer_byte(pn_http_chunks *k, char c, bool *too_much)
{
    bool begin = k->step == CHUNK_TRAILER;
    *too_much = ++k->trailer > CHUNK_TRAILER_MAX;
    if (*too_much)
        return "The trailer is longer than 8192 bytes.";
    if (begin && c == '\r')
        k->step = CHUNK_LAST_LF;
    else if (k->step == CHUNK_TRAILER_VALUE && c == '\r')
        k->step = CHUNK_TRAILER_LF;
    else if (k->step == CHUNK_TRAILER_NAME && c == ':')
        k->step = CHUNK_TRAILER_VALUE;
    else if (k->step == CHUNK_TRAILER_VALUE ? !pn_http_is_value(&c, 1) : !pn_http_is_token(&c, 1))
        return "A line of the trailer is malformed.";
    else if (begin)
        k->step = CHUNK_TRAILER_NAME;
    return NULL;
}

/* The second half of a CRLF; or the first, after a chunk's data. */
static const char *chunk_end_byte(pn_http_chunks *k, char c, pn_http_chunked *now)
{
    if (c != (k->step == CHUNK_DATA_CR ? '\r' : '\n'))
        return "A line of the body does not end in CRLF.";
    switch (k->step) {
    case CHUNK_SIZE_LF:
        *now = k->left ? PN_CHUNKED_DATA : PN_CHUNKED_MORE;
        k->step = k->left ? CHUNK_DATA_CR : CHUNK_TRAILER;
        break;
    case CHUNK_DATA_CR: k->step = CHUNK_DATA_LF; break;
    case CHUNK_DATA_LF:
        k->n_digits = 0;
        k->left = 0;
        k->step = CHUNK_SIZE;
        break;
    case CHUNK_TRAILER_LF: k->step = CHUNK_TRAILER; break;
    default: *now = PN_CHUNKED_END; break;
    }
    return NULL;
}

PN_INTERNAL pn_http_chunked pn_http_chunks_byte(pn_http_chunks *k, char c, const char **message, bool *too_much)
{
    pn_http_chunked now = PN_CHUNKED_MORE;
    *too_much = false;
    switch (k->step) {
    case CHUNK_SIZE: case CHUNK_EXT_SPACE: case CHUNK_EXT: *message = chunk_size_byte(k, c); break;
    case CHUNK_TRAILER: case CHUNK_TRAILER_NAME: case CHUNK_TRAILER_VALUE: *message = chunk_trailer_byte(k, c, too_much); break;
    default: *message = chunk_end_byte(k, c, &now); break;
    }
    return *message ? PN_CHUNKED_FAULT : now;
}

#undef CHUNK_DIGITS_MAX
#undef CHUNK_EXTRA_MAX
#undef CHUNK_TRAILER_MAX
