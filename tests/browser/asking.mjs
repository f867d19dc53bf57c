// Opens models and asks prompts through the page as a person does, and hears every word of its worker for exactness.
//
// Nothing is put into the product: the page's `Worker` is wrapped before the page begins. Invariant: what is heard here is
// what the page hears, in the same order.

import { readFileSync } from "node:fs";
import { basename } from "node:path";

import { assert, MODEL, PATIENCE, same } from "./harness.mjs";

const golden = JSON.parse(readFileSync(new URL("../golden/golden.json", import.meta.url), "utf8"));

/** A prompt of the golden file that is continued as it is: its text, and the first 16 greedy ids of the reference. */
export function goldenText(name) {
  const { text, greedy_ids: ids } = golden.prompts.find((prompt) => prompt.name === name);
  return { text, ids: ids.slice(0, 16) };
}

/** Little room, because SwiftShader's memory is the machine's; and the limits that WebGPU promises everywhere. */
export const SMALL = "?slots=4&kv_blocks=64&max_model_len=512&default_limits=on";
export const MODEL_NAME = MODEL && basename(MODEL);

/** From now on every page of this browser keeps what its worker says, each with the instant on the page's clock. */
export async function listen(chromium) {
  const wrap = () => {
    globalThis.firstlightEvents = [];
    const Plain = globalThis.Worker;
    globalThis.Worker = class extends Plain {
      constructor(...words) {
        super(...words);
        this.addEventListener("message", ({ data }) => {
          const said = JSON.parse(data);
          // A word alone, or an object of one key, which is its name.
          const [name, words] = typeof said === "string" ? [said, {}] : Object.entries(said)[0];
          const event = { event: name, ...words };
          // What goes on is told five times a second, and looked at on the page.
          if (event.event !== "live") {
            globalThis.firstlightEvents.push(event);
          }
        });
      }
    };
  };
  // A restart makes another context.
  await chromium.context.addInitScript(wrap);
}

/** Puts lines before the script of every worker that is started from now on. */
export async function beforeWorker(chromium, lines) {
  await chromium.context.route(/\/boot-[0-9a-f]+\.js$/, async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, body: `if (!globalThis.document) { ${lines} }\n${await answer.text()}` });
  });
}

/** How many events were heard: what comes later comes after this. */
export const heardSoFar = (page) => page.evaluate(() => globalThis.firstlightEvents.length);

/** The events of these kinds after the first `since`. */
export const heard = (page, kinds, since = 0) =>
  page.evaluate(
    ([kinds, since]) => globalThis.firstlightEvents.slice(since).filter(({ event }) => kinds.includes(event)),
    [kinds, since],
  );

/** Waits until so many events of these kinds came after the first `since`, and gives them. */
export async function hears(page, kinds, { since = 0, count = 1 } = {}) {
  await page.waitForFunction(
    ([kinds, since, count]) =>
      globalThis.firstlightEvents.slice(since).filter(({ event }) => kinds.includes(event)).length >= count,
    [kinds, since, count],
    { polling: 50, timeout: PATIENCE },
  );
  return heard(page, kinds, since);
}

/** How what is being opened ends: the event, Ready or OpenFailed. `begin` presses the button. */
export async function opens(page, begin) {
  const since = await heardSoFar(page);
  await begin();
  return (await hears(page, ["ready", "open_failed"], { since }))[0];
}

/** Loads the model beside the page by its button. */
export const loadBeside = (page) =>
  opens(page, () => page.getByRole("region", { name: "Beside this page" }).getByRole("button", { name: /^Load / }).click());

/** Loads what this browser keeps. */
export const loadStored = (page) =>
  opens(page, () =>
    page
      .getByRole("region", { name: "In this browser" })
      .getByRole("button", { name: /^(Load|Resume) / })
      .click(),
  );

/** Writes into a field of the engine's settings. */
export async function engineSetting(page, name, value) {
  const field = page.locator(`#engine-${name}`);
  if (!(await field.isVisible())) {
    await page.getByText("Engine settings", { exact: true }).click();
  }
  await field.fill(value);
}

/** Prompts are continued as they are, by so many tokens, whatever they are. */
export async function plain(page, tokens) {
  const field = page.locator("#sampling-max_tokens");
  if (!(await field.isVisible())) {
    await page.locator("details.settings > summary").click();
  }
  await field.fill(String(tokens));
  await page.getByLabel(/^Raw completion/).check();
  await page.getByLabel(/^Go on past/).check();
}

/** Sends a prompt by Enter, without waiting for anything. */
export async function send(page, text) {
  await page.locator("#composer").fill(text);
  await page.locator("#composer").press("Enter");
}

/** Sends prompts and waits for their ends: for each its ids, its end and its sealed timeline, in the order of sending. */
export async function answers(page, texts, meanwhile = async () => {}) {
  const since = await heardSoFar(page);
  for (const text of texts) {
    await send(page, text);
  }
  const accepted = await hears(page, ["accepted"], { since, count: texts.length });
  await meanwhile(accepted.map(({ ask }) => ask), since);
  await hears(page, ["sealed"], { since, count: texts.length });
  const all = await heard(page, ["text", "finished", "sealed"], since);
  return accepted.map(({ ask, id }) => {
    const words = all.filter((event) => event.event === "text" && event.ask === ask);
    const ends = all.filter((event) => event.event === "finished" && event.ask === ask);
    same(ends.length, 1, `ends of ask ${ask}`);
    return {
      ask,
      ids: words.flatMap(({ token_ids: ids }) => ids),
      text: words.map(({ text }) => text).join(""),
      reason: ends[0].reason,
      detail: ends[0].detail,
      timeline: all.find((event) => event.event === "sealed" && event.timeline.id === id).timeline,
    };
  });
}

/** Whose text came, one after the other. */
export const order = async (page, since) => (await heard(page, ["text"], since)).map(({ ask }) => ask);

const sum = (of) => (typeof of === "number" ? BigInt(of) : Object.values(of).reduce((all, part) => all + sum(part), 0n));

/** Throws unless the sealed timeline comes apart to the nanosecond. */
export function exact(timeline) {
  assert(timeline.broken === undefined || timeline.broken === null, `${timeline.id} is broken: ${timeline.broken}`);
  if (timeline.ttft === null || timeline.ttft === undefined) {
    return;
  }
  const told = [sum(timeline.parts), BigInt(timeline.parts_total), BigInt(timeline.ttft)];
  assert(told[0] === told[1] && told[1] === told[2], `${timeline.id}: parts, their sum, the whole: ${told.join(", ")}`);
  const { received, first_write: written } = timeline.stamps;
  assert(BigInt(written) - BigInt(received) === told[2], `${timeline.id}: from received to the first write is the whole`);
}

/** Tokens per second after the first, of a sealed timeline. */
export function decodeRate({ stamps, tokens }) {
  return Number((((tokens.generated - 1) * 1e9) / (stamps.finished - stamps.first_token)).toFixed(2));
}

// ---- the browser's own storage

/** Runs in the page: the folder of the one model that is kept. */
const folder = `(async () => {
  const models = await (await navigator.storage.getDirectory()).getDirectoryHandle("firstlight-models");
  const found = [];
  for await (const one of models.values()) found.push(one);
  if (found.length !== 1) throw new Error(found.length + " models are kept");
  return found[0];
})()`;

/** The kept file, changed: cut to `length` bytes, or the byte at `flip` turned over. */
export function damage(page, name, { length, flip }) {
  return page.evaluate(
    async ([folder, name, length, flip]) => {
      const file = await (await eval(folder)).getFileHandle(name);
      const writable = await file.createWritable({ keepExistingData: true });
      if (length !== null) {
        await writable.truncate(length);
      }
      if (flip !== null) {
        const byte = new Uint8Array(await (await file.getFile()).slice(flip, flip + 1).arrayBuffer());
        await writable.write({ type: "write", position: flip, data: Uint8Array.of(byte[0] ^ 1) });
      }
      await writable.close();
    },
    [folder, name, length ?? null, flip ?? null],
  );
}

/** Length and SHA-256 of the kept file. */
export function kept(page, name) {
  return page.evaluate(
    async ([folder, name]) => {
      const file = await (await (await eval(folder)).getFileHandle(name)).getFile();
      const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
      return { bytes: file.size, sha256: Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("") };
    },
    [folder, name],
  );
}
