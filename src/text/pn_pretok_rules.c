/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_pretok_rules.c - the published pre-tokenizers as tables.
 *
 * Sources: the "pre_tokenizer" sections of the models' tokenizer.json files.  Each pattern is quoted
 * above its table; CI stands for (?i:'s|'t|'re|'ve|'m|'ll|'d).
 */
#include "text/pn_pretok.h"

#define RULES_NL (PN_US_CR | PN_US_LF)
#define RULES_UPPER (PN_US(LU) | PN_US(LT) | PN_US(LM) | PN_US(LO) | PN_US_M)
#define RULES_LOWER (PN_US(LL) | PN_US(LM) | PN_US(LO) | PN_US_M)

/* --- ranges ------------------------------------------------------------------------------- */

/* [(\s|.,!?...] of PORO, without \s */
static const pn_uni_pair rules_poro_marks[] = {
    {0x21, 0x21}, {0x28, 0x29}, {0x2C, 0x2C}, {0x2E, 0x2E}, {0x3F, 0x3F}, {0x7C, 0x7C}, {0x60C, 0x60C},
    {0x6D4, 0x6D4}, {0x964, 0x964}, {0x2026, 0x2026}, {0x3001, 0x3002}, {0xFF0C, 0xFF0C}, {0, 0},
};

static const pn_uni_pair rules_ds_cjk[] = {{0x800, 0x9FA5}, {0xAC00, 0xD7FF}, {0, 0}};
static const pn_uni_pair rules_v3_cjk[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}, {0, 0}};

/* DeepSeek-LLM's punctuation; letters are within the first ranges, but its step 2 took them. */
static const pn_uni_pair rules_ds_punct[] = {
    {0x21, 0x2F}, {0x3A, 0x7E}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}, {0, 0},
};

/* DeepSeek-LLM's letters: cased scripts. */
static const pn_uni_pair rules_ds_letters[] = {
    {0x41, 0x5A}, {0x61, 0x7A}, {0xB5, 0xB5}, {0xC0, 0xD6}, {0xD8, 0xF6}, {0xF8, 0x1BA}, {0x1BC, 0x1BF},
    {0x1C4, 0x293}, {0x295, 0x2AF}, {0x370, 0x373}, {0x376, 0x377}, {0x37B, 0x37D}, {0x37F, 0x37F},
    {0x386, 0x386}, {0x388, 0x38A}, {0x38C, 0x38C}, {0x38E, 0x3A1}, {0x3A3, 0x3F5}, {0x3F7, 0x481},
    {0x48A, 0x52F}, {0x531, 0x556}, {0x10A0, 0x10C5}, {0x13A0, 0x13F5}, {0x13F8, 0x13FD}, {0x1C90, 0x1CBA},
    {0x1CBD, 0x1CBF}, {0x1D00, 0x1D2B}, {0x1D6B, 0x1D77}, {0x1D79, 0x1D9A}, {0x1E00, 0x1F15},
    {0x1F18, 0x1F1D}, {0x1F20, 0x1F45}, {0x1F48, 0x1F4D}, {0x1F50, 0x1F57}, {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B}, {0x1F5D, 0x1F5D}, {0x1F5F, 0x1F7D}, {0x1F80, 0x1FB4}, {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE}, {0x1FC2, 0x1FC4}, {0x1FC6, 0x1FCC}, {0x1FD0, 0x1FD3}, {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC}, {0x1FF2, 0x1FF4}, {0x1FF6, 0x1FFC}, {0x2102, 0x2102}, {0x2107, 0x2107},
    {0x210A, 0x2113}, {0x2115, 0x2115}, {0x2119, 0x211D}, {0x2124, 0x2124}, {0x2126, 0x2126},
    {0x2128, 0x2128}, {0x212A, 0x212D}, {0x212F, 0x2134}, {0x2139, 0x2139}, {0x213C, 0x213F},
    {0x2145, 0x2149}, {0x214E, 0x214E}, {0x2183, 0x2184}, {0x2C00, 0x2C7B}, {0x2C7E, 0x2CE4},
    {0x2CEB, 0x2CEE}, {0x2CF2, 0x2CF3}, {0xA640, 0xA66D}, {0xA680, 0xA69B}, {0xA722, 0xA76F},
    {0xA771, 0xA787}, {0xA78B, 0xA78E}, {0xAB70, 0xABBF}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A}, {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943}, {0, 0},
};

/* AFMOE: CJK, kana, Thai, Lao, Khmer, Myanmar, Hangul blocks. */
static const pn_uni_pair rules_afmoe_blocks[] = {
    {0xE40, 0xEFF}, {0x1000, 0x109F}, {0x1100, 0x11FF}, {0x1780, 0x17FF}, {0x2F00, 0x2FDF},
    {0x3040, 0x30FF}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xA9E0, 0xA9FF}, {0xAA60, 0xAA7F},
    {0xAC00, 0xD7AF}, {0xF900, 0xFAFF}, {0xFF65, 0xFF9F}, {0, 0},
};

static const pn_uni_pair rules_youtu_hangul[] = {{0x3131, 0x318E}, {0xAC00, 0xD7A3}, {0, 0}};
static const pn_uni_pair rules_youtu_marks[] = {
    {0x2014, 0x2014}, {0x2018, 0x2019}, {0x201C, 0x201D}, {0x2026, 0x2026}, {0x3001, 0x303F},
    {0xFE30, 0xFE4F}, {0xFF01, 0xFF01}, {0xFF0C, 0xFF0C}, {0xFF1A, 0xFF1B}, {0, 0},
};
static const pn_uni_pair rules_youtu_bopomofo[] = {{0x3105, 0x312F}, {0, 0}};

/* --- classes ------------------------------------------------------------------------------ */

static const pn_pretok_set rules_space = {.in = PN_US_SPACE};
static const pn_pretok_set rules_ws = {.in = PN_US_WS};
static const pn_pretok_set rules_nonspace = {.in = PN_US_ANY, .out = PN_US_WS};
static const pn_pretok_set rules_newline = {.in = RULES_NL};
static const pn_pretok_set rules_newline_slash = {.in = RULES_NL | PN_US_SLASH};
static const pn_pretok_set rules_lf = {.in = PN_US_LF};
static const pn_pretok_set rules_not_lf = {.in = PN_US_ANY, .out = PN_US_LF};
static const pn_pretok_set rules_letter = {.in = PN_US_L};
static const pn_pretok_set rules_letter_mark = {.in = PN_US_L | PN_US_M};
static const pn_pretok_set rules_number = {.in = PN_US_N};
static const pn_pretok_set rules_decimal = {.in = PN_US(ND)};
static const pn_pretok_set rules_digit = {.in = PN_US_ADIGIT};
static const pn_pretok_set rules_alpha = {.in = PN_US_AALPHA};
static const pn_pretok_set rules_apunct = {.in = PN_US_APUNCT};
static const pn_pretok_set rules_punct = {.in = PN_US_P};
static const pn_pretok_set rules_punct_apunct = {.in = PN_US_P | PN_US_APUNCT};
static const pn_pretok_set rules_punct_symbol = {.in = PN_US_P | PN_US_S};
static const pn_pretok_set rules_falcon_punct = {.in = PN_US_P | PN_US_FALCON | PN_US_TICK};
static const pn_pretok_set rules_default_punct = {.in = PN_US_P | PN_US_FALCON};
static const pn_pretok_set rules_other = {.in = PN_US_ANY, .out = PN_US_WS | PN_US_L | PN_US_N};
static const pn_pretok_set rules_other_mark = {.in = PN_US_ANY, .out = PN_US_WS | PN_US_L | PN_US_M | PN_US_N};
static const pn_pretok_set rules_prefix = {.in = PN_US_ANY, .out = RULES_NL | PN_US_L | PN_US_N};
static const pn_pretok_set rules_v3_prefix = {.in = PN_US_ANY, .out = RULES_NL | PN_US_L | PN_US_P | PN_US_S};
static const pn_pretok_set rules_upper = {.in = RULES_UPPER};
static const pn_pretok_set rules_lower = {.in = RULES_LOWER};
static const pn_pretok_set rules_upper_not_han = {.in = RULES_UPPER, .out = PN_US_HAN};
static const pn_pretok_set rules_lower_not_han = {.in = RULES_LOWER, .out = PN_US_HAN};
static const pn_pretok_set rules_han = {.in = PN_US_HAN};
static const pn_pretok_set rules_poro = {.in = PN_US_ANY, .out = PN_US_WS, .sub = rules_poro_marks};
static const pn_pretok_set rules_set_ds_cjk = {.add = rules_ds_cjk};
static const pn_pretok_set rules_set_v3_cjk = {.add = rules_v3_cjk};
static const pn_pretok_set rules_set_ds_punct = {.add = rules_ds_punct};
static const pn_pretok_set rules_set_ds_letters = {.add = rules_ds_letters};
static const pn_pretok_set rules_set_afmoe = {.add = rules_afmoe_blocks};
static const pn_pretok_set rules_set_hangul = {.add = rules_youtu_hangul};
static const pn_pretok_set rules_set_youtu_marks = {.add = rules_youtu_marks};
static const pn_pretok_set rules_set_bopomofo = {.add = rules_youtu_bopomofo};

/* --- rules -------------------------------------------------------------------------------- */

#define RULES_SEQ(p, b, t, mn, mx) {PN_PRE_SEQ, p, b, t, mn, mx, 0}
#define RULES_RUN(b) RULES_SEQ(NULL, &b, NULL, 1, 0)
#define RULES_UPTO(b, mx) RULES_SEQ(NULL, &b, NULL, 1, mx)
#define RULES_ONLY(k) {k, NULL, NULL, NULL, 0, 0, 0}
#define RULES_CI RULES_ONLY(PN_PRE_CONTRACTION_CI)
#define RULES_WORD RULES_SEQ(&rules_prefix, &rules_letter, NULL, 1, 0)
#define RULES_OTHER(t) RULES_SEQ(&rules_space, &rules_other, t, 1, 0)
/* \s+(?!\S)|\s+, with \s*[\r\n]+ in front of it */
#define RULES_SPACES RULES_ONLY(PN_PRE_SPACE_AHEAD), RULES_RUN(rules_ws)
#define RULES_TAIL RULES_ONLY(PN_PRE_NEWLINES), RULES_SPACES
#define RULES_PATTERN(name) \
    static const pn_pretok_pattern rules_pat_##name = {.rules = rules_list_##name, .n_rules = PN_COUNT_OF(rules_list_##name)}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static const pn_pretok_rule rules_list_gpt2[] = {
    RULES_ONLY(PN_PRE_CONTRACTION),
    RULES_SEQ(&rules_space, &rules_letter, NULL, 1, 0),
    RULES_SEQ(&rules_space, &rules_number, NULL, 1, 0),
    RULES_OTHER(NULL),
    RULES_SPACES,
};
RULES_PATTERN(gpt2);

/* CI|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static const pn_pretok_rule rules_list_llama3[] = {
    RULES_CI, RULES_WORD, RULES_UPTO(rules_number, 3), RULES_OTHER(&rules_newline), RULES_TAIL,
};
RULES_PATTERN(llama3);

/* as llama3 with \p{N} */
static const pn_pretok_rule rules_list_qwen2[] = {
    RULES_CI, RULES_WORD, RULES_UPTO(rules_number, 1), RULES_OTHER(&rules_newline), RULES_TAIL,
};
RULES_PATTERN(qwen2);

/* as qwen2, marks count as letters */
static const pn_pretok_rule rules_list_qwen35[] = {
    RULES_CI,
    RULES_SEQ(&rules_prefix, &rules_letter_mark, NULL, 1, 0),
    RULES_UPTO(rules_number, 1),
    RULES_SEQ(&rules_space, &rules_other_mark, &rules_newline, 1, 0),
    RULES_TAIL,
};
RULES_PATTERN(qwen35);

/* as llama3 with \p{N}+ */
static const pn_pretok_rule rules_list_minicpm5[] = {
    RULES_CI, RULES_WORD, RULES_RUN(rules_number), RULES_OTHER(&rules_newline), RULES_TAIL,
};
RULES_PATTERN(minicpm5);

/* [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
 * |[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
 * |\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static const pn_pretok_rule rules_list_tekken[] = {
    {PN_PRE_CASED_PLAIN, &rules_prefix, &rules_upper, &rules_lower, 0, 0, 0},
    RULES_UPTO(rules_number, 1), RULES_OTHER(&rules_newline_slash), RULES_TAIL,
};
RULES_PATTERN(tekken);

/* tekken's two words each followed by an optional CI; \p{N}{1,3} */
static const pn_pretok_rule rules_list_gpt4o[] = {
    {PN_PRE_CASED, &rules_prefix, &rules_upper, &rules_lower, 0, 0, 0},
    RULES_UPTO(rules_number, 3), RULES_OTHER(&rules_newline_slash), RULES_TAIL,
};
RULES_PATTERN(gpt4o);

/* as gpt4o with \p{N} */
static const pn_pretok_rule rules_list_youtu2[] = {
    {PN_PRE_CASED, &rules_prefix, &rules_upper, &rules_lower, 0, 0, 0},
    RULES_UPTO(rules_number, 1), RULES_OTHER(&rules_newline_slash), RULES_TAIL,
};
RULES_PATTERN(youtu2);

/* \p{Han}+, then gpt4o's words without Han letters; no slash after punctuation */
static const pn_pretok_rule rules_list_kimi[] = {
    RULES_RUN(rules_han),
    {PN_PRE_CASED, &rules_prefix, &rules_upper_not_han, &rules_lower_not_han, 0, 0, 0},
    RULES_UPTO(rules_number, 3), RULES_OTHER(&rules_newline), RULES_TAIL,
};
RULES_PATTERN(kimi);

/* [\p{P}\$\+<=>\^~\|`]+ and [\p{P}\$\+<=>\^~\|]+, and [0-9][0-9][0-9], \p{N}, \p{N}+, \p{N}{1,3} */
static const pn_pretok_rule rules_list_falcon[] = {RULES_RUN(rules_falcon_punct)};
RULES_PATTERN(falcon);
static const pn_pretok_rule rules_list_default[] = {RULES_RUN(rules_default_punct)};
RULES_PATTERN(default);
static const pn_pretok_rule rules_list_three[] = {RULES_SEQ(NULL, &rules_digit, NULL, 3, 3)};
RULES_PATTERN(three);
static const pn_pretok_rule rules_list_number1[] = {RULES_UPTO(rules_number, 1)};
RULES_PATTERN(number1);
static const pn_pretok_rule rules_list_number3[] = {RULES_UPTO(rules_number, 3)};
RULES_PATTERN(number3);
static const pn_pretok_rule rules_list_numbers[] = {RULES_RUN(rules_number)};
RULES_PATTERN(numbers);

/* DeepSeek: [\r\n], \s?\p{L}+, \s?\p{P}+, the CJK class; LLM: its own letters, punctuation, \s+$ */
static const pn_pretok_rule rules_list_nl1[] = {RULES_UPTO(rules_newline, 1)};
RULES_PATTERN(nl1);
static const pn_pretok_rule rules_list_ds_word[] = {RULES_SEQ(&rules_ws, &rules_letter, NULL, 1, 0)};
RULES_PATTERN(ds_word);
static const pn_pretok_rule rules_list_ds_punct[] = {RULES_SEQ(&rules_ws, &rules_punct, NULL, 1, 0)};
RULES_PATTERN(ds_punct);
static const pn_pretok_rule rules_list_ds_cjk[] = {RULES_RUN(rules_set_ds_cjk)};
RULES_PATTERN(ds_cjk);
static const pn_pretok_rule rules_list_llm_word[] = {RULES_SEQ(&rules_ws, &rules_set_ds_letters, NULL, 1, 0)};
RULES_PATTERN(llm_word);
static const pn_pretok_rule rules_list_llm_punct[] = {RULES_SEQ(&rules_ws, &rules_set_ds_punct, NULL, 1, 0)};
RULES_PATTERN(llm_punct);
static const pn_pretok_rule rules_list_ws_end[] = {RULES_ONLY(PN_PRE_SPACE_END)};
RULES_PATTERN(ws_end);

/* V3: CJK and kana; then [!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|... */
static const pn_pretok_rule rules_list_v3_cjk[] = {RULES_RUN(rules_set_v3_cjk)};
RULES_PATTERN(v3_cjk);
static const pn_pretok_rule rules_list_v3[] = {
    {PN_PRE_SEQ_MUST, &rules_apunct, &rules_alpha, NULL, 1, 0, 0},
    RULES_SEQ(&rules_v3_prefix, &rules_letter_mark, NULL, 1, 0),
    RULES_SEQ(&rules_space, &rules_punct_symbol, &rules_newline, 1, 0),
    RULES_TAIL,
};
RULES_PATTERN(v3);

/* ... ?[^\s\p{L}\p{N}\r\n]+|... : no newline after punctuation */
static const pn_pretok_rule rules_list_seed[] = {
    RULES_CI, RULES_WORD, RULES_UPTO(rules_number, 1), RULES_OTHER(NULL), RULES_TAIL,
};
RULES_PATTERN(seed);

/* ` ?[^(\s|.,!?...]+`, where the round bracket and the bar are literal members */
static const pn_pretok_rule rules_list_poro[] = {RULES_SEQ(&rules_space, &rules_poro, NULL, 1, 0)};
RULES_PATTERN(poro);

/* (?=(\d{3})+(?!\d)) and \d{1,3}(?=(?:\d{3})*\b); AFMOE: number runs, the remainder first */
static const pn_pretok_rule rules_list_right3[] = {{PN_PRE_RIGHT3_EDGE, NULL, &rules_decimal, NULL, 0, 0, 0}};
RULES_PATTERN(right3);
static const pn_pretok_rule rules_list_right3_word[] = {
    {PN_PRE_RIGHT3_WORD, NULL, &rules_decimal, NULL, 0, 0, 0},
};
RULES_PATTERN(right3_word);
static const pn_pretok_rule rules_list_right3_n[] = {{PN_PRE_RIGHT3, NULL, &rules_number, NULL, 0, 0, 0}};
RULES_PATTERN(right3_n);
static const pn_pretok_rule rules_list_afmoe[] = {RULES_RUN(rules_set_afmoe)};
RULES_PATTERN(afmoe);

/* CI|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|... */
static const pn_pretok_rule rules_list_exaone_moe[] = {
    RULES_CI,
    {PN_PRE_SUPERWORD, &rules_prefix, NULL, NULL, 0, 0, 0},
    RULES_UPTO(rules_number, 1),
    {PN_PRE_SEQ, &rules_space, &rules_other, &rules_newline_slash, 1, 0, 1},
    RULES_TAIL,
};
RULES_PATTERN(exaone_moe);

/* as llama3 with a tail of powers of two */
static const pn_pretok_rule rules_list_jais2[] = {
    RULES_CI, RULES_WORD, RULES_UPTO(rules_number, 3), RULES_OTHER(&rules_newline),
    RULES_ONLY(PN_PRE_NEWLINES), RULES_ONLY(PN_PRE_SPACE_POW2),
};
RULES_PATTERN(jais2);

/* Hangul | CJK punctuation | bopomofo | ideographs and kana */
static const pn_pretok_rule rules_list_youtu1[] = {
    RULES_RUN(rules_set_hangul), RULES_RUN(rules_set_youtu_marks), RULES_RUN(rules_set_bopomofo),
    RULES_RUN(rules_set_v3_cjk),
};
RULES_PATTERN(youtu1);

static const pn_pretok_rule rules_list_sentinel[] = {RULES_ONLY(PN_PRE_SENTINEL)};
RULES_PATTERN(sentinel);
static const pn_pretok_rule rules_list_image[] = {RULES_ONLY(PN_PRE_IMAGE)};
RULES_PATTERN(image);
static const pn_pretok_rule rules_list_indent[] = {RULES_ONLY(PN_PRE_INDENT)};
RULES_PATTERN(indent);
static const pn_pretok_rule rules_list_punct1[] = {RULES_UPTO(rules_punct_apunct, 1)};
RULES_PATTERN(punct1);

/* [^\n]+|[\n]+ and \S+ */
static const pn_pretok_rule rules_list_newlines[] = {RULES_RUN(rules_not_lf), RULES_RUN(rules_lf)};
RULES_PATTERN(newlines);
static const pn_pretok_rule rules_list_whitespace[] = {RULES_RUN(rules_nonspace)};
RULES_PATTERN(whitespace);

/* before each U+2581 */
static const pn_uni_pair rules_meta_chars[] = {{0x2581, 0x2581}, {0, 0}};
static const pn_pretok_set rules_meta = {.add = rules_meta_chars};
static const pn_pretok_set rules_not_meta = {.in = PN_US_ANY, .sub = rules_meta_chars};
static const pn_pretok_rule rules_list_metaspace[] = {{PN_PRE_SEQ_MUST, &rules_meta, &rules_not_meta, NULL, 0, 0, 0}};
RULES_PATTERN(metaspace);

#define RULES_P(name) &rules_pat_##name

static const pn_pretok rules_table[] = {
    {" default ", 0, {RULES_P(default), RULES_P(gpt2), RULES_P(numbers), RULES_P(three)}},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     PN_PRETOK_IGNORE_MERGES | PN_PRETOK_ADD_BOS, {RULES_P(llama3)}},
    {" minicpm5 ", PN_PRETOK_IGNORE_MERGES, {RULES_P(number3), RULES_P(minicpm5)}},
    {" dbrx smaug-bpe ", 0, {RULES_P(llama3)}},
    {" glm4 chatglm-bpe ", PN_PRETOK_NO_BOS, {RULES_P(llama3)}},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan grok-2 solar-open ", 0, {RULES_P(qwen2)}},
    {" qwen35 ", 0, {RULES_P(qwen35)}},
    {" gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert exaone4 mpt olmo jais"
     " jina-v1-en jina-v2-code roberta-bpe trillion granite-docling ", 0, {RULES_P(gpt2)}},
    {" starcoder refact codeshell exaone minerva-7b mellum2 command-r smollm ", 0, {RULES_P(number1), RULES_P(gpt2)}},
    {" falcon ", 0, {RULES_P(falcon), RULES_P(gpt2), RULES_P(three)}},
    {" deepseek-llm ", 0, {RULES_P(nl1), RULES_P(llm_word), RULES_P(llm_punct), RULES_P(ws_end), RULES_P(ds_cjk), RULES_P(numbers)}},
    {" deepseek-coder ", 0, {RULES_P(nl1), RULES_P(ds_word), RULES_P(ds_punct), RULES_P(ds_cjk), RULES_P(number1)}},
    {" deepseek-v3 hunyuan-dense joyai-llm ", 0, {RULES_P(number3), RULES_P(v3_cjk), RULES_P(v3)}},
    {" tekken ", PN_PRETOK_IGNORE_MERGES | PN_PRETOK_ADD_BOS, {RULES_P(tekken)}},
    {" gpt-4o llama4 kanana2 talkie minimax-m2 ", 0, {RULES_P(gpt4o)}},
    {" granite-embed-multi-97m ", PN_PRETOK_IGNORE_MERGES, {RULES_P(gpt4o)}},
    {" tiny_aya cohere2moe ", 0, {RULES_P(right3_word), RULES_P(gpt4o)}},
    {" kimi-k2 ", 0, {RULES_P(kimi)}},
    {" bailingmoe bailingmoe2 llada-moe ", 0, {RULES_P(qwen2)}},
    {" seed-coder ", 0, {RULES_P(seed)}},
    {" poro-chat bloom gpt3-finnish ", 0, {RULES_P(poro)}},
    {" viking ", 0, {RULES_P(poro), RULES_P(number1)}},
    {" superbpe ", 0, {RULES_P(numbers), RULES_P(right3)}},
    {" youtu ", PN_PRETOK_IGNORE_MERGES, {RULES_P(youtu1), RULES_P(youtu2)}},
    {" afmoe ", 0, {RULES_P(right3_n), RULES_P(afmoe), RULES_P(v3)}},
    {" laguna ", 0, {RULES_P(newlines), RULES_P(qwen2)}},
    {" exaone-moe ", 0, {RULES_P(exaone_moe)}},
    {" jais-2 ", 0, {RULES_P(jais2)}},
    {" chameleon ", PN_PRETOK_ADD_BOS, {RULES_P(sentinel), RULES_P(image), RULES_P(indent), RULES_P(number1),
                                        RULES_P(punct1), RULES_P(gpt2)}},
    {" gemma4 granite-embed-multi-311m ",
     PN_PRETOK_RAW | PN_PRETOK_ESCAPE | PN_PRETOK_FORCE_BOS | PN_PRETOK_WHOLE_NEWLINES, {RULES_P(newlines)}},
    {" sarvam-moe ", PN_PRETOK_RAW | PN_PRETOK_ESCAPE, {RULES_P(newlines)}},
    {" whitespace ", PN_PRETOK_RAW | PN_PRETOK_DROP_GAPS, {RULES_P(whitespace)}},
};

PN_INTERNAL const pn_pretok *pn_pretok_table(size_t *n)
{
    *n = PN_COUNT_OF(rules_table);
    return rules_table;
}

PN_INTERNAL pn_bytes pn_pretok_name(const pn_pretok *p)
{
    unsigned mask = PN_PRETOK_IGNORE_MERGES | PN_PRETOK_RAW | PN_PRETOK_ESCAPE;
    for (size_t i = 0; i < PN_COUNT_OF(rules_table); i++)
        if (memcmp(p->levels, rules_table[i].levels, sizeof p->levels) == 0 &&
            (p->flags & mask) == (rules_table[i].flags & (mask | PN_PRETOK_DROP_GAPS))) {
            const char *name = rules_table[i].names + 1;
            return (pn_bytes){name, (size_t)(strchr(name, ' ') - name)};
        }
    return (pn_bytes){NULL, 0};
}

PN_INTERNAL const pn_pretok_pattern *pn_pretok_pattern_of(pn_pretok_piece piece)
{
    switch (piece) {
    case PN_PIECE_GPT2: return RULES_P(gpt2);
    case PN_PIECE_DIGIT: return RULES_P(number1);
    case PN_PIECE_DIGITS: return RULES_P(numbers);
    case PN_PIECE_PUNCT: return RULES_P(punct1);
    case PN_PIECE_PUNCTS: return RULES_P(falcon);
    case PN_PIECE_METASPACE: return RULES_P(metaspace);
    }
    return NULL;
}

PN_INTERNAL const char *pn_pretok_regex_of(pn_pretok_piece piece)
{
    switch (piece) {
    case PN_PIECE_GPT2: return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    case PN_PIECE_DIGIT: return "\\p{N}";
    case PN_PIECE_DIGITS: return "\\p{N}+";
    case PN_PIECE_PUNCT: return "[\\p{P}!-/:-@\\[-`{-~]";
    case PN_PIECE_PUNCTS: return "[\\p{P}\\$\\+<=>\\^~\\|`]+";
    case PN_PIECE_METASPACE: break;
    }
    return "";
}

/* --- published regular expressions ---------------------------------------------------------- */

#define RULES_RX_CI "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define RULES_RX_WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define RULES_RX_OTHER "| ?[^\\s\\p{L}\\p{N}]+"
#define RULES_RX_TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define RULES_RX_UPPER(x) "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" x "]"
#define RULES_RX_LOWER(x) "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" x "]"
#define RULES_RX_CASED(x, ci) RULES_RX_UPPER(x) "*" RULES_RX_LOWER(x) "+" ci "|" RULES_RX_UPPER(x) "+" RULES_RX_LOWER(x) "*" ci
#define RULES_RX_NOT_HAN "&&[^\\p{Han}]"

typedef struct rules_regex {
    const char *text;
    const pn_pretok_pattern *pattern;
    bool total;
} rules_regex;

static const rules_regex rules_regexes[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+" RULES_RX_OTHER "|\\s+(?!\\S)|\\s+", RULES_P(gpt2), true},
    {RULES_RX_CI "|" RULES_RX_WORD "|\\p{N}{1,3}" RULES_RX_OTHER "[\\r\\n]*" RULES_RX_TAIL, RULES_P(llama3), true},
    {RULES_RX_CI "|" RULES_RX_WORD "|\\p{N}" RULES_RX_OTHER "[\\r\\n]*" RULES_RX_TAIL, RULES_P(qwen2), true},
    {RULES_RX_CI "|" RULES_RX_WORD "|\\p{N}+" RULES_RX_OTHER "[\\r\\n]*" RULES_RX_TAIL, RULES_P(minicpm5), true},
    {RULES_RX_CI "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" RULES_RX_TAIL,
     RULES_P(qwen35), true},
    {RULES_RX_CASED("", "") "|\\p{N}" RULES_RX_OTHER "[\\r\\n/]*" RULES_RX_TAIL, RULES_P(tekken), true},
    {RULES_RX_CASED("", RULES_RX_CI "?") "|\\p{N}{1,3}" RULES_RX_OTHER "[\\r\\n/]*" RULES_RX_TAIL, RULES_P(gpt4o), true},
    {RULES_RX_CASED("", RULES_RX_CI "?") "|\\p{N}" RULES_RX_OTHER "[\\r\\n/]*" RULES_RX_TAIL, RULES_P(youtu2), true},
    {"[\\p{Han}]+|" RULES_RX_CASED(RULES_RX_NOT_HAN, RULES_RX_CI "?") "|\\p{N}{1,3}" RULES_RX_OTHER "[\\r\\n]*" RULES_RX_TAIL,
     RULES_P(kimi), true},
    {"\\p{Han}+|" RULES_RX_CASED(RULES_RX_NOT_HAN, RULES_RX_CI "?") "|\\p{N}{1,3}" RULES_RX_OTHER "[\\r\\n]*" RULES_RX_TAIL,
     RULES_P(kimi), true},
    /* \s*[\r\n] takes the run to its last line end, as \s*[\r\n]+ does */
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
     RULES_P(qwen2), true},
    {RULES_RX_CI "|" RULES_RX_WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" RULES_RX_TAIL, RULES_P(seed), true},
    {RULES_RX_CI "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}" RULES_RX_OTHER
     "[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+", RULES_P(exaone_moe), true},
    {RULES_RX_CI "|" RULES_RX_WORD "|\\p{N}{1,3}" RULES_RX_OTHER "[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)"
     "|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}",
     RULES_P(jais2), true},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
     RULES_RX_TAIL, RULES_P(v3), false},
    {"[\\p{P}\\$\\+<=>\\^~\\|`]+", RULES_P(falcon), false},
    {"[0-9][0-9][0-9]", RULES_P(three), false},
    {"\\p{N}", RULES_P(number1), false},
    {"\\p{N}{1,3}", RULES_P(number3), false},
    {"\\p{N}+", RULES_P(numbers), false},
    {"\\d{1,3}(?=(?:\\d{3})*\\b)", RULES_P(right3_word), false},
    {"(?=(\\d{3})+(?!\\d))", RULES_P(right3), false},
    {"[\\r\\n]", RULES_P(nl1), false},
    {"\\s?\\p{L}+", RULES_P(ds_word), false},
    {"\\s?\\p{P}+", RULES_P(ds_punct), false},
    {"\\s+$", RULES_P(ws_end), false},
    {" ?[^(\\s|.,!?\xE2\x80\xA6\xE3\x80\x82\xEF\xBC\x8C\xE3\x80\x81\xE0\xA5\xA4\xDB\x94\xD8\x8C)]+", RULES_P(poro), false},
    {" ?[^(\\s|[.,!?\xE2\x80\xA6\xE3\x80\x82\xEF\xBC\x8C\xE3\x80\x81\xE0\xA5\xA4\xDB\x94\xD8\x8C])]+", RULES_P(poro), false},
    {"[^\\n]+|[\\n]+", RULES_P(newlines), true},
    {"<sentinel:[0-9]+>", RULES_P(sentinel), false},
    {"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", RULES_P(image), false},
    {"([\\t\\n]|    |  )", RULES_P(indent), false},
    {"[\\p{P}!-/:-@\\[-`{-~]", RULES_P(punct1), false},
};

/* The same with a class written as ranges: prefix, the members, "]+". */
static const struct { const char *prefix; const pn_uni_pair *members; const pn_pretok_pattern *pattern; } rules_ranges[] = {
    {"[", rules_ds_cjk, RULES_P(ds_cjk)},
    {"[", rules_v3_cjk, RULES_P(v3_cjk)},
    {"[", rules_afmoe_blocks, RULES_P(afmoe)},
    {"\\s?[", rules_ds_letters, RULES_P(llm_word)},
    {"\\s?[", rules_ds_punct, RULES_P(llm_punct)},
};

/* s[0..n) is `text`, where a CR or LF may stand for its escape. */
static bool rules_same(const char *s, size_t n, const char *text)
{
    size_t at = 0;
    for (; *text && at < n; at++) {
        if (s[at] == '\r' || s[at] == '\n') {
            if (text[0] != '\\' || text[1] != (s[at] == '\r' ? 'r' : 'n'))
                return false;
            text += 2;
        } else if (s[at] != *text++) {
            return false;
        }
    }
    return at == n && !*text;
}

/* The list of characters and ranges s[0..n) holds exactly `members`, in any order. */
static bool rules_same_members(const char *s, size_t n, const pn_uni_pair *members)
{
    pn_uni_pair got[128];
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        uint32_t a, b;
        i += pn_utf8_decode(s + i, n - i, &a);
        b = a;
        if (a == '\\' || a == '[' || a == ']' || a == '&')      /* no such class has them plain */
            return false;
        if (i + 1 < n && s[i] == '-') {
            i++;
            i += pn_utf8_decode(s + i, n - i, &b);
        }
        if (b < a || k == PN_COUNT_OF(got))
            return false;
        size_t at = k++;
        for (; at && got[at - 1].a > a; at--)
            got[at] = got[at - 1];
        got[at] = (pn_uni_pair){a, b};
    }
    size_t joined = 0;
    for (size_t i = 0; i < k; i++) {
        if (joined && got[i].a <= got[joined - 1].b + 1)
            got[joined - 1].b = PN_MAX(got[joined - 1].b, got[i].b);
        else
            got[joined++] = got[i];
    }
    size_t i = 0;
    while (i < joined && members->b) {          /* the table may have neighbours apart */
        pn_uni_pair m = *members++;
        for (; members->b && members->a <= m.b + 1; members++)
            m.b = members->b;
        if (got[i].a != m.a || got[i].b != m.b)
            return false;
        i++;
    }
    return i == joined && !members->b;
}

PN_INTERNAL const pn_pretok_pattern *pn_pretok_regex(const char *s, size_t n, bool *total)
{
    *total = false;
    for (size_t i = 0; i < PN_COUNT_OF(rules_regexes); i++)
        if (rules_same(s, n, rules_regexes[i].text)) {
            *total = rules_regexes[i].total;
            return rules_regexes[i].pattern;
        }
    for (size_t i = 0; i < PN_COUNT_OF(rules_ranges); i++) {
        size_t head = strlen(rules_ranges[i].prefix);
        if (n > head + 2 && memcmp(s, rules_ranges[i].prefix, head) == 0 && s[n - 2] == ']' && s[n - 1] == '+' &&
            rules_same_members(s + head, n - head - 2, rules_ranges[i].members))
            return rules_ranges[i].pattern;
    }
    return NULL;
}

#undef RULES_RX_CI
#undef RULES_RX_WORD
#undef RULES_RX_OTHER
#undef RULES_RX_TAIL
#undef RULES_RX_UPPER
#undef RULES_RX_LOWER
#undef RULES_RX_CASED
#undef RULES_RX_NOT_HAN
#undef RULES_NL
#undef RULES_UPPER
#undef RULES_LOWER
#undef RULES_SEQ
#undef RULES_RUN
#undef RULES_UPTO
#undef RULES_ONLY
#undef RULES_CI
#undef RULES_WORD
#undef RULES_OTHER
#undef RULES_SPACES
#undef RULES_TAIL
#undef RULES_PATTERN
#undef RULES_P
