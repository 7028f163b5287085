#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""gen_corpus_serve.py - write corpus/serve: a first byte (see fuzz_serve.c) and a body, or bytes for the socket.

    python3 tests/fuzz/gen_corpus_serve.py
"""
import json
import os

CHAT, COMPLETION, RESPONSES, MESSAGES, EMBED, TOKENIZE, DETOKENIZE, TEMPLATE, COUNT, _, COUNT_MESSAGES, LOAD, UNLOAD = range(13)
PIECES, EARLY, TWICE, RAW = 16, 32, 64, 128
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "serve")

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
SCHEMA = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}

BODIES = {
    "chat": (CHAT, {"model": "m", "messages": HI, "max_tokens": 3, "temperature": 0}),
    "chat_stream": (CHAT | TWICE, {"messages": HI, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}),
    "chat_early": (CHAT | EARLY | PIECES, {"messages": HI, "max_tokens": 100, "ignore_eos": True, "stream": True}),
    "chat_choices": (CHAT, {"messages": HI, "n": 3, "max_tokens": 2, "seed": 1, "logprobs": True, "top_logprobs": 2, "stop": ["a", "b"]}),
    "chat_history": (CHAT, {"messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, *HI,
        {"role": "assistant", "content": None, "tool_calls": [{"id": None, "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
        {"role": "tool", "tool_call_id": None, "content": "2"}], "tools": [TOOL], "max_tokens": 3}),
    "chat_tool": (CHAT, {"messages": HI, "tools": [TOOL], "tool_choice": "required", "stream": True, "max_tokens": 12}),
    "chat_schema": (CHAT, {"messages": HI, "max_tokens": 8,
                           "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}}),
    "chat_grammar": (CHAT, {"messages": HI, "max_tokens": 4, "grammar": "root ::= \"yes\" | \"no\""}),
    "chat_bias": (CHAT, {"messages": HI, "max_tokens": 2, "logit_bias": {"5": 3, "6": -100}, "presence_penalty": 1, "frequency_penalty": -1, "top_k": 3,
                         "min_p": 0.1, "reasoning_effort": "none", "user": "u", "metadata": {"a": "b"}}),
    "chat_long": (CHAT, {"messages": [{"role": "user", "content": "fox " * 400}]}),
    "chat_no_model": (CHAT, {"model": 5, "messages": {}}),
    "completion": (COMPLETION, {"prompt": ["Once", [1, 2], "a"], "n": 2, "max_tokens": 2, "echo": True}),
    "completion_stream": (COMPLETION, {"prompt": [1, 2, 3], "max_tokens": 2, "stream": True, "logprobs": 2}),
    "completion_none": (COMPLETION, {"prompt": "a", "max_tokens": 0, "echo": True}),
    "responses": (RESPONSES, {"input": "Hi", "max_output_tokens": 3, "instructions": "Be brief.", "stream": True}),
    "responses_items": (RESPONSES, {"input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "2"}],
        "tools": [{"type": "function", "name": "f", "parameters": {}}], "text": {"format": {"type": "json_object"}}, "max_output_tokens": 3}),
    "messages": (MESSAGES, {"model": "m", "max_tokens": 3, "system": [{"type": "text", "text": "x"}], "messages": HI, "stream": True}),
    "messages_tools": (MESSAGES, {"max_tokens": 3, "messages": HI + [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": ""}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "2"}], "is_error": True}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}}),
    "embed": (EMBED, {"input": ["a", "b c"], "encoding_format": "base64"}),
    "embed_tokens": (EMBED, {"input": [[1, 2], [3]], "pooling": "last", "dimensions": 4}),
    "tokenize": (TOKENIZE, {"content": "a <|im_start|> b", "with_pieces": True}),
    "tokenize_chat": (TOKENIZE, {"messages": HI, "add_generation_prompt": True}),
    "detokenize": (DETOKENIZE, {"tokens": [1, 2, 300, 65535, -1]}),
    "template": (TEMPLATE, {"messages": HI, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}}),
    "count": (COUNT, {"messages": HI}),
    "count_messages": (COUNT_MESSAGES, {"messages": HI, "system": "x"}),
    "load_none": (LOAD | TWICE, {"name": "n", "path": "none.gguf"}),
    "load_wrong": (LOAD, {"name": "n", "path": "none.gguf", "dies": [0, 1], "ctx_cap": -1, "wait": False}),
    "unload": (UNLOAD | TWICE, {"name": "m"}),
}

TEXTS = {
    "deep": (CHAT, b"[" * 300), "empty": (CHAT, b""), "two": (CHAT, b"{}{}"), "cut": (CHAT, b'{"messages":[{"role":"us'),
    "utf8": (CHAT, b'{"messages":[{"role":"user","content":"\xff\xfe"}]}'), "surrogate": (CHAT, b'{"messages":[{"role":"user","content":"\\ud800x"}]}'),
    "numbers": (CHAT, b'{"messages":[{"role":"user","content":"a"}],"temperature":1e400,"seed":-9223372036854775809,"max_tokens":1e18}'),
    "twice_key": (CHAT, b'{"stream":true,"stream":false,"messages":[{"role":"user","content":"a"}],"max_tokens":2}'),
}

TINY = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1}'
RAWS = {
    "raw_pipeline": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "raw_page": b"GET / HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n\r\n",
    "raw_root": b"GET / HTTP/1.1\r\nHost: x\r\n\r\nHEAD /v1/models/m HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models/%6d HTTP/1.1\r\nHost: x\r\n\r\n",
    "raw_admin": b"GET /admin/models HTTP/1.1\r\nHost: x\r\n\r\nGET /admin/memory HTTP/1.1\r\nHost: x\r\n\r\nGET /admin/dies HTTP/1.1\r\nHost: x\r\n\r\n",
    "raw_options": b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://a\r\nAccess-Control-Request-Method: POST\r\n\r\n",
    "raw_methods": b"PUT /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/messages HTTP/1.1\r\nHost: x\r\n\r\n",
    "raw_chunks": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(TINY), TINY),
    "raw_expect": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n%s" % (len(TINY), TINY),
    "raw_half": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n%s" % TINY,
    "raw_big": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n",
    "raw_smuggle": b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n",
    "raw_http10": b"POST /v1/completions HTTP/1.0\r\nContent-Length: 40\r\n\r\n" + b'{"prompt":"a","max_tokens":2,"stream":1} ',
    "raw_broken": b"GET /health HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nbroken\r\n\r\n",
    "raw_noise": bytes(range(256)),
}


def main():
    os.makedirs(FOLDER, exist_ok=True)
    for old in os.listdir(FOLDER):
        if not old.startswith("found_"):        # what a fuzzer found stays
            os.remove(os.path.join(FOLDER, old))
    files = {k: bytes([how]) + json.dumps(body, separators=(",", ":")).encode() for k, (how, body) in BODIES.items()}
    files.update({k: bytes([how]) + text for k, (how, text) in TEXTS.items()})
    files.update({k: bytes([RAW]) + text for k, text in RAWS.items()})
    for name, data in files.items():
        with open(os.path.join(FOLDER, name), "wb") as f:
            f.write(data)
    print("%d files in %s" % (len(files), os.path.relpath(FOLDER)))


if __name__ == "__main__":
    main()
