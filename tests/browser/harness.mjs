// Drives a real Chromium over the page, and serves the page to it from a host that can be made as bad as hosts are.
//
// A script of claims looks like this:
//
//   import { claims, visit } from "./harness.mjs";
//   await claims({
//     "the page says its name": () =>
//       visit({ host: { under: "/x/" }, browser: { colorScheme: "dark" } }, async (chromium, site) => {
//         const page = await chromium.open(site.url);
//         await page.getByRole("heading", { level: 1 }).waitFor();
//         return { any: "figures" };
//       }),
//   });
//
// Each claim prints one JSON line, {"claim", "ok", "ms", ...figures} or {"claim", "ok": false, "error"}; a claim that throws
// has failed, and so has one during which the page or its worker had an uncaught error or wrote an error to the console
// (`chromium.expect(/pattern/)` names those that are meant). tests/tests/browser.rs runs the script and lists its claims:
// add a line `check("SCRIPT.mjs", &["the claim", ...])` there. `node tests/browser/SCRIPT.mjs [WORD]` runs by hand, with a WORD only
// the claims that contain it; the browser, the packages and the page are found where `cargo xtask setup` puts them.
//
// Nothing here sleeps: use Playwright's waiting, or `until`.

import { createHash } from "node:crypto";
import { createReadStream, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, dirname, extname, join, normalize, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
export const TARGET = process.env.CARGO_TARGET_DIR ?? join(ROOT, "target");
const named = (variable, usual) => process.env[variable] || usual;

export const BROWSER = named("FIRSTLIGHT_TEST_BROWSER", named("FIRSTLIGHT_BROWSER", "/usr/bin/chromium"));
export const MODULES = named("FIRSTLIGHT_TEST_NODE_MODULES", join(TARGET, "browser/node_modules"));
export const DIST = named("FIRSTLIGHT_TEST_PAGE", join(ROOT, "web/dist"));
export const ARTEFACTS = named("FIRSTLIGHT_TEST_ARTEFACTS", join(TARGET, "browser/artefacts"));
/** The default model's file; undefined where the script was started without it. */
export const MODEL = process.env.FIRSTLIGHT_MODEL_FILE;

const require = createRequire(join(MODULES, "x.js"));
const { chromium } = require("playwright-core");

/** Beyond this, what is waited for never comes: SwiftShader computes on the cores that the tests run on. */
export const PATIENCE = 240_000;

/** What makes Debian's Chromium have WebGPU without a GPU, and be quiet. */
const FLAGS = [
  "--no-sandbox",
  "--enable-unsafe-webgpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

// ---- claims

/** Runs claims one after the other, each a name and a function that may return figures. */
export async function claims(all) {
  const word = process.argv[2];
  let failed = 0;
  for (const [claim, prove] of Object.entries(all)) {
    if (word && !claim.includes(word)) {
      continue;
    }
    const start = performance.now();
    let line;
    try {
      const figures = await prove();
      line = { claim, ok: true, ms: Math.round(performance.now() - start), ...figures };
    } catch (error) {
      failed += 1;
      line = { claim, ok: false, ms: Math.round(performance.now() - start), error: String(error?.stack ?? error) };
    }
    console.log(JSON.stringify(line));
  }
  process.exitCode = failed ? 1 : 0;
}

/** Throws with the sentence unless `so`. */
export function assert(so, sentence) {
  if (!so) {
    throw new Error(sentence);
  }
}

/** Throws unless both are the same as JSON. */
export function same(found, expected, what) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
  assert(a === b, `${what}: found ${a}, expected ${b}`);
}

/** Looks until `look` gives something true, and gives it. */
export async function until(what, look) {
  const end = performance.now() + PATIENCE;
  while (performance.now() < end) {
    const found = await look();
    if (found) {
      return found;
    }
    await new Promise((again) => setTimeout(again, 20));
  }
  throw new Error(`it never came to this: ${what}`);
}

// ---- the host

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".wasm": "application/wasm",
  ".json": "application/json",
  ".svg": "image/svg+xml",
};

/**
 * A static host on a free port of 127.0.0.1. Its knobs are fields that can be turned at any time:
 *
 *   under     the path that the page lies under ("/" or "/some/where/"); only at the start
 *   files     more files: {"name": "/path/on/disk" | Buffer | string}, beside the page
 *   ranges    whether range requests are answered with 206 (else with the whole file)
 *   cutAfter  {"name": bytes}: the connection breaks after so many bytes of the body, once, then the entry is gone
 *   rate      bytes a second at most of each answer's body (null: as fast as it goes)
 *   missing   names that are answered 404
 *   statuses  {"name": status}: answered with this, and with nothing
 *   headers   more headers on every answer
 *
 * `requests` lists {name, method, range, status, sent} in their order.
 */
export async function host({ under = "/", dist = DIST, files = {}, ...knobs } = {}) {
  const site = { under, files, ranges: true, cutAfter: {}, rate: null, missing: new Set(), statuses: {}, headers: {}, requests: [], ...knobs };
  const find = (name) => {
    if (Object.hasOwn(site.files, name)) {
      return site.files[name];
    }
    const path = normalize(join(dist, name));
    return path.startsWith(normalize(dist) + sep) && existsSync(path) && statSync(path).isFile() ? path : undefined;
  };
  const server = createServer((request, response) => {
    answer(site, find, request, response).catch(() => response.destroy());
  });
  await new Promise((open) => server.listen(0, "127.0.0.1", open));
  site.origin = `http://127.0.0.1:${server.address().port}`;
  site.url = site.origin + under;
  /** How often `name` was asked for. */
  site.count = (name) => site.requests.filter((request) => request.name === name).length;
  /** Breaks every connection that is open now. */
  site.breakConnections = () => server.closeAllConnections();
  site.close = async () => {
    server.closeAllConnections();
    await new Promise((closed) => server.close(closed));
  };
  return site;
}

async function answer(site, find, request, response) {
  const path = decodeURIComponent(new URL(request.url, "http://x").pathname);
  const name = path.startsWith(site.under) ? path.slice(site.under.length) || "index.html" : undefined;
  const seen = { name: name ?? path, method: request.method, range: request.headers.range ?? null, status: 200, sent: 0 };
  site.requests.push(seen);
  if (Object.hasOwn(site.statuses, name)) {
    seen.status = site.statuses[name];
    response.writeHead(seen.status, site.headers).end();
    return;
  }
  const found = name === undefined || site.missing.has(name) ? undefined : find(name);
  if (found === undefined) {
    seen.status = 404;
    response.writeHead(404, { "content-type": "text/plain", ...site.headers }).end("there is no such file\n");
    return;
  }
  const onDisk = typeof found === "string" && existsSync(found);
  const bytes = onDisk ? null : Buffer.from(found);
  const total = onDisk ? statSync(found).size : bytes.length;
  let [from, to] = [0, total - 1];
  const asked = site.ranges && /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const headers = { "content-type": TYPES[extname(name)] ?? "application/octet-stream", "cache-control": "no-store", ...site.headers };
  if (site.ranges) {
    headers["accept-ranges"] = "bytes";
  }
  if (asked) {
    from = Number(asked[1]);
    to = asked[2] ? Math.min(Number(asked[2]), total - 1) : total - 1;
    seen.status = from < total ? 206 : 416;
    headers["content-range"] = from < total ? `bytes ${from}-${to}/${total}` : `bytes */${total}`;
  }
  const length = seen.status === 416 ? 0 : to - from + 1;
  response.writeHead(seen.status, { ...headers, "content-length": length });
  if (request.method === "HEAD" || length === 0) {
    response.end();
    return;
  }
  const cut = site.cutAfter[name];
  delete site.cutAfter[name];
  const body = onDisk ? createReadStream(found, { start: from, end: to, highWaterMark: 1 << 16 }) : pieces(bytes.subarray(from, to + 1));
  const start = performance.now();
  for await (let piece of body) {
    if (cut !== undefined && seen.sent + piece.length >= cut) {
      piece = piece.subarray(0, cut - seen.sent);
      // What was written is to arrive before the connection breaks.
      await new Promise((written) => response.write(piece, written));
      seen.sent += piece.length;
      response.socket?.destroySoon();
      return;
    }
    seen.sent += piece.length;
    if (!response.write(piece)) {
      await drained(response);
    }
    if (response.destroyed) {
      return;
    }
    if (site.rate) {
      const due = start + (seen.sent / site.rate) * 1000 - performance.now();
      if (due > 0) {
        await new Promise((next) => setTimeout(next, due));
      }
    }
  }
  response.end();
}

/** As a file on disk comes. */
function* pieces(bytes) {
  for (let at = 0; at < bytes.length; at += 1 << 16) {
    yield bytes.subarray(at, at + (1 << 16));
  }
}

/** There is room for more, or nobody to read it. */
function drained(response) {
  return new Promise((done) => {
    const end = () => {
      response.off("drain", end).off("close", end);
      done();
    };
    response.on("drain", end).on("close", end);
  });
}

/** The files of a page with the model beside it, as `cargo xtask page --with-model` makes them: for `host({files})`. */
export function beside(file = MODEL) {
  assert(file && existsSync(file), "FIRSTLIGHT_MODEL_FILE must name the default model");
  const bytes = statSync(file).size;
  const sha256 = createHash("sha256").update(readFileSync(file)).digest("hex");
  const name = basename(file);
  const list = { models: [{ name: "SmolLM2-135M-Instruct", file: name, bytes, sha256 }] };
  return { [name]: file, "models.json": JSON.stringify(list) };
}

// ---- the browser

/**
 * Chromium with a profile of its own, which a restart keeps (`await chromium.restart()`) and the end removes.
 *
 *   open(url, {devices})      a new page at this address; with `devices` its worker remembers every GPUDevice it gets, for
 *                             `destroyDevices(page)`
 *   expect(pattern)           errors that match are meant
 *   errors                    the unexpected ones so far; any of them fails the claim at the end
 *   context                   Playwright's own
 */
export async function browser({ flags = [], viewport = { width: 1280, height: 800 }, colorScheme = "light", ...more } = {}) {
  const profile = mkdtempSync(join(tmpdir(), "firstlight-browser-"));
  const it = { errors: [], meant: [] };
  const launch = async () => {
    it.context = await chromium.launchPersistentContext(profile, {
      executablePath: BROWSER,
      headless: true,
      args: [...FLAGS, ...flags],
      viewport,
      colorScheme,
      acceptDownloads: true,
      chromiumSandbox: false,
      ...more,
    });
    it.context.setDefaultTimeout(PATIENCE);
    it.context.on("page", watch);
    it.context.pages().forEach(watch);
  };
  const note = (kind, text) => {
    if (!it.meant.some((pattern) => pattern.test(text))) {
      it.errors.push(`${kind}: ${text}`);
    }
  };
  // What the worker writes to the console and does not catch arrives at its page too.
  const watch = (page) => {
    page.on("console", (message) => {
      if (message.type() === "error") {
        note("console", `${message.text()} (${message.location().url})`);
      }
    });
    page.on("pageerror", (error) => note("uncaught", error.stack ?? error.message));
    page.on("crash", () => note("crash", page.url()));
  };
  it.expect = (pattern) => it.meant.push(pattern);
  it.open = async (url, { devices = false } = {}) => {
    const page = await it.context.newPage();
    if (devices) {
      await rememberDevices(page);
    }
    await page.goto(url);
    return page;
  };
  it.restart = async () => {
    await it.context.close();
    await launch();
  };
  it.close = async () => {
    await it.context.close();
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
    assert(it.errors.length === 0, `the page had errors:\n${it.errors.join("\n")}`);
  };
  await launch();
  return it;
}

export async function visit(options, work) {
  const { browser: of = {}, host: at = {} } = options;
  const site = await host(at);
  try {
    const chromium = await browser(of);
    let figures;
    try {
      figures = await work(chromium, site);
    } catch (error) {
      // What the page said explains most.
      error.message += `\nthe page's errors: ${chromium.errors.join("\n") || "none"}`;
      chromium.errors.length = 0;
      await chromium.close();
      throw error;
    }
    await chromium.close();
    return figures;
  } finally {
    await site.close();
  }
}

/** Puts a line before the script that starts the worker: the product has no such hook. */
async function rememberDevices(page) {
  const hook = `
    if (globalThis.GPUAdapter) {
      globalThis.firstlightDevices = [];
      const request = GPUAdapter.prototype.requestDevice;
      GPUAdapter.prototype.requestDevice = async function (...words) {
        const device = await request.apply(this, words);
        globalThis.firstlightDevices.push(device);
        return device;
      };
    }
  `;
  // A worker's own script passes by the page's routes and by the context's alike only where no service worker serves it.
  await page.context().route(/\/boot-[0-9a-f]+\.js$/, async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, body: hook + (await answer.text()) });
  });
}

/** The page's worker, once it is there. */
export function worker(page) {
  return until("the worker is there", () => page.workers()[0]);
}

/** Destroys every device that the worker got so far: how many. The page was opened with `devices`. */
export async function destroyDevices(page) {
  const there = await worker(page);
  return there.evaluate(() => {
    const devices = globalThis.firstlightDevices.splice(0);
    devices.forEach((device) => device.destroy());
    return devices.length;
  });
}

/** Keeps a picture among the artefacts: its path. */
export async function screenshot(page, name, options = {}) {
  mkdirSync(ARTEFACTS, { recursive: true });
  const path = join(ARTEFACTS, `${name}.png`);
  await page.screenshot({ path, ...options });
  return path;
}

/** What axe-core finds against WCAG 2.2 A and AA, or these rules alone: each violation in a line, none where all is well. */
export async function axe(page, rules) {
  // Evaluated through the debugger: the page's own policy allows no script from elsewhere.
  if (!(await page.evaluate(() => Boolean(globalThis.axe)))) {
    await page.evaluate(readFileSync(join(MODULES, "axe-core/axe.min.js"), "utf8"));
  }
  const all = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const runOnly = rules ? { type: "rule", values: rules } : all;
  const found = await page.evaluate((runOnly) => globalThis.axe.run(document, { runOnly }), runOnly);
  return found.violations.map(
    ({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.target.join(" ")).join("; ")}`,
  );
}

/** Counts tasks over 50 ms on the page's thread from now on; call what it gives to read them. */
export async function longTasks(page) {
  await page.evaluate(() => {
    globalThis.firstlightLong = [];
    new PerformanceObserver((list) =>
      list.getEntries().forEach((entry) => globalThis.firstlightLong.push(Math.round(entry.duration))),
    ).observe({ type: "longtask", buffered: false });
  });
  return () => page.evaluate(() => globalThis.firstlightLong);
}

/**
 * The tasks on the page's thread from now on, out of the browser's own trace; call what it gives for those over 50 ms: as
 * they lasted, and by the processor's time alone. On a machine whose processors others use too, a task that is put aside
 * lasts, and blocks nobody by its own work.
 */
export async function tracedTasks(chromium, page) {
  const tracing = await chromium.context.newCDPSession(page);
  const events = [];
  tracing.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  const complete = new Promise((told) => tracing.on("Tracing.tracingComplete", told));
  const traceConfig = { includedCategories: ["toplevel", "__metadata"], excludedCategories: ["*"] };
  await tracing.send("Tracing.start", { transferMode: "ReportEvents", traceConfig });
  return async () => {
    await tracing.send("Tracing.end");
    await complete;
    const thread = ({ pid, tid }) => `${pid} ${tid}`;
    const named = events.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain");
    const pages = new Set(named.map(thread));
    const tasks = events.filter((event) => event.name === "ThreadControllerImpl::RunTask" && pages.has(thread(event)));
    assert(tasks.some(({ tdur }) => tdur > 0), `the trace has the tasks and their processor time: ${tasks.length}`);
    const over = (field) => tasks.map((task) => Math.round((task[field] ?? 0) / 1e3)).filter((ms) => ms > 50);
    return { tasks: tasks.length, lasted: over("dur"), worked: over("tdur") };
  };
}
