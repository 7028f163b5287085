/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_vocab_roles.c - which token is which: beginning, end, fill-in-the-middle, markers.
 *
 * Files name some ids; conversions forget others, or type a control token as an ordinary one.  So the
 * well-known texts are looked up as well.  Tables are searched in their order, so the outcome does not
 * depend on hashing.  A token found in the tables of roles or ends is a control token from then on.
 *
 * What nobody may write into a message (PN_TA_GUARD) follows from the kind and, since kinds get lost,
 * from the text: what the tables of markers know, here and of the output parsers, and what the model's own
 * template writes.  Words and single characters that a file types user-defined (letters with accents,
 * DeepSeek) are ordinary text unless the template writes them: a message may hold them.
 */
#include "text/pn_toolcall.h"
#include "text/pn_vocab_impl.h"

#include <stdio.h>

static const char *const roles_eot[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
    "[EOT]", "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>", "<end_of_utterance>",
};
static const char *const roles_eom[] = {"<|eom_id|>"};
static const char *const roles_fim[6][9] = {
    {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\357\275\234fim\342\226\201begin\357\275\234>", "<PRE>",
     "\342\226\201<PRE>", "<|code_prefix|>", "<|prefix|>"},
    {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\357\275\234fim\342\226\201hole\357\275\234>", "<SUF>",
     "\342\226\201<SUF>", "<|code_suffix|>", "<|suffix|>"},
    {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\357\275\234fim\342\226\201end\357\275\234>", "<MID>",
     "\342\226\201<MID>", "<|code_middle|>", "<|middle|>"},
    {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    {"<|file_sep|>"},
};

/* Whatever their role, these end an answer. */
static const char *const roles_end[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>", "[e~[",
};

/* What chat templates put around messages: special where the template says it, however it is typed. */
static const char *const roles_markers[] = {
    "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>", "<|turn>", "<|user|>",
    "<|assistant|>", "<|system|>", "<|observation|>", "<|tool|>", "<|begin_of_text|>", "<|startoftext|>", "<s>",
    "<bos>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[gMASK]", "<sop>", "<|channel|>",
    "<|message|>", "<|start|>", "<|constrain|>", "<|start_of_role|>", "<|end_of_role|>",
    "<\357\275\234User\357\275\234>", "<\357\275\234Assistant\357\275\234>",
    "<\357\275\234begin\342\226\201of\342\226\201sentence\357\275\234>",
};

/* Typed control in files, but part of the answer: they must be rendered. */
static const char *const roles_visible[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

static pn_token roles_find(const pn_vocab *v, const char *text) { return pn_vocab_find(v, text, strlen(text)); }

static void roles_set_kind(pn_vocab *v, pn_token t, unsigned kind)
{
    if (kind == PN_TOKEN_CONTROL && v->flags && (v->flags[t] & PN_TF_ADDED))
        return;                         /* the folder says what its added tokens are */
    v->attr[t] = (uint8_t)((v->attr[t] & ~(unsigned)PN_TA_KIND) | kind);
}

/* The file's id, else the model's default, else -1. */
static pn_token roles_id(const pn_vocab *v, int64_t given, pn_token dflt, const char *key, pn_vocab_warn warn, void *user)
{
    if (given >= 0 && given < (int64_t)v->n_tokens)
        return (pn_token)given;
    if (given >= 0 && warn) {
        char text[160];
        snprintf(text, sizeof text, "tokenizer.ggml.%s_token_id is %lld, but there are %lu tokens; ignored", key,
                 (long long)given, (unsigned long)v->n_tokens);
        warn(user, text);
    }
    return dflt >= 0 && dflt < (int64_t)v->n_tokens ? dflt : -1;
}

static void roles_ids(pn_vocab *v, const pn_vocab_source *s, pn_vocab_warn warn, void *user)
{
    /* bos, eos, unk, sep, pad, mask when the file is silent */
    static const int16_t dflt[][6] = {
        [PN_VOCAB_NONE] = {-1, -1, -1, -1, -1, -1}, [PN_VOCAB_SPM] = {1, 2, 0, -1, -1, -1},
        [PN_VOCAB_BPE] = {11, 11, -1, -1, -1, -1},  [PN_VOCAB_WPM] = {101, -1, 100, 102, 0, 103},
        [PN_VOCAB_UGM] = {-1, 1, 2, -1, 0, -1},     [PN_VOCAB_RWKV] = {-1, -1, -1, -1, -1, -1},
    };
    const int16_t *d = dflt[s->flags ? PN_VOCAB_NONE : v->model];
    bool none = (v->pretok_flags & PN_PRETOK_NO_BOS) || (v->pretok_flags & PN_PRETOK_FORCE_BOS);
    const int64_t fim[6] = {s->fim_pre, s->fim_suf, s->fim_mid, s->fim_pad, s->fim_rep, s->fim_sep};
    static const char *const fim_keys[6] = {"fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"};
    v->bos = roles_id(v, s->bos, none ? -1 : d[0], "bos", warn, user);
    v->eos = roles_id(v, s->eos, (v->pretok_flags & PN_PRETOK_FORCE_BOS) ? -1 : d[1], "eos", warn, user);
    v->unk = roles_id(v, s->unk, d[2], "unknown", warn, user);
    v->sep = roles_id(v, s->sep, d[3], "seperator", warn, user);
    v->pad = roles_id(v, s->pad, d[4], "padding", warn, user);
    v->mask = roles_id(v, s->mask, d[5], "mask", warn, user);
    v->cls = roles_id(v, s->cls, v->bos, "cls", warn, user);
    v->eot = roles_id(v, s->eot, -1, "eot", warn, user);
    v->eom = roles_id(v, s->eom, -1, "eom", warn, user);
    for (int i = 0; i < 6; i++)
        v->fim[i] = roles_id(v, fim[i], -1, fim_keys[i], warn, user);
}

/* Fill a role nobody named from its table. */
static void roles_detect(pn_vocab *v, pn_token *role, const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n && *role < 0 && texts[i]; i++) {
        pn_token t = roles_find(v, texts[i]);
        if (t < 0)
            continue;
        *role = t;
        roles_set_kind(v, t, PN_TOKEN_CONTROL);
    }
}

static void roles_mark_end(pn_vocab *v, pn_token t)
{
    if (t >= 0)
        v->attr[t] |= PN_TA_END;
}

static bool roles_ends(const pn_vocab *v, const char *text)
{
    pn_token t = roles_find(v, text);
    return t >= 0 && (v->attr[t] & PN_TA_END);
}

static void roles_unmark_end(pn_vocab *v, const char *text, unsigned kind)
{
    pn_token t = roles_find(v, text);
    if (t < 0)
        return;
    v->attr[t] &= (uint8_t)~PN_TA_END;
    roles_set_kind(v, t, kind);
}

static void roles_ends_of_answers(pn_vocab *v, const pn_vocab_source *src)
{
    for (uint32_t i = 0; i < src->n_ends; i++)
        if (src->ends[i] < (int64_t)v->n_tokens)
            roles_mark_end(v, src->ends[i]);
    roles_mark_end(v, v->eos);
    roles_mark_end(v, v->eot);
    roles_mark_end(v, v->eom);
    for (int i = 3; i < 6; i++)
        roles_mark_end(v, v->fim[i]);
    for (size_t i = 0; i < PN_COUNT_OF(roles_end); i++) {
        pn_token t = roles_find(v, roles_end[i]);
        if (t < 0)
            continue;
        roles_mark_end(v, t);
        roles_set_kind(v, t, PN_TOKEN_CONTROL);
    }
    /* Harmony and Solar close a message, not the answer, with <|end|>. */
    if (roles_ends(v, "<|end|>") && ((roles_ends(v, "<|return|>") && roles_ends(v, "<|call|>")) ||
                                     (roles_ends(v, "<|calls|>") && roles_ends(v, "<|flush|>"))))
        roles_unmark_end(v, "<|end|>", PN_TOKEN_USER_DEFINED);
    /* Gemma 4 has "</s>" as ordinary text. */
    if (roles_ends(v, "<|tool_response>"))
        roles_unmark_end(v, "</s>", PN_TOKEN_NORMAL);
}

static bool roles_contains(pn_bytes hay, const char *needle, bool fold)
{
    size_t n = strlen(needle);
    for (size_t at = 0; at + n <= hay.len; at++) {
        size_t i = 0;
        for (; i < n; i++) {
            char c = hay.data[at + i];
            if (fold && c >= 'A' && c <= 'Z')
                c = (char)(c + 32);
            if (c != needle[i])
                break;
        }
        if (i == n)
            return true;
    }
    return false;
}

static void roles_attr(pn_vocab *v, const char *text, unsigned set, unsigned clear)
{
    pn_token t = roles_find(v, text);
    if (t >= 0)
        v->attr[t] = (uint8_t)((v->attr[t] | set) & ~clear);
}

/* GGUF has no field for "swallows white space"; these models are known by name. */
static void roles_strip(pn_vocab *v, const pn_vocab_source *src)
{
    for (uint32_t i = 0; v->flags && i < v->n_tokens; i++)
        v->attr[i] |= (uint8_t)((v->flags[i] & PN_TF_LSTRIP ? PN_TA_LSTRIP : 0) | (v->flags[i] & PN_TF_RSTRIP ? PN_TA_RSTRIP : 0));
    if (v->flags)
        return;
    if (roles_contains(src->pre, "jina-v2-de", false) || roles_contains(src->pre, "jina-v2-es", false) ||
        roles_contains(src->pre, "jina-v2-code", false) || roles_contains(src->arch, "nomic-bert-moe", false) ||
        roles_contains(src->arch, "jina-bert-v3", false))
        roles_attr(v, "<mask>", PN_TA_LSTRIP, 0);
    if (roles_contains(src->name, "modern-bert", true))
        roles_attr(v, "[MASK]", PN_TA_LSTRIP, 0);
    if (!roles_contains(src->name, "phi-3", true) && !roles_contains(src->name, "phi3", true))
        return;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        unsigned kind = v->attr[i] & PN_TA_KIND;
        if (kind == PN_TOKEN_CONTROL || kind == PN_TOKEN_USER_DEFINED || kind == PN_TOKEN_UNKNOWN)
            v->attr[i] |= PN_TA_RSTRIP;
    }
    roles_attr(v, "</s>", PN_TA_RSTRIP, 0);
    roles_attr(v, "<unk>", 0, PN_TA_RSTRIP);
    roles_attr(v, "<s>", 0, PN_TA_RSTRIP);
    roles_attr(v, "<|endoftext|>", 0, PN_TA_RSTRIP);
}

static bool roles_only_space(pn_bytes t)
{
    for (size_t i = 0; i < t.len; i++) {
        if (t.data[i] == ' ' || (t.data[i] >= '\t' && t.data[i] <= '\r'))
            continue;
        if (t.len - i < 3 || memcmp(t.data + i, "\342\226\201", 3) != 0)
            return false;
        i += 2;
    }
    return true;
}

/* A word, or one character: not what markers look like. */
static bool roles_plain(pn_bytes t)
{
    size_t i = 0, starts = 0;
    for (size_t k = 0; k < t.len; k++)
        starts += ((uint8_t)t.data[k] & 0xC0) != 0x80;
    while (i < t.len && ((t.data[i] >= 'a' && t.data[i] <= 'z') || (t.data[i] >= 'A' && t.data[i] <= 'Z') ||
                         (t.data[i] >= '0' && t.data[i] <= '9') || t.data[i] == ' '))
        i++;
    return i == t.len || starts == 1;
}

/* <name>, </name>, <|name|>, [NAME]: what templates write around messages, and little else looks like.
 * "[0]" and "[i]" are code, in templates too. */
static bool roles_shaped(pn_bytes t)
{
    size_t capitals = 0;
    if (t.len < 3 || !((t.data[0] == '<' && t.data[t.len - 1] == '>') || (t.data[0] == '[' && t.data[t.len - 1] == ']')))
        return false;
    for (size_t i = 1; i + 1 < t.len; i++) {
        if (strchr(" \t\n\"'<>[]", t.data[i]))
            return false;
        capitals += t.data[i] >= 'A' && t.data[i] <= 'Z';
    }
    char c = t.data[1];
    return t.data[0] == '[' ? capitals >= 2
                            : (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '/' || c == '|' || (uint8_t)c >= 0x80;
}

static bool roles_in_template(const pn_vocab_source *src, pn_bytes t)
{
    if (t.len > src->chat_template.len || !t.len)
        return false;
    for (size_t i = 0; i + t.len <= src->chat_template.len; i++)
        if (src->chat_template.data[i] == t.data[0] && memcmp(src->chat_template.data + i, t.data, t.len) == 0)
            return true;
    return false;
}

/* A marker of an output family.  Of those that look like words or code ("Action:", ">>>") tokens are left
 * alone: they are ordinary text in a message, and mean nothing there. */
static void roles_guard_marker(void *user, const char *text)
{
    if (text[0] == '<' || text[0] == '[' || text[0] == ']')
        roles_attr(user, text, PN_TA_GUARD | PN_TA_MARKER, 0);
}

/* Last: what nobody may write into a message. */
static void roles_guard(pn_vocab *v, const pn_vocab_source *src)
{
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        unsigned kind = v->attr[i] & PN_TA_KIND;
        pn_bytes t = v->tokens[i];
        if (kind == PN_TOKEN_CONTROL || kind == PN_TOKEN_UNKNOWN ||
            (kind == PN_TOKEN_USER_DEFINED && !roles_only_space(t) && (!roles_plain(t) || roles_in_template(src, t))))
            v->attr[i] |= PN_TA_GUARD;
        else if (kind != PN_TOKEN_USER_DEFINED && kind != PN_TOKEN_BYTE && roles_shaped(t) && roles_in_template(src, t))
            v->attr[i] |= PN_TA_GUARD | PN_TA_MARKER;
    }
    for (size_t i = 0; i < PN_COUNT_OF(roles_end); i++)
        if (roles_ends(v, roles_end[i]))
            roles_attr(v, roles_end[i], PN_TA_GUARD, 0);
    for (size_t i = 0; i < PN_COUNT_OF(roles_markers); i++)
        roles_attr(v, roles_markers[i], PN_TA_GUARD | PN_TA_MARKER, 0);
    pn_out_each_marker(roles_guard_marker, v);
}

PN_INTERNAL void pn_vocab_roles(pn_vocab *v, const pn_vocab_source *src, pn_vocab_warn warn, void *user)
{
    roles_ids(v, src, warn, user);
    roles_detect(v, &v->eot, roles_eot, PN_COUNT_OF(roles_eot));
    roles_detect(v, &v->eom, roles_eom, PN_COUNT_OF(roles_eom));
    for (int i = 0; i < 6; i++)
        roles_detect(v, &v->fim[i], roles_fim[i], PN_COUNT_OF(roles_fim[i]));
    roles_ends_of_answers(v, src);
    for (size_t i = 0; i < PN_COUNT_OF(roles_visible); i++) {
        pn_token t = roles_find(v, roles_visible[i]);
        if (t >= 0)
            roles_set_kind(v, t, PN_TOKEN_USER_DEFINED);
    }
    roles_strip(v, src);
    roles_guard(v, src);
}
