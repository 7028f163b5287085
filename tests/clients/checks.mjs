// SPDX-License-Identifier: AGPL-3.0-only
// Counting, as the tests in Python do, and what they tell us through the environment.
import { isDeepStrictEqual } from 'node:util';

export const base = process.env.BASE;               // http://127.0.0.1:PORT
export const models = process.env.MODELS.split(' '); // all that are served
let passed = 0, failed = 0;

const show = (v) => {
  let text;
  try { text = JSON.stringify(v); } catch { text = String(v); }
  return (text ?? String(v)).slice(0, 600);
};

export function check(ok, name, found) {
  if (ok) passed++;
  else {
    failed++;
    console.log(`FAIL ${name}${found === undefined ? '' : `: found ${show(found)}`}`);
  }
  return !!ok;
}

export const equal = (found, expected, name) => check(isDeepStrictEqual(found, expected), name, { found, expected });

// What throws is a failure, and the next part goes on.
export async function section(fn, ...args) {
  try { await fn(...args); } catch (e) { check(false, `${fn.name}: ${e?.name}: ${e?.message} ${String(e?.stack).split('\n')[1]}`); }
}

export async function throws(promise, name, test) {
  try { await promise(); } catch (e) {
    check(test(e), name, { name: e?.name, message: e?.message, status: e?.status ?? e?.statusCode, code: e?.code });
    return e;
  }
  check(false, `${name}: nothing was thrown`);
}

// Poll until nobody runs on the model.
export async function idle(model, name) {
  const end = Date.now() + 60000;
  for (;;) {
    const m = (await (await fetch(`${base}/admin/models`)).json()).models.find((x) => x.name === model);
    if (m.running === 0 && m.queued === 0) return check(true, name);
    if (Date.now() > end) return check(false, name, m);
    await new Promise((go) => setTimeout(go, 10));
  }
}

export function end() {
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}

export const fox = [{ role: 'user', content: 'Tell me a story about a fox.' }];
export const weather = [{ role: 'user', content: 'What is the weather in Paris?' }];
