// SPDX-License-Identifier: AGPL-3.0-only
//
// page.mjs - the page at "/", used as people use it, in Chromium.
//
//     node tests/page/page.mjs [build/pantheon]
//
// Starts servers of its own on free ports.  Pictures go to build/page/.  Without Chromium or playwright-core it says
// so and skips.

import {spawn, execFileSync} from "node:child_process";
import {existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";

const program = process.argv[2] || "build/pantheon";
const shots = "build/page";
let passed = 0, failed = 0;

function check(what, ok, detail) {
  if (ok) passed++;
  else {
    failed++;
    console.log(`FAIL ${what}${detail === undefined ? "" : ": " + JSON.stringify(detail)}`);
  }
}

function skip(why) {
  console.log(`SKIP the page in a browser: ${why}`);
  console.log("0 passed, 0 failed, 1 skipped");
  process.exit(0);
}

function browserPath() {
  const names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
  const places = (process.env.PATH || "").split(":").flatMap(d => names.map(n => join(d, n)));
  return [process.env.CHROMIUM, ...places].find(p => p && existsSync(p));
}

// ---- servers ----

const started = [];
function serve(...args) {
  const child = spawn(program, ["serve", "--port", "0", ...args], {stdio: ["ignore", "pipe", "inherit"]});
  started.push(child);
  return new Promise((done, fail) => {
    let out = "";
    child.stdout.on("data", piece => {          /* read to the end: a closed pipe would end the server */
      out = (out + piece).slice(-4000);
      const at = /listening on (\S+)/.exec(out);
      if (at && !child.url) {
        child.url = at[1];
        done(child);
      }
    });
    child.once("exit", () => fail(new Error("the server did not start: " + out)));
  });
}

function stop(child) {
  return new Promise(done => {
    if (child.exitCode !== null) return done();
    child.once("exit", done);
    child.kill("SIGTERM");
  });
}

// ---- pages ----

let browser;
async function open(url, options = {}) {
  const page = await (await browser.newContext({viewport: {width: 1200, height: 800}, ...options})).newPage();
  page.errors = [];
  page.on("console", m => { if (m.type() === "error") page.errors.push(m.text()); });
  page.on("pageerror", e => page.errors.push(String(e)));
  await page.goto(url);
  await page.waitForFunction(() => document.querySelector("#models").textContent || document.querySelector("#trouble").textContent);
  return page;
}

const last = page => page.locator(".turn.assistant").last();
const shot = (page, name) => page.screenshot({path: join(shots, name + ".png")});
const quiet = page => page.errors.filter(e => !e.startsWith("Failed to load resource"));

async function ask(page, text) {
  await page.fill("#say", text);
  await page.press("#say", "Enter");
}

/* The same answer each time, by the page's own settings. */
async function cool(page) {
  await page.click("#ask summary");
  await page.fill("#temp", "0");
  await page.click("#ask summary");
}

const ended = page => page.waitForFunction(() => !document.querySelector("[aria-busy]") && document.querySelector("#stop").hidden, null, {timeout: 30000});

// ---- the tests ----

async function chats(url) {
  const page = await open(url);
  await page.selectOption("#model", "demo");
  // The text has to grow while the answer is under way: a stream, not one lump.
  await page.evaluate(() => {
    window.seen = new Set();
    new MutationObserver(() => {
      const t = document.querySelector(".turn.assistant[aria-busy] .text");
      if (t) window.seen.add(t.textContent.length);
    }).observe(document.querySelector("#log"), {subtree: true, childList: true, characterData: true});
  });
  await cool(page);
  await ask(page, "Tell me a story about a fox.");
  await ended(page);
  const steps = await page.evaluate(() => window.seen.size);
  check("an answer streams", steps >= 3, steps);
  check("it has text", (await last(page).locator(".text").innerText()).length > 5);
  const stats = await last(page).locator("footer").innerText();
  check("its speed is told", /tokens\/s/.test(stats) && /prompt \d+/.test(stats), stats);
  await ask(page, "What is the capital of France? <img src=x onerror=document.title='bad'>");
  await ended(page);
  check("a second turn is answered", await page.locator(".turn.assistant").count() === 2);
  check("a question is text, not markup", await page.locator("#log img").count() === 0 && await page.title() === "Pantheon");
  await shot(page, "chat-light");
  check("no console error in a chat", page.errors.length === 0, page.errors);
  await page.click("#fresh");
  check("a new chat is empty", await page.locator(".turn").count() === 0 && await page.isVisible("#hello"));
  await page.context().close();
}

async function shows(url) {
  const page = await open(url, {colorScheme: "dark"});
  await page.waitForSelector(".model >> nth=1");
  const models = await page.innerText("#models");
  check("models with state, context, KV type and residency",
    ["demo", "slow", "ready", "context 2,048", "KV f16", "weights mapped"].every(w => models.includes(w)), models);
  await page.waitForSelector("#memory .bar");
  const memory = await page.innerText("#memory");
  check("memory with accounts", /Used/.test(memory) && /weights, mapped/.test(memory) && /MiB/.test(memory), memory);
  const level = await page.innerText("#level");
  check("a level, and no rungs while there are none", /^(OK|WATCH)$/i.test(level) && await page.isHidden("#rungs"), level);
  check("about the server", /Pantheon \d.*cpu/.test(await page.innerText("#about")));
  await page.selectOption("#model", "slow");
  await ask(page, "Speak.");
  await page.waitForFunction(() => document.querySelector("#running").textContent === "1", null, {timeout: 15000});
  await page.waitForFunction(() => Number(document.querySelector("#speed").textContent) > 0, null, {timeout: 15000});
  check("the server's speed is told while it works", true);
  const sessions = await page.locator("#sessions").textContent();
  check("what is kept of sessions is told", /kept; \d+ % of prompt tokens/.test(sessions), sessions);
  await shot(page, "busy-dark");
  await page.click("#stop");
  await ended(page);
  const end = await last(page).locator("footer").innerText();
  check("stop stops, and the answer stays", /stopped/.test(end) && (await last(page).locator(".text").innerText()).length > 0, end);
  await page.evaluate(() => refresh());
  await page.waitForFunction(() => document.querySelector("#running").textContent === "0", null, {timeout: 15000});
  check("the server has stopped it too", true);
  check("no console error when stopping", page.errors.length === 0, page.errors);
  await page.context().close();
}

async function draws(url) {
  const page = await open(url);
  const said = "Here is **a loop** with `printf`:\n\n```c\nfor (int i = 0; i < 3; i++)\n    printf(\"<b>%d</b>\\n\", i);\n```\nIt prints <i>three</i> lines.\n\nAnd an open one:\n```\n<script>window.bad = 1</" + "script>";
  const frames = [{role: "assistant", content: ""}, {reasoning_content: "They want a loop."}, ...said.match(/[^]{1,7}/g).map(content => ({content})), {}]
    .map((delta, i, all) => `data: ${JSON.stringify({choices: [{index: 0, delta, finish_reason: i === all.length - 1 ? "length" : null}]})}\n\n`);
  await page.route("**/v1/chat/completions", r => r.fulfill({contentType: "text/event-stream", body: frames.join("") + "data: [DONE]\n\n"}));
  await page.route("**/admin/memory", r => r.fulfill({json: {host: {total: 8 * 2 ** 30, available: 2 ** 29}, limit: 15e8, used: 12e8, peak: 14e8, level: "TIGHT",
    rungs: [{rank: 11, name: "step_rows", freed: 0}, {rank: 2, name: "prefix_cache", freed: 73400320}],
    accounts: {weights_map: {used: 9e8, peak: 9e8}, kv: {used: 3e8, peak: 5e8}}}}));
  await ask(page, "A loop, please.");
  await ended(page);
  const codes = await last(page).locator("pre code").allInnerTexts();
  check("code blocks are drawn as text", codes.length === 2 && codes[0].includes("<b>%d</b>") && codes[1].includes("<script>"), codes);
  check("bold and inline code", await last(page).locator("p strong").innerText() === "a loop" && await last(page).locator("p code").innerText() === "printf");
  check("no markup of the model's", await last(page).locator("i, b, script").count() === 0 && await page.evaluate(() => window.bad === undefined));
  check("reasoning stands apart", await last(page).locator("details.think").count() === 1);
  check("a cut answer says so", /token limit/.test(await last(page).locator("footer").innerText()));
  await page.evaluate(() => refresh());
  await page.waitForSelector("#rungs li >> nth=1");
  const rungs = await page.innerText("#rungs");
  check("the ladder's level and rungs", await page.innerText("#level") === "TIGHT" && /step rows/.test(rungs) && /prefix cache.*70.0 MiB/.test(rungs), rungs);
  await last(page).locator("details.think summary").click();
  await shot(page, "markdown-ladder");
  check("no console error when drawing", page.errors.length === 0, page.errors);
  await page.context().close();
}

async function keys(url) {
  const page = await open(url);
  check("the box has the focus", await page.evaluate(() => document.activeElement.id) === "say");
  await page.evaluate(() => { document.querySelector("#temp").value = "0"; });
  await page.keyboard.type("What is");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("the capital of Italy?");
  check("Shift+Enter is a new line", (await page.inputValue("#say")).includes("\n"));
  await page.keyboard.press("Enter");
  await page.waitForSelector(".turn.assistant");
  await ended(page);
  check("Enter sends", (await last(page).locator(".text").innerText()).length > 0);
  const stops = [];
  for (let i = 0; i < 14; i++) {
    await page.keyboard.press("Tab");
    stops.push(await page.evaluate(() => {
      const e = document.activeElement, s = getComputedStyle(e);
      return (e.id || e.tagName) + (e === document.body || s.outlineStyle !== "none" || e.id === "say" ? "" : " without a ring");
    }));
  }
  check("Tab reaches everything, visibly", ["model", "fresh", "keys", "say", "send", "SUMMARY"].every(s => stops.includes(s)) && !stops.some(s => s.endsWith("ring")), stops);
  await page.selectOption("#model", "slow");
  await page.focus("#say");
  await page.keyboard.type("Go on.");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelectorAll(".turn.assistant").length === 2 && document.querySelectorAll(".turn.assistant")[1].textContent.length > 8);
  await page.keyboard.press("Escape");
  await ended(page);
  check("Escape stops", /stopped/.test(await last(page).locator("footer").innerText()));
  check("no console error by keyboard", page.errors.length === 0, page.errors);
  await page.context().close();
}

async function phone(url) {
  const page = await open(url, {viewport: {width: 375, height: 667}, hasTouch: true, isMobile: true, deviceScaleFactor: 2});
  await page.selectOption("#model", "demo");
  await page.tap("#say");
  await page.fill("#say", "Tell me a story about a dog.");
  await page.tap("#send");
  await page.waitForSelector(".turn.assistant");
  await ended(page);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  check("nothing is wider than a phone", wide <= 0, wide);
  const small = await page.evaluate(() => [...document.querySelectorAll("button, select")].filter(e => e.offsetParent && e.getBoundingClientRect().height < 40).map(e => e.id));
  check("buttons are large enough for fingers", small.length === 0, small);
  await shot(page, "phone-chat");
  check("the status is behind a button", await page.isHidden("#side"));
  await page.tap("#look");
  check("and comes when it is touched", await page.isVisible("#side") && await page.isHidden("#chat"));
  await page.waitForSelector("#memory .bar");
  await shot(page, "phone-status");
  await page.tap("#look");
  check("and goes again", await page.isVisible("#chat"));
  check("no console error on a phone", page.errors.length === 0, page.errors);
  await page.context().close();
}

async function wrongKey(url) {
  const page = await open(url);
  check("without a key the models say why", /key/i.test(await page.innerText("#trouble")), await page.innerText("#trouble"));
  await cool(page);
  await ask(page, "What is the capital of France?");
  await page.waitForSelector("[role=alert]");
  const words = await page.innerText("[role=alert]");
  check("a missing key is told in words", /key/i.test(words) && words.includes("API key\u201d"), words);
  await page.click("#keys");
  await page.fill("#key", "wrong");
  await page.keyboard.press("Enter");
  await page.click("[role=alert] button");
  await page.waitForSelector("[role=alert]");
  check("a wrong key is told in words", /key/i.test(await page.innerText("[role=alert]")), await page.innerText("[role=alert]"));
  await shot(page, "wrong-key");
  await page.click("#keys");
  await shot(page, "key-dialog");
  await page.fill("#key", "right-key");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".model");
  await page.click("[role=alert] button");
  await page.waitForSelector(".turn.assistant");
  await ended(page);
  check("with the right key it answers", (await last(page).locator(".text").innerText()).length > 0 && await page.locator("[role=alert]").count() === 0);
  check("the key is in this tab only", await page.evaluate(() => sessionStorage.getItem("key") === "right-key" && localStorage.length === 0));
  check("no console error but the refusals", quiet(page).length === 0, quiet(page));
  await page.context().close();
}

async function stopped(server) {
  const page = await open(server.url);
  await page.selectOption("#model", "slow");
  await ask(page, "Speak.");
  await page.waitForSelector(".turn.assistant p");
  server.kill("SIGTERM");
  await stop(server);
  await page.waitForSelector("[role=alert]", {timeout: 15000});
  const lost = await page.innerText("[role=alert]");
  check("a stream that breaks is told in words", /connection|stop/i.test(lost), lost);
  await page.evaluate(() => document.querySelectorAll("[role=alert]").forEach(e => e.remove()));
  await ask(page, "Are you there?");
  await page.waitForSelector("[role=alert]");
  const words = await page.innerText("[role=alert]");
  check("a server that has gone is told in words", /cannot be reached/.test(words), words);
  await shot(page, "server-gone");
  check("no console error but the network's", quiet(page).length === 0, quiet(page));
  await page.context().close();
}

async function main() {
  let chromium;
  try {
    ({chromium} = await import("playwright-core"));
  } catch {
    skip("playwright-core is not installed (npm ci in tests/page)");
  }
  const path = browserPath();
  if (!path) skip("no chromium");
  if (!existsSync(program)) skip(program + " is not there");
  mkdirSync(shots, {recursive: true});
  const dir = mkdtempSync(join(tmpdir(), "pantheon-page-"));
  try {
    const slow = join(dir, "slow.gguf"), keyFile = join(dir, "keys");
    execFileSync(program, ["synth", slow, "--shape", "135m", "--ctx", "4096", "-q"]);
    writeFileSync(keyFile, "right-key\n");
    browser = await chromium.launch({executablePath: path, args: process.getuid() === 0 ? ["--no-sandbox"] : []});
    const models = ["-m", "models/demo.gguf", "--name", "demo", "-m", slow, "--name", "slow"];
    const server = await serve(...models, "--drain-timeout", "1s"), locked = await serve("-m", "models/demo.gguf", "--api-key-file", keyFile);
    const tests = {chats: () => chats(server.url), shows: () => shows(server.url), draws: () => draws(server.url), keys: () => keys(server.url), phone: () => phone(server.url),
      wrongKey: () => wrongKey(locked.url), stopped: () => stopped(server)};
    for (const [name, test] of Object.entries(tests))
      try {
        await test();
      } catch (e) {
        check(name, false, String(e).slice(0, 400));
      }
  } finally {
    if (browser) await browser.close();
    await Promise.all(started.map(stop));
    rmSync(dir, {recursive: true, force: true});
  }
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}

await main();
