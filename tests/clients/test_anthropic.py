#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_anthropic.py - the anthropic package of PyPI, unmodified, against /v1/messages.

    python3 tests/clients/test_anthropic.py build/pantheon
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "live", "lib"))
import clients  # noqa: E402
from serving import Checks, Server  # noqa: E402

try:
    import anthropic
except ImportError as e:
    anthropic, missing = None, e

checks = Checks()
check, equal = checks.check, checks.equal

FOX = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
EXACT = {"temperature": 0}     # the package has no such parameter any more
TOOLS = [{"name": t["function"]["name"], "description": t["function"]["description"], "input_schema": t["function"]["parameters"]} for t in clients.TOOLS]


def client_of(s, key="none"):
    return anthropic.Anthropic(base_url="http://127.0.0.1:%d" % s.port, api_key=key, max_retries=0, timeout=120)


def raises(kind, name, function, status=None):
    try:
        function()
    except anthropic.AnthropicError as e:
        if check(isinstance(e, kind), "%s: %s" % (name, kind.__name__), repr(e)) and status:
            equal(e.status_code, status, "%s: status" % name)
        return e
    check(False, "%s: %s was expected" % (name, kind.__name__))
    return None


def text_of(m):
    return "".join(b.text for b in m.content if b.type == "text")


def plain(c, model):
    m = c.messages.create(model=model, max_tokens=24, extra_body=EXACT, messages=FOX)
    equal([m.type, m.role, m.model, m.stop_reason, m.stop_sequence], ["message", "assistant", model, "max_tokens", None], "message: what it is")
    check(m.id.startswith("msg_") and text_of(m), "message: its text", m)
    check(m.usage.output_tokens == 24 and m.usage.input_tokens + (m.usage.cache_read_input_tokens or 0) > 0, "message: usage", m.usage)
    n = c.messages.count_tokens(model=model, messages=FOX).input_tokens
    m = c.messages.create(model=model, max_tokens=24, extra_body=EXACT, messages=FOX)
    equal(n, m.usage.input_tokens + (m.usage.cache_read_input_tokens or 0), "message: tokens counted beforehand")
    text = text_of(m)
    stop = text[len(text) // 2:][:4]
    m = c.messages.create(model=model, max_tokens=24, extra_body=EXACT, messages=FOX, stop_sequences=[stop])
    equal([text_of(m), m.stop_reason, m.stop_sequence], [text[:text.index(stop)], "stop_sequence", stop], "message: a stop sequence")
    m = c.messages.create(model=model, max_tokens=8, system=[{"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}}], extra_body={"top_k": 5}, messages=[
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "What is 2 plus 3?"}])
    check(text_of(m), "message: system, blocks, several turns", m)


def streamed(c, model):
    want = c.messages.create(model=model, max_tokens=24, extra_body=EXACT, messages=FOX)
    kinds = [e.type for e in c.messages.create(model=model, max_tokens=24, extra_body=EXACT, messages=FOX, stream=True)]
    kinds = [k for k in kinds if k != "ping"]
    equal([kinds[0], kinds[1], kinds[-3:]], ["message_start", "content_block_start", ["content_block_stop", "message_delta", "message_stop"]], "stream: its events")
    with c.messages.stream(model=model, max_tokens=24, extra_body=EXACT, messages=FOX) as s:
        text = "".join(s.text_stream)
        last = s.get_final_message()
    equal([text, text_of(last), last.stop_reason], [text_of(want), text_of(want), "max_tokens"], "stream: put together")
    equal(last.usage.output_tokens, 24, "stream: usage")


def tools(c, model, says):
    def ask(messages=WEATHER, **more):
        return dict(model=model, max_tokens=120, extra_body=EXACT, messages=messages, tools=TOOLS, **more)
    m = c.messages.create(**ask(tool_choice={"type": "any", "disable_parallel_tool_use": True}))
    uses = [b for b in m.content if b.type == "tool_use"]
    check(len(uses) == 1 and uses[0].name in ("get_weather", "add") and isinstance(uses[0].input, dict), "tools, any", m.content)
    equal(m.stop_reason, "tool_use", "tools, any: why it ended")
    with c.messages.stream(**ask(tool_choice={"type": "any", "disable_parallel_tool_use": True})) as s:
        last = s.get_final_message()
    equal([(b.name, b.input) for b in last.content if b.type == "tool_use"], [(b.name, b.input) for b in uses], "tools, streamed: the same")
    m = c.messages.create(**ask(tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True}))
    equal([(b.name, sorted(b.input)) for b in m.content if b.type == "tool_use"], [("add", ["a", "b"])], "tools, named")
    m = c.messages.create(**ask(tool_choice={"type": "none"}))
    check(not any(b.type == "tool_use" for b in m.content), "tools, none", m.content)
    if not says:
        return
    m = c.messages.create(**ask())
    uses = [b for b in m.content if b.type == "tool_use"]
    equal([(b.name, b.input) for b in uses], [("get_weather", {"city": "Paris"})], "tools, auto: a call")
    if uses:
        m = c.messages.create(**ask(messages=WEATHER + [{"role": "assistant", "content": m.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": uses[0].id, "content": '{"weather": "rainy", "degrees": 12}'}]}]))
        check("rainy" in text_of(m) and m.stop_reason == "end_turn", "tools: the result comes back in words", m.content)


def errors(c, model, names):
    def ask(**more):
        return c.messages.create(**dict(dict(model=model, max_tokens=4, messages=FOX), **more))
    e = raises(anthropic.NotFoundError, "unknown model", lambda: ask(model="claude-none"), 404)
    check(e and e.body["type"] == "error" and e.body["error"]["type"] == "not_found_error", "unknown model: Anthropic's form", e and e.body)
    check(e and all(n in e.body["error"]["message"] for n in names), "unknown model: those that exist are named", e and e.body)
    e = raises(anthropic.BadRequestError, "no messages", lambda: ask(messages=[]), 400)
    check(e and e.body["error"]["type"] == "invalid_request_error", "no messages: Anthropic's form", e and e.body)
    raises(anthropic.BadRequestError, "a bad field", lambda: ask(extra_body={"temperature": "hot"}), 400)
    for stream in False, True:
        e = raises(anthropic.BadRequestError, "too long", lambda: ask(messages=[{"role": "user", "content": "one two three " * 9000}], stream=stream), 400)
        check(e and "prompt is too long" in e.body["error"]["message"], "too long: the words agents look for", e and e.body)


def aborts(c, model, s):
    ask = dict(model=model, max_tokens=1500, messages=FOX, extra_body={"ignore_eos": True})
    with c.messages.stream(**ask) as stream:
        for _ in stream.text_stream:
            break
    s.wait_counts(model, running=0)
    check(True, "abort: a stream that is left ends the work")
    check(text_of(c.messages.create(model=model, max_tokens=4, messages=FOX)), "abort: the next is answered")


def authorised(pantheon, model):
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "keys")
        with open(path, "w") as f:
            f.write("sk-right\n")
        with Server(pantheon, "-m", model, "--api-key-file", path) as s:
            ask = dict(model="demo", max_tokens=2, messages=FOX)
            e = raises(anthropic.AuthenticationError, "a wrong key", lambda: client_of(s, "sk-wrong").messages.create(**ask), 401)
            check(e and e.body["error"]["type"] == "authentication_error", "a wrong key: Anthropic's form", e and e.body)
            check(client_of(s, "sk-right").messages.create(**ask).content, "the right key")


def main():
    if anthropic is None:
        checks.skip("anthropic of PyPI: %s" % missing)
        return checks.end()
    pantheon, served = clients.arguments(checks)
    with Server(pantheon, *(a for name, path in served for a in ("-m", path, "--name", name))) as s:
        names = [name for name, _ in served]
        for name in names:
            c = client_of(s)
            for part, args in ((plain, ()), (streamed, ()), (tools, (name == "demo",)), (errors, (names,)), (aborts, (s,))):
                checks.section(part, c, name, *args)
        equal(s.stop(), 0, "the server's exit code")
    checks.section(authorised, pantheon, served[0][1])
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
