// A native server for the page to read, what its page heard, and recordings made of that.

import { spawn } from "node:child_process";
import { join } from "node:path";

import { assert, MODEL, ROOT, same, TARGET, until } from "./harness.mjs";

/** The native program. */
const BINARY = process.env.FIRSTLIGHT_TEST_BINARY || join(TARGET, "release/firstlight");

/**
 * `firstlight serve` on a free port, ready:
 *
 *   url, port
 *   get(path)          its answer, read as JSON
 *   complete(body)     what it answers to a completion
 *   end()              kills it; comes back when it is gone
 */
export async function serve(...words) {
  assert(MODEL, "FIRSTLIGHT_MODEL_FILE must name the default model");
  const port = words.includes("--port") ? [] : ["--port", "0"];
  const child = spawn(BINARY, ["serve", ...port, ...words], { cwd: ROOT, stdio: ["ignore", "ignore", "pipe"] });
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
    complete: (body) =>
      ask("/v1/completions", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }),
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

/** How many tokens a recording's answers have. */
export function tokens(recorded) {
  const last = new Map(of(recorded, "text").map(({ ask, tokens }) => [ask, tokens]));
  return [...last.values()].reduce((sum, n) => sum + n, 0);
}

/** The same events at another speed: so that from the first text to the last there are `rate` tokens a second. */
export function paced(recorded, rate) {
  const texts = recorded.filter(({ event }) => event.text);
  const took = texts.at(-1).at - texts[0].at;
  const factor = (tokens(recorded) / rate) * (1e9 / took);
  const from = recorded[0].at;
  return recorded.map(({ at, event }) => ({ at: Math.round((at - from) * factor), event }));
}

/** Both lists have the same things, in whatever order. */
export function sameById(found, expected, what) {
  const order = (list) => [...list].sort((a, b) => (a.id < b.id ? -1 : 1));
  same(order(found), order(expected), what);
}
