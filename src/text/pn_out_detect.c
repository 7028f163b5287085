/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_out_detect.c - the table of families, and which one a template's source text belongs to.
 *
 * Why by substring of the source and not by rendering: the markers stand in the template, since it has
 * to write them for past calls, and the order of the table settles what several families share
 * ("<tool_call>" alone means JSON, with "<arg_key>" GLM, with "<parameter=" Qwen Coder).
 *
 * Source of the syntaxes: the families' published templates and model cards.
 */
#include "text/pn_out_parts.h"

static const out_named out_named_mistral = {NULL, "[CALL_ID]", "[ARGS]", NULL, true};
static const out_named out_named_deepseek = {"<｜tool▁call▁begin｜>", NULL, "<｜tool▁sep｜>", NULL, false};
static const out_named out_named_kimi = {"<|tool_call_begin|>", NULL, "<|tool_call_argument_begin|>", NULL, false};
static const out_named out_named_functionary31 = {NULL, NULL, ">", NULL, false};
static const out_named out_named_functionary32 = {NULL, NULL, "\n", NULL, false};
static const out_named out_named_solar = {"<|tool_call:begin|>", NULL, "<|tool_call:args|>", "<|tool_call:name|>", false};

static const out_xml out_xml_coder = {"<function=", ">", "<parameter=", ">", NULL, "</parameter>", "</function>", false, true};
static const out_xml out_xml_seed = {"<function=", ">", "<parameter=", ">", NULL, "</parameter>", "</function>", false, false};
static const out_xml out_xml_glm = {NULL, "<arg_key>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
                                    "</tool_call>", false, false};
static const out_xml out_xml_hy3 = {"<tool_call:opensource>", "<tool_sep:opensource>", "<arg_key:opensource>",
                                    "</arg_key:opensource>", "<arg_value:opensource>", "</arg_value:opensource>",
                                    "</tool_call:opensource>", false, false};
static const out_xml out_xml_dsml = {"<｜DSML｜invoke name=\"", ">", "<｜DSML｜parameter name=\"", ">", NULL,
                                     "</｜DSML｜parameter>", "</｜DSML｜invoke>", true, false};
static const out_xml out_xml_minimax = {"<invoke name=\"", ">", "<parameter name=\"", ">", NULL, "</parameter>",
                                        "</invoke>", true, false};
static const out_xml out_xml_minicpm = {"<function name=\"", ">", "<param name=\"", ">", NULL, "</param>",
                                        "</function>", true, false};
static const out_xml out_xml_atem = {"<atem:invoke name=\"", ">", "<atem:parameter name=\"", ">", NULL,
                                     "</atem:parameter>", "</atem:invoke>", true, false};
static const out_xml out_xml_kimi3 = {"<|open|>call tool=\"", "<|sep|>", "<|open|>argument key=\"", "<|sep|>", NULL,
                                      "<|close|>argument<|sep|>", "<|close|>call<|sep|>", true, false};

/* The first row whose words are all in the template is the family, so what is more special comes first. */
static const out_family out_families[] = {
    {.name = "kimi-k3", .grammar = OUT_XML, .all = {"<|open|>", "<|close|>", "<|sep|>"},
     .open = {"<|open|>tools<|sep|>", "<|open|>call tool=\""}, .close = {"<|close|>tools<|sep|>"},
     .skip = {"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"},
     .think = {"<|open|>think<|sep|>", "<|close|>think<|sep|>"}, .xml = &out_xml_kimi3},
    {.name = "solar", .grammar = OUT_NAMED, .all = {"<|tool_call:begin|>"}, .open = {"<|tool_calls|>"},
     .close = {"<|calls|>"}, .skip = {"<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"},
     .think = {"<|think|>", "<|end|>"}, .named = &out_named_solar},
    {.name = "muse", .grammar = OUT_XML, .all = {"<atem:"},
     .open = {"<atem:function_calls>", "<atem:invoke name=\""}, .close = {"</atem:function_calls>"},
     .skip = {"<|eom|>", "<|eot|>"}, .xml = &out_xml_atem, .flags = OUT_HEADERS},
    {.name = "minimax-m3", .grammar = OUT_NESTED, .all = {"]<]minimax[>["}, .open = {"]<]minimax[>[<tool_call>"},
     .close = {"]<]minimax[>[</tool_call>"}, .think = {"<mm:think>", "</mm:think>"}},
    {.name = "mistral", .grammar = OUT_NAMED, .all = {"[TOOL_CALLS]"}, .open = {"[TOOL_CALLS]"},
     .close = {"[/TOOL_CALLS]"}, .named = &out_named_mistral},
    {.name = "harmony", .grammar = OUT_HARMONY, .all = {"<|channel|>", "<|start|>"},
     .skip = {"<|end|>", "<|call|>", "<|return|>"}, .flags = OUT_HEADERS},
    {.name = "kimi-k2", .grammar = OUT_NAMED, .all = {"<|tool_calls_section_begin|>"},
     .open = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"}, .close = {"<|tool_calls_section_end|>"},
     .named = &out_named_kimi},
    {.name = "lfm2", .grammar = OUT_PYTHON, .any = {"<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["},
     .open = {"<|tool_call_start|>"}, .close = {"<|tool_call_end|>"}},
    {.name = "gemma4", .grammar = OUT_GEMMA, .all = {"<|tool_call>call:"}, .open = {"<|tool_call>"},
     .close = {"<tool_call|>"}, .skip = {"<|tool_response>"}, .think = {"<|channel>thought", "<channel|>"}},
    {.name = "deepseek-dsml", .grammar = OUT_XML, .all = {"DSML"}, .any = {"function_calls", "tool_calls"},
     .open = {"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜invoke name=\""},
     .close = {"</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"}, .xml = &out_xml_dsml},
    {.name = "deepseek", .grammar = OUT_NAMED, .all = {"<｜tool▁calls▁begin｜>"},
     .open = {"<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool\\_calls\\_begin｜>",
              "<｜tool▁calls｜>", "<｜tool▁call▁begin｜>"},
     .close = {"<｜tool▁calls▁end｜>", "<｜tool_calls_end｜>", "<｜tool calls end｜>"}, .named = &out_named_deepseek},
    {.name = "command-r7b", .grammar = OUT_JSON, .all = {"<|START_ACTION|>"}, .open = {"<|START_ACTION|>"},
     .close = {"<|END_ACTION|>"},
     .skip = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"},
     .think = {"<|START_THINKING|>", "<|END_THINKING|>"}},
    {.name = "minimax-m2", .grammar = OUT_XML, .all = {"<minimax:tool_call>"}, .open = {"<minimax:tool_call>"},
     .close = {"</minimax:tool_call>"}, .xml = &out_xml_minimax},
    {.name = "seed-oss", .grammar = OUT_XML, .all = {"<seed:tool_call>"}, .open = {"<seed:tool_call>"},
     .close = {"</seed:tool_call>"}, .think = {"<seed:think>", "</seed:think>"}, .xml = &out_xml_seed},
    {.name = "hy3", .grammar = OUT_XML, .all = {":opensource", "tool_sep", "arg_key"},
     .open = {"<tool_calls:opensource>", "<tool_call:opensource>"}, .close = {"</tool_calls:opensource>"},
     .think = {"<think:opensource>", "</think:opensource>"}, .xml = &out_xml_hy3},
    {.name = "glm", .grammar = OUT_XML, .all = {"<arg_key>"}, .open = {"<tool_call>"}, .close = {"</tool_call>"},
     .xml = &out_xml_glm},
    {.name = "qwen-coder", .grammar = OUT_XML, .all = {"<function=", "<parameter="},
     .open = {"<tool_call>", "<function="}, .close = {"</tool_call>"}, .xml = &out_xml_coder},
    {.name = "minicpm5", .grammar = OUT_XML, .all = {"<function name=\""}, .open = {"<function name=\""},
     .xml = &out_xml_minicpm},
    {.name = "functionary-3.2", .grammar = OUT_NAMED, .all = {">>>all"}, .open = {">>>"},
     .named = &out_named_functionary32, .flags = OUT_SEGMENTS},
    {.name = "functionary-3.1", .grammar = OUT_NAMED, .all = {"<function=", "<|start_header_id|>"},
     .open = {"<function="}, .close = {"</function>"}, .named = &out_named_functionary31, .flags = OUT_CODE_TAG},
    {.name = "nemotron-v2", .grammar = OUT_JSON, .all = {"<TOOLCALL>"}, .open = {"<TOOLCALL>"},
     .close = {"</TOOLCALL>"}},
    {.name = "apertus", .grammar = OUT_JSON, .all = {"<|tools_prefix|>"}, .open = {"<|tools_prefix|>"},
     .close = {"<|tools_suffix|>"}, .think = {"<|inner_prefix|>", "<|inner_suffix|>"}, .flags = OUT_NAME_IS_KEY},
    {.name = "gigachat", .grammar = OUT_JSON, .all = {"<|role_sep|>"},
     .open = {"<|message_sep|>\n\nfunction call<|role_sep|>\n", "<|function_call|>"}, .close = {"<|message_sep|>"},
     .skip = {"<|message_sep|>"}},
    {.name = "granite-3", .grammar = OUT_JSON, .all = {"<|tool_call|>", "<|start_of_role|>"}, .open = {"<|tool_call|>"},
     .skip = {"<response>", "</response>"}},
    {.name = "phi4-mini", .grammar = OUT_JSON, .any = {"<|tool|>", "functools["},
     .open = {"functools", "<|tool_call|>"}, .close = {"<|/tool_call|>"}},
    {.name = "apriel", .grammar = OUT_JSON, .all = {"<tool_calls>["}, .open = {"<tool_calls>"},
     .close = {"</tool_calls>"}, .skip = {"[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"}},
    {.name = "minimax-m1", .grammar = OUT_JSON, .all = {"<tool_calls>"}, .open = {"<tool_calls>"},
     .close = {"</tool_calls>"}},
    {.name = "hermes", .grammar = OUT_JSON, .all = {"<tool_call>"}, .open = {"<tool_call>"}, .close = {"</tool_call>"},
     .xml = &out_xml_coder},
    {.name = "command-r-plus", .grammar = OUT_JSON, .all = {"Action:", "<|CHATBOT_TOKEN|>"}, .open = {"Action:"}},
    {.name = "llama3", .grammar = OUT_JSON, .all = {"<|start_header_id|>", "parameters"},
     .flags = OUT_BARE | OUT_CODE_TAG},
    /* What templates without tools have in common is what fine-tuned models write all the same. */
    {.name = "generic", .grammar = OUT_JSON, .open = {"<tool_call>"}, .close = {"</tool_call>"}, .flags = OUT_BARE},
};

/* Ends of answers, known to a parser when its template mentions them.  The first is also what people
 * write, so it counts only right after a call. */
static const char *const out_ends[] = {
    "</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>",
    "<turn|>", "<｜end▁of▁sentence｜>", "[e~[", "<seed:eos>", "<|END_OF_TURN_TOKEN|>", "<end_of_sentence>",
    "<SPECIAL_12>", "<|role_end|>", "<|eot|>", "</assistant>", "<sep>", "<|assistant_end|>", "<|user|>",
    "<|observation|>", "<｜hy_eos:opensource｜>",
};

/* Reasoning markers found in a template's text when the family does not fix them. */
static const char *const out_thinks[][2] = {
    {"[THINK]", "[/THINK]"}, {"<think>", "</think>"},
};

PN_INTERNAL const out_family *pn_out_family(int i)
{
    return i >= 0 && (size_t)i < PN_COUNT_OF(out_families) ? &out_families[i] : NULL;
}

PN_INTERNAL const char *pn_out_family_name(size_t i)
{
    return i < PN_COUNT_OF(out_families) ? out_families[i].name : NULL;
}

PN_INTERNAL const char *pn_out_end_mark(size_t i) { return i < PN_COUNT_OF(out_ends) ? out_ends[i] : NULL; }

static void detect_each(const char *const *list, size_t n, void (*fn)(void *user, const char *text), void *user)
{
    for (size_t i = 0; i < n; i++)
        if (list[i])
            fn(user, list[i]);
}

PN_INTERNAL void pn_out_each_marker(void (*fn)(void *user, const char *text), void *user)
{
    static const char *const headers[] = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|python_tag|>"};
    for (size_t i = 0; i < PN_COUNT_OF(out_families); i++) {
        const out_family *f = &out_families[i];
        detect_each(f->open, PN_COUNT_OF(f->open), fn, user);
        detect_each(f->close, PN_COUNT_OF(f->close), fn, user);
        detect_each(f->skip, PN_COUNT_OF(f->skip), fn, user);
        detect_each(f->think, PN_COUNT_OF(f->think), fn, user);
        if (f->named)
            detect_each((const char *const[]){f->named->call, f->named->before_id, f->named->args, f->named->id_first}, 4, fn, user);
        if (f->xml)
            detect_each((const char *const[]){f->xml->call, f->xml->call_head, f->xml->param, f->xml->param_head, f->xml->value,
                                              f->xml->param_end, f->xml->call_end}, 7, fn, user);
    }
    for (size_t i = 0; i < PN_COUNT_OF(out_thinks); i++)
        detect_each(out_thinks[i], PN_COUNT_OF(out_thinks[i]), fn, user);
    detect_each(headers, PN_COUNT_OF(headers), fn, user);
    detect_each(out_ends + 1, PN_COUNT_OF(out_ends) - 1, fn, user);     /* the first is what people write */
}

/* Where `what` stands last in text; n: nowhere. */
static size_t detect_last(const char *text, size_t n, const char *what)
{
    size_t len = strlen(what);
    for (size_t i = n; i-- > 0;)
        if (text[i] == what[0] && n - i >= len && memcmp(text + i, what, len) == 0)
            return i;
    return n;
}

static bool detect_has(const char *text, size_t n, const char *what) { return detect_last(text, n, what) < n; }

static bool detect_fits(const out_family *f, const char *text, size_t n)
{
    bool any = f->any[0] == NULL;
    for (size_t i = 0; i < PN_COUNT_OF(f->all) && f->all[i]; i++)
        if (!detect_has(text, n, f->all[i]))
            return false;
    for (size_t i = 0; i < PN_COUNT_OF(f->any) && f->any[i]; i++)
        any = any || detect_has(text, n, f->any[i]);
    return any;
}

static void detect_think(pn_out_format *out, const out_family *f, const char *text, size_t n)
{
    out->think_open = f->think[0];
    out->think_close = f->think[1];
    if (strcmp(f->name, "apriel") == 0 && detect_has(text, n, "[BEGIN FINAL RESPONSE]")) {
        out->think_open = "Here are my reasoning steps:";
        out->think_close = "[BEGIN FINAL RESPONSE]";
        return;
    }
    if (out->think_open)                /* Solar's closer ends other things too */
        out->orphan = detect_has(text, n, out->think_close) && strcmp(f->name, "solar") != 0;
    if (out->think_open || (f->flags & (OUT_HEADERS | OUT_SEGMENTS)))
        return;
    for (size_t i = 0; i < PN_COUNT_OF(out_thinks); i++) {
        bool closes = detect_has(text, n, out_thinks[i][1]);
        if (i + 1 < PN_COUNT_OF(out_thinks) && !closes && !detect_has(text, n, out_thinks[i][0]))
            continue;
        out->think_open = out_thinks[i][0];
        out->think_close = out_thinks[i][1];
        out->orphan = closes;
        out->guessed = !closes && !detect_has(text, n, out_thinks[i][0]);
        return;
    }
}

static void detect_set(pn_out_format *out, size_t i, const char *text, size_t n)
{
    memset(out, 0, sizeof *out);
    out->name = out_families[i].name;
    out->family = (int)i;
    detect_think(out, &out_families[i], text, n);
    for (size_t e = 0; e < PN_COUNT_OF(out_ends); e++)
        if (detect_has(text, n, out_ends[e]) || (e == 0 && detect_has(text, n, "eos_token")) ||
            (e + 1 == PN_COUNT_OF(out_ends) && strcmp(out->name, "hy3") == 0))
            out->ends |= (uint64_t)1 << e;
}

PN_INTERNAL void pn_out_detect(pn_out_format *out, const char *tmpl, size_t len)
{
    size_t i = 0;
    while (i + 1 < PN_COUNT_OF(out_families) && !detect_fits(&out_families[i], tmpl, len))
        i++;
    detect_set(out, i, tmpl, len);
}

PN_INTERNAL bool pn_out_find(pn_out_format *out, const char *name)
{
    for (size_t i = 0; i < PN_COUNT_OF(out_families); i++)
        if (strcmp(out_families[i].name, name) == 0) {
            detect_set(out, i, "", 0);
            out->orphan = !out_families[i].think[0];
            out->guessed = false;
            return true;
        }
    return false;
}

PN_INTERNAL bool pn_out_forced_open(const pn_out_format *f, const char *prompt, size_t len)
{
    if (!f->think_open || !f->think_close)
        return false;
    size_t open = detect_last(prompt, len, f->think_open), close = detect_last(prompt, len, f->think_close);
    return open < len && (close == len || close < open);
}
