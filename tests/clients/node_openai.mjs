// SPDX-License-Identifier: AGPL-3.0-only
// The openai package of npm, unmodified; test_node.py runs it.
import OpenAI from 'openai';
import { zodResponseFormat, zodFunction } from 'openai/helpers/zod';
import { z } from 'zod';
import { base, check, end, equal, fox, idle, models, section, throws, weather } from './checks.mjs';

const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: 'none', maxRetries: 0 });
const tools = JSON.parse(process.env.TOOLS);

async function plain(model) {
  const r = await client.chat.completions.create({ model, messages: fox, max_tokens: 24, temperature: 0 });
  equal([r.object, r.model, r.choices[0].finish_reason, r.usage.completion_tokens], ['chat.completion', model, 'length', 24], 'chat');
  let text = '', usage;
  for await (const c of await client.chat.completions.create({
    model, messages: fox, max_tokens: 24, temperature: 0, stream: true, stream_options: { include_usage: true } })) {
    text += c.choices[0]?.delta.content ?? '';
    usage = c.usage ?? usage;
  }
  equal(text, r.choices[0].message.content, 'stream: the text of the whole answer');
  equal(usage.total_tokens, r.usage.total_tokens, 'stream: usage');
  let pieces = 0;
  const runner = client.chat.completions.stream({ model, messages: fox, max_tokens: 24, temperature: 0 });
  runner.on('content', () => pieces++);
  equal([await runner.finalContent(), pieces > 3], [text, true], 'stream helper: put together');
  const n = await client.chat.completions.create({ model, messages: fox, max_tokens: 8, temperature: 1, seed: 3, n: 3, logprobs: true, top_logprobs: 2 });
  equal(n.choices.map((c) => c.index), [0, 1, 2], 'n');
  check(n.choices.every((c) => c.logprobs.content.length === 8 && c.logprobs.content[0].top_logprobs.length === 2), 'logprobs');
}

async function tooled(model) {
  const ask = { model, messages: weather, tools, tool_choice: 'required', parallel_tool_calls: false, temperature: 0, max_tokens: 120 };
  const r = await client.chat.completions.create(ask);
  const call = r.choices[0].message.tool_calls[0];
  check(call.type === 'function' && typeof JSON.parse(call.function.arguments) === 'object' && r.choices[0].finish_reason === 'tool_calls', 'tools, required', r);
  const last = await client.chat.completions.stream(ask).finalMessage();
  equal(last.tool_calls.map((c) => [c.function.name, c.function.arguments]), [[call.function.name, call.function.arguments]], 'tools, stream helper');
  if (model === 'demo') {
    // The package calls our function and sends its result back by itself.
    const asked = [];
    const runner = client.chat.completions.runTools({ model, messages: weather, temperature: 0, tools: [{ type: 'function', function: {
      ...tools[0].function, parse: JSON.parse, function: ({ city }) => { asked.push(city); return '{"weather": "rainy", "degrees": 12}'; } } }] });
    check((await runner.finalContent()).includes('rainy'), 'tools: a runner goes round', asked);
    equal(asked, ['Paris'], 'tools: the function was called');
  }
  const add = zodFunction({ name: 'add', parameters: z.object({ a: z.number().int().min(0).max(999), b: z.number().int().min(0).max(999) }) });
  const p = await client.chat.completions.parse({ ...ask, tools: [add] });
  check(Number.isInteger(p.choices[0].message.tool_calls[0].function.parsed_arguments.a), 'tools, strict: parsed', p.choices[0].message);
}

async function shaped(model) {
  const Animal = z.object({ kind: z.enum(['fox', 'owl', 'bear']), wild: z.boolean(), legs: z.number().int().min(0).max(9) });
  const ask = { model, messages: fox, temperature: 0, max_tokens: 200, response_format: zodResponseFormat(Animal, 'animal') };
  const r = await client.chat.completions.parse(ask);
  check(Animal.safeParse(r.choices[0].message.parsed).success, 'parse', r.choices[0].message);
  const s = await client.chat.completions.stream(ask).finalChatCompletion();
  equal(s.choices[0].message.parsed, r.choices[0].message.parsed, 'parse: the same from a stream');
}

async function failing(model) {
  const ask = (more) => () => client.chat.completions.create({ model, messages: fox, max_tokens: 4, ...more });
  await throws(ask({ model: 'none' }), 'unknown model', (e) => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found' && models.every((m) => e.message.includes(m)));
  await throws(ask({ temperature: 'hot' }), 'a bad field', (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature');
  for (const stream of [false, true])
    await throws(ask({ messages: [{ role: 'user', content: 'one two three '.repeat(9000) }], stream }), 'too long',
      (e) => e instanceof OpenAI.BadRequestError && e.code === 'context_length_exceeded');
}

async function aborted(model) {
  const ask = { model, messages: fox, max_tokens: 1500, ignore_eos: true, stream: true };
  for await (const c of await client.chat.completions.create(ask)) if (c.choices[0]?.delta.content) break;
  await idle(model, 'abort: a loop that is left');
  const control = new AbortController();
  await throws(async () => {
    for await (const c of await client.chat.completions.create(ask, { signal: control.signal })) if (c.choices[0]?.delta.content) control.abort();
    throw new OpenAI.APIUserAbortError();           // a loop over an aborted stream just ends
  }, 'abort: a signal', (e) => e instanceof OpenAI.APIUserAbortError);
  await idle(model, 'abort: and the work ends');
}

async function others(model) {
  const ids = [];
  for await (const m of await client.models.list()) ids.push(m.id);
  equal(ids, models, 'models');
  const c = await client.completions.create({ model, prompt: 'Once upon a time', max_tokens: 8, temperature: 0 });
  let text = '';
  for await (const x of await client.completions.create({ model, prompt: 'Once upon a time', max_tokens: 8, temperature: 0, stream: true })) text += x.choices[0]?.text ?? '';
  equal(text, c.choices[0].text, 'completion: streamed');
  const e = await client.embeddings.create({ model, input: ['The fox is red.', 'A map'] });
  const length = (v) => Math.hypot(...v);
  check(e.data.length === 2 && e.data.every((d) => Math.abs(length(d.embedding) - 1) < 1e-3), 'embeddings: base64 by default', e.data.map((d) => length(d.embedding)));
  const r = await client.responses.create({ model, input: 'Tell me a story about a fox.', max_output_tokens: 16, temperature: 0 });
  let out = '';
  for await (const x of await client.responses.create({ model, input: 'Tell me a story about a fox.', max_output_tokens: 16, temperature: 0, stream: true }))
    if (x.type === 'response.output_text.delta') out += x.delta;
  equal([r.status, out], ['incomplete', r.output_text], 'responses: streamed');
}

for (const model of models)
  for (const part of [plain, tooled, shaped, failing, aborted, others]) await section(part, model);
end();
