// A report that `firstlight bench --html` wrote, and one that the page gives: each opens from the disk, and needs nothing else.

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { assert, axe, browser, claims, longTasks, same, screenshot, tracedTasks, until, visit } from "./harness.mjs";
import { run } from "./native.mjs";
import { holdAgainst } from "./shown.mjs";

const folder = mkdtempSync(join(tmpdir(), "firstlight-report-"));
process.once("exit", () => rmSync(folder, { recursive: true, force: true }));

/** Opens a document from the disk in a browser without a network; `work` gets its page once it shows a report. */
async function opened(file, work) {
  const chromium = await browser({ viewport: { width: 1440, height: 900 }, offline: true });
  try {
    const asked = [];
    chromium.context.on("request", (request) => asked.push(request.url()));
    const page = await chromium.context.newPage();
    const traced = await tracedTasks(chromium, page);
    await page.goto(pathToFileURL(file).href);
    await page.getByText("over n =").first().waitFor();
    const { worked } = await traced();
    const figures = await work(page);
    same(asked.filter((url) => !/^(file|blob|data):/.test(url)), [], "what it asked the network for");
    return { ...figures, tasks_over_50_ms: worked };
  } finally {
    await chromium.close();
  }
}

/** What the list of conditions says, by name. */
async function conditions(page) {
  const card = page.getByRole("region", { name: "What was measured" });
  const [names, values] = [await card.locator("dt").allInnerTexts(), await card.locator("dd").allInnerTexts()];
  return Object.fromEntries(names.map((name, idx) => [name, values[idx]]));
}

await claims({
  "what a bench wrote opens from the disk without a network, and every figure is the one that was measured": async () => {
    const [html, json] = [join(folder, "bench.html"), join(folder, "bench.json")];
    const load = ["--concurrency", "2", "--requests", "3", "--prompt-tokens", "16", "--output-tokens", "6", "--repeats", "2", "--slots", "2"];
    await run("bench", ...load, "--json", json, "--html", html);
    const written = JSON.parse(readFileSync(json));
    return opened(html, async (page) => {
      const shown = written.repeats.findIndex(({ median }) => median);
      await holdAgainst(page, written.repeats[shown].timelines, written.repeats[shown].report);
      const facts = await conditions(page);
      assert(facts.command.endsWith(["bench", ...load, "--json", json, "--html", html].join(" ")), facts.command);
      same(facts.adapter, written.adapter, "the adapter");
      same(facts.model, `${written.model.name} ${written.model.quantisation}`, "the model");
      for (const [name, value] of Object.entries(written.settings)) {
        const words = typeof value === "boolean" ? (value ? "on" : "off") : String(value);
        same(facts[name.replaceAll("_", " ")], words, name);
      }
      await until("every slowest gap has its blame", async () => {
        const said = await page.locator(".slowest .tl-note").allInnerTexts();
        return said.length === 3 && said.every((sentence) => /Slowest gap: .+\./.test(sentence));
      });
      await page.setViewportSize({ width: 1440, height: 2600 });
      await screenshot(page, "report");
      await page.setViewportSize({ width: 390, height: 844 });
      await page.locator(".lane").first().waitFor();
      await screenshot(page, "report-narrow");
      same(await axe(page), [], "axe-core");
      await page.setViewportSize({ width: 1440, height: 900 });
      const other = written.repeats.length - 1 - shown;
      await page.getByLabel("Run").selectOption({ index: other });
      const mean = written.repeats[other].timelines.map(({ engine_id }) => `r${engine_id}`);
      await until("the other run's lanes", async () => {
        const labels = await page.locator(".lane .lane-label b").allInnerTexts();
        return labels.length === mean.length && labels.every((label) => mean.includes(label));
      });
      return { bytes: readFileSync(html).length };
    });
  },

  "a recording that the page shows is kept as such a document": () =>
    visit({ host: { files: { "bench.json": join(folder, "bench.json") } } }, async (chromium, site) => {
      const page = await chromium.open(`${site.url}?replay=bench.json`);
      await page.getByText("over n =").first().waitFor();
      const long = await longTasks(page);
      const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: /document that opens/ }).click()]);
      same(download.suggestedFilename(), "firstlight-report.html", "its name");
      const file = join(folder, "kept.html");
      await download.saveAs(file);
      const tasks = await long();
      const { repeats } = JSON.parse(readFileSync(join(folder, "bench.json")));
      const { timelines, report } = repeats.find(({ median }) => median);
      return opened(file, async (page) => {
        await holdAgainst(page, timelines, report);
        same((await conditions(page)).slots, "2", "the slots");
        same(await page.getByRole("button", { name: /document that opens/ }).count(), 0, "it is such a document already");
        return { tasks };
      });
    }),
});
