// The engine in the tab, what takes long: storage without room, dropped models, two tabs, a GPU process that dies.

import * as to from "./asking.mjs";
import { assert, beside, claims, MODEL, same, screenshot, visit } from "./harness.mjs";

const hello = to.goldenText("hello");
const capital = to.goldenText("capital");

/** Visits a host with the default model beside the page. */
const visiting = (work, at = {}) =>
  visit({ host: { files: beside(), ...at } }, async (chromium, site) => {
    await to.listen(chromium);
    const page = await chromium.open(site.url + to.SMALL);
    const asked = () => site.requests.filter(({ name }) => name === to.MODEL_NAME);
    return work({ page, site, chromium, asked });
  });

function isReady(end) {
  same(end.event, "ready", end.sentence ?? "opening");
  return end;
}

async function answersRight(page, prompt = hello) {
  await to.plain(page, 16);
  const [answer] = await to.answers(page, [prompt.text]);
  same([answer.reason, answer.ids], ["length", prompt.ids], "the end and the ids");
  to.exact(answer.timeline);
}

await claims({
  "a model that has no room in storage runs, and is not kept": () =>
    visiting(async ({ page, site, chromium }) => {
      const debug = await chromium.context.newCDPSession(page);
      await debug.send("Storage.overrideQuotaForOrigin", { origin: site.origin, quotaSize: 20_000_000 });
      const ready = isReady(await to.loadBeside(page));
      same(ready.kept, false, "kept");
      const notices = await to.heard(page, ["notice"]);
      same(notices.length, 1, `notices: ${JSON.stringify(notices)}`);
      assert(/runs, but is not kept.*needs 98362432 bytes.*refused/.test(notices[0].sentence), notices[0].sentence);
      await screenshot(page, "tab-not-kept");
      await answersRight(page);
      return { notice: notices[0].sentence };
    }),

  "a dropped model answers, and is here after a reload": () =>
    visiting(async ({ page, asked }) => {
      isReady(await to.opens(page, () => page.locator("#files").setInputFiles(MODEL)));
      await answersRight(page, capital);
      await page.reload();
      isReady(await to.loadStored(page));
      await answersRight(page);
      same(asked(), [], "requests for a model");
    }),

  "a reload in mid-download goes on where it was": () =>
    visiting(
      async ({ page, site, asked }) => {
        await page.getByRole("region", { name: "Beside this page" }).getByRole("button", { name: /^Load / }).click();
        // The worker flushes now and then; what it has written by then is there after the reload.
        await page.waitForFunction(() =>
          globalThis.firstlightEvents.some(({ event, stage, done }) => event === "progress" && stage === "download" && done > 3e7),
        );
        await page.reload();
        site.rate = null;
        isReady(await to.loadStored(page));
        const [first, second, ...more] = asked();
        same([first.range, more.length], [null, 0], "the first request, and how many after the second");
        const from = Number(/^bytes=(\d+)-$/.exec(second.range)?.[1]);
        assert(from >= 3e7, `it goes on from ${second.range}`);
        await answersRight(page);
        return { went_on_from: from };
      },
      { rate: 2e7 },
    ),

  "two tabs that load the same model at once fetch it once, and both answer": () =>
    visiting(async ({ page, site, chromium, asked }) => {
      const other = await chromium.open(site.url + to.SMALL);
      const ends = await Promise.all([to.loadBeside(page), to.loadBeside(other)]);
      ends.forEach(isReady);
      const bytes = asked().reduce((all, { sent }) => all + sent, 0);
      same(bytes, 98_362_432, "bytes of the model that were fetched");
      await answersRight(page);
      await answersRight(other, capital);
      return { requests: asked().length };
    }),

  "a GPU process that dies in mid-answer ends it with a readable reason, and a new prompt is answered": () =>
    visiting(async ({ page, chromium }) => {
      chromium.expect(/GPU|device|context/i);
      isReady(await to.loadBeside(page));
      await to.plain(page, 16);
      const since = await to.heardSoFar(page);
      const [lost] = await to.answers(page, [hello.text], async () => {
        await to.hears(page, ["text"], { since, count: 2 });
        const debug = await chromium.context.browser()?.newBrowserCDPSession();
        assert(debug, "the browser can be debugged");
        await debug.send("Browser.crashGpuProcess");
      });
      same(lost.reason, "failed", "the end");
      assert(/device/i.test(lost.detail) && !/\[object|undefined|JsValue/.test(lost.detail), lost.detail);
      to.exact(lost.timeline);
      const [failed] = await to.hears(page, ["device_failed"], { since });
      await to.hears(page, ["reopened"], { since });
      await answersRight(page);
      return { detail: lost.detail, told: failed.sentence };
    }),
});
