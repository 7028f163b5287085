/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_pickle.c - the stack machine.
 *
 * One loop, one switch, no recursion.  The stack holds numbers of values; a MARK is a number that no
 * value has, so "not below the innermost mark" is one comparison in pickle_pop.  Containers are
 * chains of cells, because they grow after others have begun to refer to them.
 *
 * Invariants
 *   1. Each value, cell, entry of the stack and of the memo was paid for by a byte of the pickle, and
 *      there are at most PICKLE_MAX of each.
 *   2. Values refer to values that were made before them, containers also to later ones: nothing here
 *      follows such references further than one step.
 *
 * Source: Python's pickletools (the meaning of each opcode), protocol 2.
 */
#include "format/pn_pickle.h"

#include "base/pn_err.h"
#include "format/pn_safetensors.h"

#include <inttypes.h>

#define PICKLE_MAX ((size_t)1 << 23)    /* real checkpoints need some twenty values a tensor */
#define PICKLE_NAME_MAX 256u            /* bytes of a module or name */
#define PICKLE_MARK UINT32_MAX
#define PICKLE_UNSET UINT32_MAX

typedef struct pickle_vm {
    pn_pickle *p;
    const uint8_t *b;           /* p->bytes */
    size_t at, op_at;           /* next byte; where the instruction began */
    uint32_t *stack;            /* owned, [cap_stack] */
    size_t n_stack, cap_stack;
    uint32_t *memo;             /* owned, [cap_memo]; PICKLE_UNSET: nothing */
    size_t n_memo, cap_memo;
    uint64_t base;
    bool stopped;
    pn_err *err;
} pickle_vm;

/* ------------------------------------------------------------------------------------------
 * The names
 * ------------------------------------------------------------------------------------------ */

static const pn_pickle_global pickle_globals[] = {
    {"collections", "OrderedDict", PN_PICKLE_ORDERED_DICT, 0},
    {"torch._utils", "_rebuild_tensor_v2", PN_PICKLE_REBUILD_TENSOR_V2, 0},
    {"torch._utils", "_rebuild_tensor", PN_PICKLE_REBUILD_TENSOR, 0},
    {"torch._utils", "_rebuild_tensor_v3", PN_PICKLE_REBUILD_TENSOR_V3, 0},
    {"torch._utils", "_rebuild_parameter", PN_PICKLE_REBUILD_PARAMETER, 0},
    {"torch", "Size", PN_PICKLE_SIZE, 0},
    {"torch", "BFloat16Storage", PN_PICKLE_STORAGE, PN_ST_BF16},
    {"torch", "HalfStorage", PN_PICKLE_STORAGE, PN_ST_F16},
    {"torch", "FloatStorage", PN_PICKLE_STORAGE, PN_ST_F32},
    {"torch", "DoubleStorage", PN_PICKLE_STORAGE, PN_ST_F64},
    {"torch", "LongStorage", PN_PICKLE_STORAGE, PN_ST_I64},
    {"torch", "IntStorage", PN_PICKLE_STORAGE, PN_ST_I32},
    {"torch", "ShortStorage", PN_PICKLE_STORAGE, PN_ST_I16},
    {"torch", "CharStorage", PN_PICKLE_STORAGE, PN_ST_I8},
    {"torch", "ByteStorage", PN_PICKLE_STORAGE, PN_ST_U8},
    {"torch", "BoolStorage", PN_PICKLE_STORAGE, PN_ST_BOOL},
    {"torch.storage", "UntypedStorage", PN_PICKLE_UNTYPED_STORAGE, PN_ST_U8},
    {"torch", "bfloat16", PN_PICKLE_DTYPE, PN_ST_BF16},
    {"torch", "float16", PN_PICKLE_DTYPE, PN_ST_F16},
    {"torch", "float32", PN_PICKLE_DTYPE, PN_ST_F32},
    {"torch", "float64", PN_PICKLE_DTYPE, PN_ST_F64},
    {"torch", "int64", PN_PICKLE_DTYPE, PN_ST_I64},
    {"torch", "int32", PN_PICKLE_DTYPE, PN_ST_I32},
    {"torch", "int16", PN_PICKLE_DTYPE, PN_ST_I16},
    {"torch", "int8", PN_PICKLE_DTYPE, PN_ST_I8},
    {"torch", "uint8", PN_PICKLE_DTYPE, PN_ST_U8},
    {"torch", "uint16", PN_PICKLE_DTYPE, PN_ST_U16},
    {"torch", "uint32", PN_PICKLE_DTYPE, PN_ST_U32},
    {"torch", "uint64", PN_PICKLE_DTYPE, PN_ST_U64},
    {"torch", "bool", PN_PICKLE_DTYPE, PN_ST_BOOL},
    {"torch", "float8_e4m3fn", PN_PICKLE_DTYPE, PN_ST_F8_E4M3},
    {"torch", "float8_e5m2", PN_PICKLE_DTYPE, PN_ST_F8_E5M2},
    {"torch", "float8_e4m3fnuz", PN_PICKLE_DTYPE, PN_ST_F8_E4M3FNUZ},
    {"torch", "float8_e5m2fnuz", PN_PICKLE_DTYPE, PN_ST_F8_E5M2FNUZ},
    {"torch", "float8_e8m0fnu", PN_PICKLE_DTYPE, PN_ST_F8_E8M0},
};

PN_INTERNAL const pn_pickle_global *pn_pickle_global_get(uint32_t global) { return &pickle_globals[global]; }

static bool pickle_is(const uint8_t *text, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(text, name, n) == 0;
}

/* ------------------------------------------------------------------------------------------
 * Bytes, values, stack
 * ------------------------------------------------------------------------------------------ */

static pn_status pickle_fail(const pickle_vm *vm, const char *what)
{
    return pn_fail(vm->err, PN_E_FORMAT, "pickle offset %" PRIu64 ", opcode %02x: %s", vm->base + vm->op_at,
                   (unsigned)vm->b[vm->op_at], what);
}

static pn_status pickle_nomem(const pickle_vm *vm, uint64_t n, size_t size)
{
    return pn_fail_nomem(vm->err, "the pickle", n * size);
}

/* n bytes of the instruction's argument; NULL: there are fewer, the error is set. */
static const uint8_t *pickle_take(pickle_vm *vm, uint64_t n)
{
    size_t left = vm->p->size - vm->at;
    if (n > left) {
        vm->p->cut = true;
        pn_fail(vm->err, PN_E_FORMAT, "pickle offset %" PRIu64 ", opcode %02x: %" PRIu64 " bytes are needed, %zu are left",
                vm->base + vm->op_at, (unsigned)vm->b[vm->op_at], n, left);
        return NULL;
    }
    const uint8_t *bytes = vm->b + vm->at;
    vm->at += (size_t)n;
    return bytes;
}

static pn_status pickle_push(pickle_vm *vm, uint32_t v)
{
    if (vm->n_stack >= PICKLE_MAX)
        return pickle_fail(vm, "the stack is deeper than 2^23");
    if (!pn_mem_grow(vm->p->mem, PN_ACCT_MISC, (void **)&vm->stack, &vm->cap_stack, vm->n_stack + 1, sizeof *vm->stack))
        return pickle_nomem(vm, vm->n_stack + 1, sizeof *vm->stack);
    vm->stack[vm->n_stack++] = v;
    return PN_OK;
}

static pn_status pickle_pop(pickle_vm *vm, uint32_t *v)
{
    if (vm->n_stack == 0 || vm->stack[vm->n_stack - 1] == PICKLE_MARK)
        return pickle_fail(vm, "stack underflow");
    *v = vm->stack[--vm->n_stack];
    return PN_OK;
}

/* The top, which stays; the error is set when there is none. */
static pn_status pickle_top(pickle_vm *vm, uint32_t *v)
{
    pn_status st = pickle_pop(vm, v);
    if (!st)
        vm->n_stack++;
    return st;
}

/* Where what lies above the innermost mark begins; PN_E_FORMAT: there is no mark. */
static pn_status pickle_mark(pickle_vm *vm, size_t *first)
{
    size_t i = vm->n_stack;
    while (i > 0 && vm->stack[i - 1] != PICKLE_MARK)
        i--;
    *first = i;
    return i > 0 ? PN_OK : pickle_fail(vm, "stack underflow: no MARK");
}

static pn_status pickle_new(pickle_vm *vm, pn_pickle_value value, uint32_t *v)
{
    pn_pickle *p = vm->p;
    if (p->n_values >= PICKLE_MAX)
        return pickle_fail(vm, "there are more than 2^23 values");
    if (!pn_mem_grow(p->mem, PN_ACCT_MISC, (void **)&p->values, &p->cap_values, p->n_values + 1, sizeof value))
        return pickle_nomem(vm, p->n_values + 1, sizeof value);
    *v = (uint32_t)p->n_values;
    p->values[p->n_values++] = value;
    return PN_OK;
}

static pn_status pickle_push_new(pickle_vm *vm, pn_pickle_value value)
{
    uint32_t v = PICKLE_UNSET;
    pn_status st = pickle_new(vm, value, &v);
    return st ? st : pickle_push(vm, v);
}

static pn_pickle_value pickle_container(pn_pickle_kind kind)
{
    return (pn_pickle_value){.kind = (uint8_t)kind, .u.at = {PN_PICKLE_NIL, PN_PICKLE_NIL}};
}

static pn_pickle_value pickle_int(int64_t i) { return (pn_pickle_value){.kind = PN_PICKLE_INT, .u.i = i}; }

/* Append to the container `to`. */
static pn_status pickle_add(pickle_vm *vm, uint32_t to, uint32_t key, uint32_t value)
{
    pn_pickle *p = vm->p;
    if (p->n_cells >= PICKLE_MAX)
        return pickle_fail(vm, "there are more than 2^23 items");
    if (!pn_mem_grow(p->mem, PN_ACCT_MISC, (void **)&p->cells, &p->cap_cells, p->n_cells + 1, sizeof *p->cells))
        return pickle_nomem(vm, p->n_cells + 1, sizeof *p->cells);
    uint32_t cell = (uint32_t)p->n_cells++;
    p->cells[cell] = (pn_pickle_cell){key, value, PN_PICKLE_NIL};
    pn_pickle_value *c = &p->values[to];
    if (c->u.at.first == PN_PICKLE_NIL)
        c->u.at.first = cell;
    else
        p->cells[c->u.at.last].next = cell;
    c->u.at.last = cell;
    c->n++;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Instructions
 * ------------------------------------------------------------------------------------------ */

/* The top n values as a tuple in their place. */
static pn_status pickle_tuple(pickle_vm *vm, size_t n)
{
    uint32_t tuple, v;
    pn_status st = pickle_new(vm, pickle_container(PN_PICKLE_TUPLE), &tuple);
    size_t first = vm->n_stack - PN_MIN(n, vm->n_stack);
    for (size_t i = 0; i < n && !st; i++)
        st = pickle_pop(vm, &v);
    for (size_t i = 0; i < n && !st; i++)
        st = pickle_add(vm, tuple, PN_PICKLE_NIL, vm->stack[first + i]);
    return st ? st : pickle_push(vm, tuple);
}

static pn_status pickle_tuple_mark(pickle_vm *vm)
{
    size_t first;
    pn_status st = pickle_mark(vm, &first);
    if (!st)
        st = pickle_tuple(vm, vm->n_stack - first);
    if (st)
        return st;
    vm->stack[vm->n_stack - 2] = vm->stack[vm->n_stack - 1];   /* over the mark */
    vm->n_stack--;
    return PN_OK;
}

/* The items stack[first..) go into the container below them (and the mark, if there is one). */
static pn_status pickle_fill(pickle_vm *vm, size_t first, size_t mark, pn_pickle_kind kind)
{
    size_t items = vm->n_stack - first, step = kind == PN_PICKLE_DICT ? 2 : 1;
    if (first <= mark || vm->stack[first - mark - 1] == PICKLE_MARK)
        return pickle_fail(vm, "stack underflow: no container");
    uint32_t to = vm->stack[first - mark - 1];
    if (vm->p->values[to].kind != kind)
        return pickle_fail(vm, kind == PN_PICKLE_DICT ? "expected a dictionary to put items into" : "expected a list to append to");
    if (items % step != 0)
        return pickle_fail(vm, "a key without a value");
    pn_status st = PN_OK;
    for (size_t i = first; i < vm->n_stack && !st; i += step)
        st = step == 2 ? pickle_add(vm, to, vm->stack[i], vm->stack[i + 1]) : pickle_add(vm, to, PN_PICKLE_NIL, vm->stack[i]);
    vm->n_stack = first - mark;
    return st;
}

static pn_status pickle_fill_some(pickle_vm *vm, size_t n, pn_pickle_kind kind)
{
    for (size_t i = 0; i < n; i++)
        if (vm->n_stack < i + 1 || vm->stack[vm->n_stack - 1 - i] == PICKLE_MARK)
            return pickle_fail(vm, "stack underflow");
    return pickle_fill(vm, vm->n_stack - n, 0, kind);
}

static pn_status pickle_fill_mark(pickle_vm *vm, pn_pickle_kind kind)
{
    size_t first;
    pn_status st = pickle_mark(vm, &first);
    return st ? st : pickle_fill(vm, first, 1, kind);
}

/* One line of a GLOBAL. */
static pn_status pickle_line(pickle_vm *vm, const uint8_t **text, size_t *n)
{
    size_t left = vm->p->size - vm->at;
    const uint8_t *start = vm->b + vm->at;
    const uint8_t *end = memchr(start, '\n', PN_MIN(left, (size_t)PICKLE_NAME_MAX + 1));
    if (!end) {
        vm->p->cut = left <= PICKLE_NAME_MAX;
        return pickle_fail(vm, "expected the name of a global in a line of at most 256 bytes");
    }
    *text = start;
    *n = (size_t)(end - start);
    vm->at += *n + 1;
    return PN_OK;
}

static pn_status pickle_global(pickle_vm *vm)
{
    const uint8_t *module = NULL, *name = NULL;
    size_t n_module = 0, n_name = 0;
    pn_status st = pickle_line(vm, &module, &n_module);
    if (!st)
        st = pickle_line(vm, &name, &n_name);
    if (st)
        return st;
    for (uint32_t i = 0; i < PN_COUNT_OF(pickle_globals); i++)
        if (pickle_is(module, n_module, pickle_globals[i].module) && pickle_is(name, n_name, pickle_globals[i].name))
            return pickle_push_new(vm, (pn_pickle_value){.kind = PN_PICKLE_GLOBAL, .global = (uint8_t)i});
    return pn_fail(vm->err, PN_E_UNSUPPORTED, "pickle offset %" PRIu64 ": global '%s.%s' is not one that tensors need: refused, "
                   "nothing was run (expected a state_dict of tensors)", vm->base + vm->op_at,
                   pn_show((const char *)module, n_module).s, pn_show((const char *)name, n_name).s);
}

/* OrderedDict(), or OrderedDict([(key, value), ...]) as Python 2 wrote it. */
static pn_status pickle_ordered(pickle_vm *vm, uint32_t args)
{
    const pn_pickle *p = vm->p;
    uint32_t dict, pairs = pn_pickle_item(p, args, 0);
    if (p->values[args].n > 1 || (p->values[args].n == 1 && !pn_pickle_as(p, pairs, PN_PICKLE_LIST)))
        return pickle_fail(vm, "expected nothing or one list of pairs as arguments of OrderedDict");
    pn_status st = pickle_new(vm, pickle_container(PN_PICKLE_DICT), &dict);
    /* The list may be given again and again, but each of its items costs a cell, and there are so many. */
    for (uint32_t c = p->values[args].n ? p->values[pairs].u.at.first : PN_PICKLE_NIL; c != PN_PICKLE_NIL && !st; c = p->cells[c].next) {
        uint32_t pair = p->cells[c].value;
        if ((!pn_pickle_as(p, pair, PN_PICKLE_TUPLE) && !pn_pickle_as(p, pair, PN_PICKLE_LIST)) || p->values[pair].n != 2)
            return pickle_fail(vm, "expected pairs as items of OrderedDict");
        st = pickle_add(vm, dict, pn_pickle_item(p, pair, 0), pn_pickle_item(p, pair, 1));
    }
    return st ? st : pickle_push(vm, dict);
}

/* Call the global `f` with a tuple of arguments: a note, a new dictionary, or one of the arguments. */
static pn_status pickle_call(pickle_vm *vm, uint32_t f, uint32_t args)
{
    const pn_pickle *p = vm->p;
    const pn_pickle_value *callee = pn_pickle_as(p, f, PN_PICKLE_GLOBAL);
    if (!callee || !pn_pickle_as(p, args, PN_PICKLE_TUPLE))
        return pickle_fail(vm, "expected a global and a tuple of arguments");
    uint32_t first = pn_pickle_item(p, args, 0), global = callee->global;
    switch (pickle_globals[global].role) {
    case PN_PICKLE_ORDERED_DICT:
        return pickle_ordered(vm, args);
    case PN_PICKLE_SIZE:
        if (p->values[args].n != 1 || !pn_pickle_as(p, first, PN_PICKLE_TUPLE))
            return pickle_fail(vm, "expected one tuple as argument of Size");
        return pickle_push(vm, first);
    case PN_PICKLE_REBUILD_PARAMETER:
        if (p->values[args].n < 1 || !pn_pickle_as(p, first, PN_PICKLE_CALL))
            return pickle_fail(vm, "expected a tensor as first argument of _rebuild_parameter");
        return pickle_push(vm, first);
    case PN_PICKLE_REBUILD_TENSOR: case PN_PICKLE_REBUILD_TENSOR_V2: case PN_PICKLE_REBUILD_TENSOR_V3:
        return pickle_push_new(vm, (pn_pickle_value){.kind = PN_PICKLE_CALL, .global = (uint8_t)global, .u.at = {args, 0}});
    default:
        return pn_fail(vm->err, PN_E_FORMAT, "pickle offset %" PRIu64 ": '%s' is not a function", vm->base + vm->op_at,
                       pickle_globals[global].name);
    }
}

static pn_status pickle_reduce(pickle_vm *vm, bool new_object)
{
    uint32_t f = 0, args = 0;
    pn_status st = pickle_pop(vm, &args);
    if (!st)
        st = pickle_pop(vm, &f);
    if (st)
        return st;
    const pn_pickle_value *callee = pn_pickle_as(vm->p, f, PN_PICKLE_GLOBAL);
    if (new_object && (!callee || pickle_globals[callee->global].role != PN_PICKLE_ORDERED_DICT))
        return pickle_fail(vm, "expected OrderedDict as the class of a new object");
    return pickle_call(vm, f, args);
}

/* Attributes of a dictionary (_metadata of a state_dict): of no use here. */
static pn_status pickle_build(pickle_vm *vm)
{
    uint32_t state = 0, object = 0;
    pn_status st = pickle_pop(vm, &state);
    if (!st)
        st = pickle_top(vm, &object);
    if (!st && !pn_pickle_as(vm->p, object, PN_PICKLE_DICT))
        st = pickle_fail(vm, "expected an OrderedDict to set attributes of");
    return st;
}

static pn_status pickle_persid(pickle_vm *vm)
{
    uint32_t id = 0;
    pn_status st = pickle_pop(vm, &id);
    return st ? st : pickle_push_new(vm, (pn_pickle_value){.kind = PN_PICKLE_PERSID, .u.at = {id, 0}});
}

static pn_status pickle_string(pickle_vm *vm, uint64_t n)
{
    uint32_t offset = (uint32_t)vm->at;         /* size < 2^32 */
    if (!pickle_take(vm, n))
        return PN_E_FORMAT;
    return pickle_push_new(vm, (pn_pickle_value){.kind = PN_PICKLE_STR, .n = (uint32_t)n, .u.at = {offset, 0}});
}

/* LONG1: two's complement, up to 8 bytes. */
static pn_status pickle_long(pickle_vm *vm, uint32_t n)
{
    const uint8_t *b = n <= 8 ? pickle_take(vm, n) : NULL;
    uint64_t v = 0;
    if (n > 8)
        return pickle_fail(vm, "an integer of more than 8 bytes");
    if (!b)
        return PN_E_FORMAT;
    if (n && b[n - 1] & 0x80)
        v = UINT64_MAX;
    for (uint32_t i = n; i-- > 0;)
        v = v << 8 | b[i];
    return pickle_push_new(vm, pickle_int(v > INT64_MAX ? -(int64_t)~v - 1 : (int64_t)v));
}

static pn_status pickle_float(pickle_vm *vm, const uint8_t *b)
{
    uint64_t bits = 0;
    pn_pickle_value v = {.kind = PN_PICKLE_FLOAT};
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | b[i];
    memcpy(&v.u.f, &bits, sizeof bits);
    return pickle_push_new(vm, v);
}

static pn_status pickle_put(pickle_vm *vm, uint32_t index)
{
    uint32_t v = 0;
    pn_status st = pickle_top(vm, &v);
    if (st)
        return st;
    if (index > vm->at || index >= PICKLE_MAX)          /* writers count up from 0 */
        return pickle_fail(vm, "the number of a memo is larger than the bytes so far");
    if (!pn_mem_grow(vm->p->mem, PN_ACCT_MISC, (void **)&vm->memo, &vm->cap_memo, (size_t)index + 1, sizeof *vm->memo))
        return pickle_nomem(vm, (uint64_t)index + 1, sizeof *vm->memo);
    while (vm->n_memo <= index)
        vm->memo[vm->n_memo++] = PICKLE_UNSET;
    vm->memo[index] = v;
    return PN_OK;
}

static pn_status pickle_get(pickle_vm *vm, uint32_t index)
{
    if (index >= vm->n_memo || vm->memo[index] == PICKLE_UNSET)
        return pn_fail(vm->err, PN_E_FORMAT, "pickle offset %" PRIu64 ": memo %" PRIu32 " was never set", vm->base + vm->op_at, index);
    return pickle_push(vm, vm->memo[index]);
}

static pn_status pickle_proto(pickle_vm *vm, uint32_t version)
{
    if (version == 2)
        return PN_OK;
    return pn_fail(vm->err, PN_E_UNSUPPORTED, "pickle offset %" PRIu64 ": protocol %" PRIu32 ", expected 2, which torch.save writes",
                   vm->base + vm->op_at, version);
}

static pn_status pickle_stop(pickle_vm *vm)
{
    if (vm->n_stack != 1 || vm->stack[0] == PICKLE_MARK)
        return pn_fail(vm->err, PN_E_FORMAT, "pickle offset %" PRIu64 ": expected one object on the stack at the end, found %zu",
                       vm->base + vm->op_at, vm->n_stack);
    vm->p->root = vm->stack[0];
    vm->stopped = true;
    return PN_OK;
}

/* Bytes of the fixed part of an instruction's argument. */
static uint32_t pickle_operand(uint8_t op)
{
    switch (op) {
    case 0x80: case 'K': case 0x8A: case 'U': case 'q': case 'h': return 1;
    case 'M': return 2;
    case 'J': case 'X': case 'r': case 'j': return 4;
    case 'G': return 8;
    default: return 0;
    }
}

static pn_status pickle_step(pickle_vm *vm)
{
    vm->op_at = vm->at++;
    uint8_t op = vm->b[vm->op_at];
    const uint8_t *arg = pickle_take(vm, pickle_operand(op));
    if (!arg)
        return PN_E_FORMAT;
    switch (op) {
    case 0x80: return pickle_proto(vm, arg[0]);
    case '(': return pickle_push(vm, PICKLE_MARK);
    case ')': return pickle_tuple(vm, 0);
    case 0x85: case 0x86: case 0x87: return pickle_tuple(vm, op - 0x84u);
    case 't': return pickle_tuple_mark(vm);
    case ']': case 0x8F: return pickle_push_new(vm, pickle_container(PN_PICKLE_LIST));
    case 'a': return pickle_fill_some(vm, 1, PN_PICKLE_LIST);
    case 'e': return pickle_fill_mark(vm, PN_PICKLE_LIST);
    case '}': return pickle_push_new(vm, pickle_container(PN_PICKLE_DICT));
    case 's': return pickle_fill_some(vm, 2, PN_PICKLE_DICT);
    case 'u': return pickle_fill_mark(vm, PN_PICKLE_DICT);
    case 'N': return pickle_push_new(vm, (pn_pickle_value){.kind = PN_PICKLE_NONE});
    case 0x88: case 0x89: return pickle_push_new(vm, (pn_pickle_value){.kind = PN_PICKLE_BOOL, .u.i = op == 0x88});
    case 'K': return pickle_push_new(vm, pickle_int(arg[0]));
    case 'M': return pickle_push_new(vm, pickle_int(pn_le16(arg)));
    case 'J': return pickle_push_new(vm, pickle_int((int64_t)(pn_le32(arg) ^ 0x80000000u) - 0x80000000LL));
    case 0x8A: return pickle_long(vm, arg[0]);
    case 'G': return pickle_float(vm, arg);
    case 'X': return pickle_string(vm, pn_le32(arg));
    case 'U': return pickle_string(vm, arg[0]);
    case 'c': return pickle_global(vm);
    case 'R': return pickle_reduce(vm, false);
    case 0x81: return pickle_reduce(vm, true);
    case 'b': return pickle_build(vm);
    case 'Q': return pickle_persid(vm);
    case 'q': return pickle_put(vm, arg[0]);
    case 'r': return pickle_put(vm, pn_le32(arg));
    case 'h': return pickle_get(vm, arg[0]);
    case 'j': return pickle_get(vm, pn_le32(arg));
    case '.': return pickle_stop(vm);
    default: return pickle_fail(vm, "this instruction is not one that tensors need");
    }
}

/* ------------------------------------------------------------------------------------------
 * All of it, and looking around
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_pickle_read(pn_pickle *p, pn_mem *mem, const uint8_t *bytes, size_t size, uint64_t base, pn_err *err)
{
    *p = (pn_pickle){.mem = mem, .bytes = bytes, .size = size};
    pickle_vm vm = {.p = p, .b = bytes, .base = base, .err = err};
    pn_status st = PN_OK;
    if (size > UINT32_MAX - 1)
        return pn_fail(err, PN_E_FORMAT, "a pickle of %zu bytes is too long", size);
    if (size < 2 || bytes[0] != 0x80) {
        p->cut = size < 2;
        st = pn_fail(err, PN_E_FORMAT, "pickle offset %" PRIu64 ": expected 80 02, the start of a pickle", base);
    }
    while (!st && !vm.stopped) {
        if (vm.at == size) {
            p->cut = true;
            st = pn_fail(err, PN_E_FORMAT, "pickle offset %" PRIu64 ": the bytes end before STOP", base + size);
        } else {
            st = pickle_step(&vm);
        }
    }
    pn_mem_free(mem, PN_ACCT_MISC, vm.stack, vm.cap_stack * sizeof *vm.stack);
    pn_mem_free(mem, PN_ACCT_MISC, vm.memo, vm.cap_memo * sizeof *vm.memo);
    p->used = vm.at;
    if (st) {
        bool cut = p->cut;
        pn_pickle_fini(p);
        p->cut = cut;
    }
    return st;
}

PN_INTERNAL void pn_pickle_fini(pn_pickle *p)
{
    if (p->mem) {
        pn_mem_free(p->mem, PN_ACCT_MISC, p->values, p->cap_values * sizeof *p->values);
        pn_mem_free(p->mem, PN_ACCT_MISC, p->cells, p->cap_cells * sizeof *p->cells);
    }
    *p = (pn_pickle){0};
}

PN_INTERNAL const pn_pickle_value *pn_pickle_as(const pn_pickle *p, uint32_t v, pn_pickle_kind kind)
{
    return v < p->n_values && p->values[v].kind == kind ? &p->values[v] : NULL;
}

PN_INTERNAL uint32_t pn_pickle_item(const pn_pickle *p, uint32_t v, uint32_t i)
{
    const pn_pickle_value *c = v < p->n_values ? &p->values[v] : NULL;
    if (!c || (c->kind != PN_PICKLE_TUPLE && c->kind != PN_PICKLE_LIST) || i >= c->n)
        return PN_PICKLE_NIL;
    uint32_t cell = c->u.at.first;
    while (i-- > 0)
        cell = p->cells[cell].next;
    return p->cells[cell].value;
}

PN_INTERNAL bool pn_pickle_str(const pn_pickle *p, uint32_t v, pn_bytes *out)
{
    const pn_pickle_value *s = pn_pickle_as(p, v, PN_PICKLE_STR);
    if (s)
        *out = (pn_bytes){(const char *)p->bytes + s->u.at.first, s->n};
    return s != NULL;
}

PN_INTERNAL const char *pn_pickle_kind_name(const pn_pickle *p, uint32_t v)
{
    static const char *const names[] = {"None", "a boolean", "an integer", "a float", "a string", "a tuple", "a list",
                                        "a dictionary", "a class", "a tensor", "a storage"};
    return v < p->n_values ? names[p->values[v].kind] : "nothing";
}

#undef PICKLE_MAX
#undef PICKLE_NAME_MAX
#undef PICKLE_MARK
#undef PICKLE_UNSET
