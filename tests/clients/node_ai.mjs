// SPDX-License-Identifier: AGPL-3.0-only
// The AI SDK with @ai-sdk/openai-compatible, unmodified, as agents use it; test_node.py runs it.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embed, generateObject, generateText, stepCountIs, streamObject, streamText, tool, APICallError } from 'ai';
import { z } from 'zod';
import { base, check, end, equal, fox, idle, models, section, throws, weather } from './checks.mjs';

const provider = createOpenAICompatible({ name: 'pantheon', baseURL: `${base}/v1`, apiKey: 'none', includeUsage: true, supportsStructuredOutputs: true });
const quiet = { maxRetries: 0, onError() {} };

async function texts(id) {
  const model = provider(id);
  const r = await generateText({ model, messages: fox, maxOutputTokens: 24, temperature: 0, ...quiet });
  equal([r.finishReason, r.usage.outputTokens], ['length', 24], 'generateText');
  const s = streamText({ model, messages: fox, maxOutputTokens: 24, temperature: 0, ...quiet });
  let text = '', pieces = 0;
  for await (const t of s.textStream) { text += t; pieces++; }
  equal(text, r.text, 'streamText: the same text');
  check(pieces > 3, 'streamText: in pieces', pieces);
  equal([await s.finishReason, (await s.usage).outputTokens, (await s.usage).inputTokens], ['length', 24, r.usage.inputTokens], 'streamText: usage');
}

async function tooled(id) {
  const model = provider(id);
  const asked = [];
  const get_weather = tool({ description: 'Get the weather of a city', inputSchema: z.object({ city: z.string().max(24) }),
    execute: async ({ city }) => { asked.push(city); return { weather: 'rainy', degrees: 12 }; } });
  const ask = { model, messages: weather, tools: { get_weather }, temperature: 0, maxOutputTokens: 120, ...quiet };
  const r = await generateText({ ...ask, toolChoice: 'required', providerOptions: { pantheon: { parallel_tool_calls: false } } });
  check(r.toolCalls.length === 1 && r.toolCalls[0].toolName === 'get_weather' && typeof r.toolCalls[0].input.city === 'string' && r.finishReason === 'tool-calls',
    'generateText, required', { calls: r.toolCalls, why: r.finishReason });
  const named = streamText({ ...ask, toolChoice: { type: 'tool', toolName: 'get_weather' }, providerOptions: { pantheon: { parallel_tool_calls: false } } });
  const kinds = [];
  for await (const part of named.fullStream) kinds.push(part.type);
  check(kinds.includes('tool-input-start') && kinds.includes('tool-call') && !kinds.includes('error'), 'streamText, named: its parts', kinds);
  if (id !== 'demo') return;
  asked.length = 0;
  const steps = await generateText({ ...ask, stopWhen: stepCountIs(3) });
  equal([steps.steps.length, asked], [2, ['Paris']], 'generateText: calls, and goes on with the result');
  check(steps.text.includes('rainy'), 'generateText: says it', steps.text);
  const s = streamText({ ...ask, stopWhen: stepCountIs(3) });
  check((await s.text).includes('rainy'), 'streamText: the same', await s.text);
}

async function objects(id) {
  const model = provider(id);
  const schema = z.object({ kind: z.enum(['fox', 'owl', 'bear']), wild: z.boolean(), legs: z.number().int().min(0).max(9) });
  const r = await generateObject({ model, schema, messages: fox, temperature: 0, maxOutputTokens: 200, ...quiet });
  check(schema.safeParse(r.object).success, 'generateObject', r.object);
  const s = streamObject({ model, schema, messages: fox, temperature: 0, maxOutputTokens: 200, ...quiet });
  let last;
  for await (const o of s.partialObjectStream) last = o;
  equal([last, await s.object], [r.object, r.object], 'streamObject');
}

async function failing(id) {
  const model = provider(id);
  await throws(() => generateText({ model: provider('none'), messages: fox, ...quiet }), 'unknown model',
    (e) => APICallError.isInstance(e) && e.statusCode === 404 && models.every((m) => e.message.includes(m)));
  const long = [{ role: 'user', content: 'one two three '.repeat(9000) }];
  await throws(() => generateText({ model, messages: long, ...quiet }), 'too long',
    (e) => APICallError.isInstance(e) && e.statusCode === 400 && !e.isRetryable && /maximum context length is \d+ tokens/.test(e.message));
  const parts = [];
  for await (const p of streamText({ model, messages: long, ...quiet }).fullStream) parts.push(p);
  check(parts.some((p) => p.type === 'error' && APICallError.isInstance(p.error)), 'too long, streamed: an error part', parts.map((p) => p.type));
}

async function aborted(id) {
  const control = new AbortController();
  const kinds = [];
  for await (const p of streamText({ model: provider(id), messages: fox, maxOutputTokens: 1500, abortSignal: control.signal,
    providerOptions: { pantheon: { ignore_eos: true } }, ...quiet }).fullStream) {
    kinds.push(p.type);
    if (p.type === 'text-delta') control.abort();
  }
  check(kinds.includes('abort'), 'abort: told', kinds.slice(-3));
  await idle(id, 'abort: and the work ends');
}

async function embedded(id) {
  const r = await embed({ model: provider.embeddingModel(id), value: 'The fox is red.', maxRetries: 0 });
  check(Math.abs(Math.hypot(...r.embedding) - 1) < 1e-3, 'embed', r.embedding?.length);
}

for (const id of models)
  for (const part of [texts, tooled, objects, failing, aborted, embedded]) await section(part, id);
end();
