// Measures one engine that runs a model in a browser tab, once, in a Chromium of its own with an empty profile.
//
//   node tests/peers/browser.mjs NAME TOKENS
//
// prints one line a figure, NAME=VALUE, all times in milliseconds: load (from the visit of the page until a prompt can be
// sent), warm (the first, short answer), first (from the prompt's sending to its first token), rest (from the first token to
// the last); and prompt_tokens, tokens, version, adapter, text. What cannot be measured prints `failed=` and a sentence.
// FIRSTLIGHT_PEERS_FOLDER is where `cargo xtask peers` put the packages and the ONNX model. Invariant: every engine gets the
// same two texts, and of two successive ones no more than the first words agree, so that no cache of prompts helps any.

import { readFileSync } from "node:fs";
import { join } from "node:path";

import * as to from "../browser/asking.mjs";
import { assert, beside, browser, host, MODEL, ROOT, same, TARGET } from "../browser/harness.mjs";

const FOLDER = process.env.FIRSTLIGHT_PEERS_FOLDER || join(TARGET, "peers");

const chat = (system, user) => `<|im_start|>system\n${system}<|im_end|>\n<|im_start|>user\n${user}<|im_end|>\n<|im_start|>assistant\n`;
const WARM_UP = chat("Answer in one word.", "What colour is the sky?");
const PROMPT = chat(
  "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
  "Explain gravity to a child, and why the moon does not fall down on us.",
);
const WARM_UP_TOKENS = 2;
/** Longer than this nobody waits for a load or an answer. */
const LIMIT = 600_000;

/** Shared memory, which threads of WebAssembly need, is for pages that are isolated. */
const ISOLATED = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };

const own = (name) => join(ROOT, "tests/peers", name);
const packaged = (name) => join(FOLDER, "node_modules", name);

const transformers = (settings) => ({
  library: "@huggingface/transformers",
  files: {
    "peer.js": own("transformers.js"),
    "transformers.worker.js": own("transformers.worker.js"),
    "ort.js": packaged("onnxruntime-web/dist/ort-wasm-simd-threaded.asyncify.mjs"),
    "ort.wasm": packaged("onnxruntime-web/dist/ort-wasm-simd-threaded.asyncify.wasm"),
  },
  settings,
});
const wllama = (settings) => ({
  library: "@wllama/wllama",
  files: { "peer.js": own("wllama.js"), "model.gguf": MODEL },
  settings: { file: "model.gguf", ...settings },
});

const PEERS = {
  "transformers.js-webgpu-q4": transformers({ device: "webgpu", dtype: "q4", threads: 2 }),
  "transformers.js-webgpu-f32": transformers({ device: "webgpu", dtype: "fp32", threads: 2 }),
  "transformers.js-wasm-q4": transformers({ device: "wasm", dtype: "q4", threads: 2 }),
  "transformers.js-wasm-f32": transformers({ device: "wasm", dtype: "fp32", threads: 2 }),
  "wllama-webgpu": wllama({ threads: 2, gpu: true }),
  "wllama-wasm-1": wllama({ threads: 1, gpu: false }),
  "wllama-wasm-2": wllama({ threads: 2, gpu: false }),
};

/** Throws with a sentence where `work` has not ended after the limit. */
function limited(what, work) {
  let timer;
  const late = new Promise((_, failed) => {
    timer = setTimeout(() => failed(new Error(`${what} took longer than ${LIMIT / 1000} s`)), LIMIT);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

/** The adapter in the browser's words, and what it lacks of what engines like to have. */
function adapter(page) {
  return page.evaluate(async () => {
    const found = await navigator.gpu?.requestAdapter();
    if (!found) {
      return { adapter: "none", f16: false, subgroups: false };
    }
    const { vendor, architecture, device, description } = found.info;
    const words = [vendor, architecture, device, description].filter(Boolean).join(" ");
    return { adapter: words, f16: found.features.has("shader-f16"), subgroups: found.features.has("subgroups") };
  });
}

async function measurePeer({ library, files, settings }, tokens) {
  const site = await host({ dist: FOLDER, files: { "index.html": own("page.html"), ...files }, headers: ISOLATED });
  const chromium = await browser();
  // Others write warnings where errors belong.
  chromium.expect(/./);
  try {
    const start = performance.now();
    const page = await chromium.open(site.url);
    await page.waitForFunction(() => globalThis.peer);
    assert(await page.evaluate(() => globalThis.crossOriginIsolated), "the page is not isolated: threads cannot be had");
    const loaded = await limited("loading", page.evaluate((settings) => globalThis.peer.load(settings), settings));
    const load = performance.now() - start;
    const answer = (...words) =>
      limited("an answer", page.evaluate((words) => globalThis.peer.answer(...words), words));
    const before = performance.now();
    await answer(WARM_UP, WARM_UP_TOKENS);
    const warm = performance.now() - before;
    const { times, prompt_tokens, text, own_rest } = await answer(PROMPT, tokens);
    same(times.length, tokens, "tokens that were told one by one");
    const [first, rest] = [times[0], own_rest ?? times.at(-1) - times[0]];
    const { version } = JSON.parse(readFileSync(packaged(`${library}/package.json`), "utf8"));
    const { threads } = loaded;
    return { version, load, warm, first, rest, prompt_tokens, tokens, threads, ...(await adapter(page)), text };
  } finally {
    await chromium.close();
    await site.close();
  }
}

async function measureFirstlight(tokens) {
  const site = await host({ files: beside() });
  const chromium = await browser();
  try {
    await to.listen(chromium);
    const start = performance.now();
    const page = await chromium.open(site.url);
    const ready = await limited("loading", to.loadBeside(page));
    same(ready.event, "ready", ready.sentence ?? "opening");
    const load = performance.now() - start;
    await to.plain(page, WARM_UP_TOKENS);
    const before = performance.now();
    await to.answers(page, [WARM_UP]);
    const warm = performance.now() - before;
    await to.plain(page, tokens);
    const [{ timeline, text }] = await to.answers(page, [PROMPT]);
    to.exact(timeline);
    const { stamps, ttft } = timeline;
    same(timeline.tokens.generated, tokens, "tokens of the answer");
    const rest = (stamps.last_write - stamps.first_write) / 1e6;
    const told = { prompt_tokens: timeline.tokens.prompt, tokens, text };
    return { load, warm, first: ttft / 1e6, rest, ...told, ...(await adapter(page)) };
  } finally {
    await chromium.close();
    await site.close();
  }
}

const [name, tokens] = [process.argv[2], Number(process.argv[3])];
const known = ["firstlight", ...Object.keys(PEERS)];
assert(known.includes(name), `there is no peer ${name}; there are ${known.join(", ")}`);
assert(tokens >= 2, "TOKENS must be a number from 2 on");
let figures;
try {
  figures = name === "firstlight" ? await measureFirstlight(tokens) : await measurePeer(PEERS[name], tokens);
} catch (error) {
  const sentence = String(error?.message ?? error).split("\n")[0];
  figures = { failed: sentence.replace(/^page\.\w+: /, "").replace(/^(Error: )+/, "") };
}
for (const [key, value] of Object.entries(figures)) {
  console.log(`${key}=${typeof value === "number" ? Number(value.toFixed(3)) : String(value).replace(/\s+/g, " ").trim()}`);
}
