/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Output parsing: every family's calls, reasoning, broken endings; the pieces the input is cut into
 * cannot be seen; nothing of a broken call is lost; running out of memory leaks nothing.
 */
#include "pn_test.h"

#include "base/pn_json.h"
#include "text/pn_toolcall.h"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},"
    "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"z\":{\"type\":\"null\"},"
    "\"e\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]},\"r\":{\"$ref\":\"#/$defs/t\"},"
    "\"i\":{\"enum\":[1,2]},\"w\":{\"enum\":[\"x\",\"y\"]},\"m\":{\"type\":[\"number\",\"null\"]}},"
    "\"$defs\":{\"t\":{\"type\":\"string\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{}}}]";

typedef struct row {
    const char *format, *prompt, *text;
    const char *reasoning, *content;    /* NULL: none */
    const char *calls;                  /* name(arguments)name(arguments) as text; "!" marks an incomplete one */
} row;

#define DS_BEGIN "<｜tool▁calls▁begin｜>"
#define DS_CALL "<｜tool▁call▁begin｜>"
#define DS_SEP "<｜tool▁sep｜>"
#define DS_CEND "<｜tool▁call▁end｜>"
#define DS_END "<｜tool▁calls▁end｜>"
#define DM "｜DSML｜"
#define M3 "]<]minimax[>["

static const row rows[] = {
    /* text and reasoning */
    {"hermes", "", "Hello.\n", NULL, "Hello.\n", ""},
    {"hermes", "", "", NULL, NULL, ""},
    {"hermes", "", "  indented", NULL, "  indented", ""},
    {"hermes", "", "<think>\nI think.\n</think>\n\nHi", "I think.", "Hi", ""},
    {"hermes", "", "\n<think>a\n\nb</think>Hi <think> there", "a\n\nb", "Hi <think> there", ""},
    {"hermes", "", "<think>\n\n</think>\n\nHi", NULL, "Hi", ""},
    {"hermes", "", "<think>never closed", "never closed", NULL, ""},
    {"hermes", "<think>\n", "I think.\n</think>\nHi", "I think.", "Hi", ""},
    {"hermes", "<think>\n", "<think>\nI think.\n</think>\nHi", "I think.", "Hi", ""},
    {"hermes", "<think>\n", "forced and never closed\n", "forced and never closed\n", NULL, ""},
    {"hermes", "<think>\n\n</think>\n\n", "\nHi", NULL, "Hi", ""},
    {"hermes", "<think>\n\n</think>\n\n", "write </think> here", NULL, "write </think> here", ""},
    {"hermes", "", "a < b <tool_cal and <thin", NULL, "a < b <tool_cal and <thin", ""},
    {"hermes", "", "é ü 漢字 🙂", NULL, "é ü 漢字 🙂", ""},
    {"mistral", "", "[THINK]hm[/THINK]Hi", NULL, "[THINK]hm[/THINK]Hi", ""},
    /* hermes: JSON in tags */
    {"hermes", "", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>", NULL, NULL, "f({\"s\": \"x\"})"},
    {"hermes", "", "Look.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"arguments\": {\"n\": [1, {\"k\": \"}\"}]}, \"name\": \"g\"}\n</tool_call>\n",
     NULL, "Look.", "f({})g({\"n\": [1, {\"k\": \"}\"}]})"},
    {"hermes", "", "A\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nB", NULL, "A\n\nB", "f({})"},
    {"hermes", "", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nB", NULL, "B", "f({})"},
    {"hermes", "", "<tool_call>\n```json\n{\"name\":\"f\",\"arguments\":{\"n\":1}}\n```\n</tool_call>", NULL, NULL, "f({\"n\":1})"},
    {"hermes", "", "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"s\\\": \\\"\\u00e9\\ud83d\\ude42\\\"}\"}</tool_call>", NULL, NULL,
     "f({\"s\": \"é🙂\"})"},
    {"hermes", "", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call> \\\" \\\\\"}}</tool_call>", NULL, NULL,
     "f({\"s\":\"</tool_call> \\\" \\\\\"})"},
    {"hermes", "", "<tool_call>{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"n\":1}}}</tool_call>", NULL, NULL, "f({\"n\":1})"},
    {"hermes", "", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"x\"}}", NULL, NULL, "f({\"s\":\"x\"})"},
    {"hermes", "", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"x", NULL, NULL, "f!({\"s\":\"x)"},
    {"hermes", "", "<tool_call>{\"name\":\"f\",\"arg", NULL, "<tool_call>{\"name\":\"f\",\"arg", ""},
    {"hermes", "", "<tool_call>none</tool_call>", NULL, "<tool_call>none</tool_call>", ""},
    {"hermes", "", "<tool_call>{\"name\":\"f\",\"argumets\":{\"s\":1}}</tool_call>", NULL,
     "<tool_call>{\"name\":\"f\",\"argumets\":{\"s\":1}}</tool_call>", ""},
    {"hermes", "", "Use <tool_call> as\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", NULL, "Use <tool_call> as", "f({})"},
    {"hermes", "", "<tool_call>{\"name\":\"f\"}</tool_call>", NULL, NULL, "f({})"},
    {"hermes", "", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":]}}</tool_call>", NULL, "]}}</tool_call>", "f!({\"a\":)"},
    {"hermes", "<think>", "thinking <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "thinking ", NULL, "f({})"},
    {"hermes", "<think>", "I use <tool_call> now</think>Hi", "I use <tool_call> now", "Hi", ""},
    {"hermes", "", "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>", NULL, NULL, "f({\"s\": \"x\"})"},
    {"hermes", "", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><|im_", NULL, "<|im_", "f({})"},
    /* qwen-coder and its relatives */
    {"qwen-coder", "", "<tool_call>\n<function=f>\n<parameter=s>\nif a < b:\n  \"q\"\n\n</parameter>\n<parameter=n>\n3\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>\n",
     NULL, NULL, "f({\"s\": \"if a < b:\\n  \\\"q\\\"\\n\", \"n\": 3, \"b\": true})"},
    {"qwen-coder", "", "Hi\n\n<function=f>\n<parameter=o>\n{\"a\": [1]}\n</parameter>\n<parameter=l>\n['x', None]\n</parameter>\n</function>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
     NULL, "Hi", "f({\"o\": {\"a\": [1]}, \"l\": [\"x\", null]})g({})"},
    {"qwen-coder", "", "<tool_call>\n<function=f>\n<parameter=s>\nsee </parameter> and <parameter=n>\n</parameter>\n</function>\n</tool_call>",
     NULL, NULL, "f({\"s\": \"see </parameter> and <parameter=n>\"})"},
    {"qwen-coder", "", "<tool_call>\n<function=f>\n<parameter=n>\nnot a number\n</parameter>\n<parameter=z>\nNone\n</parameter>\n<parameter=e>\n3\n</parameter>\n<parameter=r>\n4\n</parameter>\n<parameter=i>\n2\n</parameter>\n<parameter=w>\nx\n</parameter>\n<parameter=m>\n2.50\n</parameter>\n</function>\n</tool_call>",
     NULL, NULL, "f({\"n\": \"not a number\", \"z\": null, \"e\": \"3\", \"r\": \"4\", \"i\": 2, \"w\": \"x\", \"m\": 2.50})"},
    {"qwen-coder", "", "<tool_call>\n<function=h>\n<parameter=u>\n3\n</parameter>\n<parameter=v>\ntext\n</parameter>\n<parameter=w>\nFalse\n</parameter>\n<parameter=x>\n\"q\"\n</parameter>\n</function>",
     NULL, NULL, "h({\"u\": 3, \"v\": \"text\", \"w\": false, \"x\": \"\\\"q\\\"\"})"},
    {"qwen-coder", "", "<tool_call>\n<function=f>\n<parameter=s>\n\n</parameter>\n</function>\n</tool_call>", NULL, NULL, "f({\"s\": \"\"})"},
    {"qwen-coder", "", "<tool_call>\n<function=f>\n<parameter=s>\nhalf", NULL, NULL, "f!({\"s\": \"half)"},
    {"qwen-coder", "", "<tool_call>\n<function=f>\n<parameter=n>\n12", NULL, NULL, "f!({\"n\": 12)"},
    {"qwen-coder", "", "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>\nDone", NULL, "Done", "f({\"s\": \"x\"})"},
    {"qwen-coder", "", "<tool_call>\n<function=f>\njunk</function>", NULL, "junk</function>", "f!({)"},
    {"qwen-coder", "", "<tool_call>\n<function=a b>\n</function>", NULL, "<tool_call>\n<function=a b>\n</function>", ""},
    {"qwen-coder", "<think>\n", "hm\n<tool_call>\n<function=f>\n</function>\n</tool_call>", "hm", NULL, "f({})"},
    {"qwen-coder", "", "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1}}</tool_call>", NULL, NULL, "f({\"n\":1})"},
    {"seed-oss", "", "<seed:think>hm</seed:think>\nHi\n<seed:tool_call>\n<function=f>\n<parameter=s>a\n</parameter>\n<parameter=o>{'a': True}</parameter>\n</function>\n</seed:tool_call>",
     "hm", "Hi", "f({\"s\": \"a\\n\", \"o\": {\"a\": true}})"},
    {"glm", "", "<think>hm</think>\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x <b> \"</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
     "hm", NULL, "f({\"s\": \"x <b> \\\"\", \"n\": 3})g({})"},
    {"glm", "<think>", "</think>Hi<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value></tool_call><tool_call>g</tool_call>", NULL, "Hi",
     "f({\"s\": \"x\"})g({})"},
    {"hy3", "", "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>s</arg_key:opensource>\n<arg_value:opensource>x</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
     NULL, NULL, "f({\"s\": \"x\"})"},
    {"deepseek-dsml", "", "Hi\n\n<" DM "function_calls>\n<" DM "invoke name=\"f\">\n<" DM "parameter name=\"s\" string=\"true\">3</" DM "parameter>\n<" DM "parameter name=\"q\" string=\"false\">[1]</" DM "parameter>\n</" DM "invoke>\n<" DM "invoke name=\"g\">\n</" DM "invoke>\n</" DM "function_calls>",
     NULL, "Hi", "f({\"s\": \"3\", \"q\": [1]})g({})"},
    {"minimax-m2", "<think>\n", "hm\n</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">x</parameter>\n<parameter name=\"n\">2</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
     "hm", NULL, "f({\"s\": \"x\", \"n\": 2})g({})"},
    {"minicpm5", "", "<function name=\"f\"><param name=\"s\"><![CDATA[a]]b <x>]]></param><param name=\"b\">False</param></function>\n<function name=\"g\"></function>",
     NULL, NULL, "f({\"s\": \"a]]b <x>\", \"b\": false})g({})"},
    {"kimi-k3", "<|open|>think<|sep|>", "hm<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>1<|close|>argument<|sep|><|open|>argument key=\"k\" type=\"number\"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
     "hm", "Hi", "f({\"s\": \"1\", \"k\": 2})"},
    {"muse", "<|start|>assistant", " to=self<|message|>hm<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"s\">x</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>",
     "hm", NULL, "f({\"s\": \"x\"})"},
    {"muse", "<|start|>assistant", " to=user<|message|>Hi<|eot|>", NULL, "Hi", ""},
    {"minimax-m3", "", "<mm:think>hm</mm:think>Hi" M3 "<tool_call>\n" M3 "<invoke name=\"f\">" M3 "<s>x <y> " M3 "</s>" M3 "<o>" M3 "<k>" M3 "<item>1" M3 "</item>" M3 "<item>two" M3 "</item>" M3 "</k>" M3 "</o>" M3 "<n>3" M3 "</n>" M3 "</invoke>\n" M3 "<invoke name=\"g\">" M3 "</invoke>\n" M3 "</tool_call>",
     "hm", "Hi", "f({\"s\": \"x <y> \", \"o\": {\"k\": [1, \"two\"]}, \"n\": 3})g({})"},
    {"minimax-m3", "", M3 "<tool_call>" M3 "<invoke name=\"f\">" M3 "<n>3" M3 "</s>", NULL, "3" M3 "</s>", "f!({\"n\": )"},
    /* JSON families */
    {"llama3", "", "{\"name\": \"f\", \"parameters\": {\"s\": \"x\"}}", NULL, NULL, "f({\"s\": \"x\"})"},
    {"llama3", "", "{\"type\": \"function\", \"function\": \"f\", \"arguments\": {}}; {\"name\": \"g\", \"parameters\": {}}", NULL, NULL, "f({})g({})"},
    {"llama3", "", "{\"name\": \"Ada\", \"age\": 3}", NULL, "{\"name\": \"Ada\", \"age\": 3}", ""},
    {"llama3", "", "{\"city\": \"Paris\"}", NULL, "{\"city\": \"Paris\"}", ""},
    {"llama3", "", "An object: {\"name\": \"f\", \"parameters\": {}}", NULL, "An object: {\"name\": \"f\", \"parameters\": {}}", ""},
    {"llama3", "", "<|python_tag|>f.call(s=\"x\", n=3)", NULL, NULL, "f({\"s\": \"x\", \"n\": 3})"},
    {"llama3", "", "<|python_tag|>print(\"hi\")\nx", NULL, NULL, "python({\"code\": \"print(\\\"hi\\\")\\nx\"})"},
    {"llama3", "", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", NULL, NULL, "f({})"},
    {"functionary-3.1", "", "Hi<function=f>{\"s\": \"x\"}</function><function=g>{}</function>", NULL, "Hi", "f({\"s\": \"x\"})g({})"},
    {"functionary-3.2", ">>>", "all\nHi.>>>f\n{\"s\": \">>>\"}>>>g\n{}", NULL, "Hi.", "f({\"s\": \">>>\"})g({})"},
    {"functionary-3.2", ">>>", "f\n{\"s\": 1}", NULL, NULL, "f({\"s\": 1})"},
    {"mistral", "", "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{\"s\":\"x\"},\"id\":\"123456789\"}, {\"name\":\"g\",\"arguments\":{}}]", NULL, NULL,
     "f#123456789({\"s\":\"x\"})g({})"},
    {"mistral", "", "Hi[TOOL_CALLS]f[CALL_ID]abc[ARGS]{\"s\": \"x\"}[TOOL_CALLS]g[CALL_ID]def[ARGS]{}", NULL, "Hi", "f#abc({\"s\": \"x\"})g#def({})"},
    {"mistral", "", "[TOOL_CALLS]f[ARGS]{\"s\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g{\"n\":1}", NULL, NULL, "f({\"s\": \"[TOOL_CALLS]\"})g({\"n\":1})"},
    {"mistral", "", "[TOOL_CALLS] what is this", NULL, "[TOOL_CALLS] what is this", ""},
    {"deepseek", "<think>\n", "hm\n</think>\n\n" DS_BEGIN DS_CALL "function" DS_SEP "f\n```json\n{\"s\": \"x\"}\n```" DS_CEND "\n" DS_CALL "function" DS_SEP "g\n```json\n{}\n```" DS_CEND DS_END,
     "hm", NULL, "f({\"s\": \"x\"})g({})"},
    {"deepseek", "<think></think>", "Hi" DS_BEGIN DS_CALL "f" DS_SEP "{\"s\": \"x\"}" DS_CEND DS_CALL "g" DS_SEP "{}" DS_CEND DS_END, NULL, "Hi", "f({\"s\": \"x\"})g({})"},
    {"deepseek", "", "<｜tool calls begin｜>function" DS_SEP "f\n```json\n{\"s\": \"x\"}\n```", NULL, NULL, "f({\"s\": \"x\"})"},
    {"kimi-k2", "", "Hi<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\": \"x\"}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     NULL, "Hi", "f#functions.f:0({\"s\": \"x\"})g#functions.g:1({})"},
    {"kimi-k2", "", "<think>hm<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}", "hm", NULL, "f#functions.f:0({})"},
    {"solar", "", "<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>id1<|tool_call:name|>f<|tool_call:args|>{\"s\": 1}<|tool_call:end|><|calls|>",
     "hm", NULL, "f#id1({\"s\": 1})"},
    {"command-r7b", "", "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"s\": \"x\"}},\n {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
     "hm", NULL, "f#0({\"s\": \"x\"})g#1({})"},
    {"command-r7b", "", "<|START_RESPONSE|>Hi<|END_RESPONSE|>", NULL, "Hi", ""},
    {"command-r-plus", "", "Action:\n```json\n[{\"tool_name\": \"f\", \"parameters\": {}}]\n```", NULL, NULL, "f({})"},
    {"minimax-m1", "", "<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_calls>", NULL, NULL, "f({\"s\": \"x\"})g({})"},
    {"nemotron-v2", "", "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>", NULL, NULL, "f({})g({})"},
    {"apertus", "", "<|inner_prefix|>hm<|inner_suffix|>Hi<|tools_prefix|>[{\"f\": {\"s\": \"x\"}}, {\"g\": {}}]<|tools_suffix|>", "hm", "Hi", "f({\"s\": \"x\"})g({})"},
    {"apriel", "", "Hi\n<tool_calls>[{\"name\": \"f\", \"arguments\": {}, \"id\": \"7\"}]</tool_calls>", NULL, "Hi", "f#7({})"},
    {"gigachat", "", "Hi<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}<|message_sep|>\n\n", NULL, "Hi", "f({\"s\": \"x\"})"},
    {"granite-3", "", "Hi <|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]", NULL, "Hi", "f({})"},
    {"granite-3", "", "<think>hm</think>\n<response>Hi</response>", "hm", "Hi", ""},
    {"phi4-mini", "", "functools[{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}]", NULL, NULL, "f({\"s\": \"x\"})"},
    {"phi4-mini", "", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]<|/tool_call|>", NULL, NULL, "f({})"},
    {"generic", "", "{\"tool_call\": {\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}}", NULL, NULL, "f({\"s\": \"x\"})"},
    {"generic", "", "{\"tool_calls\": [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]}", NULL, NULL, "f({})g({})"},
    {"generic", "", "Hi <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", NULL, "Hi", "f({})"},
    {"generic", "", "{\"response\": \"Hi\"}", NULL, "{\"response\": \"Hi\"}", ""},
    /* Python and Gemma */
    {"lfm2", "", "Hi<|tool_call_start|>[f(s='it\\'s \"x\"', n=3, b=True, z=None, o={\"a\": [1, 2.5]}, l=('x', 'y')), g()]<|tool_call_end|>", NULL, "Hi",
     "f({\"s\": \"it's \\\"x\\\"\", \"n\": 3, \"b\": true, \"z\": null, \"o\": {\"a\": [1, 2.5]}, \"l\": [\"x\", \"y\"]})g({})"},
    {"lfm2", "", "<|tool_call_start|>[f(s='''a\n'b'\n''', n=-1)]<|tool_call_end|>", NULL, NULL, "f({\"s\": \"a\\n'b'\\n\", \"n\": -1})"},
    {"lfm2", "", "<|tool_call_start|>[f(s='half", NULL, NULL, "f!({\"s\": \"half)"},
    {"lfm2", "", "<|tool_call_start|>[f(s=what)]<|tool_call_end|>", NULL, ")]<|tool_call_end|>", "f!({\"s\": what)"},
    {"lfm2", "", "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {}}]<|tool_call_end|>", NULL, NULL, "f({})"},
    {"gemma4", "", "<|channel>thought\nhm\n<channel|>Hi<|tool_call>call:f{s:<|\"|>a \"b\" {x}\n\\<|\"|>,n:3,l:[<|\"|>x<|\"|>],o:{k:{},b:true,z:None}}<tool_call|><|tool_call>call:g{}<tool_call|>",
     "hm", "Hi", "f({\"s\": \"a \\\"b\\\" {x}\\n\\\\\", \"n\": 3, \"l\": [\"x\"], \"o\": {\"k\": {}, \"b\": true, \"z\": null}})g({})"},
    {"gemma4", "", "<|tool_call>other", NULL, "<|tool_call>other", ""},
    /* harmony */
    {"harmony", "<|start|>assistant", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>", "hm", "Hi", ""},
    {"harmony", "<|start|>assistant", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>d",
     "a\nb", "c\nd", ""},
    {"harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"s\": \"x\"}<|call|>", NULL, NULL, "f({\"s\": \"x\"})"},
    {"harmony", "<|start|>assistant", " to=functions.f<|channel|>commentary json<|message|> {\"s\": \"x\"} ", NULL, NULL, "f({\"s\": \"x\"})"},
    {"harmony", "<|start|>assistant", "<|channel|>analysis to=functions.f<|message|>{}<|call|>", NULL, NULL, "f({})"},
    {"harmony", "<|start|>assistant", "Just text.", NULL, "Just text.", ""},
    {"harmony", "<|start|>assistant<|channel|>final<|message|>", "Hi", NULL, "Hi", ""},
    {"harmony", "<|start|>assistant", "<|channel|>final", NULL, "<|channel|>final", ""},
    {"harmony", "<|start|>assistant", "<|channel|>commentary to=browser.search<|message|>x", NULL, "x", ""},
};

/* ------------------------------------------------------------------------------------------
 * Running
 * ------------------------------------------------------------------------------------------ */

typedef struct run_out {
    pn_out_result result;
    pn_str trace;               /* events with neighbours of one kind joined */
    pn_out_kind last;
    bool half;                  /* a text ended inside a character */
    const char *input;
    size_t len, settled;        /* what the parser said it had settled */
    size_t content_end, reasoning_end, call_at;
    bool misplaced;             /* an offset is wrong */
} run_out;

/* A text is a copy of the input where its event says it stands, or one line end of the parser's own; offsets
 * grow; nothing comes from where all was settled.  White space of the content may stand before a call that
 * was delivered earlier. */
static bool run_well_placed(run_out *o, const pn_out_event *e)
{
    size_t *end = e->kind == PN_OUT_CONTENT ? &o->content_end : &o->reasoning_end, before = *end;
    if (e->kind == PN_OUT_CALL_BEGIN)
        o->call_at = e->at;
    if (e->kind == PN_OUT_CALL_END)
        return e->at > o->call_at && e->at <= o->len;
    if (e->kind == PN_OUT_CALL_BEGIN || e->kind == PN_OUT_ARGUMENTS)
        return e->at <= o->len;
    bool own = e->len == 1 && e->text[0] == '\n' && e->at <= o->len;
    if (!own)
        *end = e->at + e->len;
    return own || (e->at >= before && e->at >= o->settled && e->at + e->len <= o->len &&
                   memcmp(o->input + e->at, e->text, e->len) == 0);
}

static int run_event(void *user, const pn_out_event *e)
{
    run_out *o = user;
    char head[48];
    bool joins = (e->kind == PN_OUT_REASONING || e->kind == PN_OUT_CONTENT || e->kind == PN_OUT_ARGUMENTS) && o->trace.len &&
                 o->last == e->kind;
    if (!joins) {
        int n = snprintf(head, sizeof head, "\n%d %u %d ", (int)e->kind, (unsigned)e->call, e->complete);
        pn_str_add(&o->trace, head, (size_t)n);
    }
    pn_str_add(&o->trace, e->text, e->len);
    pn_str_add(&o->trace, e->id, e->id_len);
    o->last = e->kind;
    if (e->len && ((unsigned char)e->text[0] & 0xC0) == 0x80)
        o->half = true;
    if (!run_well_placed(o, e))
        o->misplaced = true;
    return pn_out_collect(&o->result, e) || o->trace.failed;
}

static pn_status run(pn_mem *mem, const pn_out_format *format, const pn_json_doc *tools, const char *prompt, const char *text,
                     size_t len, size_t piece, const pn_out_params *params, run_out *out)
{
    pn_out *p = NULL;
    pn_err err;
    memset(out, 0, sizeof *out);
    out->input = text;
    out->len = len;
    pn_out_result_init(&out->result, mem);
    pn_str_init(&out->trace, mem, PN_ACCT_MISC);
    pn_status st = pn_out_new(&p, mem, format, tools, prompt, strlen(prompt), params, run_event, out, &err);
    for (size_t i = 0; !st && i < len; i += piece) {
        st = pn_out_push(p, text + i, PN_MIN(piece, len - i), &err);
        size_t settled = pn_out_settled(p);
        out->misplaced = out->misplaced || settled < out->settled || settled > i + piece;
        out->settled = settled;
    }
    if (!st)
        st = pn_out_end(p, &err);
    if (!st)
        out->misplaced = out->misplaced || pn_out_settled(p) != len;
    pn_out_free(p);
    return st;
}

static void run_fini(run_out *o)
{
    pn_out_result_fini(&o->result);
    pn_str_fini(&o->trace);
}

/* name#id!(arguments) for each call. */
static void calls_text(const pn_out_result *r, pn_str *s)
{
    for (size_t i = 0; i < r->n_calls; i++) {
        const pn_out_call *c = &r->calls[i];
        pn_str_add(s, pn_str_cstr(&c->name), c->name.len);
        if (c->id.len) {
            pn_str_addc(s, '#');
            pn_str_add(s, c->id.data, c->id.len);
        }
        pn_str_addz(s, c->complete ? "(" : "!(");
        pn_str_add(s, pn_str_cstr(&c->arguments), c->arguments.len);
        pn_str_addc(s, ')');
    }
}

static bool same(const pn_str *s, const char *want) { return strcmp(pn_str_cstr(s), want ? want : "") == 0; }

static void check_row(pn_mem *mem, const pn_json_doc *tools, const row *r, const pn_out_format *f)
{
    run_out whole, cut;
    pn_str calls;
    size_t len = strlen(r->text);
    PN_CHECK(run(mem, f, tools, r->prompt, r->text, len, len ? len : 1, NULL, &whole) == PN_OK);
    pn_str_init(&calls, mem, PN_ACCT_MISC);
    calls_text(&whole.result, &calls);
    PN_CHECK(same(&whole.result.reasoning, r->reasoning), "%s: '%s': reasoning '%s'", r->format, r->text,
             pn_str_cstr(&whole.result.reasoning));
    PN_CHECK(same(&whole.result.content, r->content), "%s: '%s': content '%s'", r->format, r->text,
             pn_str_cstr(&whole.result.content));
    PN_CHECK(same(&calls, r->calls), "%s: '%s': calls '%s'", r->format, r->text, pn_str_cstr(&calls));
    for (size_t piece = 1; piece <= 7; piece++) {
        PN_CHECK(run(mem, f, tools, r->prompt, r->text, len, piece, NULL, &cut) == PN_OK);
        PN_CHECK(same(&cut.trace, pn_str_cstr(&whole.trace)), "%s: '%s' in pieces of %zu:%s\nand whole:%s", r->format, r->text,
                 piece, pn_str_cstr(&cut.trace), pn_str_cstr(&whole.trace));
        PN_CHECK(!cut.misplaced, "%s: '%s' in pieces of %zu: an offset is wrong", r->format, r->text, piece);
        PN_CHECK(!cut.half, "%s: '%s' in pieces of %zu: a delta begins inside a character", r->format, r->text, piece);
        run_fini(&cut);
    }
    run_fini(&whole);
    pn_str_fini(&calls);
}

static void test_every_family_cut_anywhere(pn_mem *mem, const pn_json_doc *tools)
{
    for (size_t i = 0; i < PN_COUNT_OF(rows); i++) {
        pn_out_format f;
        if (PN_CHECK(pn_out_find(&f, rows[i].format), "no family %s", rows[i].format))
            check_row(mem, tools, &rows[i], &f);
    }
    for (size_t i = 0; pn_out_family_name(i); i++) {
        size_t n = 0;
        for (size_t r = 0; r < PN_COUNT_OF(rows); r++)
            n += strcmp(rows[r].format, pn_out_family_name(i)) == 0 && rows[r].calls[0];
        PN_CHECK(n > 0, "no call of family %s is tested", pn_out_family_name(i));
    }
}

/* ------------------------------------------------------------------------------------------
 * Orphans, modes, end markers, detection
 * ------------------------------------------------------------------------------------------ */

static void check_params(pn_mem *mem, const char *tmpl, const char *prompt, const char *text, const pn_out_params *params,
                         const char *reasoning, const char *content, size_t calls)
{
    pn_out_format f;
    run_out o;
    pn_out_detect(&f, tmpl, strlen(tmpl));
    for (size_t piece = 1; piece < 100; piece += 49) {
        PN_CHECK(run(mem, &f, NULL, prompt, text, strlen(text), piece, params, &o) == PN_OK);
        PN_CHECK(same(&o.result.reasoning, reasoning) && same(&o.result.content, content) && o.result.n_calls == calls,
                 "'%s': '%s' '%s' %zu", text, pn_str_cstr(&o.result.reasoning), pn_str_cstr(&o.result.content), o.result.n_calls);
        run_fini(&o);
    }
}

static void test_orphan_closer_makes_reasoning_when_the_whole_is_known(pn_mem *mem)
{
    static const pn_out_params whole = {.whole = true};
    check_params(mem, "<tool_call> </think>", "", "hm\n</think>\n\nHi", &whole, "hm", "Hi", 0);
    check_params(mem, "<tool_call> </think>", "", "hm\n</think>\n\nHi", NULL, NULL, "hm\n\n\nHi", 0);
    check_params(mem, "<tool_call> </think>", "", "</think>\nHi", NULL, NULL, "Hi", 0);
    check_params(mem, "<tool_call> </think>", "", "<think>a</think>b</think>", &whole, "a", "b</think>", 0);
    check_params(mem, "<tool_call>", "", "hm</think>Hi", &whole, NULL, "hm</think>Hi", 0);
    check_params(mem, "<tool_call> </think>", "", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</think>\"}}</tool_call>", &whole,
                 NULL, NULL, 1);
}

static void test_modes_leave_text_alone(pn_mem *mem)
{
    static const pn_out_params plain = {.no_reasoning = true}, mute = {.no_calls = true};
    const char *call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    check_params(mem, "<tool_call> <think> </think>", "<think>", "a</think>b", &plain, NULL, "a</think>b", 0);
    check_params(mem, "<tool_call>", "", call, &mute, NULL, call, 0);
    check_params(mem, "<|start_header_id|> parameters", "", "{\"name\":\"f\",\"parameters\":{}}", &mute, NULL,
                 "{\"name\":\"f\",\"parameters\":{}}", 0);
    check_params(mem, "<|channel|> <|start|>", "<|start|>assistant", "<|channel|>commentary to=functions.f<|message|>{}", &mute, NULL,
                 "{}", 0);
}

static void test_end_markers_count_at_the_end_only(pn_mem *mem)
{
    const char *tmpl = "<|im_end|> <tool_call> eos_token";
    check_params(mem, tmpl, "", "Hi<|im_end|>\n", NULL, NULL, "Hi", 0);
    check_params(mem, tmpl, "", "Hi<|im_end|>\nyou", NULL, NULL, "Hi<|im_end|>\nyou", 0);
    check_params(mem, tmpl, "", "Hi</s>", NULL, NULL, "Hi</s>", 0);
    check_params(mem, tmpl, "", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call></s>", NULL, NULL, NULL, 1);
}

static void test_detection_keeps_the_order_of_the_families(void)
{
    static const char *const cases[][2] = {
        {"[INST] [TOOL_CALLS] <|channel|> <|start|>", "mistral"}, {"<|start|> <|channel|> <|message|>", "harmony"},
        {"<|tool_call>call: <|channel>thought <tool_call>", "gemma4"}, {"<tool_call> <function= <parameter=", "qwen-coder"},
        {"<tool_call> {\"name\"", "hermes"}, {"<tool_call> <arg_key>", "glm"}, {"<|tool_calls_section_begin|> <tool_call>", "kimi-k2"},
        {"<|tool_list_start|> <tool_call> <|im_start|>", "lfm2"}, {"<|start_header_id|> parameters", "llama3"},
        {"<|start_header_id|> <function=", "functionary-3.1"}, {"", "generic"}, {"<seed:tool_call> <function= <parameter=", "seed-oss"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_out_format f;
        pn_out_detect(&f, cases[i][0], strlen(cases[i][0]));
        PN_CHECK(strcmp(f.name, cases[i][1]) == 0, "'%s' is %s", cases[i][0], f.name);
    }
}

/* Whoever holds an answer to a shape must not offer reasoning to a model that has none. */
static void test_tags_that_the_template_does_not_know_are_guessed(void)
{
    static const struct { const char *text; bool guessed; } cases[] = {
        {"<|im_start|>{{ m }}<|im_end|>", true}, {"<think>", false}, {"{{ m.split('</think>') }}", false}, {"[THINK]", false}, {"<seed:tool_call>", false},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_out_format f;
        pn_out_detect(&f, cases[i].text, strlen(cases[i].text));
        PN_CHECK(f.guessed == cases[i].guessed, "'%s' %s", cases[i].text, f.think_open);
    }
}

static void test_forced_open_looks_for_an_opener_without_closer(void)
{
    pn_out_format f;
    PN_CHECK(pn_out_find(&f, "hermes"));
    PN_CHECK(pn_out_forced_open(&f, "x<think>\n", 9));
    PN_CHECK(!pn_out_forced_open(&f, "<think>\n\n</think>", 17));
    PN_CHECK(pn_out_forced_open(&f, "</think><think>", 15));
    PN_CHECK(!pn_out_forced_open(&f, "", 0));
}

static void test_result_is_one_json_object(pn_mem *mem, const pn_json_doc *tools)
{
    static const struct { const char *text, *want; } cases[] = {
        {"", "{\"reasoning_content\":null,\"content\":null,\"tool_calls\":[]}"},
        {"<think>a</think>b\"<tool_call>{\"name\":\"f\",\"arguments\":{\"n\": 1.0}}</tool_call>",
         "{\"reasoning_content\":\"a\",\"content\":\"b\\\"\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":{\"n\":1.0}}]}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"n\": ",
         "{\"reasoning_content\":null,\"content\":null,\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"{\\\"n\\\": \"}]}"},
    };
    pn_out_format f;
    pn_out_find(&f, "hermes");
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        run_out o;
        pn_str json;
        pn_str_init(&json, mem, PN_ACCT_MISC);
        run(mem, &f, tools, "", cases[i].text, strlen(cases[i].text), 3, NULL, &o);
        pn_out_result_json(&o.result, &json);
        PN_CHECK(same(&json, cases[i].want), "%s", pn_str_cstr(&json));
        pn_str_fini(&json);
        run_fini(&o);
    }
}

/* ------------------------------------------------------------------------------------------
 * Broken input, no memory, long input
 * ------------------------------------------------------------------------------------------ */

static size_t count_z(const pn_str *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->len; i++)
        n += s->data[i] == 'Z';
    return n;
}

/* 'Z' is in no marker: every one of the input must be found in the output, and no more. */
static const char *const payloads[][2] = {
    {"hermes", "Z Z<tool_call>\n{\"name\": \"fZ\", \"arguments\": {\"aZ\": \"Z\\n\", \"b\": [1, {\"c\": \"Z\"}]}}\n</tool_call>\nZ"},
    {"qwen-coder", "Z\n<tool_call>\n<function=fZ>\n<parameter=kZ>\nZ Z\n</parameter>\n<parameter=n>\n3Z\n</parameter>\n</function>\n</tool_call>Z"},
    {"glm", "Z<tool_call>fZ\n<arg_key>kZ</arg_key>\n<arg_value>Z</arg_value>\n</tool_call>Z"},
    {"minimax-m2", "Z<minimax:tool_call>\n<invoke name=\"fZ\">\n<parameter name=\"kZ\">Z</parameter>\n</invoke>\n</minimax:tool_call>Z"},
    {"minimax-m3", "Z" M3 "<tool_call>" M3 "<invoke name=\"fZ\">" M3 "<o>" M3 "<k>Z" M3 "</k>" M3 "</o>" M3 "</invoke>" M3 "</tool_call>Z"},
    {"lfm2", "Z<|tool_call_start|>[fZ(kZ='Z Z', o={'a': [1, 'Z']}), g()]<|tool_call_end|>Z"},
    {"gemma4", "Z<|tool_call>call:fZ{kZ:<|\"|>Z<|\"|>,n:[3]}<tool_call|>Z"},
    {"mistral", "Z[TOOL_CALLS]fZ[ARGS]{\"Z\": \"Z\"}[TOOL_CALLS]gZ[ARGS]{}Z"},
    {"deepseek", "Z" DS_BEGIN DS_CALL "function" DS_SEP "fZ\n```json\n{\"s\": \"Z\"}\n```" DS_CEND DS_END "Z"},
    {"llama3", "{\"name\": \"fZ\", \"parameters\": {\"Z\": \"Z\"}}"},
    {"functionary-3.1", "Z<function=fZ>{\"Z\": \"Z\"}</function>Z"},
};

static void mutate_one(pn_mem *mem, const pn_json_doc *tools, const char *format, const char *text, size_t len)
{
    pn_out_format f;
    run_out a, b;
    size_t want = 0, got;
    pn_out_find(&f, format);
    for (size_t i = 0; i < len; i++)
        want += text[i] == 'Z';
    PN_CHECK(run(mem, &f, tools, "", text, len, len ? len : 1, NULL, &a) == PN_OK);
    PN_CHECK(run(mem, &f, tools, "", text, len, 1, NULL, &b) == PN_OK);
    PN_CHECK(a.trace.len == b.trace.len && memcmp(pn_str_cstr(&a.trace), pn_str_cstr(&b.trace), a.trace.len) == 0,
             "%s: '%.*s' by bytes:%s\nwhole:%s", format, (int)len, text, pn_str_cstr(&b.trace), pn_str_cstr(&a.trace));
    PN_CHECK(!a.misplaced && !b.misplaced, "%s: '%.*s': an offset is wrong", format, (int)len, text);
    got = count_z(&a.result.reasoning) + count_z(&a.result.content);
    for (size_t i = 0; i < a.result.n_calls; i++)
        got += count_z(&a.result.calls[i].name) + count_z(&a.result.calls[i].arguments);
    PN_CHECK(got == want, "%s: '%.*s': %zu of %zu found:%s", format, (int)len, text, got, want, pn_str_cstr(&a.trace));
    run_fini(&a);
    run_fini(&b);
}

static void test_whatever_breaks_nothing_is_lost(pn_mem *mem, const pn_json_doc *tools)
{
    static const char bytes[] = "\"{}[]()<>/\\,:=' \nx3";
    uint64_t seed = 7;
    for (size_t i = 0; i < PN_COUNT_OF(payloads); i++) {
        const char *text = payloads[i][1];
        size_t len = strlen(text);
        char *copy = malloc(len + 2);
        for (size_t n = 0; n <= len; n++)
            mutate_one(mem, tools, payloads[i][0], text, n);
        for (size_t at = 0; at < len; at++) {
            char c = bytes[pn_test_rand(&seed) % (sizeof bytes - 1)];
            memcpy(copy, text, at);                     /* one byte less */
            memcpy(copy + at, text + at + 1, len - at - 1);
            mutate_one(mem, tools, payloads[i][0], copy, len - 1);
            memcpy(copy, text, len);                    /* another byte */
            copy[at] = c;
            mutate_one(mem, tools, payloads[i][0], copy, len);
            memcpy(copy + at + 1, text + at, len - at); /* one byte more */
            mutate_one(mem, tools, payloads[i][0], copy, len + 1);
        }
        free(copy);
    }
}

static void test_out_of_memory_is_told_and_leaks_nothing(const pn_json_doc *tools)
{
    for (size_t i = 0; i < PN_COUNT_OF(rows); i += 3) {
        pn_out_format f;
        pn_out_find(&f, rows[i].format);
        for (long k = 1; k < 200; k++) {
            pn_test_mem tm;
            run_out o;
            pn_test_mem_init(&tm, k);
            pn_status st = run(&tm.mem, &f, tools, rows[i].prompt, rows[i].text, strlen(rows[i].text), 5, NULL, &o);
            run_fini(&o);
            PN_CHECK(tm.outstanding == 0, "%s: %ld blocks left when request %ld fails", rows[i].format, tm.outstanding, k);
            bool hit = tm.n_calls >= k;
            if (!hit) {
                PN_CHECK(st == PN_OK);
                break;
            }
        }
    }
}

static void test_long_output_takes_linear_time_and_bounded_memory(pn_mem *mem)
{
    pn_out_format f;
    run_out o;
    size_t n = 1 << 20;
    char *text = malloc(n + 64);
    pn_out_find(&f, "qwen-coder");
    size_t at = (size_t)sprintf(text, "<tool_call>\n<function=h>\n<parameter=k>\n");
    memset(text + at, '<', n);
    PN_CHECK(run(mem, &f, NULL, "", text, at + n, 3, NULL, &o) == PN_OK);
    PN_CHECK(o.result.n_calls == 1 && o.result.calls[0].arguments.len >= n);
    run_fini(&o);
    memset(text, '\n', n);
    PN_CHECK(run(mem, &f, NULL, "<think>", text, n, 3, NULL, &o) == PN_OK);
    PN_CHECK(o.result.reasoning.len <= 8192);
    run_fini(&o);
    free(text);
}

static int stop_at_once(void *user, const pn_out_event *e)
{
    (void)e;
    ++*(int *)user;
    return 1;
}

static void test_sink_can_stop(pn_mem *mem)
{
    pn_out_format f;
    pn_out *p = NULL;
    pn_err err;
    int n = 0;
    pn_out_find(&f, "hermes");
    PN_CHECK(pn_out_new(&p, mem, &f, NULL, NULL, 0, NULL, stop_at_once, &n, &err) == PN_OK);
    PN_CHECK(pn_out_push(p, "Hello", 5, &err) == PN_E_CANCELLED);
    PN_CHECK(pn_out_push(p, "Hello", 5, &err) == PN_E_CANCELLED && n == 1);
    pn_out_free(p);
    PN_CHECK(pn_out_new(&p, mem, &f, NULL, NULL, 0, NULL, stop_at_once, &n, &err) == PN_OK);
    PN_CHECK(pn_out_end(p, &err) == PN_OK && pn_out_push(p, "x", 1, &err) == PN_E_STATE);
    pn_out_free(p);
}

int main(void)
{
    pn_test_mem tm;
    pn_json_doc tools;
    pn_err err;
    pn_test_mem_init(&tm, 0);
    PN_CHECK(pn_json_parse(&tools, &tm.mem, PN_ACCT_MISC, tools_json, sizeof tools_json - 1, NULL, &err) == PN_OK, "%s", err.text);
    test_every_family_cut_anywhere(&tm.mem, &tools);
    test_orphan_closer_makes_reasoning_when_the_whole_is_known(&tm.mem);
    test_modes_leave_text_alone(&tm.mem);
    test_end_markers_count_at_the_end_only(&tm.mem);
    test_detection_keeps_the_order_of_the_families();
    test_tags_that_the_template_does_not_know_are_guessed();
    test_forced_open_looks_for_an_opener_without_closer();
    test_result_is_one_json_object(&tm.mem, &tools);
    test_whatever_breaks_nothing_is_lost(&tm.mem, &tools);
    test_out_of_memory_is_told_and_leaks_nothing(&tools);
    test_long_output_takes_linear_time_and_bounded_memory(&tm.mem);
    test_sink_can_stop(&tm.mem);
    pn_json_fini(&tools);
    PN_CHECK(tm.outstanding == 0, "%ld blocks left", tm.outstanding);
    return pn_test_end();
}
