// A native server for the page to read, what its page heard, and recordings made of that.

import { execFile, spawn } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";

import { assert, MODEL, ROOT, same, TARGET, until } from "./harness.mjs";

/** The native program. */
const BINARY = process.env.FIRSTLIGHT_TEST_BINARY || join(TARGET, "release/firstlight");

/** Runs the program to its end: what it wrote to stdout. */
export async function run(...words) {
  assert(MODEL, "FIRSTLIGHT_MODEL_FILE must name the default model");
  return (await promisify(execFile)(BINARY, words, { cwd: ROOT, maxBuffer: 1 << 26 })).stdout;
}

/**
 * `firstlight serve` on a free port, ready:
 *
 *   url, port
 *   get(path)          its answer, read as JSON
 *   complete(body)     sends a completion that is streamed, and waits for its end: {id, pieces}
 *   end()              kills it; comes back when it is gone
 */
export async function serve(...words) {
  assert(MODEL, "FIRSTLIGHT_MODEL_FILE must name the default model");
  const port = words.includes("--port") ? [] : ["--port", "0"];
  const child = spawn(BINARY, ["serve", ...port, ...words], { cwd: ROOT, stdio: ["ignore", "ignore", "pipe"] });
  // Whatever becomes of the script, the server ends with it.
  process.once("exit", () => child.kill("SIGKILL"));
  let log = "";
  const gone = new Promise((end) => child.on("exit", end));
  await new Promise((ready, failed) => {
    child.on("error", failed);
    child.on("exit", (code) => failed(new Error(`the server ended with ${code}:\n${log}`)));
    child.stderr.on("data", (piece) => {
      log += piece;
      if (/^ready: /m.test(log)) {
        ready();
      }
    });
  });
  const url = /listening on (http:\/\/[^;\s]+)/.exec(log)[1];
  const ask = async (path, options) => (await fetch(url + path, options)).json();
  return {
    url,
    port: new URL(url).port,
    get: (path) => ask(path),
    complete: async (body) => {
      const headers = { "content-type": "application/json" };
      const answer = await fetch(`${url}/v1/completions`, { method: "POST", headers, body: JSON.stringify({ ...body, stream: true }) });
      const lines = (await answer.text()).split("\n").filter((line) => line.startsWith("data: {"));
      const chunks = lines.map((line) => JSON.parse(line.slice(6)));
      return { id: chunks[0].id, pieces: chunks.map(({ choices }) => choices[0]?.text ?? "").filter((text) => text) };
    },
    end: () => {
      child.kill("SIGKILL");
      return gone;
    },
  };
}

/** Runs `work` with a server and ends it, whatever becomes of it. */
export async function serving(words, work) {
  const server = await serve(...words);
  try {
    return await work(server);
  } finally {
    await server.end();
  }
}

/** Makes every page of this browser remember what its worker says, with the instants at which it heard it. */
export async function hearing(chromium) {
  await chromium.context.addInitScript(() => {
    const Usual = globalThis.Worker;
    globalThis.firstlightHeard = [];
    globalThis.Worker = class extends Usual {
      constructor(...words) {
        super(...words);
        this.addEventListener("message", ({ data }) =>
          globalThis.firstlightHeard.push(`{"at":${Math.round(performance.now() * 1e6)},"event":${data}}`),
        );
      }
    };
  });
}

/** What a page has heard so far: [{at, event}]. */
export async function heard(page) {
  return JSON.parse(`[${await page.evaluate(() => globalThis.firstlightHeard.join(","))}]`);
}

/** The events of one kind among these, without their instants. */
export function of(recorded, kind) {
  return recorded.map(({ event }) => event[kind]).filter((event) => event !== undefined);
}

/** Waits until the page has heard what `found` finds among everything heard, and gives that. */
export function hears(page, what, found) {
  return until(what, async () => found(await heard(page)));
}

/**
 * A recording of a burst: `count` prompts at once, each answered with `tokens` tokens, at `rate` tokens a second altogether.
 * Timelines, steps and reports are the server's, as `page` heard them; the words of the answers are told at the instants of
 * their tokens.
 */
export async function record(server, page, { count, tokens, rate }) {
  const before = (await heard(page)).length;
  const body = { max_tokens: tokens, temperature: 0, ignore_eos: true };
  const answers = await Promise.all(PROMPTS.slice(0, count).map((prompt) => server.complete({ ...body, prompt })));
  const told = await hears(page, "the burst's report, and that nothing runs", (recorded) => {
    const all = recorded.slice(before).filter(({ event }) => event.live || event.sealed || event.report);
    const ended = of(all, "sealed").length === count && of(all, "report").at(-1)?.report.n === count;
    return ended && of(all, "live").at(-1)?.timelines.length === 0 && all;
  });
  // From the server's clock to the page's: the look that was on its way for the shortest time says it best.
  const off = Math.min(...told.filter(({ event }) => event.live).map(({ at, event }) => at - event.live.now));
  const said = of(told, "sealed").flatMap(({ timeline }) => spoken(timeline, answers, off));
  const ready = (await heard(page)).find(({ event }) => event.ready);
  const all = [...told, ...said].sort((a, b) => a.at - b.at);
  const texts = all.filter(({ event }) => event.text);
  const factor = (count * tokens * 1e9) / rate / (texts.at(-1).at - texts[0].at);
  const played = all.map(({ at, event }) => ({ at: Math.round((at - all[0].at) * factor), event }));
  return [{ at: 0, event: ready.event }, ...played];
}

/** What a page would have heard of an answer of its own. */
function spoken({ id, engine_id, stamps, token_at, finish_reason }, answers, off) {
  const { pieces } = answers.find((answer) => id.startsWith(answer.id));
  const ask = 1_000 + engine_id;
  const texts = token_at.map((at, idx) => ({
    at: at + off,
    event: { text: { ask, text: pieces[idx] ?? "", tokens: idx + 1, token_ids: [] } },
  }));
  return [
    { at: stamps.received + off, event: { accepted: { ask, id, rendered: null, prompt_tokens: null } } },
    ...texts,
    { at: stamps.finished + off, event: { finished: { ask, reason: finish_reason, detail: null } } },
  ];
}

const PROMPTS = [
  "Once upon a time there was a lighthouse",
  "The sea is blue because",
  "A recipe for bread begins with",
  "The history of the printing press",
  "In the year 1900 the city of Paris",
  "Three uses of a paper clip are",
  "The first law of thermodynamics says",
  "When the train had left the station",
];

/** Both lists have the same things, in whatever order. */
export function sameById(found, expected, what) {
  const order = (list) => [...list].sort((a, b) => (a.id < b.id ? -1 : 1));
  same(order(found), order(expected), what);
}
