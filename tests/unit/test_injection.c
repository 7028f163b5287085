/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Nothing that a client says becomes a control token: every special string of every vocabulary at hand and
 * every marker of every family of answers, as user and system text, tool results, names, keys and
 * descriptions, through a template of every family.
 *
 * Each prompt is rendered twice, with the hostile strings and with harmless ones in the same places: both
 * must have the same number of special tokens, and each of them must lie in the template's own text.
 * Special are control tokens, user-defined ones that look like markers, and, whatever their type, the
 * markers of the families.
 *
 *     test_injection [NAME ...]       only these vocabularies
 */
#include "pn_test.h"

#include "base/pn_json.h"
#include "text/pn_chat_norm.h"
#include "text/pn_toolcall.h"
#include "text/pn_vocab_impl.h"
#include "vocab_from_gguf.h"

#include <time.h>

enum { FAMILIES_MAX = 64, ALIKE_MAX = 3 };

static pn_mem mem;

typedef struct family {
    const char *name;
    char *source;
    size_t len;
    pn_tpl *t;
    pn_tpl_caps caps;
} family;

static family families[FAMILIES_MAX];
static size_t n_families;
static pn_str all_sources;              /* one after the other: the "own template" of every vocabulary */

/* ------------------------------------------------------------------------------------------
 * Strings
 * ------------------------------------------------------------------------------------------ */

typedef struct strings {
    pn_bytes *list;
    size_t n, cap;
    size_t n_few;               /* the first of them: at most ALIKE_MAX that differ in digits alone */
} strings;

static void strings_add(strings *s, const char *text, size_t len)
{
    if (!len)
        return;
    if (s->n == s->cap)
        s->list = realloc(s->list, (s->cap = s->cap * 2 + 256) * sizeof *s->list);
    s->list[s->n++] = (pn_bytes){text, len};
}

static void strings_marker(void *user, const char *text) { strings_add(user, text, strlen(text)); }

static int strings_compare(const void *a, const void *b)
{
    const pn_bytes *x = a, *y = b;
    int c = memcmp(x->data, y->data, PN_MIN(x->len, y->len));
    return c ? c : (x->len > y->len) - (x->len < y->len);
}

static bool strings_alike(pn_bytes a, pn_bytes b)
{
    size_t i = 0, k = 0;
    for (;;) {
        while (i < a.len && a.data[i] >= '0' && a.data[i] <= '9')
            i++;
        while (k < b.len && b.data[k] >= '0' && b.data[k] <= '9')
            k++;
        if (i == a.len || k == b.len)
            return i == a.len && k == b.len;
        if (a.data[i++] != b.data[k++])
            return false;
    }
}

/* Sorted and each once; those that differ from many in digits alone (padding tokens) come last.  What is
 * not UTF-8 cannot come in as JSON. */
static void strings_order(strings *s)
{
    size_t n = 0, run = 0, few = 0;
    qsort(s->list, s->n, sizeof *s->list, strings_compare);
    for (size_t i = 0; i < s->n; i++)
        if ((!n || strings_compare(&s->list[n - 1], &s->list[i]) != 0) &&
            pn_utf8_valid(s->list[i].data, s->list[i].len) == s->list[i].len)
            s->list[n++] = s->list[i];
    pn_bytes *sorted = malloc((n + 1) * sizeof *sorted);
    memcpy(sorted, s->list, n * sizeof *sorted);
    for (int late = 0, k = 0; late < 2; late++)
        for (size_t i = 0; i < n; i++) {
            run = i && strings_alike(sorted[i], sorted[i - 1]) ? run + 1 : 0;
            if ((run >= ALIKE_MAX) == late)
                s->list[k++] = sorted[i];
            few += !late && run < ALIKE_MAX;
        }
    free(sorted);
    s->n = n;
    s->n_few = few;
}

/* ------------------------------------------------------------------------------------------
 * A conversation full of them
 * ------------------------------------------------------------------------------------------ */

/* String i, or a word in its place. */
static void say_one(pn_str *out, const strings *s, size_t i, bool hostile)
{
    if (hostile)
        pn_str_add(out, s->list[i].data, s->list[i].len);
    else
        pn_str_addf(out, "w%zu", i);
}

/* The first n in one JSON string: at its start, after letters, blanks and line ends, at its end. */
static void say_many(pn_str *out, const strings *s, size_t n, bool hostile)
{
    static const char *const between[] = {"", " ", "a", "\n", "a "};
    pn_str text;
    pn_str_init(&text, &mem, PN_ACCT_MISC);
    for (size_t i = 0; i < n; i++) {
        pn_str_addz(&text, i ? between[i % PN_COUNT_OF(between)] : "");
        say_one(&text, s, i, hostile);
    }
    pn_json_write_str(out, pn_str_cstr(&text), text.len);
    pn_str_fini(&text);
}

/* {STRING: STRING, ...} */
static void say_object(pn_str *out, const strings *s, bool hostile, const char *before, const char *after)
{
    pn_str_addc(out, '{');
    for (size_t i = 0; i < s->n_few; i++) {
        pn_str one;
        pn_str_init(&one, &mem, PN_ACCT_MISC);
        say_one(&one, s, i, hostile);
        pn_json_item(out);
        pn_json_write_str(out, one.data, one.len);
        pn_str_addc(out, ':');
        pn_str_addz(out, before);
        pn_json_write_str(out, one.data, one.len);
        pn_str_addz(out, after);
        pn_str_fini(&one);
    }
    pn_str_addc(out, '}');
}

static void say_call(pn_str *out, const strings *s, bool hostile)
{
    pn_str args;
    pn_str_init(&args, &mem, PN_ACCT_MISC);
    say_object(&args, s, hostile, "", "");
    pn_str_addz(out, "{\"type\":\"function\",\"id\":");
    say_many(out, s, s->n_few, hostile);
    pn_str_addz(out, ",\"function\":{\"name\":");
    say_many(out, s, s->n_few, hostile);
    pn_json_key(out, "arguments");
    pn_json_write_str(out, pn_str_cstr(&args), args.len);
    pn_str_addz(out, "}}");
    pn_str_fini(&args);
}

/* Every place a client can write to. */
static void say_request(pn_str *out, const strings *s, bool hostile)
{
    pn_str_addz(out, "{\"bos_token\":\"\",\"eos_token\":\"\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":");
    say_many(out, s, s->n_few, hostile);
    pn_json_key(out, "description");
    say_many(out, s, s->n_few, hostile);
    pn_json_key(out, "parameters");
    pn_str_addz(out, "{\"type\":\"object\",\"properties\":");
    say_object(out, s, hostile, "{\"type\":\"string\",\"description\":", "}");
    pn_str_addz(out, "}}}],\"messages\":[{\"role\":\"system\",\"content\":");
    say_many(out, s, s->n_few, hostile);
    pn_str_addz(out, "},{\"role\":\"user\",\"content\":");
    say_many(out, s, s->n, hostile);
    pn_str_addz(out, "},{\"role\":\"assistant\",\"content\":");
    say_many(out, s, s->n_few, hostile);
    pn_str_addz(out, "},{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":");
    say_many(out, s, s->n_few, hostile);
    pn_str_addz(out, ",\"tool_calls\":[");
    say_call(out, s, hostile);
    pn_str_addz(out, "]},{\"role\":\"tool\",\"tool_call_id\":");
    say_many(out, s, s->n_few, hostile);
    pn_json_key(out, "name");
    say_many(out, s, s->n_few, hostile);
    pn_json_key(out, "content");
    say_many(out, s, s->n_few, hostile);
    pn_str_addz(out, "}]}");
}

static pn_status render(const family *f, const pn_json_doc *request, pn_prompt *out, pn_err *err)
{
    pn_str fitted;
    pn_json_doc vars;
    pn_str_init(&fitted, &mem, PN_ACCT_MISC);
    pn_status st = pn_chat_normalize(&f->caps, &mem, request, &fitted, err);
    if (!st)
        st = pn_json_parse(&vars, &mem, PN_ACCT_MISC, pn_str_cstr(&fitted), fitted.len, NULL, err);
    pn_str_fini(&fitted);
    if (st)
        return st;
    st = pn_tpl_render(f->t, &mem, &vars, NULL, out, err);
    pn_json_fini(&vars);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Counting
 * ------------------------------------------------------------------------------------------ */

/* A vocabulary and which of its tokens are special: said here anew, not taken from the code under test. */
typedef struct target {
    const pn_vocab *v;
    bool *special;              /* [n_tokens] */
    size_t n_special;
} target;

static void target_marker(void *user, const char *text)
{
    target *g = user;
    pn_token t = pn_vocab_find(g->v, text, strlen(text));
    if (t >= 0 && text[0] && strchr("<[]", text[0]))
        g->special[t] = true;
}

static void target_open(target *g, const pn_vocab *v)
{
    *g = (target){.v = v, .special = calloc(v->n_tokens + (size_t)1, sizeof *g->special)};
    for (uint32_t t = 0; t < v->n_tokens; t++) {
        pn_bytes b = pn_vocab_text(v, (pn_token)t);
        g->special[t] = pn_vocab_kind(v, (pn_token)t) == PN_TOKEN_CONTROL;
        for (size_t i = 0; i < b.len && pn_vocab_kind(v, (pn_token)t) == PN_TOKEN_USER_DEFINED; i++)
            g->special[t] = g->special[t] || strchr("<>[]|", b.data[i]);
    }
    pn_out_each_marker(target_marker, g);
    if (v->unk >= 0)
        g->special[v->unk] = false;     /* stands for characters that the vocabulary lacks, which anybody may write */
    for (uint32_t t = 0; t < v->n_tokens; t++)
        g->n_special += g->special[t];
}

/* Bytes of text from `at` on that the piece stands for, SIZE_MAX: it stands for others.  U+2581 in a text
 * reads as a space afterwards. */
static size_t covers(const pn_str *text, size_t at, pn_bytes piece)
{
    size_t k = at;
    for (size_t i = 0; i < piece.len; i++) {
        if (k < text->len && text->data[k] == piece.data[i])
            k++;
        else if (piece.data[i] == ' ' && text->len - k >= 3 && memcmp(text->data + k, "\xE2\x96\x81", 3) == 0)
            k += 3;
        else
            return SIZE_MAX;
    }
    return k - at;
}

/* The next piece of text, from *begin to *end.  Blanks before it may have been swallowed, and a vocabulary
 * may have put a space in front of a word. */
static bool place(const pn_str *text, pn_bytes piece, size_t *begin, size_t *end)
{
    for (*begin = *end;; ++*begin) {
        size_t n = covers(text, *begin, piece);
        if (n == SIZE_MAX && piece.len && piece.data[0] == ' ')
            n = covers(text, *begin, (pn_bytes){piece.data + 1, piece.len - 1});
        if (n != SIZE_MAX) {
            *end = *begin + n;
            return true;
        }
        if (*begin == text->len || !strchr(" \n", text->data[*begin]))
            return false;
    }
}

typedef struct tally {
    size_t special, outside;    /* special tokens; those of them not in the template's own text */
    bool placed;                /* every token was found in the text */
} tally;

static tally count(const target *g, const pn_prompt *p)
{
    static const pn_span none = {0, 0};
    pn_token *ids = NULL;
    size_t n = 0, cap = 0, begin = 0, end = 0, span = 0;
    char tmp[8];
    pn_err err = {0};
    tally c = {0, 0, true};
    PN_CHECK(pn_vocab_encode(g->v, &mem, pn_str_cstr(&p->text), p->text.len, PN_ENC_SPECIAL, p->n_spans ? p->spans : &none, p->n_spans,
                             &ids, &n, &cap, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < n; i++) {
        pn_bytes piece = pn_vocab_piece(g->v, ids[i], true, tmp);
        c.placed = c.placed && place(&p->text, piece, &begin, &end);
        if (!g->special[ids[i]])
            continue;
        c.special++;
        while (span < p->n_spans && p->spans[span].end < end)
            span++;
        c.outside += c.placed && (span == p->n_spans || begin < p->spans[span].begin);
    }
    pn_mem_free(&mem, PN_ACCT_MISC, ids, cap * sizeof *ids);
    return c;
}

/* With all of it trusted the same strings do become tokens: or there would be nothing to test. */
static size_t count_trusted(const target *g, const strings *s)
{
    size_t found = 0;
    for (size_t i = 0; i < s->n; i++) {
        pn_token *ids = NULL;
        size_t n = 0, cap = 0;
        const pn_span all = {0, s->list[i].len};
        pn_vocab_encode(g->v, &mem, s->list[i].data, s->list[i].len, PN_ENC_SPECIAL, &all, 1, &ids, &n, &cap, NULL);
        bool any = false;
        for (size_t k = 0; k < n; k++)
            any = any || g->special[ids[k]];
        found += any;
        pn_mem_free(&mem, PN_ACCT_MISC, ids, cap * sizeof *ids);
    }
    return found;
}

/* ------------------------------------------------------------------------------------------
 * One vocabulary
 * ------------------------------------------------------------------------------------------ */

static void check_family(const char *who, const target *g, const family *f, const pn_json_doc *hostile, const pn_json_doc *harmless,
                         size_t *not_placed)
{
    pn_prompt a, b;
    pn_err err = {0};
    pn_prompt_init(&a, &mem);
    pn_prompt_init(&b, &mem);
    if (PN_CHECK(render(f, hostile, &a, &err) == PN_OK && render(f, harmless, &b, &err) == PN_OK, "%s: %s", f->name, err.text)) {
        tally x = count(g, &a), y = count(g, &b);
        PN_CHECK(x.special == y.special, "%s, %s: %zu special tokens, %zu with harmless text", who, f->name, x.special, y.special);
        PN_CHECK(x.outside == 0, "%s, %s: %zu special tokens outside the template's text", who, f->name, x.outside);
        *not_placed += !x.placed;
    }
    pn_prompt_fini(&a);
    pn_prompt_fini(&b);
}

static bool parse_request(const strings *s, bool hostile, pn_json_doc *d)
{
    pn_str text;
    pn_err err = {0};
    pn_str_init(&text, &mem, PN_ACCT_MISC);
    say_request(&text, s, hostile);
    bool ok = PN_CHECK(!text.failed && pn_json_parse(d, &mem, PN_ACCT_MISC, text.data, text.len, NULL, &err) == PN_OK, "%s", err.text);
    pn_str_fini(&text);
    return ok;
}

static void check_vocab(const char *who, const pn_vocab *v)
{
    static size_t n_vocabs;
    const size_t step = pn_test_quick() ? 4 : 1;                /* each vocabulary and each family, not each pair */
    target g;
    strings s = {0};
    pn_json_doc hostile, harmless;
    size_t not_placed = 0;
    clock_t start = clock();
    target_open(&g, v);
    for (uint32_t t = 0; t < v->n_tokens; t++) {
        unsigned kind = pn_vocab_kind(v, (pn_token)t);
        if (g.special[t] || kind == PN_TOKEN_USER_DEFINED || kind == PN_TOKEN_UNKNOWN)
            strings_add(&s, v->tokens[t].data, v->tokens[t].len);
    }
    pn_out_each_marker(strings_marker, &s);
    strings_order(&s);
    size_t live = count_trusted(&g, &s);
    PN_CHECK(live >= g.n_special && live, "%s: %zu strings make special tokens where they may, of %zu", who, live, g.n_special);
    if (parse_request(&s, true, &hostile)) {
        if (parse_request(&s, false, &harmless)) {
            for (size_t i = n_vocabs++ % step; i < n_families; i += step)
                check_family(who, &g, &families[i], &hostile, &harmless, &not_placed);
            pn_json_fini(&harmless);
        }
        pn_json_fini(&hostile);
    }
    printf("%-16s %5zu strings (%zu special tokens), %4zu in every place, %zu families, %4.0f ms%s\n", who, s.n, g.n_special, s.n_few,
           n_families, (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC,
           not_placed ? "; changes the text, so tokens are counted but not placed" : "");
    free(s.list);
    free(g.special);
}

/* The vocabulary of a file, with the families' templates as its own. */
static void check_file(const char *who, const char *bytes, size_t n)
{
    test_vocab t;
    pn_err err = {0};
    if (PN_CHECK(test_vocab_open(&t, &mem, bytes, n, &err), "%s: %s", who, err.text)) {
        pn_vocab_free(t.v);
        t.v = NULL;
        t.src.chat_template = (pn_bytes){all_sources.data, all_sources.len};
        if (PN_CHECK(pn_vocab_new(&t.v, &mem, &t.src, NULL, NULL, &err) == PN_OK, "%s: %s", who, err.text))
            check_vocab(who, t.v);
    }
    test_vocab_close(&t);
}

/* ------------------------------------------------------------------------------------------
 * Files
 * ------------------------------------------------------------------------------------------ */

static bool wanted(const char *name, int argc, char **argv)
{
    for (int a = 1; a < argc; a++)
        if (strcmp(argv[a], name) == 0)
            return true;
    return argc < 2;
}

static void small_vocabularies(int argc, char **argv)
{
    static const char *const names[] = {"deepseek2_kvb", "gemma2", "gemma4", "glm4moe", "gpt2", "gpt_oss", "lfm2",
                                        "llama_gqa_tied", "llama_moe", "mistral3", "phi3", "qwen2", "qwen35", "rwkv7",
                                        "starcoder2"};
    for (size_t i = 0; i < PN_COUNT_OF(names); i++) {
        char path[128];
        size_t n = 0;
        if (!wanted(names[i], argc, argv))
            continue;
        snprintf(path, sizeof path, "tests/vectors/tokenize/%s.gguf", names[i]);
        char *file = pn_test_read_file(path, &n);
        if (PN_CHECK(file != NULL, "%s", path))
            check_file(names[i], file, n);
        free(file);
    }
    size_t n = 0;
    char *demo = wanted("demo", argc, argv) ? pn_test_read_file("models/demo.gguf", &n) : NULL;
    if (demo)
        check_file("demo", demo, n);
    free(demo);
}

static bool exists(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f)
        fclose(f);
    return f != NULL;
}

static void real_vocabularies(int argc, char **argv)
{
    static const char *const names[] = {"aquila", "baichuan", "bert-bge", "command-r", "deepseek-coder", "deepseek-llm",
                                        "falcon", "gemma-4", "gpt-2", "gpt-neox", "llama-bpe", "llama-spm", "mpt",
                                        "nomic-bert-moe", "phi-3", "qwen2", "qwen35", "refact", "starcoder"};
    const char *dir = getenv("PANTHEON_GOLDEN") ? getenv("PANTHEON_GOLDEN") : "../shared/golden";
    char path[512];
    snprintf(path, sizeof path, "%s/README.md", dir);
    if (!exists(path)) {
        pn_test_skip("real vocabularies: no golden fixtures in %s", dir);
        return;
    }
    for (size_t i = 0; i < PN_COUNT_OF(names); i++) {
        size_t n = 0;
        snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-%s.gguf.gz", dir, names[i]);
        if (!wanted(names[i], argc, argv))
            continue;
        if (!exists(path)) {
            pn_test_skip("%s: no vocabulary there", names[i]);
            continue;
        }
        char *file = test_read_gz(path, &n);
        check_file(names[i], file, n);
        free(file);
    }
}

/* Types get lost: markers that the file types as ordinary text, and letters that it types user-defined. */
static void the_text_of_a_token_counts_not_its_type(void)
{
    static const struct { const char *text; int32_t type; bool mine; } more[] = {
        {"<tool_call>", PN_TOKEN_NORMAL, false},        /* of a family */
        {"[TOOL_CALLS]", PN_TOKEN_UNUSED, false},
        {"<|my_turn|>", PN_TOKEN_NORMAL, false},        /* of the template */
        {"[MINE]", PN_TOKEN_NORMAL, false},
        {"Human", PN_TOKEN_USER_DEFINED, false},
        {"<b>", PN_TOKEN_NORMAL, true},                 /* of nobody */
        {"[0]", PN_TOKEN_NORMAL, true},
        {"\xC3\xBC", PN_TOKEN_USER_DEFINED, true},
        {"Robot", PN_TOKEN_USER_DEFINED, true},
    };
    static const char tmpl[] = "{% for m in messages %}<|my_turn|>{% if messages[0] %}[MINE]Human{% endif %}{% endfor %}";
    size_t n_file = 0, base;
    test_vocab t;
    pn_err err = {0};
    char *file = pn_test_read_file("tests/vectors/tokenize/rwkv7.gguf", &n_file);
    if (!PN_CHECK(file && test_vocab_open(&t, &mem, file, n_file, &err), "%s", err.text))
        return;
    pn_vocab_free(t.v);
    base = t.src.n_tokens;
    t.src.tokens = t.tokens = realloc(t.tokens, (base + PN_COUNT_OF(more)) * sizeof *t.tokens);
    t.src.types = t.types = realloc(t.types, (base + PN_COUNT_OF(more)) * sizeof *t.types);
    for (size_t i = 0; i < PN_COUNT_OF(more); i++) {
        t.tokens[base + i] = (pn_bytes){more[i].text, strlen(more[i].text)};
        t.types[base + i] = more[i].type;
    }
    t.src.n_tokens = (uint32_t)(base + PN_COUNT_OF(more));
    t.src.n_logits = 0;
    t.src.chat_template = (pn_bytes){tmpl, sizeof tmpl - 1};
    PN_CHECK(pn_vocab_new(&t.v, &mem, &t.src, NULL, NULL, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < PN_COUNT_OF(more) && t.v; i++)
        for (int trusted = 0; trusted < 2; trusted++) {
            size_t n = 0, cap = 0, len = strlen(more[i].text);
            pn_token *ids = NULL;
            pn_span span = {0, len};
            pn_vocab_encode(t.v, &mem, more[i].text, len, PN_ENC_SPECIAL, &span, (size_t)trusted, &ids, &n, &cap, NULL);
            bool whole = n == 1 && ids[0] == (pn_token)(base + i);
            PN_CHECK(whole == (trusted || more[i].mine), "'%s', %strusted: %zu tokens", more[i].text,
                     trusted ? "" : "not ", n);
            pn_mem_free(&mem, PN_ACCT_MISC, ids, cap * sizeof *ids);
        }
    test_vocab_close(&t);
    free(file);
}

static void open_families(void)
{
    pn_str_init(&all_sources, &mem, PN_ACCT_MISC);
    for (const char *name; (name = pn_out_family_name(n_families)) != NULL && n_families < FAMILIES_MAX;) {
        family *f = &families[n_families++];
        char path[128];
        pn_err err = {0};
        pn_out_format format;
        snprintf(path, sizeof path, "tests/vectors/families/%s.jinja", name);
        f->name = name;
        f->source = pn_test_read_file(path, &f->len);
        if (!PN_CHECK(f->source && pn_tpl_new(&f->t, &mem, f->source, f->len, &err) == PN_OK, "%s: %s", path, err.text)) {
            n_families--;
            return;
        }
        PN_CHECK(pn_tpl_probe(f->t, &mem, &f->caps, &err) == PN_OK, "%s: %s", path, err.text);
        pn_out_detect(&format, f->source, f->len);
        PN_CHECK(strcmp(format.name, name) == 0, "%s is taken for %s", path, format.name);
        pn_str_add(&all_sources, f->source, f->len);
    }
}

int main(int argc, char **argv)
{
    pn_mem_init_libc(&mem);
    open_families();
    the_text_of_a_token_counts_not_its_type();
    small_vocabularies(argc, argv);
    real_vocabularies(argc, argv);
    for (size_t i = 0; i < n_families; i++) {
        pn_tpl_free(families[i].t);
        free(families[i].source);
    }
    pn_str_fini(&all_sources);
    return pn_test_end();
}
