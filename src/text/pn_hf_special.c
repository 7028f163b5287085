/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_hf_special.c - the small files: which token begins and ends a text, and the chat template.
 *
 * Names come from tokenizer_config.json, else special_tokens_map.json, and are looked up among the
 * tokens; config.json has numbers where no file has a name.  A name of null says "none": then the
 * number in config.json is of a token nobody puts anywhere.
 */
#include "text/pn_hf_impl.h"

#include <inttypes.h>

/* A token's text: a string, or an object with "content". */
static bool hfs_name(const pn_json_doc *d, uint32_t node, pn_bytes *s)
{
    return pn_json_str(d, node, s) || pn_json_str(d, pn_json_get(d, node, "content"), s);
}

/* config.json's id under `key`, also inside text_config; of a list the first.  -1: none. */
static int64_t hfs_config_id(const pn_hf_read *r, const char *key)
{
    const pn_json_doc *d = &r->model_config;
    int64_t id;
    uint32_t at = pn_json_get(d, 0, key);
    if (pn_json_type_of(d, at) == PN_JSON_ABSENT)
        at = pn_json_get(d, pn_json_get(d, 0, "text_config"), key);
    if (pn_json_type_of(d, at) == PN_JSON_ARRAY)
        at = pn_json_first(d, at);
    return pn_json_i64(d, at, &id) && id >= 0 && id < (int64_t)r->h->n_tokens && r->h->tokens[id].len ? id : -1;
}

/* A text named as special is one, and is cut, whatever the list of added tokens says. */
static void hfs_make_special(pn_hf_read *r, int64_t id)
{
    r->h->flags[id] |= PN_TF_ADDED;
    if (r->h->types[id] != PN_TOKEN_UNKNOWN)
        r->h->types[id] = PN_TOKEN_CONTROL;
}

static void hfs_role(pn_hf_read *r, int64_t *role, const char *key, const char *id_key)
{
    pn_bytes name;
    uint32_t at = pn_json_get(&r->config, 0, key);
    bool null = pn_json_type_of(&r->config, at) == PN_JSON_NULL;
    bool named = hfs_name(&r->config, at, &name) || (!null && hfs_name(&r->map, pn_json_get(&r->map, 0, key), &name));
    if (named) {
        int64_t id = pn_hf_find(r, name);
        if (id < 0) {
            pn_hf_warn(r, "%s \"%.*s\" is not in the vocabulary", key, pn_hf_len(name), name.data);
            return;
        }
        *role = id;
        hfs_make_special(r, id);
    } else if (!null && *role < 0) {
        *role = hfs_config_id(r, id_key);
    }
}

/* additional_special_tokens: texts; extra_special_tokens: texts, or an object of them. */
static void hfs_extra(pn_hf_read *r, const pn_json_doc *d, const char *key)
{
    uint32_t list = pn_json_get(d, 0, key);
    for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes name;
        int64_t id = hfs_name(d, c, &name) ? pn_hf_find(r, name) : -1;
        if (id >= 0)
            hfs_make_special(r, id);
    }
}

/* --- ends --------------------------------------------------------------------------------- */

static pn_status hfs_end(pn_hf_read *r, const pn_json_doc *d, uint32_t node, const char *file)
{
    pn_hf_vocab *h = r->h;
    int64_t id;
    if (!pn_json_i64(d, node, &id))
        return PN_OK;
    if (id < 0 || id >= (int64_t)r->n_rows) {
        pn_hf_warn(r, "%s: eos_token_id %" PRId64 " is not below the %" PRIu32 " rows of the embedding; ignored", file, id, r->n_rows);
        return PN_OK;
    }
    for (uint32_t i = 0; i < h->n_ends; i++)
        if (h->ends[i] == id)
            return PN_OK;
    if (!pn_mem_grow(r->mem, PN_ACCT_VOCAB, (void **)&h->ends, &h->cap_ends, (size_t)h->n_ends + 1, sizeof *h->ends))
        return pn_fail_nomem(r->err, "end tokens", ((uint64_t)h->n_ends + 1) * sizeof *h->ends);
    h->ends[h->n_ends++] = (pn_token)id;
    return PN_OK;
}

static pn_status hfs_ends(pn_hf_read *r, const pn_json_doc *d, uint32_t root, const char *file)
{
    uint32_t at = pn_json_get(d, root, "eos_token_id"), n = 0;
    pn_status st = hfs_end(r, d, at, file);
    for (uint32_t c = pn_json_first(d, at); c != PN_JSON_NONE && !st; c = pn_json_next(d, c)) {
        if (++n > 1024)                         /* the list is searched for each */
            return pn_fail(r->err, PN_E_FORMAT, "%s: eos_token_id has more than 1024 entries", file);
        st = hfs_end(r, d, c, file);
    }
    return st;
}

/* --- around a text ------------------------------------------------------------------------ */

/* One token in front that is BOS is what add_bos says; anything else stays a list. */
static void hfs_simplify(int64_t *role, int *add, pn_token *list, uint32_t *n)
{
    *add = 0;
    if (*n != 1 || (*role >= 0 && *role != list[0]))
        return;
    *role = list[0];
    *add = 1;
    *n = 0;
}

static void hfs_around(pn_hf_read *r)
{
    pn_hf_vocab *h = r->h;
    bool v;
    if (r->around) {
        hfs_simplify(&h->bos, &h->add_bos, h->prefix, &h->n_prefix);
        hfs_simplify(&h->eos, &h->add_eos, h->suffix, &h->n_suffix);
        return;
    }
    bool json = r->files->tokenizer_json.data != NULL || h->has_rules;
    h->add_bos = pn_json_bool(&r->config, pn_json_get(&r->config, 0, "add_bos_token"), &v) ? v : json ? 0 : -1;
    h->add_eos = pn_json_bool(&r->config, pn_json_get(&r->config, 0, "add_eos_token"), &v) ? v : json ? 0 : -1;
}

/* --- the chat template -------------------------------------------------------------------- */

static void hfs_template_of(pn_hf_read *r, const pn_json_doc *d)
{
    pn_hf_vocab *h = r->h;
    uint32_t at = pn_json_get(d, 0, "chat_template");
    pn_bytes text;
    if (pn_json_str(d, at, &text))
        pn_str_add(&h->chat, text.data, text.len);
    if (pn_json_type_of(d, at) != PN_JSON_ARRAY)
        return;
    for (uint32_t c = pn_json_first(d, at); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes name = pn_hf_text(d, c, "name");
        pn_str *to = pn_hf_is(name, "default") ? &h->chat : pn_hf_is(name, "tool_use") ? &h->chat_tools : NULL;
        if (!to || !pn_json_str(d, pn_json_get(d, c, "template"), &text))
            continue;
        pn_str_clear(to);
        pn_str_add(to, text.data, text.len);
    }
}

static pn_status hfs_template(pn_hf_read *r)
{
    pn_hf_vocab *h = r->h;
    pn_bytes jinja = r->files->chat_template_jinja, tools = r->files->tool_use_jinja;
    if (jinja.len) {
        pn_str_add(&h->chat, jinja.data, jinja.len);
        pn_str_add(&h->chat_tools, tools.data ? tools.data : "", tools.len);
    } else {
        hfs_template_of(r, &r->config);
    }
    if (!h->chat.len && !h->chat_tools.len)
        hfs_template_of(r, &r->chat);
    if (h->chat.failed || h->chat_tools.failed)
        return pn_fail_nomem(r->err, "the chat template", h->chat.len);
    return PN_OK;
}

PN_INTERNAL pn_status pn_hf_read_special(pn_hf_read *r)
{
    pn_hf_vocab *h = r->h;
    hfs_role(r, &h->bos, "bos_token", "bos_token_id");
    hfs_role(r, &h->eos, "eos_token", "eos_token_id");
    hfs_role(r, &h->unk, "unk_token", "unk_token_id");
    hfs_role(r, &h->pad, "pad_token", "pad_token_id");
    hfs_role(r, &h->sep, "sep_token", "sep_token_id");
    hfs_role(r, &h->cls, "cls_token", "cls_token_id");
    hfs_role(r, &h->mask, "mask_token", "mask_token_id");
    hfs_extra(r, &r->config, "additional_special_tokens");
    hfs_extra(r, &r->config, "extra_special_tokens");
    hfs_extra(r, &r->map, "additional_special_tokens");
    if (h->eos < 0)
        h->eos = hfs_config_id(r, "eos_token_id");          /* an engine wants one, even where a file says null */
    hfs_around(r);
    pn_status st = hfs_ends(r, &r->generation, 0, "generation_config.json");
    if (!st)
        st = hfs_ends(r, &r->model_config, 0, "config.json");
    if (!st)
        st = hfs_ends(r, &r->model_config, pn_json_get(&r->model_config, 0, "text_config"), "config.json");
    return st ? st : hfs_template(r);
}
