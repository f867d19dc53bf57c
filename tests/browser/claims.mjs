// The claims that are made in Rust (web/src/claims): each runs on the thread it is about, a page or a dedicated worker.

import { existsSync } from "node:fs";
import { join } from "node:path";
import { MODULES, assert, claims, same, until, visit, worker } from "./harness.mjs";

/** Where `cargo xtask test` puts the compiled claims. */
const COMPILED = join(MODULES, "../claims");

/** Either thread. What a claim that does not hold says of it, or null: one that panics calls `failed` and never resolves. */
const RUN = `
import init, { names, prove } from "./firstlight.js";
await init({ module_or_path: new URL("./firstlight.wasm", import.meta.url) });
globalThis.names = names(globalThis.document ? "page" : "worker");
globalThis.prove = (name) =>
  new Promise((done) => {
    globalThis.failed = done;
    prove(name).then(() => done(null), (error) => done(String(error)));
  });
if (globalThis.document) {
  new Worker(import.meta.url, { type: "module" });
}
`;

const gguf = { name: "A", file: "a.gguf", bytes: 5, sha256: "AB" };
const files = {
  "index.html": `<!doctype html><html lang="en"><title>Claims</title><script type="module" src="run.js"></script></html>`,
  "run.js": RUN,
  "bytes.bin": Buffer.from(Array.from({ length: 1000 }, (_, at) => at % 256)),
  "some/models.json": JSON.stringify({ models: [gguf] }),
  "outside/models.json": JSON.stringify({ models: [{ ...gguf, file: "../a.gguf" }] }),
  "html/models.json": "\n<!doctype html>",
  "broken/models.json": "[",
  "hub/api/models/o/r": JSON.stringify({
    siblings: [{ rfilename: "README.md" }, { rfilename: "a.gguf", size: 7, lfs: { sha256: "ab", size: 5 } }],
  }),
};
const statuses = Object.fromEntries([204, 401, 403, 404, 500, 503].map((status) => [`status/${status}`, status]));

/** Beyond this a claim never ends: none needs a second. */
const LONGEST = 20_000;

/** Runs one claim: why it does not hold, or null. */
async function prove(thread, name) {
  let timer;
  const late = new Promise((done) => {
    timer = setTimeout(() => done("it never ended: what it waits for does not come"), LONGEST);
  });
  try {
    return await Promise.race([thread.evaluate((name) => globalThis.prove(name), name), late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Opens the page, and gives both threads when they are ready. */
async function open(chromium, site) {
  const page = await chromium.open(site.url);
  await page.waitForFunction(() => globalThis.prove);
  const there = await worker(page);
  await until("the worker is ready", () => there.evaluate(() => Boolean(globalThis.prove)));
  return { page, threads: [page, there] };
}

assert(existsSync(COMPILED), `${COMPILED} is missing: \`cargo xtask test\` compiles the claims before it runs them`);
await visit({ host: { dist: COMPILED, files, statuses } }, async (chromium, site) => {
  // What the claims are about is told on the console by the browser itself.
  chromium.expect(/Failed to load resource|it broke|none\.js/);
  let now = await open(chromium, site);
  const all = {};
  for (const at of [0, 1]) {
    for (const name of await now.threads[at].evaluate(() => globalThis.names)) {
      all[name] = async () => {
        chromium.errors.length = 0;
        const why = await prove(now.threads[at], name);
        if (why !== null) {
          // After a panic a module is of no use to others.
          await now.page.close();
          now = await open(chromium, site);
        }
        assert(why === null, why);
        same(chromium.errors, [], "errors of the browser");
      };
    }
  }
  const start = performance.now();
  await claims(all);
  console.error(`${Object.keys(all).length} claims in ${Math.round(performance.now() - start)} ms`);
  // Each claim has answered for its own.
  chromium.errors.length = 0;
});
