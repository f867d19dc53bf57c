// The engine in the tab: the default model from a static host, many prompts at once, and what it does when things break.

import { createHash } from "node:crypto";

import * as to from "./asking.mjs";
import { assert, axe, beside, browser, claims, destroyDevices, host, longTasks, MODEL, same, screenshot, visit } from "./harness.mjs";

const hello = to.goldenText("hello");
const capital = to.goldenText("capital");

// One visit for the claims that need the model: it is fetched and compiled once.
let site;
let chromium;
let page;

async function arrive() {
  if (!page) {
    site = await host({ files: beside() });
    chromium = await browser();
    await to.listen(chromium);
    page = await chromium.open(site.url + to.SMALL, { devices: true });
  }
}

async function ready() {
  await arrive();
  if ((await page.locator("#composer").count()) === 0) {
    const ready = await to.loadBeside(page);
    same(ready.event, "ready", ready.sentence ?? "opening");
    await to.plain(page, 16);
  }
}

async function answersRight(prompt = hello) {
  const [answer] = await to.answers(page, [prompt.text]);
  same([answer.reason, answer.ids], ["length", prompt.ids], "a prompt's end and ids");
  to.exact(answer.timeline);
  return answer;
}

/** What the card says of this model here, once the session's steps are enough to tell what steps cost. */
async function budgetOfSession(since) {
  const { stack } = (await to.hears(page, ["stack"], { since })).at(-1);
  const { model, costs, kv_pool_bytes } = stack.measured;
  assert(costs.fitted_to >= 16 && costs.adapter, `costs are of this adapter's steps: ${JSON.stringify(costs)}`);
  assert(model.params > 1e8 && model.weight_bytes > 5e7 && kv_pool_bytes > 0, `the model is known: ${JSON.stringify(model)}`);
  const card = page.getByRole("region", { name: "Budget" });
  await card.locator("summary").click();
  await card.getByRole("button", { name: "What answers here", pressed: true }).waitFor();
  await card.getByText(/by a line through \d+ steps of this session/).waitFor();
  const step = card.getByRole("row", { name: /^A decode step/ }).locator("td").first();
  const words = await step.textContent();
  assert(/\d (ms|s)$/.test(words), `a step takes ${words}`);
  await screenshot(page, "tab-budget");
  await card.locator("summary").first().click();
  return { steps: costs.fitted_to, step: words };
}

/** A file of the size of nothing much: how files are kept does not depend on what is in them. */
function smallFile() {
  const bytes = Buffer.alloc(3_000_000, (idx) => idx);
  for (let idx = 0; idx < bytes.length; idx += 1) {
    bytes[idx] = (idx * 31 + (idx >> 8)) & 255;
  }
  const sha256 = createHash("sha256").update(bytes).digest("hex");
  const list = { models: [{ name: "small", file: "small.gguf", bytes: bytes.length, sha256 }] };
  return { bytes, sha256, files: { "small.gguf": bytes, "models.json": JSON.stringify(list) } };
}

const small = smallFile();

/** Visits a host that has the small file, which everybody refuses in the end because it is no GGUF. */
const keeping = (work, at = {}) =>
  visit({ host: { files: { ...small.files }, ...at } }, async (chromium, site) => {
    await to.listen(chromium);
    const page = await chromium.open(site.url);
    const asked = () => site.requests.filter(({ name }) => name === "small.gguf");
    const whole = async () => {
      const end = await to.loadBeside(page);
      same(end.event, "open_failed", "opening what is no GGUF");
      assert(/GGUF/.test(end.sentence), end.sentence);
      same(await to.kept(page, "small.gguf"), { bytes: small.bytes.length, sha256: small.sha256 }, "what is kept");
      await page.getByRole("button", { name: "Choose something else" }).click();
    };
    return work({ page, site, chromium, asked, whole });
  });

await claims({
  "two prompts sent at once stream in turns, with the reference's ids and exact timelines": async () => {
    await arrive();
    const begun = to.loadBeside(page);
    await page.getByRole("progressbar").waitFor();
    await screenshot(page, "tab-loading");
    const ready = await begun;
    same(ready.event, "ready", ready.sentence ?? "opening");
    assert(ready.kept, "the model is kept");
    same(site.count(to.MODEL_NAME), 1, "requests for the model");
    await to.plain(page, 16);
    // Only counted: the engine computes on the processors that the page's thread needs.
    const long = await longTasks(page);
    const since = await to.heardSoFar(page);
    const both = await to.answers(page, [hello.text, capital.text], async () => {
      await to.hears(page, ["text"], { since, count: 4 });
      await screenshot(page, "tab-chatting");
    });
    same(both.map(({ ids }) => ids), [hello.ids, capital.ids], "ids");
    both.forEach(({ timeline }) => to.exact(timeline));
    const order = await to.order(page, since);
    const turns = order.slice(1).filter((ask, idx) => ask !== order[idx]).length;
    assert(turns >= 16, `their words come in turns: ${order.join(" ")}`);
    const report = (await to.hears(page, ["report"], { since })).at(-1).report;
    assert(report.n >= 1 && report.refused_broken === 0, "the report counts what ended, and found nothing broken");
    return { adapter: ready.adapter, turns, tasks_over_50_ms: await long(), decode_tokens_per_second: both.map(({ timeline }) => to.decodeRate(timeline)) };
  },

  "one of three is stopped by its button: the others go on, and the next prompt is answered in full": async () => {
    await ready();
    const since = await to.heardSoFar(page);
    const three = await to.answers(page, [hello.text, capital.text, "One, two, three,"], async (asks) => {
      await to.hears(page, ["text"], { since, count: 6 });
      await screenshot(page, "tab-burst");
      const over = await page.evaluate(() => document.scrollingElement.scrollHeight - innerHeight);
      same(over, 0, "pixels by which the document scrolls beneath its bars");
      await page.locator(`[data-ask="${asks[2]}"] button.stop`).click();
    });
    same(three.map(({ reason }) => reason), ["length", "length", "cancelled"], "ends");
    same(three.slice(0, 2).map(({ ids }) => ids), [hello.ids, capital.ids], "ids of those that went on");
    assert(three[2].ids.length < 16, `it ended early: ${three[2].ids.length} tokens`);
    three.forEach(({ timeline }) => to.exact(timeline));
    await answersRight(capital);
    return { tokens_of_the_stopped: three[2].ids.length, budget: await budgetOfSession(since) };
  },

  "a device destroyed in mid-answer ends it with a readable reason, and comes back by itself": async () => {
    await ready();
    const since = await to.heardSoFar(page);
    const lost = await to.answers(page, [hello.text, capital.text], async () => {
      // Until both have begun.
      const begun = async (count) => (await to.hears(page, ["text"], { since, count })).map(({ ask }) => ask);
      for (let count = 4; new Set(await begun(count)).size < 2; count++);
      assert((await destroyDevices(page)) >= 1, "there is a device");
    });
    for (const { reason, detail, ids, timeline } of lost) {
      same(reason, "failed", "the end");
      assert(/device/i.test(detail) && !/\[object|undefined|JsValue/.test(detail), `the reason can be read: ${detail}`);
      assert(ids.length >= 1 && ids.length < 16, `in mid-answer: ${ids.length} tokens`);
      to.exact(timeline);
    }
    const [failed] = await to.hears(page, ["device_failed"], { since });
    assert(failed.reopening, "it is opened again by itself");
    await to.hears(page, ["reopened"], { since });
    await answersRight();
    return { detail: lost[0].detail };
  },

  "after a reload too much room is refused with its size, and then the model comes from storage without the network": async () => {
    await ready();
    const before = site.count(to.MODEL_NAME);
    await page.reload();
    const refused = async (name, value, pattern) => {
      await to.engineSetting(page, name, value);
      const end = await to.loadStored(page);
      same(end.event, "open_failed", `${name} ${value}`);
      assert(pattern.test(end.sentence), end.sentence);
      await page.getByRole("alert").getByText(/Could not open/).waitFor();
      return end.sentence;
    };
    const again = async () => page.getByRole("button", { name: "Choose something else" }).click();
    // The layer's keys: blocks times 16 tokens times 192 numbers of 4 bytes; and what to do, in the page's own words.
    const blocks = await refused("kv_blocks", "1000000", /needs 12288000000 bytes.*lower KV blocks/);
    await screenshot(page, "tab-error");
    same(await axe(page), [], "axe-core");
    await again();
    await to.engineSetting(page, "kv_blocks", "64");
    const long = await refused("max_model_len", "100000", /100000 tokens .*8192; set at most that/);
    await again();
    await to.engineSetting(page, "max_model_len", "512");
    const ready_again = await to.loadStored(page);
    same(ready_again.event, "ready", ready_again.sentence ?? "opening");
    same(site.count(to.MODEL_NAME), before, "requests for the model");
    await to.plain(page, 16);
    await answersRight();
    return { blocks, long };
  },

  "a restarted browser still has it, and of a file that was cut to half only the rest is fetched": async () => {
    await ready();
    await page.close();
    await chromium.restart();
    await to.listen(chromium);
    site.requests.length = 0;
    page = await chromium.open(site.url + to.SMALL);
    const { bytes } = beside()[to.MODEL_NAME] && (await to.kept(page, to.MODEL_NAME));
    const half = Math.floor(bytes / 2);
    await to.damage(page, to.MODEL_NAME, { length: half });
    const end = await to.loadStored(page);
    same(end.event, "ready", end.sentence ?? "opening");
    const asked = site.requests.filter(({ name }) => name === to.MODEL_NAME);
    same(asked.map(({ range, status, sent }) => [range, status, sent]), [[`bytes=${half}-`, 206, bytes - half]], "requests");
    await to.plain(page, 16);
    await answersRight();
  },

  "asked by its address for activations, keys and values in 8 bits, it says that it has them, and answers": async () => {
    await ready();
    await page.goto(`${site.url}${to.SMALL}&activations=i8&kv=q8`);
    const end = await to.loadStored(page);
    same(end.event, "ready", end.sentence ?? "opening");
    assert(/without subgroups.* i8 activations, q8 KV cache/.test(end.adapter), end.adapter);
    await to.plain(page, 16);
    const [answer] = await to.answers(page, [capital.text]);
    same([answer.reason, answer.ids.length], ["length", 16], "a prompt's end and tokens");
    to.exact(answer.timeline);
    return { decode_tokens_per_second: to.decodeRate(answer.timeline) };
  },

  "a flipped byte is noticed, and the file is fetched again": () =>
    keeping(async ({ page, asked, whole }) => {
      await whole();
      await to.damage(page, "small.gguf", { flip: 1_234_567 });
      const since = await to.heardSoFar(page);
      await whole();
      const [notice] = await to.heard(page, ["notice"], since);
      assert(/SHA-256/.test(notice?.sentence) && notice.sentence.includes(small.sha256), notice?.sentence);
      same(asked().map(({ range }) => range), [null, null], "requests");
      return { notice: notice.sentence };
    }),

  "a connection that breaks is taken up again where it broke": () =>
    keeping(async ({ page, site, asked, whole, chromium }) => {
      chromium.expect(/ERR_CONTENT_LENGTH_MISMATCH|ERR_INCOMPLETE|ERR_CONNECTION/);
      // The program itself has come by then.
      await page.getByRole("button", { name: /^Load small/ }).waitFor();
      site.rate = 500_000;
      const done = whole();
      // Not before something has come: of what a browser has not handed on yet, nothing is left.
      await page.waitForFunction(
        () => globalThis.firstlightEvents.some(({ stage, done }) => stage === "download" && done > 0),
        undefined,
        { polling: 20 },
      );
      site.rate = null;
      site.breakConnections();
      await done;
      const [first, second, ...more] = asked();
      same([first.range, more.length], [null, 0], "the first request, and how many after the second");
      const from = Number(/^bytes=(\d+)-$/.exec(second.range)?.[1]);
      assert(from > 0 && from <= first.sent, `it goes on from ${second.range} of ${first.sent}`);
      same([second.status, second.sent], [206, small.bytes.length - from], "the second answer");
      return { broke_at: first.sent, went_on_from: from };
    }),

  "a host without ranges sends it from the beginning": () =>
    keeping(
      async ({ page, asked, whole }) => {
        await whole();
        await to.damage(page, "small.gguf", { length: 1_000_000 });
        await whole();
        same(asked().map(({ range, status }) => [range, status]), [[null, 200], ["bytes=1000000-", 200]], "requests");
      },
      { ranges: false },
    ),

  "a host whose file is not the one that it names is refused in a sentence": () =>
    keeping(async ({ page, site, asked }) => {
      const other = Buffer.from(small.bytes);
      other[1_000_000] ^= 1;
      site.files["small.gguf"] = other;
      const end = await to.loadBeside(page);
      same(end.event, "open_failed", "opening");
      assert(/SHA-256.*for the second time; choose another source/.test(end.sentence), end.sentence);
      same(asked().length, 2, "requests");
      return { sentence: end.sentence };
    }),

  "without room it says that it is not kept, with the figures": () =>
    keeping(async ({ page, site, chromium }) => {
      const debug = await chromium.context.newCDPSession(page);
      await debug.send("Storage.overrideQuotaForOrigin", { origin: site.origin, quotaSize: 1_000_000 });
      const end = await to.loadBeside(page);
      assert(/GGUF/.test(end.sentence), end.sentence);
      const [notice] = await to.heard(page, ["notice"]);
      // This browser names another quota than the one that holds.
      assert(/runs, but is not kept.*needs 3000000 bytes.*refused.*names \d+ bytes/.test(notice?.sentence), notice?.sentence);
      return { notice: notice.sentence };
    }),

  "a dropped file that is no GGUF is refused in a sentence": () =>
    visit({}, async (chromium, site) => {
      await to.listen(chromium);
      const page = await chromium.open(site.url);
      const file = { name: "letter.gguf", mimeType: "application/octet-stream", buffer: Buffer.from("Dear engine, ".repeat(99)) };
      const end = await to.opens(page, () => page.locator("#files").setInputFiles(file));
      same(end.event, "open_failed", "opening");
      assert(/letter\.gguf/.test(end.sentence) && /GGUF/.test(end.sentence), end.sentence);
      return { sentence: end.sentence };
    }),

  "a kernel that computes wrong is named, and nothing is ever answered with it": () =>
    visit({ host: { files: beside(MODEL) } }, async (chromium, site) => {
      await to.listen(chromium);
      await to.beforeWorker(
        chromium,
        `const make = GPUDevice.prototype.createShaderModule;
         GPUDevice.prototype.createShaderModule = function (descriptor) {
           const code = descriptor.code.replaceAll(/inverseSqrt\\(/g, "0.5 * inverseSqrt(");
           return make.call(this, { ...descriptor, code });
         };`,
      );
      const page = await chromium.open(site.url + to.SMALL);
      const end = await to.loadBeside(page);
      same(end.event, "open_failed", "opening");
      assert(/the kernel rms_norm\/.* on this browser's/.test(end.sentence), `kernel and adapter are named: ${end.sentence}`);
      same(await to.heard(page, ["ready", "text"]), [], "answers");
      return { sentence: end.sentence };
    }),

  "without WebGPU the page says so and offers a server": () =>
    visit({ host: { files: beside(MODEL) } }, async (chromium, site) => {
      await to.beforeWorker(chromium, `Object.defineProperty(navigator, "gpu", { value: undefined });`);
      const page = await chromium.open(site.url);
      const said = page.getByRole("note");
      await said.waitFor();
      assert(/No model can run in this tab\. .*WebGPU/.test(await said.innerText()), await said.innerText());
      await page.locator("#server").waitFor();
      assert(await page.getByRole("button", { name: "Connect" }).isEnabled(), "a server can be connected to");
      same(await axe(page), [], "axe-core");
    }),
});

if (chromium) {
  await chromium.close();
  await site.close();
}
