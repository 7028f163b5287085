#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_openai.py - the openai package of PyPI, unmodified, against our server.

    python3 tests/clients/test_openai.py build/pantheon

What is about the protocol is asked of every model there is; what is about the text of the demo model alone.
"""
import asyncio
import json
import math
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "live", "lib"))
import clients  # noqa: E402
from serving import Checks, Server  # noqa: E402

try:
    import openai
    import pydantic
    from typing import Literal
except ImportError as e:
    openai, missing = None, e

checks = Checks()
check, equal = checks.check, checks.equal

FOX = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = clients.TOOLS


def client_of(s, key="none"):
    return openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % s.port, api_key=key, max_retries=0, timeout=120)


def raises(kind, name, function, **members):
    """The exception, when it is of that kind and its members are these."""
    try:
        function()
    except openai.OpenAIError as e:
        if check(isinstance(e, kind), "%s: %s" % (name, kind.__name__), repr(e)):
            for key, value in members.items():
                equal(getattr(e, key), value, "%s: %s" % (name, key))
        return e
    check(False, "%s: %s was expected" % (name, kind.__name__))
    return None


# --- chat --------------------------------------------------------------------------------------------

def plain(c, model):
    r = c.chat.completions.create(model=model, messages=FOX, max_tokens=24, temperature=0)
    equal([r.object, r.model, len(r.choices)], ["chat.completion", model, 1], "chat: what it is")
    m = r.choices[0].message
    check(m.content and m.role == "assistant" and m.refusal is None and not m.tool_calls, "chat: the message", m)
    equal(r.choices[0].finish_reason, "length", "chat: why it ended")
    u = r.usage
    check(u.completion_tokens == 24 and u.prompt_tokens > 0 and u.total_tokens == u.prompt_tokens + 24, "chat: usage", u)
    raw = c.chat.completions.with_raw_response.create(model=model, messages=FOX, max_tokens=24, temperature=0)
    check(raw.headers.get("x-request-id"), "chat: a request id")
    equal(raw.parse().choices[0].message.content, m.content, "chat: temperature 0 twice")
    r = c.chat.completions.create(model=model, max_completion_tokens=8, messages=[
        {"role": "developer", "content": [{"type": "text", "text": "Answer briefly."}]}, {"role": "user", "name": "ada", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}, {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 plus 3?"}]}])
    check(r.choices[0].message.content, "chat: developer, parts of text, several turns", r)


def streamed(c, model):
    want = c.chat.completions.create(model=model, messages=FOX, max_tokens=24, temperature=0)
    text, chunks, usage = "", 0, None
    for chunk in c.chat.completions.create(model=model, messages=FOX, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}):
        chunks += 1
        usage = chunk.usage or usage
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    equal(text, want.choices[0].message.content, "stream: the text of the whole answer")
    check(chunks > 3, "stream: in pieces", chunks)
    equal([usage.prompt_tokens, usage.completion_tokens], [want.usage.prompt_tokens, want.usage.completion_tokens], "stream: usage")
    kinds, text = set(), want.choices[0].message.content
    stop = text[len(text) // 2:][:4]        # the helper throws when an answer is cut off
    with c.chat.completions.stream(model=model, messages=FOX, max_tokens=24, temperature=0, stop=stop) as s:
        for event in s:
            kinds.add(event.type)
        last = s.get_final_completion()
    check({"chunk", "content.delta", "content.done"} <= kinds, "stream helper: its events", kinds)
    equal([last.choices[0].message.content, last.choices[0].message.role, last.choices[0].finish_reason],
          [text[:text.index(stop)], "assistant", "stop"], "stream helper: put together")


def choices(c, model):
    def ask(**more):
        return c.chat.completions.create(model=model, messages=FOX, max_tokens=16, temperature=1, **more)
    r = ask(n=3, seed=7)
    texts = [x.message.content for x in r.choices]
    equal([x.index for x in r.choices], [0, 1, 2], "n: the indices")
    check(len(set(texts)) > 1, "n: they differ", texts)
    equal([x.message.content for x in ask(n=3, seed=7).choices], texts, "seed: the same again")
    equal(ask(seed=7).choices[0].message.content, texts[0], "seed: the first of several is the one alone")
    check(any(ask(seed=i).choices[0].message.content != texts[0] for i in (8, 9)), "seed: another one differs")
    whole = c.chat.completions.create(model=model, messages=FOX, max_tokens=40, temperature=0).choices[0].message.content
    stop = whole[len(whole) // 2:][:4]
    r = c.chat.completions.create(model=model, messages=FOX, max_tokens=40, temperature=0, stop=[stop, "\x01never"])
    equal([r.choices[0].message.content, r.choices[0].finish_reason], [whole[:whole.index(stop)], "stop"], "stop: %r is not in it" % stop)
    held = "".join(x.choices[0].delta.content or "" for x in c.chat.completions.create(
        model=model, messages=FOX, max_tokens=40, temperature=0, stop=stop, stream=True) if x.choices)
    equal(held, whole[:whole.index(stop)], "stop: nothing of it in a stream")
    biased = c.chat.completions.create(model=model, messages=FOX, max_tokens=3, temperature=0, logit_bias={"100": 100})
    check(biased.choices[0].message.content != whole[:len(biased.choices[0].message.content)], "logit_bias: it shows")


def logprobs(c, model):
    r = c.chat.completions.create(model=model, messages=FOX, max_tokens=12, temperature=0, logprobs=True, top_logprobs=5)
    entries = r.choices[0].logprobs.content
    equal(len(entries), r.usage.completion_tokens, "logprobs: one a token")
    equal(b"".join(bytes(e.bytes) for e in entries).decode(), r.choices[0].message.content, "logprobs: their bytes are the text")
    check(all(len(e.top_logprobs) == 5 for e in entries), "logprobs: five each")
    check(all(a.logprob >= b.logprob for e in entries for a, b in zip(e.top_logprobs, e.top_logprobs[1:])), "logprobs: sorted")
    check(all(e.logprob <= 0 and e.top_logprobs[0].token == e.token for e in entries), "logprobs: at temperature 0 the best is taken")
    check(all(sum(math.exp(t.logprob) for t in e.top_logprobs) <= 1.0001 for e in entries), "logprobs: of a distribution")
    streamed_ = [e for x in c.chat.completions.create(model=model, messages=FOX, max_tokens=12, temperature=0, logprobs=True, top_logprobs=5, stream=True)
                 if x.choices and x.choices[0].logprobs for e in x.choices[0].logprobs.content or []]
    equal([(e.token, e.logprob) for e in streamed_], [(e.token, e.logprob) for e in entries], "logprobs: the same in a stream")


# --- tools and shapes --------------------------------------------------------------------------------

def tools(c, model, says):
    def ask(messages=WEATHER, **more):
        if more.get("tool_choice", "auto") != "auto":
            more["parallel_tool_calls"] = False     # a small model would call until it is cut off
        return c.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=0, max_tokens=120, **more)
    if says:        # it has learned to call
        r = ask()
        calls = r.choices[0].message.tool_calls or []
        equal([(x.type, x.function.name, json.loads(x.function.arguments)) for x in calls], [("function", "get_weather", {"city": "Paris"})], "tools, auto: a call")
        equal([r.choices[0].finish_reason, r.choices[0].message.content], ["tool_calls", None], "tools, auto: why it ended, no content")
        if calls:
            messages = WEATHER + [r.choices[0].message, {"role": "tool", "tool_call_id": calls[0].id, "content": '{"weather": "rainy", "degrees": 12}'}]
            text = ask(messages).choices[0].message.content or ""
            check("rainy" in text, "tools: the result comes back in words", text)
        r = c.chat.completions.create(model=model, messages=[{"role": "user", "content": "What is the capital of France?"}], tools=TOOLS, temperature=0)
        equal([r.choices[0].message.tool_calls, r.choices[0].finish_reason], [None, "stop"], "tools, auto: no call where none is needed")
    r = ask(tool_choice="required", messages=FOX)
    call = r.choices[0].message.tool_calls[0]
    check(call.function.name in ("get_weather", "add"), "tools, required: one of them", call)
    check(isinstance(json.loads(call.function.arguments), dict), "tools, required: arguments are an object", call.function.arguments)
    r = ask(tool_choice={"type": "function", "function": {"name": "add"}}, messages=FOX)
    call = r.choices[0].message.tool_calls[0]
    equal([call.function.name, sorted(json.loads(call.function.arguments)), r.choices[0].finish_reason], ["add", ["a", "b"], "tool_calls"], "tools, named")
    check(all(isinstance(v, int) for v in json.loads(call.function.arguments).values()), "tools, named: of the types of the schema", call.function.arguments)
    r = ask(tool_choice="none")
    equal(r.choices[0].message.tool_calls, None, "tools, none")
    # In pieces, put together by hand as agents do, and by the package.
    want = ask(tool_choice="required", messages=WEATHER).choices[0].message.tool_calls
    ids, names, arguments, reasons = [], [], {}, []
    for chunk in ask(tool_choice="required", messages=WEATHER, stream=True):
        for x in chunk.choices:
            reasons += [x.finish_reason] if x.finish_reason else []
            for d in x.delta.tool_calls or []:
                ids += [d.id] if d.id is not None else []
                names += [d.function.name] if d.function.name is not None else []
                arguments[d.index] = arguments.get(d.index, "") + (d.function.arguments or "")
    equal([names, [arguments[i] for i in sorted(arguments)]], [[w.function.name for w in want], [w.function.arguments for w in want]],
          "tools, streamed: names once, arguments whole")
    check(len(ids) == len(set(ids)) == len(want) and reasons == ["tool_calls"], "tools, streamed: ids once", (ids, reasons))
    with c.chat.completions.stream(model=model, messages=WEATHER, tools=TOOLS, tool_choice="required", temperature=0, max_tokens=120,
                                   parallel_tool_calls=False) as s:
        done = [e for e in s if e.type == "tool_calls.function.arguments.done"]
        last = s.get_final_completion().choices[0].message
    equal([e.name for e in done], [w.function.name for w in want], "tools, stream helper: done")
    equal([(x.type, x.function.name, x.function.arguments) for x in last.tool_calls], [("function", w.function.name, w.function.arguments) for w in want],
          "tools, stream helper: put together")

    class add(pydantic.BaseModel):
        a: int = pydantic.Field(ge=0, le=999)
        b: int = pydantic.Field(ge=0, le=999)
    r = c.chat.completions.parse(model=model, messages=[{"role": "user", "content": "Use the tool to add 3 and 4."}], temperature=0, max_tokens=120,
                                 tools=[openai.pydantic_function_tool(add)], tool_choice="required", parallel_tool_calls=False)
    got = r.choices[0].message.tool_calls[0].function.parsed_arguments
    check(isinstance(got, add), "tools, strict: arguments as a class", got)
    if says:
        equal([got.a, got.b], [3, 4], "tools, strict: the numbers asked for")


def shapes(c, model):
    schema = {"type": "object", "properties": {"animal": {"enum": ["fox", "owl"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 9},
                                               "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2}},
              "required": ["animal", "legs", "tags"], "additionalProperties": False}
    for stream in False, True:
        r = c.chat.completions.create(model=model, messages=FOX, temperature=0, max_tokens=200, stream=stream, response_format={
            "type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": schema}})
        text = "".join(x.choices[0].delta.content or "" for x in r if x.choices) if stream else r.choices[0].message.content
        v = json.loads(text)
        check(set(v) == {"animal", "legs", "tags"} and v["animal"] in ("fox", "owl") and 0 <= v["legs"] <= 9 and len(v["tags"]) <= 2,
              "json_schema%s" % (", streamed" if stream else ""), text)

    class Animal(pydantic.BaseModel):
        kind: Literal["fox", "owl", "bear"]
        wild: bool
        legs: Literal[2, 4]
    r = c.chat.completions.parse(model=model, messages=FOX, temperature=0, max_tokens=200, response_format=Animal)
    check(isinstance(r.choices[0].message.parsed, Animal), "parse: a class", r.choices[0].message)
    with c.chat.completions.stream(model=model, messages=FOX, temperature=0, max_tokens=200, response_format=Animal) as s:
        for _ in s:
            pass
        got = s.get_final_completion().choices[0].message.parsed
    equal(got, r.choices[0].message.parsed, "parse: the same from a stream")
    r = c.chat.completions.create(model=model, messages=FOX, temperature=0, max_tokens=100, response_format={"type": "json_object"})
    text = r.choices[0].message.content
    check(text.lstrip().startswith("{"), "json_object: an object begins", text)
    if r.choices[0].finish_reason == "stop":
        check(isinstance(json.loads(text), dict), "json_object: and ends", text)
    e = raises(openai.BadRequestError, "a schema that cannot be enforced", lambda: c.chat.completions.create(
        model=model, messages=FOX, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}))
    check(e and (e.param or "").startswith("response_format"), "a schema that cannot be enforced: param", e and e.param)


# --- errors and aborts -------------------------------------------------------------------------------

def errors(c, model, names):
    def ask(**more):
        return c.chat.completions.create(**dict({"model": model, "messages": FOX, "max_tokens": 4}, **more))
    e = raises(openai.NotFoundError, "unknown model", lambda: ask(model="gpt-none"), status_code=404, code="model_not_found", param="model")
    check(e and all(n in e.message for n in names), "unknown model: the message names those that exist", e and e.message)
    raises(openai.BadRequestError, "a bad field", lambda: ask(temperature="hot"), param="temperature", type="invalid_request_error")
    raises(openai.BadRequestError, "a bad role", lambda: ask(messages=[{"role": "boss", "content": "x"}]), status_code=400)
    raises(openai.BadRequestError, "no messages", lambda: ask(messages=[]), param="messages")
    raises(openai.BadRequestError, "an image to a model of text", lambda: ask(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]), status_code=400)
    long_text = [{"role": "user", "content": "one two three four five six seven eight nine ten " * 3000}]
    for stream in False, True:
        e = raises(openai.BadRequestError, "too long%s" % (", streamed" if stream else ""), lambda: ask(messages=long_text, stream=stream),
                   code="context_length_exceeded", param="messages")
        check(e and "maximum context length is" in e.message, "too long: the words agents look for", e and e.message)
    raises(openai.NotFoundError, "no such route", lambda: c.files.list(), status_code=404)
    raises(openai.NotFoundError, "no such model", lambda: c.models.retrieve("none"), code="model_not_found")
    r = c.chat.completions.create(model=model, messages=FOX, max_tokens=4, extra_body={"frobnicate": 1, "top_k": 3})
    equal(r.model_extra["pantheon"]["ignored_params"], ["frobnicate"], "a field nobody knows is listed, an extension is not")


def aborts(c, model, s):
    long_answer = dict(model=model, messages=FOX, max_tokens=1500, extra_body={"ignore_eos": True}, stream=True)
    stream = c.chat.completions.create(**long_answer)
    for i, _ in enumerate(stream):
        if i == 3:
            break
    stream.close()
    s.wait_counts(model, running=0)
    check(True, "abort: a stream that is closed ends the work")
    impatient = c.with_options(timeout=0.03)      # 1,500 tokens take the demo model 0.2 s at the very least
    raises(openai.APITimeoutError, "abort: a client that does not wait", lambda: impatient.chat.completions.create(**dict(long_answer, stream=False)))
    s.wait_counts(model, running=0)
    check(True, "abort: nobody runs after that")

    async def cancel():
        async with openai.AsyncOpenAI(base_url=str(c.base_url), api_key="none", max_retries=0) as a:
            async def read():
                async for chunk in await a.chat.completions.create(**long_answer):
                    if chunk.choices and chunk.choices[0].delta.content:
                        begun.set()
            begun = asyncio.Event()
            task = asyncio.create_task(read())
            await asyncio.wait_for(begun.wait(), 60)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return True
    check(asyncio.run(cancel()), "abort: a task that is cancelled")
    s.wait_counts(model, running=0)
    check(True, "abort: and its work")
    check(c.chat.completions.create(model=model, messages=FOX, max_tokens=4).choices[0].message.content, "abort: the next is answered")


def at_once(c, model):
    async def run():
        async with openai.AsyncOpenAI(base_url=str(c.base_url), api_key="none", max_retries=0) as a:
            async def one(i):
                text = ""
                async for x in await a.chat.completions.create(model=model, messages=FOX, max_tokens=20, temperature=1, seed=i, stream=True):
                    text += (x.choices[0].delta.content or "") if x.choices else ""
                return text
            alone = [await one(i) for i in range(8)]
            equal(await asyncio.gather(*(one(i) for i in range(8))), alone, "eight at once: each its own text")
    asyncio.run(run())


# --- the other endpoints -----------------------------------------------------------------------------

def lists(c, model, names):
    equal(sorted(m.id for m in c.models.list()), sorted(names), "models: the list")
    m = c.models.retrieve(model)
    equal([m.id, m.object], [model, "model"], "models: one")


def completions(c, model):
    def ask(**more):
        return c.completions.create(**dict({"model": model, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}, **more))
    r = ask()
    equal([r.object, r.choices[0].finish_reason, r.usage.completion_tokens], ["text_completion", "length", 12], "completion: what it is")
    text = r.choices[0].text
    equal("".join(x.choices[0].text for x in ask(stream=True) if x.choices), text, "completion: streamed")
    equal(ask(echo=True).choices[0].text, "Once upon a time" + text, "completion: echo")
    r = ask(prompt=["Once upon a time", "One, two,"], n=2, temperature=1, seed=1)
    equal([x.index for x in r.choices], [0, 1, 2, 3], "completion: two prompts, two choices")
    r = ask(logprobs=3)
    p = r.choices[0].logprobs
    equal([len(p.tokens), len(p.token_logprobs), len(p.top_logprobs), "".join(p.tokens)], [12, 12, 12, text], "completion: logprobs")
    equal(p.text_offset[0], 0, "completion: offsets")
    stop = text[len(text) // 2:][:3]
    equal(ask(stop=stop).choices[0].text, text[:text.index(stop)], "completion: stop")
    raises(openai.BadRequestError, "completion: a suffix", lambda: ask(suffix="the end"), status_code=400)


def embeddings(c, model):
    one = c.embeddings.create(model=model, input="The fox is red.")
    v = one.data[0].embedding
    check(len(v) > 8 and abs(sum(x * x for x in v) - 1) < 1e-3, "embedding: of length one", (len(v), sum(x * x for x in v)))
    floats = c.embeddings.create(model=model, input="The fox is red.", encoding_format="float").data[0].embedding
    check(max(abs(a - b) for a, b in zip(v, floats)) < 1e-6, "embedding: numbers and base64 say the same")
    several = c.embeddings.create(model=model, input=["The fox is red.", "A map of the river"])
    equal([x.index for x in several.data], [0, 1], "embedding: a batch")
    check(max(abs(a - b) for a, b in zip(v, several.data[0].embedding)) < 1e-4, "embedding: the same in a batch")
    check(one.usage.prompt_tokens > 0 and one.usage.total_tokens == one.usage.prompt_tokens, "embedding: usage", one.usage)
    check(c.embeddings.create(model=model, input=[[5, 6, 7], [8]]).data[1].embedding, "embedding: of tokens")
    raises(openai.BadRequestError, "embedding: of nothing", lambda: c.embeddings.create(model=model, input=""), status_code=400)
    raises(openai.BadRequestError, "embedding: too long", lambda: c.embeddings.create(model=model, input="one two three " * 9000), code="context_length_exceeded")


def responses(c, model, says):
    r = c.responses.create(model=model, input="Tell me a story about a fox.", max_output_tokens=24, temperature=0)
    chat = c.chat.completions.create(model=model, messages=FOX, max_tokens=24, temperature=0)
    equal(r.output_text, chat.choices[0].message.content, "response: the text a chat has")
    equal([r.object, r.status, r.incomplete_details and r.incomplete_details.reason], ["response", "incomplete", "max_output_tokens"], "response: cut off")
    equal([r.usage.input_tokens, r.usage.output_tokens], [chat.usage.prompt_tokens, 24], "response: usage")
    text, kinds, numbers = "", [], []
    for e in c.responses.create(model=model, input="Tell me a story about a fox.", max_output_tokens=24, temperature=0, stream=True):
        kinds.append(e.type)
        numbers.append(e.sequence_number)
        if e.type == "response.output_text.delta":
            text += e.delta
    equal(text, r.output_text, "response: streamed")
    equal(numbers, list(range(len(numbers))), "response: numbers of the events")
    equal([kinds[0], kinds[1], kinds[-1]], ["response.created", "response.in_progress", "response.incomplete"], "response: events at both ends")
    flat = [dict(t["function"], type="function") for t in TOOLS]
    r = c.responses.create(model=model, input=WEATHER, tools=flat, tool_choice="required", temperature=0, max_output_tokens=120,
                           parallel_tool_calls=False)
    call = next(o for o in r.output if o.type == "function_call")
    check(call.name in ("get_weather", "add") and isinstance(json.loads(call.arguments), dict), "response: a call", call)
    if says:
        equal([call.name, json.loads(call.arguments)], ["get_weather", {"city": "Paris"}], "response: the call asked for")
        r = c.responses.create(model=model, tools=flat, temperature=0, instructions="Answer briefly.", input=WEATHER + [
            call.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": call.call_id, "output": '{"weather": "rainy", "degrees": 12}'}])
        check("rainy" in r.output_text and r.status == "completed", "response: the result comes back in words", r.output)
    with c.responses.stream(model=model, input=WEATHER, tools=flat, tool_choice="required", temperature=0, max_output_tokens=120,
                            parallel_tool_calls=False) as s:
        for _ in s:
            pass
        last = s.get_final_response()
    equal([(o.name, o.arguments) for o in last.output if o.type == "function_call"], [(call.name, call.arguments)], "response: the same call from a stream")

    class Animal(pydantic.BaseModel):
        kind: Literal["fox", "owl"]
        wild: bool
    r = c.responses.parse(model=model, input="A fox.", text_format=Animal, temperature=0, max_output_tokens=100)
    check(isinstance(r.output_parsed, Animal), "response: a class", r.output)
    raises(openai.BadRequestError, "response: state is not kept", lambda: c.responses.create(model=model, input="Hi", previous_response_id="resp_1"),
           param="previous_response_id")


def authorised(pantheon, model):
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "keys")
        with open(path, "w") as f:
            f.write("sk-right\n")
        with Server(pantheon, "-m", model, "--api-key-file", path) as s:
            ask = dict(model="demo", messages=FOX, max_tokens=2)
            raises(openai.AuthenticationError, "a wrong key", lambda: client_of(s, "sk-wrong").chat.completions.create(**ask), status_code=401, code="invalid_api_key")
            check(client_of(s, "sk-right").chat.completions.create(**ask).choices, "the right key")


def retried(pantheon, long_model):
    """A full queue says when to come again, and the package does."""
    with Server(pantheon, "-m", long_model, "--name", "long", "--max-concurrent", "1", "--queue", "1") as s:
        slow = client_of(s)
        holders = []
        for n in range(2):
            holders.append(s.connect())
            body = json.dumps(dict(model="long", messages=FOX, max_tokens=30000, ignore_eos=True, stream=True)).encode()
            holders[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            s.wait_counts("long", running=1, queued=n)
        ask = dict(model="long", messages=FOX, max_tokens=2)
        e = raises(openai.RateLimitError, "a full queue", lambda: slow.chat.completions.create(**ask), status_code=429, code="queue_full")
        check(e and int(e.response.headers["retry-after"]) >= 1, "a full queue: when to come again")
        for h in holders:
            h.close()
        s.wait_counts("long", running=0, queued=0)
        check(slow.with_options(max_retries=2).chat.completions.create(**ask).choices, "and then there is a place")


def main():
    if openai is None:
        checks.skip("openai of PyPI: %s" % missing)
        return checks.end()
    pantheon, served = clients.arguments(checks)
    with tempfile.TemporaryDirectory() as tmp:
        with Server(pantheon, *(a for name, path in served for a in ("-m", path, "--name", name))) as s:
            names = [name for name, _ in served]
            for name in names:
                c = client_of(s)
                says = name == "demo"
                for part, args in ((plain, ()), (streamed, ()), (choices, ()), (logprobs, ()), (tools, (says,)), (shapes, ()), (errors, (names,)), (aborts, (s,)),
                                   (lists, (names,)), (completions, ()), (embeddings, ()), (responses, (says,))) + (((at_once, ()),) if says else ()):
                    checks.section(part, c, name, *args)
            equal(s.stop(), 0, "the server's exit code")
        checks.section(authorised, pantheon, served[0][1])
        checks.section(retried, pantheon, clients.long_model(pantheon, tmp))
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
