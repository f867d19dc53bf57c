// How the page looks and can be used in every state: accessibility, room, keyboard, files to keep; and a picture of each.

import { readFileSync } from "node:fs";

import { assert, axe, beside, browser, claims, host, same, screenshot, until, visit } from "./harness.mjs";
import { beforeWorker } from "./asking.mjs";
import { hearing, hears, of, record, sameById, serve, serving } from "./native.mjs";

const WIDE = { width: 1440, height: 900 };
const SIZES = [WIDE, { width: 1024, height: 768 }, { width: 360, height: 740 }];

const server = await serve("--cors", "*", "--slots", "2");

/** A recording of eight answers on two slots, and the first half of it. */
const recording = await visit({}, async (chromium, site) => {
  await hearing(chromium);
  const page = await chromium.open(`${site.url}?server=${server.url}`);
  await page.getByLabel("Your prompt").waitFor();
  return record(server, page, { count: 8, tokens: 24, rate: 2_000 });
});
const texts = recording.flatMap(({ event }, at) => (event.text ? [at] : []));
const middle = recording.slice(0, texts[Math.floor(texts.length / 2)]);
const files = {
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
      await page.getByRole("button", { name: /^Load .* from the Hugging Face hub/ }).waitFor();
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
      const ready = await chromium.open(`${site.url}?server=${server.url}`);
      await ready.getByText("is ready.").waitFor();
      await ready.close();
      const fresh = await serving(["--cors", "*"], async (empty) => {
        const page = await chromium.open(`${site.url}?server=${empty.url}`);
        await page.getByText("is ready.").waitFor();
        await lookAt(page, "ready", { views: ["chat", "timelines"] });
        await page.close();
      });
      const chatting = await chromium.open(`${site.url}?replay=middle.json`);
      const words = of(middle, "text").length;
      await until("half of it is there", async () => (await chatting.locator(".lane").count()) >= 8 && words > 0);
      await lookAt(chatting, "chatting", { views: ["chat", "timelines"] });
      await chatting.close();
      const page = await replayed(chromium, site);
      await lookAt(page, "burst", { views: ["chat", "timelines"] });
      await page.locator(".lane").nth(6).click();
      await page.getByRole("button", { name: "Why was the slowest one slow?" }).click();
      await page.locator(".gap-blame", { hasText: "ms" }).waitFor();
      await page.getByText("Table: requests with a lane").click();
      await lookAt(page, "opened", { views: ["timelines", "timelines"] });
      return { fresh };
    }),
});
await server.end();
