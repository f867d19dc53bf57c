// How the page looks and can be used in every state: accessibility, room, keyboard, files to keep; and a picture of each.

import { readFileSync } from "node:fs";

import { assert, axe, beside, claims, same, screenshot, until, visit } from "./harness.mjs";
import { beforeWorker } from "./asking.mjs";
import { hearing, record, sameById, serve } from "./native.mjs";

const WIDE = { width: 1440, height: 900 };
const SIZES = [WIDE, { width: 1024, height: 768 }, { width: 360, height: 740 }];

const server = await serve("--cors", "*", "--slots", "2");
/** A recording of eight answers on two slots, and the first half of it. */
const recording = await visit({}, async (chromium, site) => {
  await hearing(chromium);
  const page = await chromium.open(`${site.url}?server=${server.url}`);
  await page.getByText("is ready.").waitFor();
  await screenshot(page, "ready");
  return record(server, page, { count: 8, tokens: 24, rate: 2_000 });
});
const texts = recording.flatMap(({ event }, at) => (event.text ? [at] : []));
const middle = recording.slice(0, texts[Math.floor(texts.length / 2)]);
const files = {
  "ready.json": JSON.stringify(recording.slice(0, 1)),
  "whole.json": JSON.stringify(recording),
  "middle.json": JSON.stringify(middle),
};

/** What sticks out sideways: the document, and whatever scrolls up and down and is not meant to scroll sideways too. */
const tooWide = (page) =>
  page.evaluate(() => {
    const over = [...document.querySelectorAll("html, main, .pane, .start, .log, .composer, .banners, .timelines, .tl-card, .lanes, .opened-grid > div, .report-grid > *")];
    const out = over.filter((element) => element.clientWidth > 0 && element.scrollWidth > element.clientWidth);
    return out.map((element) => `${element.tagName} ${element.className}: ${element.scrollWidth} of ${element.clientWidth}`);
  });

/** Looks at a state in every size, in light and in dark; `views` shows what a narrow window hides. */
async function lookAt(page, name, { views = ["chat"] } = {}) {
  const found = [];
  for (const size of SIZES) {
    await page.setViewportSize(size);
    const narrow = size.width < 960;
    for (const view of narrow ? views : [views.at(-1)]) {
      const tab = page.getByRole("button", { name: view === "chat" ? "Chat" : "Timelines", exact: true });
      if (narrow && views.length > 1) {
        await tab.click();
      }
      for (const colorScheme of ["dark", "light"]) {
        await page.emulateMedia({ colorScheme });
        const shape = narrow ? "phone" : size.width > 1200 ? "wide" : "middle";
        await screenshot(page, [name, shape, ...(narrow && views.length > 1 ? [view] : []), colorScheme].join("-"));
        const rules = colorScheme === "light" ? undefined : ["color-contrast"];
        const where = `${name}, ${size.width}, ${view}, ${colorScheme}`;
        found.push(...(await axe(page, rules)).map((violation) => `${where}: ${violation}`));
        found.push(...(await tooWide(page)).map((element) => `${where}: too wide: ${element}`));
      }
    }
  }
  await page.setViewportSize(WIDE);
  same(found, [], `what is wrong with "${name}"`);
}

/** A page in a browser of its own; the animations that never end are not waited for. */
const looking = (work, { at = { files }, of = {} } = {}) =>
  visit({ host: at, browser: { viewport: WIDE, reducedMotion: "reduce", ...of } }, work);

/** The page with all of the recording, at its end. */
async function replayed(chromium, site) {
  const page = await chromium.open(`${site.url}?replay=whole.json`);
  await page.getByText("over n = 8").first().waitFor();
  await until("every answer has ended", async () => (await page.locator('.answer[data-state="done"]').count()) === 8);
  return page;
}

/** Presses Tab until the focus is on what matches; how often. */
async function tabTo(page, selector, most = 60) {
  for (let times = 1; times <= most; times += 1) {
    await page.keyboard.press("Tab");
    if (await page.evaluate((selector) => document.activeElement?.matches(selector), selector)) {
      return times;
    }
  }
  throw new Error(`${most} Tabs do not reach ${selector}`);
}

/** The file that `click` makes the browser keep. */
async function kept(page, click) {
  const [download] = await Promise.all([page.waitForEvent("download"), click()]);
  return { name: download.suggestedFilename(), bytes: readFileSync(await download.path()) };
}

await claims({
  "empty, without WebGPU, loading and failing: nothing is wrong in any size and theme": async () => {
    await looking(async (chromium, site) => {
      const page = await chromium.open(site.url);
      await page.getByRole("button", { name: /^Load SmolLM2.* \(about/ }).waitFor();
      await lookAt(page, "empty");
      chromium.expect(/Failed to load resource|ERR_/);
      await page.getByLabel("Address", { exact: true }).fill("http://127.0.0.1:9");
      await page.getByRole("button", { name: "Connect" }).click();
      await page.getByRole("alert").waitFor();
      await lookAt(page, "error");
    });
    await looking(async (chromium, site) => {
      await beforeWorker(chromium, `Object.defineProperty(navigator, "gpu", { value: undefined });`);
      const page = await chromium.open(site.url);
      await page.getByText("No model can run in this tab.").waitFor();
      await lookAt(page, "no-webgpu");
    });
    await looking(
      async (chromium, site) => {
        const page = await chromium.open(site.url);
        const load = page.getByRole("button", { name: /^Load SmolLM2/ });
        await load.waitFor();
        await screenshot(page, "start");
        site.rate = 1_000_000;
        await load.click();
        await page.locator(".opening .figures", { hasText: "/s" }).waitFor();
        await lookAt(page, "loading");
        await page.getByRole("button", { name: "Stop" }).click();
        await load.waitFor();
      },
      { at: { files: beside() } },
    );
  },

  "ready, chatting, a burst and one request opened: nothing is wrong in any size and theme": () =>
    looking(async (chromium, site) => {
      const ready = await chromium.open(`${site.url}?replay=ready.json`);
      await ready.getByText("is ready.").waitFor();
      await lookAt(ready, "ready", { views: ["chat", "timelines"] });
      await ready.close();
      const chatting = await chromium.open(`${site.url}?replay=middle.json`);
      await until("half of it is there", async () => (await chatting.locator(".lane").count()) === 8);
      await until("some have ended", async () => (await chatting.locator('.answer[data-state="done"]').count()) > 1);
      await lookAt(chatting, "chatting", { views: ["chat", "timelines"] });
      await chatting.close();
      const page = await replayed(chromium, site);
      await lookAt(page, "burst", { views: ["chat", "timelines"] });
      await page.locator(".lane").nth(6).click();
      await page.getByRole("button", { name: "Why was the slowest one slow?" }).click();
      await page.locator(".gap-blame", { hasText: "ms" }).waitFor();
      await lookAt(page, "opened", { views: ["timelines", "chat", "timelines"] });
      await page.emulateMedia({ colorScheme: "light" });
      for (const [name, selector] of [["opened", "section.opened"], ["gaps", ".gaps"], ["report", "#tl-report-title"], ["means", ".mean"], ["curves", ".curve-grid"]]) {
        await page.locator(selector).first().evaluate((element) => element.scrollIntoView({ block: "start" }));
        await screenshot(page, `detail-${name}`);
      }
    }),

  "everything is reached with the keyboard": () =>
    looking(async (chromium, site) => {
      const start = await chromium.open(site.url);
      await start.getByRole("button", { name: /^Load SmolLM2/ }).waitFor();
      await tabTo(start, ".skip", 1);
      assert((await start.locator(".skip").boundingBox()).y >= 0, "the way to the content is seen");
      await start.keyboard.press("Enter");
      same(await start.evaluate(() => document.activeElement.id), "main", "where it leads");
      await tabTo(start, ".lead button", 2);
      await start.close();
      const page = await chromium.open(`${site.url}?server=${server.url}`);
      await page.getByText("is ready.").waitFor();
      await page.locator(".lane").nth(7).waitFor();
      await page.evaluate(() => document.querySelector("#main").focus());
      await tabTo(page, "#composer");
      await page.keyboard.type("Say hello.");
      await tabTo(page, "button.primary", 2);
      await page.keyboard.press("Enter");
      await page.locator('.answer[data-state="done"]').waitFor();
      await tabTo(page, "#tl-lanes");
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("ArrowDown");
      const active = () => page.locator("#tl-lanes").getAttribute("aria-activedescendant");
      const lane = page.locator(`#${await active()}`);
      same(await lane.getAttribute("aria-selected"), "false", "chosen, and not opened yet");
      await page.keyboard.press("ArrowRight");
      await page.locator(".tip:not(.gone)").waitFor();
      await page.keyboard.press("Enter");
      await page.locator("section.opened").waitFor();
      same(await lane.getAttribute("aria-selected"), "true", "opened");
      await tabTo(page, ".gap-strip");
      await page.keyboard.press("End");
      await page.keyboard.press("Enter");
      await page.locator(".gap-blame", { hasText: "ms" }).waitFor();
      await page.keyboard.press("Escape");
      same(await page.locator("section.opened").count(), 0, "panels that are open");
      same(await page.evaluate(() => document.activeElement.id), "tl-lanes", "where the focus goes back to");
      await page.keyboard.press("Enter");
      await page.locator("section.opened").waitFor();
      await page.keyboard.press("Escape");
      same(await page.locator("section.opened").count(), 0, "panels that are open");
      await page.keyboard.press("?");
      await page.getByRole("region", { name: "Keys" }).waitFor();
      await page.keyboard.press("/");
      await until("the prompt has the focus", () => page.evaluate(() => document.activeElement.id === "composer"));
    }),

  "a table stands beside every picture, and figures and picture can be kept as files": () =>
    looking(async (chromium, site) => {
      const page = await chromium.open(`${site.url}?server=${server.url}`);
      await page.getByText(/over n = \d/).first().waitFor();
      const pictures = ["requests with a lane", "steps in view, 200 at most", "time to first token by part: sums over all requests, means, shares", "Inter-token latency against the batch", "Inter-token latency against the position"];
      for (const caption of pictures) {
        const details = page.locator("details", { has: page.getByText(`Table: ${caption}`, { exact: true }) });
        await details.locator("summary").click();
        await details.locator("tbody td").first().waitFor();
      }
      same(await axe(page), [], "axe-core with every table open");
      // Every lane is to be on the picture.
      await page.getByRole("button", { name: "Fit" }).click();
      const { timelines } = await server.get("/v1/timelines?last=64");
      const json = await kept(page, () => page.getByRole("button", { name: "Download timelines, steps and report as JSON" }).click());
      const file = JSON.parse(json.bytes);
      sameById(file.timelines, timelines, "the timelines of the file");
      same(file.report, await server.get("/v1/report"), "the report of the file");
      same(file.steps, (await server.get("/v1/steps?last=4096")).steps, "the steps of the file");
      const trace = await kept(page, () => page.getByRole("button", { name: "Download as Chrome trace, for Perfetto" }).click());
      const { traceEvents } = JSON.parse(trace.bytes);
      for (const { id } of timelines) {
        assert(traceEvents.some((event) => JSON.stringify(event).includes(id)), `${id} is in the trace`);
      }
      const png = await kept(page, () => page.getByRole("button", { name: "Download the picture as PNG" }).click());
      same(png.bytes.subarray(0, 8).toString("latin1"), "\x89PNG\r\n\x1a\n", "how a picture begins");
      const [width, height] = [16, 20].map((at) => png.bytes.readUInt32BE(at));
      const plot = await page.locator(".plot-head .plot").evaluate((element) => element.clientWidth);
      assert(width > 2 * plot && height > 2 * 28 * timelines.length, `${width} x ${height} at twice ${plot}`);
      assert(png.bytes.length > 10_000, `there is something on it: ${png.bytes.length} bytes`);
      same([json.name, trace.name, png.name].filter((name) => !/^firstlight.*\.(json|png)$/.test(name)), [], "names");
      return { width, height, bytes: png.bytes.length };
    }),
});
await server.end();
