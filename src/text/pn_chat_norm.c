/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_chat_norm.c - probing templates, and rewriting messages to what they can do.
 *
 * Probes are decided by sentinels: render a conversation whose interesting text occurs nowhere else
 * and look whether it comes out, and how.  Raising counts as "cannot".
 *
 * Rewriting goes through a list of norm_msg, views of the request with text of our own where something
 * changes.  The order of the steps matters:
 *   read      roles, content, reasoning, calls, results            (norm_read)
 *   system    leading ones merge, later ones become user messages  (norm_systems)
 *   calls     several in one message are split                     (norm_split)
 *   users     neighbours merge where the template wants turns      (norm_users)
 *   write     JSON, with ids and arguments as the template has them
 */
#include "text/pn_chat_norm.h"

#include "base/pn_err.h"
#include "base/pn_hash.h"

#include <stdio.h>

/* ------------------------------------------------------------------------------------------
 * Probes
 * ------------------------------------------------------------------------------------------ */

typedef struct norm_probe {
    const pn_tpl *t;
    pn_mem *mem;
    pn_prompt prompt;           /* of the last probe */
    pn_err *err;
    pn_status st;               /* PN_E_NOMEM stops everything */
} norm_probe;

/* Render "messages":[...] and whatever follows; false: it raised. */
static bool norm_try(norm_probe *p, const char *messages, const char *more)
{
    pn_json_doc vars;
    pn_str s;
    pn_err err = {PN_OK, {0}};
    /* A dozen probes of small conversations: together they cost a hostile template one rendering. */
    const pn_tpl_limits limits = {.max_steps = 200000, .max_ms = 1000, .max_memory = 8 << 20, .now = 1735787045};
    if (p->st)
        return false;
    pn_str_init(&s, p->mem, PN_ACCT_MISC);
    pn_str_addf(&s, "{\"bos_token\":\"\",\"eos_token\":\"\",\"messages\":[%s]%s}", messages, more);
    pn_status st = s.failed ? pn_fail_nomem(&err, "a probe", strlen(messages))
                            : pn_json_parse(&vars, p->mem, PN_ACCT_MISC, s.data, s.len, NULL, &err);
    if (!st) {
        st = pn_tpl_render(p->t, p->mem, &vars, &limits, &p->prompt, &err);
        pn_json_fini(&vars);
    }
    pn_str_fini(&s);
    if (st == PN_E_NOMEM)
        p->st = pn_fail(p->err, st, "%s", err.text);
    return !st;
}

static bool norm_text_has(const char *text, size_t len, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= len; i++)
        if (text[i] == what[0] && memcmp(text + i, what, n) == 0)
            return true;
    return false;
}

static bool norm_has(const norm_probe *p, const char *what)
{
    return norm_text_has(pn_str_cstr(&p->prompt.text), p->prompt.text.len, what);
}

static bool norm_shows(norm_probe *p, const char *messages, const char *more, const char *what)
{
    return norm_try(p, messages, more) && norm_has(p, what);
}

#define NORM_USER "{\"role\":\"user\",\"content\":\"ask-zq\"}"
#define NORM_GEN ",\"add_generation_prompt\":true"
#define NORM_TOOLS ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"fn-zq\",\"description\":\"d\"," \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"arg-zq\":{\"type\":\"string\",\"description\":\"d\"}}}}}]"
#define NORM_CALL(id, name, args) \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":" args "}}"
#define NORM_CALLS(list) NORM_USER ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" list "]}"
#define NORM_RESULT(id) ",{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"name\":\"fn-zq\",\"content\":\"res-zq\"}"
#define NORM_OBJECT "{\"arg-zq\":\"val-zq\"}"
#define NORM_STRING "\"{\\\"arg-zq\\\":\\\"val-zq\\\"}\""
#define NORM_OBJECT2 "{\"arg-zq\":\"vam-zq\"}"       /* of a second call; some templates print ids instead of names */
#define NORM_STRING2 "\"{\\\"arg-zq\\\":\\\"vam-zq\\\"}\""

static void norm_probe_content(norm_probe *p, pn_tpl_caps *c)
{
    c->string_content = norm_shows(p, NORM_USER, NORM_GEN, "ask-zq");
    c->typed_content = norm_shows(p, "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"ask-zq\"}]}", NORM_GEN, "ask-zq") &&
                       !norm_has(p, "'type'") && !norm_has(p, "\"type\"");
    const char *system = c->string_content || !c->typed_content
                             ? "{\"role\":\"system\",\"content\":\"sys-zq\"}," NORM_USER
                             : "{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"sys-zq\"}]},"
                               "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"ask-zq\"}]}";
    c->system_role = norm_shows(p, system, NORM_GEN, "sys-zq");
    c->later_system = norm_shows(p, NORM_USER ",{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"sys-zq\"},"
                                 NORM_USER, NORM_GEN, "sys-zq");
    c->two_users = norm_shows(p, NORM_USER ",{\"role\":\"user\",\"content\":\"two-zq\"}", NORM_GEN, "two-zq") && norm_has(p, "ask-zq");
}

static bool norm_probe_args(norm_probe *p, bool object)
{
    const char *messages = object ? NORM_CALLS(NORM_CALL("abcdef123", "fn-zq", NORM_OBJECT)) NORM_RESULT("abcdef123")
                                  : NORM_CALLS(NORM_CALL("abcdef123", "fn-zq", NORM_STRING)) NORM_RESULT("abcdef123");
    if (!norm_shows(p, messages, NORM_TOOLS NORM_GEN, "val-zq"))
        return false;
    return object ? !norm_has(p, "{'arg-zq'") : !norm_has(p, "\\\"val-zq");
}

static void norm_probe_tools(norm_probe *p, pn_tpl_caps *c)
{
    c->tools = norm_shows(p, NORM_USER, NORM_TOOLS NORM_GEN, "fn-zq");
    c->object_args = norm_probe_args(p, true);
    c->tool_role = c->object_args && norm_has(p, "res-zq");
    c->tool_calls = c->object_args || norm_probe_args(p, false);
    c->tool_role = c->tool_role || (!c->object_args && c->tool_calls && norm_has(p, "res-zq"));
    if (!c->tool_calls)
        return;
    const char *two = c->object_args ? NORM_CALLS(NORM_CALL("abcdef123", "fn-zq", NORM_OBJECT) "," NORM_CALL("abcdef124", "fm-zq", NORM_OBJECT2))
                                           NORM_RESULT("abcdef123") NORM_RESULT("abcdef124")
                                     : NORM_CALLS(NORM_CALL("abcdef123", "fn-zq", NORM_STRING) "," NORM_CALL("abcdef124", "fm-zq", NORM_STRING2))
                                           NORM_RESULT("abcdef123") NORM_RESULT("abcdef124");
    c->parallel_calls = norm_shows(p, two, NORM_TOOLS NORM_GEN, "vam-zq");
    const char *long_id = c->object_args ? NORM_CALLS(NORM_CALL("call_0123456789", "fn-zq", NORM_OBJECT)) NORM_RESULT("call_0123456789")
                                         : NORM_CALLS(NORM_CALL("call_0123456789", "fn-zq", NORM_STRING)) NORM_RESULT("call_0123456789");
    c->short_ids = !norm_try(p, long_id, NORM_TOOLS NORM_GEN);
}

static void norm_probe_thinking(norm_probe *p, pn_tpl_caps *c)
{
    static const char keep[] = ",\"preserve_thinking\":true,\"clear_thinking\":false,\"truncate_history_thinking\":false,"
                               "\"drop_thinking\":false,\"keep_past_thinking\":true,\"enable_thinking\":true,\"thinking\":true";
    c->reasoning = norm_shows(p, NORM_USER ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"rea-zq\","
                              "\"thinking\":\"rea-zq\"}," NORM_USER, keep, "rea-zq");
    c->thinking_parts = !c->reasoning &&
        norm_shows(p, NORM_USER ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"rea-zq\"},"
                   "{\"type\":\"text\",\"text\":\"a\"}]}," NORM_USER, keep, "rea-zq") && !norm_has(p, "'thinking'");
    c->reasoning_effort = pn_tpl_mentions(p->t, "reasoning_effort");
    uint64_t with = 0, without = 0, bare = 0;
    if (norm_try(p, NORM_USER, NORM_GEN ",\"enable_thinking\":true,\"thinking\":true"))
        with = pn_hash(pn_str_cstr(&p->prompt.text), p->prompt.text.len, 1);
    if (norm_try(p, NORM_USER, NORM_GEN ",\"enable_thinking\":false,\"thinking\":false"))
        without = pn_hash(pn_str_cstr(&p->prompt.text), p->prompt.text.len, 1);
    c->thinking_toggle = with && without && with != without;
    if (norm_try(p, NORM_USER, ",\"add_generation_prompt\":false,\"enable_thinking\":true,\"thinking\":true"))
        bare = pn_hash(pn_str_cstr(&p->prompt.text), p->prompt.text.len, 1);
    c->generation_prompt = with && bare && with != bare;
}

PN_INTERNAL pn_status pn_tpl_probe(const pn_tpl *t, pn_mem *mem, pn_tpl_caps *out, pn_err *err)
{
    norm_probe p;
    pn_tpl_caps c;
    memset(&c, 0, sizeof c);
    memset(&p, 0, sizeof p);
    p.t = t;
    p.mem = mem;
    p.err = err;
    pn_prompt_init(&p.prompt, mem);
    norm_probe_content(&p, &c);
    norm_probe_tools(&p, &c);
    norm_probe_thinking(&p, &c);
    pn_prompt_fini(&p.prompt);
    pn_bytes src = pn_tpl_source(t);
    c.harmony = norm_text_has(src.data, src.len, "<|channel|>") && norm_text_has(src.data, src.len, "<|start|>");
    c.developer = c.harmony || norm_text_has(src.data, src.len, "developer");
    c.kimi_ids = norm_text_has(src.data, src.len, "<|tool_calls_section_begin|>");
    c.fold_results = norm_text_has(src.data, src.len, "tool_responses") && !norm_text_has(src.data, src.len, "OpenAI Chat Completions");
    c.order_results = norm_text_has(src.data, src.len, "DSML");
    if (!p.st)
        *out = c;
    return p.st;
}

/* ------------------------------------------------------------------------------------------
 * Reading
 * ------------------------------------------------------------------------------------------ */

typedef enum norm_role { NORM_SYSTEM, NORM_USER_ROLE, NORM_ASSISTANT, NORM_TOOL, NORM_DEVELOPER, NORM_OTHER } norm_role;
static const char *const norm_roles[] = {"system", "user", "assistant", "tool", "developer"};

typedef struct norm_msg {
    norm_role role;
    pn_bytes other;             /* the role's name when NORM_OTHER */
    pn_str text;                /* content, when parts is PN_JSON_NONE */
    uint32_t parts;             /* content as the client's array: has what is not text */
    pn_bytes reasoning;         /* borrowed from the request; NULL: none */
    uint32_t first_call, n_calls;   /* nodes of the request, siblings */
    pn_bytes id, name;          /* of a result; NULL: none */
    bool dropped;
} norm_msg;

typedef struct norm_id { pn_bytes client; char ours[80]; size_t len; pn_bytes name; } norm_id;

typedef struct norm_work {
    const pn_tpl_caps *caps;
    pn_mem *mem;
    const pn_json_doc *in;
    norm_msg *msgs;             /* owned [cap] */
    size_t n, cap;
    norm_id *ids;               /* owned [cap_ids]: every call of the conversation */
    size_t n_ids, cap_ids;
    pn_err *err;
    pn_status st;
} norm_work;

static bool norm_is(pn_bytes b, const char *z) { return b.len == strlen(z) && memcmp(b.data, z, b.len) == 0; }

static pn_bytes norm_string(const norm_work *w, uint32_t node, const char *key)
{
    pn_bytes b = {NULL, 0};
    pn_json_str(w->in, pn_json_get(w->in, node, key), &b);
    return b;
}

static void norm_nomem(norm_work *w, size_t n)
{
    if (!w->st)
        w->st = pn_fail_nomem(w->err, "the messages of a request", n);
}

static norm_msg *norm_add(norm_work *w, norm_role role)
{
    if (w->st || !pn_mem_grow(w->mem, PN_ACCT_MISC, (void **)&w->msgs, &w->cap, w->n + 1, sizeof *w->msgs)) {
        norm_nomem(w, sizeof *w->msgs);
        return NULL;
    }
    norm_msg *m = &w->msgs[w->n++];
    memset(m, 0, sizeof *m);
    m->role = role;
    m->parts = PN_JSON_NONE;
    m->first_call = PN_JSON_NONE;
    pn_str_init(&m->text, w->mem, PN_ACCT_MISC);
    return m;
}

/* Parts to text, joined by newlines; what is not text keeps the array as it is.  A thinking part is
 * reasoning. */
static void norm_read_parts(norm_work *w, norm_msg *m, uint32_t parts, size_t index)
{
    bool first = true;
    for (uint32_t p = pn_json_first(w->in, parts); p != PN_JSON_NONE && !w->st; p = pn_json_next(w->in, p)) {
        pn_bytes type = norm_string(w, p, "type"), text = {NULL, 0};
        if (pn_json_str(w->in, p, &text) || norm_is(type, "text") || norm_is(type, "refusal")) {
            if (!text.data)
                text = norm_string(w, p, norm_is(type, "text") ? "text" : "refusal");
        } else if (norm_is(type, "thinking")) {
            m->reasoning = norm_string(w, p, "thinking");
            continue;
        }
        if (!text.data && w->caps->typed_content) {
            m->parts = parts;
            return;
        }
        if (!text.data) {
            w->st = pn_fail(w->err, PN_E_INVALID, "messages[%zu]: expected parts of type text, found \"%.*s\", which this model's "
                            "template cannot show", index, (int)PN_MIN(type.len, (size_t)40), type.data ? type.data : "");
            return;
        }
        if (!first)
            pn_str_addc(&m->text, '\n');
        pn_str_add(&m->text, text.data, text.len);
        first = false;
    }
}

static void norm_read_role(norm_work *w, norm_msg *m, uint32_t node, size_t index)
{
    pn_bytes role = norm_string(w, node, "role");
    if (!role.data) {
        w->st = pn_fail(w->err, PN_E_INVALID, "messages[%zu]: expected a string \"role\"", index);
        return;
    }
    m->role = NORM_OTHER;
    m->other = role;
    for (unsigned k = 0; k < PN_COUNT_OF(norm_roles); k++)
        if (norm_is(role, norm_roles[k]))
            m->role = (norm_role)k;
    if (norm_is(role, "function"))
        m->role = NORM_TOOL;
    if (m->role == NORM_DEVELOPER && !w->caps->developer)
        m->role = NORM_SYSTEM;
}

static void norm_read_message(norm_work *w, uint32_t node, size_t index)
{
    static const char *const reasons[] = {"reasoning_content", "reasoning", "thinking"};
    norm_msg *m = norm_add(w, NORM_OTHER);
    pn_bytes text;
    if (!m)
        return;
    if (pn_json_type_of(w->in, node) != PN_JSON_OBJECT) {
        w->st = pn_fail(w->err, PN_E_INVALID, "messages[%zu]: expected an object, found %s", index,
                        pn_json_type_name(pn_json_type_of(w->in, node)));
        return;
    }
    norm_read_role(w, m, node, index);
    uint32_t content = pn_json_get(w->in, node, "content");
    pn_json_type type = pn_json_type_of(w->in, content);
    if (pn_json_str(w->in, content, &text))
        pn_str_add(&m->text, text.data, text.len);
    else if (type == PN_JSON_ARRAY)
        norm_read_parts(w, m, content, index);
    else if (type != PN_JSON_NULL && type != PN_JSON_ABSENT && !w->st)
        w->st = pn_fail(w->err, PN_E_INVALID, "messages[%zu].content: expected a string, parts or null, found %s", index,
                        pn_json_type_name(type));
    for (size_t k = 0; k < PN_COUNT_OF(reasons) && !m->reasoning.len && m->role == NORM_ASSISTANT; k++)
        m->reasoning = norm_string(w, node, reasons[k]);
    uint32_t calls = m->role == NORM_ASSISTANT ? pn_json_get(w->in, node, "tool_calls") : PN_JSON_NONE;
    if (pn_json_type_of(w->in, calls) == PN_JSON_ARRAY && pn_json_count(w->in, calls)) {
        m->first_call = pn_json_first(w->in, calls);
        m->n_calls = pn_json_count(w->in, calls);
    }
    if (m->role == NORM_TOOL)
        m->id = norm_string(w, node, "tool_call_id");
    m->name = norm_string(w, node, "name");
    if (m->text.failed)
        norm_nomem(w, m->text.len);
}

/* ------------------------------------------------------------------------------------------
 * Ids of calls
 * ------------------------------------------------------------------------------------------ */

static uint32_t norm_function(const norm_work *w, uint32_t call)
{
    uint32_t f = pn_json_get(w->in, call, "function");
    return f == PN_JSON_NONE ? call : f;
}

/* Nine letters or digits that depend on the client's id alone. */
static void norm_short_id(pn_bytes id, char out[80])
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t h = pn_hash(id.data ? id.data : "", id.len, 0x9e3779b97f4a7c15u);
    for (int i = 0; i < 9; i++, h /= 62)
        out[i] = digits[h % 62];
}

static bool norm_is_short(pn_bytes id)
{
    for (size_t i = 0; i < id.len; i++) {
        char c = id.data[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
            return false;
    }
    return id.len == 9;
}

static void norm_collect_ids(norm_work *w)
{
    for (size_t i = 0; i < w->n && !w->st; i++) {
        uint32_t call = w->msgs[i].first_call;
        for (uint32_t k = 0; k < w->msgs[i].n_calls && !w->st; k++, call = pn_json_next(w->in, call)) {
            if (!pn_mem_grow(w->mem, PN_ACCT_MISC, (void **)&w->ids, &w->cap_ids, w->n_ids + 1, sizeof *w->ids)) {
                norm_nomem(w, sizeof *w->ids);
                return;
            }
            norm_id *id = &w->ids[w->n_ids];
            memset(id, 0, sizeof *id);
            id->client = norm_string(w, call, "id");
            id->name = norm_string(w, norm_function(w, call), "name");
            if (!id->name.data) {
                w->st = pn_fail(w->err, PN_E_INVALID, "messages[%zu].tool_calls[%u]: expected a function with a name", i, (unsigned)k);
                return;
            }
            if (w->caps->kimi_ids && id->name.len < 60) {
                id->len = (size_t)snprintf(id->ours, sizeof id->ours, "functions.%.*s:%zu", (int)id->name.len, id->name.data, w->n_ids);
            } else if (w->caps->short_ids && !norm_is_short(id->client)) {
                norm_short_id(id->client, id->ours);
                id->len = 9;
            }
            w->n_ids++;
        }
    }
}

/* The call that a result answers: the last with its id. */
static const norm_id *norm_find_id(const norm_work *w, pn_bytes client)
{
    for (size_t i = w->n_ids; i-- > 0 && client.data;)
        if (w->ids[i].client.data && w->ids[i].client.len == client.len && memcmp(w->ids[i].client.data, client.data, client.len) == 0)
            return &w->ids[i];          /* a call may be without an id: nothing answers that one by name */
    return NULL;
}

static void norm_write_id(const norm_work *w, pn_str *s, const char *key, pn_bytes client)
{
    const norm_id *id = norm_find_id(w, client);
    char made[80];
    if (!client.data && !w->caps->short_ids)
        return;
    pn_json_key(s, key);
    if (id && id->len) {
        pn_json_write_str(s, id->ours, id->len);
    } else if (w->caps->short_ids && !norm_is_short(client)) {
        norm_short_id(client, made);
        pn_json_write_str(s, made, 9);
    } else {
        pn_json_write_str(s, client.data, client.len);
    }
}

/* ------------------------------------------------------------------------------------------
 * Rewriting
 * ------------------------------------------------------------------------------------------ */

static void norm_glue(norm_work *w, norm_msg *to, const norm_msg *from, const char *between, bool before)
{
    if (!before) {
        if (to->text.len && from->text.len)
            pn_str_addz(&to->text, between);
        pn_str_add(&to->text, pn_str_cstr(&from->text), from->text.len);
    } else {
        pn_str all;
        pn_str_init(&all, w->mem, PN_ACCT_MISC);
        pn_str_add(&all, pn_str_cstr(&from->text), from->text.len);
        pn_str_addz(&all, between);
        pn_str_add(&all, pn_str_cstr(&to->text), to->text.len);
        pn_str_fini(&to->text);
        to->text = all;
    }
    if (to->text.failed)
        norm_nomem(w, from->text.len);
}

/* System messages at the start become one; later ones stay where the template shows them, else they
 * are said by the user.  Without a system role the text goes in front of the next user message. */
static void norm_systems(norm_work *w)
{
    norm_msg *head = NULL;
    for (size_t i = 0; i < w->n && !w->st; i++) {
        norm_msg *m = &w->msgs[i];
        bool system = m->role == NORM_SYSTEM && m->parts == PN_JSON_NONE;
        if (system && head == NULL && i > 0 && !w->caps->later_system) {
            m->role = NORM_USER_ROLE;
        } else if (system && i == 0) {
            head = m;
        } else if (system && head) {
            norm_glue(w, head, m, "\n\n", false);
            m->dropped = true;
        } else {
            head = NULL;
        }
    }
    norm_msg *first = w->n ? &w->msgs[0] : NULL;
    if (w->caps->system_role || !first || first->role != NORM_SYSTEM || w->st)
        return;
    for (size_t i = 1; i < w->n; i++)
        if (!w->msgs[i].dropped && w->msgs[i].role == NORM_USER_ROLE && w->msgs[i].parts == PN_JSON_NONE) {
            norm_glue(w, &w->msgs[i], first, "\n", true);
            first->dropped = true;
            return;
        }
    first->role = NORM_USER_ROLE;
}

static void norm_compact(norm_work *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n; i++) {
        if (w->msgs[i].dropped)
            pn_str_fini(&w->msgs[i].text);
        else
            w->msgs[n++] = w->msgs[i];
    }
    w->n = n;
}

static void norm_users(norm_work *w)
{
    norm_msg *last = NULL;
    for (size_t i = 0; i < w->n && !w->st && !w->caps->two_users; i++) {
        norm_msg *m = &w->msgs[i];
        if (last && last->role == NORM_USER_ROLE && m->role == NORM_USER_ROLE && m->parts == PN_JSON_NONE && last->parts == PN_JSON_NONE) {
            norm_glue(w, last, m, "\n\n", false);
            m->dropped = true;
        } else {
            last = m;
        }
    }
}

static bool norm_answers(const norm_work *w, const norm_msg *m, uint32_t call)
{
    pn_bytes id = norm_string(w, call, "id");
    return id.data && m->id.data && m->id.len == id.len && memcmp(m->id.data, id.data, id.len) == 0;
}

/* Move message `from` to place `to` <= from; those between move up. */
static void norm_move(norm_work *w, size_t from, size_t to)
{
    norm_msg m = w->msgs[from];
    memmove(w->msgs + to + 1, w->msgs + to, (from - to) * sizeof m);
    w->msgs[to] = m;
}

/* Results right after message `at` in the order of its calls. */
static void norm_order(norm_work *w, size_t at)
{
    size_t place = at + 1;
    uint32_t call = w->msgs[at].first_call;
    for (uint32_t k = 0; k < w->msgs[at].n_calls; k++, call = pn_json_next(w->in, call))
        for (size_t i = place; i < w->n && w->msgs[i].role == NORM_TOOL; i++)
            if (norm_answers(w, &w->msgs[i], call)) {
                norm_move(w, i, place++);
                break;
            }
}

/* One call a message, each followed by its results. */
static void norm_split(norm_work *w)
{
    for (size_t i = 0; i < w->n && !w->st; i++) {
        bool split = w->msgs[i].n_calls > 1 && (!w->caps->parallel_calls || w->caps->harmony) && w->caps->tool_calls;
        if (w->msgs[i].n_calls > 1 && (split || w->caps->order_results))
            norm_order(w, i);
        if (!split)
            continue;
        uint32_t call = w->msgs[i].first_call, rest = w->msgs[i].n_calls - 1;
        w->msgs[i].n_calls = 1;
        size_t place = i + 1;
        while (place < w->n && w->msgs[place].role == NORM_TOOL && norm_answers(w, &w->msgs[place], call))
            place++;
        norm_msg *m = norm_add(w, NORM_ASSISTANT);
        if (!m)
            return;
        m->first_call = pn_json_next(w->in, call);
        m->n_calls = rest;
        norm_move(w, w->n - 1, place);          /* the loop meets it and splits on */
    }
}

/* ------------------------------------------------------------------------------------------
 * Writing
 * ------------------------------------------------------------------------------------------ */

/* Arguments as the template wants them: the client's string holds JSON. */
static void norm_write_args(norm_work *w, pn_str *s, uint32_t args, bool object, size_t index)
{
    pn_bytes text = {NULL, 0};
    pn_json_doc doc;
    pn_err err = {PN_OK, {0}};
    bool is_text = pn_json_str(w->in, args, &text);
    if (args == PN_JSON_NONE || pn_json_type_of(w->in, args) == PN_JSON_NULL || (is_text && !text.len)) {      /* none */
        pn_str_addz(s, object ? "{}" : "\"{}\"");
    } else if (!is_text && !object) {
        pn_str inner;
        pn_str_init(&inner, w->mem, PN_ACCT_MISC);
        pn_json_write_node(&inner, w->in, args);
        pn_json_write_str(s, pn_str_cstr(&inner), inner.len);
        s->failed = s->failed || inner.failed;
        pn_str_fini(&inner);
    } else if (!is_text || !object) {
        pn_json_write_node(s, w->in, args);
    } else {
        pn_status st = pn_json_parse(&doc, w->mem, PN_ACCT_MISC, text.data, text.len, NULL, &err);
        if (st == PN_E_NOMEM)
            norm_nomem(w, text.len);
        else if (st)
            w->st = pn_fail(w->err, PN_E_INVALID, "message %zu: the arguments of a tool call are not JSON: %s", index, err.text);
        if (st)
            return;
        pn_json_write_node(s, &doc, PN_JSON_ROOT);
        pn_json_fini(&doc);
    }
}

static void norm_write_call(norm_work *w, pn_str *s, uint32_t call, size_t index)
{
    uint32_t f = norm_function(w, call);
    pn_bytes name = norm_string(w, f, "name");
    pn_json_item(s);
    pn_str_addc(s, '{');
    norm_write_id(w, s, "id", norm_string(w, call, "id"));
    pn_json_key(s, "type");
    pn_json_write_strz(s, "function");
    pn_json_key(s, "function");
    pn_str_addc(s, '{');
    pn_json_key(s, "name");
    pn_json_write_str(s, name.data, name.len);
    pn_json_key(s, "arguments");
    norm_write_args(w, s, pn_json_get(w->in, f, "arguments"), w->caps->object_args, index);
    pn_str_addz(s, "}}");
}

/* Calls as text, for a template that has no notion of them. */
static void norm_calls_as_text(norm_work *w, norm_msg *m, size_t index)
{
    uint32_t call = m->first_call;
    for (uint32_t k = 0; k < m->n_calls && !w->st; k++, call = pn_json_next(w->in, call)) {
        uint32_t f = norm_function(w, call);
        pn_bytes name = norm_string(w, f, "name");
        if (m->text.len)
            pn_str_addc(&m->text, '\n');
        pn_str_addz(&m->text, "{\"tool_call\": {\"name\": ");
        pn_json_write_str(&m->text, name.data, name.len);
        pn_str_addz(&m->text, ", \"arguments\": ");
        norm_write_args(w, &m->text, pn_json_get(w->in, f, "arguments"), true, index);
        pn_str_addz(&m->text, "}}");
    }
    m->n_calls = 0;
    if (m->text.failed)
        norm_nomem(w, m->text.len);
}

static void norm_write_content(norm_work *w, pn_str *s, const norm_msg *m)
{
    bool parts = !w->caps->string_content && w->caps->typed_content;
    bool thinks = m->reasoning.len && w->caps->thinking_parts;
    pn_json_key(s, "content");
    if (m->parts != PN_JSON_NONE) {
        pn_json_write_node(s, w->in, m->parts);
        return;
    }
    if (!parts && !thinks) {
        pn_json_write_str(s, pn_str_cstr(&m->text), m->text.len);
        return;
    }
    pn_str_addc(s, '[');
    if (thinks) {
        pn_str_addz(s, "{\"type\":\"thinking\",\"thinking\":");
        pn_json_write_str(s, m->reasoning.data, m->reasoning.len);
        pn_str_addz(s, "}");
    }
    pn_json_item(s);
    pn_str_addz(s, "{\"type\":\"text\",\"text\":");
    pn_json_write_str(s, pn_str_cstr(&m->text), m->text.len);
    pn_str_addz(s, "}]");
}

/* Results that follow an assistant's message, inside it: [{name, response}].  Returns how many. */
static size_t norm_write_folded(norm_work *w, pn_str *s, size_t at)
{
    size_t n = 0;
    pn_json_key(s, "tool_responses");
    pn_str_addc(s, '[');
    for (size_t i = at + 1; i < w->n && w->msgs[i].role == NORM_TOOL; i++, n++) {
        const norm_msg *m = &w->msgs[i];
        const norm_id *id = norm_find_id(w, m->id);
        pn_bytes name = m->name.data ? m->name : id ? id->name : (pn_bytes){"", 0};
        pn_json_item(s);
        pn_str_addz(s, "{\"name\":");
        pn_json_write_str(s, name.data, name.len);
        pn_json_key(s, "response");
        pn_json_write_str(s, pn_str_cstr(&m->text), m->text.len);
        pn_str_addc(s, '}');
    }
    pn_str_addc(s, ']');
    return n;
}

/* Message `at`; returns how many later ones it took in. */
static size_t norm_write_message(norm_work *w, pn_str *s, size_t at)
{
    norm_msg *m = &w->msgs[at];
    size_t folded = 0;
    if (m->n_calls && !w->caps->tool_calls)
        norm_calls_as_text(w, m, at);
    if (m->n_calls && w->caps->harmony && m->reasoning.len)
        pn_str_clear(&m->text);
    bool as_user = m->role == NORM_TOOL && !w->caps->tool_role && !w->caps->fold_results;
    const norm_id *id = m->role == NORM_TOOL ? norm_find_id(w, m->id) : NULL;
    pn_bytes name = m->name.data || !id ? m->name : id->name;
    pn_json_item(s);
    pn_str_addz(s, "{\"role\":");
    if (m->role == NORM_OTHER)
        pn_json_write_str(s, m->other.data, m->other.len);
    else
        pn_json_write_strz(s, norm_roles[as_user ? NORM_USER_ROLE : m->role]);
    norm_write_content(w, s, m);
    if (m->reasoning.len && !w->caps->thinking_parts) {
        pn_json_key(s, "reasoning_content");
        pn_json_write_str(s, m->reasoning.data, m->reasoning.len);
        pn_json_key(s, "thinking");
        pn_json_write_str(s, m->reasoning.data, m->reasoning.len);
    }
    if (m->n_calls) {
        uint32_t call = m->first_call;
        pn_json_key(s, "tool_calls");
        pn_str_addc(s, '[');
        for (uint32_t k = 0; k < m->n_calls && !w->st; k++, call = pn_json_next(w->in, call))
            norm_write_call(w, s, call, at);
        pn_str_addc(s, ']');
        if (w->caps->fold_results && at + 1 < w->n && w->msgs[at + 1].role == NORM_TOOL)
            folded = norm_write_folded(w, s, at);
    }
    if (m->role == NORM_TOOL && !as_user)
        norm_write_id(w, s, "tool_call_id", m->id);
    if (name.data && !as_user) {
        pn_json_key(s, "name");
        pn_json_write_str(s, name.data, name.len);
    }
    pn_str_addc(s, '}');
    return folded;
}

/* For a template that cannot list tools: say it in the system message. */
static void norm_generic_tools(norm_work *w, uint32_t tools)
{
    if (!w->n || w->msgs[0].role != NORM_SYSTEM || w->msgs[0].parts != PN_JSON_NONE) {
        if (!norm_add(w, NORM_SYSTEM))
            return;
        norm_move(w, w->n - 1, 0);
    }
    pn_str *s = &w->msgs[0].text;
    if (s->len)
        pn_str_addz(s, "\n\n");
    pn_str_addz(s, "You may call these functions:\n");
    pn_json_write_node(s, w->in, tools);
    pn_str_addz(s, "\nTo call one, answer with nothing but JSON of the form "
                   "{\"tool_call\": {\"name\": NAME, \"arguments\": {...}}}.");
    if (s->failed)
        norm_nomem(w, s->len);
}

/* Variables whose text is trusted (pn_template.h): a client's options may not set them. */
static bool norm_is_token(pn_bytes k)
{
    return norm_is(k, "bos_token") || norm_is(k, "eos_token") || norm_is(k, "pad_token") || norm_is(k, "unk_token");
}

/* Everything but messages and tools; chat_template_kwargs wins. */
static void norm_write_rest(norm_work *w, pn_str *s)
{
    const pn_json_doc *d = w->in;
    uint32_t kwargs = pn_json_get(d, PN_JSON_ROOT, "chat_template_kwargs");
    pn_json_type type = pn_json_type_of(d, kwargs);
    if (type != PN_JSON_OBJECT && type != PN_JSON_ABSENT && type != PN_JSON_NULL) {
        w->st = pn_fail(w->err, PN_E_INVALID, "chat_template_kwargs: expected an object, found %s", pn_json_type_name(type));
        return;
    }
    uint32_t toggle = pn_json_get(d, kwargs, "enable_thinking");
    if (toggle == PN_JSON_NONE)
        toggle = pn_json_get(d, PN_JSON_ROOT, "enable_thinking");
    if (pn_json_type_of(d, toggle) == PN_JSON_STRING) {
        w->st = pn_fail(w->err, PN_E_INVALID, "enable_thinking: expected true or false, found a string");
        return;
    }
    pn_bytes effort = norm_string(w, PN_JSON_ROOT, "reasoning_effort");
    bool off = effort.data && norm_is(effort, "none");
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t c = pn_json_first(d, pass ? kwargs : PN_JSON_ROOT); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
            pn_bytes k = pn_json_key_of(d, c);
            bool replaced = !norm_is_token(k) && pn_json_find(d, kwargs, k.data, k.len) != PN_JSON_NONE;
            if (norm_is(k, "messages") || norm_is(k, "tools") || norm_is(k, "chat_template_kwargs"))
                continue;
            if (pass ? norm_is_token(k) : replaced || (off && norm_is(k, "reasoning_effort")))
                continue;
            pn_json_item(s);
            pn_json_write_str(s, k.data, k.len);
            pn_str_addc(s, ':');
            pn_json_write_node(s, d, c);
        }
    bool has_thinking = pn_json_get(d, kwargs, "thinking") != PN_JSON_NONE || pn_json_get(d, PN_JSON_ROOT, "thinking") != PN_JSON_NONE;
    if (toggle == PN_JSON_NONE && off) {
        pn_json_key(s, "enable_thinking");
        pn_json_write_bool(s, false);
    }
    if (!has_thinking && (toggle != PN_JSON_NONE || off)) {
        pn_json_key(s, "thinking");
        if (toggle != PN_JSON_NONE)
            pn_json_write_node(s, d, toggle);
        else
            pn_json_write_bool(s, false);
    }
    if (pn_json_get(d, kwargs, "add_generation_prompt") == PN_JSON_NONE &&
        pn_json_get(d, PN_JSON_ROOT, "add_generation_prompt") == PN_JSON_NONE) {
        pn_json_key(s, "add_generation_prompt");
        pn_json_write_bool(s, true);
    }
}

static void norm_write(norm_work *w, pn_str *s, uint32_t tools)
{
    pn_str_addz(s, "{\"messages\":[");
    for (size_t i = 0; i < w->n && !w->st; i++)
        i += norm_write_message(w, s, i);
    pn_str_addc(s, ']');
    if (tools != PN_JSON_NONE && w->caps->tools) {
        pn_json_key(s, "tools");
        pn_json_write_node(s, w->in, tools);
    }
    norm_write_rest(w, s);
    pn_str_addc(s, '}');
    if (s->failed)
        norm_nomem(w, s->len);
}

PN_INTERNAL pn_status pn_chat_normalize(const pn_tpl_caps *caps, pn_mem *mem, const pn_json_doc *in, pn_str *out,
                                        pn_err *err)
{
    norm_work w;
    memset(&w, 0, sizeof w);
    w.caps = caps;
    w.mem = mem;
    w.in = in;
    w.err = err;
    uint32_t messages = pn_json_get(in, PN_JSON_ROOT, "messages"), tools = pn_json_get(in, PN_JSON_ROOT, "tools");
    if (pn_json_type_of(in, messages) != PN_JSON_ARRAY)
        return pn_fail(err, PN_E_INVALID, "expected an array \"messages\", found %s", pn_json_type_name(pn_json_type_of(in, messages)));
    if (pn_json_type_of(in, tools) != PN_JSON_ARRAY || !pn_json_count(in, tools))
        tools = PN_JSON_NONE;           /* an empty list of tools is none: templates test only whether it is there */
    size_t index = 0;
    for (uint32_t c = pn_json_first(in, messages); c != PN_JSON_NONE && !w.st; c = pn_json_next(in, c))
        norm_read_message(&w, c, index++);
    if (!w.st && tools != PN_JSON_NONE && !caps->tools)
        norm_generic_tools(&w, tools);
    norm_collect_ids(&w);
    norm_systems(&w);
    norm_compact(&w);
    norm_split(&w);
    norm_users(&w);
    norm_compact(&w);
    if (!w.st)
        norm_write(&w, out, tools);
    for (size_t i = 0; i < w.n; i++)
        pn_str_fini(&w.msgs[i].text);
    pn_mem_free(mem, PN_ACCT_MISC, w.msgs, w.cap * sizeof *w.msgs);
    pn_mem_free(mem, PN_ACCT_MISC, w.ids, w.cap_ids * sizeof *w.ids);
    return w.st;
}

#undef NORM_USER
#undef NORM_GEN
#undef NORM_TOOLS
#undef NORM_CALL
#undef NORM_CALLS
#undef NORM_RESULT
#undef NORM_OBJECT
#undef NORM_STRING
#undef NORM_OBJECT2
#undef NORM_STRING2
