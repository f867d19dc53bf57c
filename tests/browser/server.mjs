// The page with a native server, and with a recording: what it shows is what the server says.

import { assert, claims, longTasks, same, screenshot, tracedTasks, until, visit } from "./harness.mjs";
import { heard, hearing, hears, of, record, sameById, serve, serving } from "./native.mjs";
import { holdAgainst, short, sum } from "./shown.mjs";

const WIDE = { viewport: { width: 1440, height: 900 } };

const meter = (page, name) => page.locator(".meter", { hasText: name }).locator(".meter-figure");

/** Sends what stands in the composer. */
async function ask(page, prompt) {
  await page.getByLabel("Your prompt").fill(prompt);
  await page.getByRole("button", { name: "Send", exact: true }).click();
}

await claims({
  "a burst of eight: lanes, gauges and report are the server's, and every sum is exact": () =>
    serving(["--cors", "*", "--slots", "2"], (server) =>
      visit({ browser: WIDE }, async (chromium, site) => {
        await hearing(chromium);
        const page = await chromium.open(`${site.url}?server=${server.url}`);
        await page.getByLabel("Your prompt").waitFor();
        await hears(page, "the gauges of an idle server", (all) => of(all, "live").length > 0 && all);
        // Straight to the server, because a browser keeps six connections to one host.
        const body = { max_tokens: 32, temperature: 0, ignore_eos: true };
        const burst = Array.from({ length: 8 }, (_, n) => server.complete({ ...body, prompt: `Count from ${n} to` }));
        // Should the claim fail before they end, its own reason is told, not that their server is gone.
        Promise.all(burst).catch(() => {});
        // The first one may be in the batch alone when the others come.
        await until("two sequences in the batch while others wait", async () => {
          const [queue, batch] = [await meter(page, "queue").innerText(), await meter(page, "batch").innerText()];
          return Number(queue) > 0 && batch === "2";
        });
        await ask(page, "Say hello.");
        await Promise.all(burst);
        const recorded = await hears(page, "the report of nine, and that nothing runs", (all) => {
          const ended = of(all, "report").at(-1)?.report.n === 9 && of(all, "sealed").length === 9;
          return ended && of(all, "live").at(-1).timelines.length === 0 && all;
        });
        const { timelines } = await server.get("/v1/timelines?last=64");
        const report = await server.get("/v1/report");
        const sealed = of(recorded, "sealed").map(({ timeline }) => timeline);
        sameById(sealed, timelines, "the sealed timelines");
        same(of(recorded, "report").at(-1).report, report, "the report");
        const lives = of(recorded, "live");
        same(lives.flatMap(({ steps }) => steps), (await server.get("/v1/steps?last=4096")).steps, "the steps");
        const { gauges } = await server.get("/v1/timelines/running");
        same(lives.at(-1).gauges, gauges, "the gauges");
        for (const timeline of timelines) {
          same(sum(timeline.parts), timeline.parts_total, `the parts of ${timeline.id}`);
          same(timeline.parts_total, timeline.ttft, `the whole of ${timeline.id}`);
        }
        same(await page.locator(".lane").count(), 9, "lanes");
        await holdAgainst(page, timelines, report);
        same(await meter(page, "TTFT p50").innerText(), short(report.wholes.ttft.p50), "the timer of the TTFT");
        same(await meter(page, "queue").innerText(), "0", "the queue at the end");
        same(await meter(page, "batch").innerText(), "0", "the batch at the end");
        same(await meter(page, "preemptions").innerText(), String(gauges.preemptions_total), "preemptions");
        await page.locator(".lane").nth(5).click();
        const sums = await page.locator(".opened tfoot td:last-child").allInnerTexts();
        assert(sums.length === 3 && sums.every((said) => said.includes("exactly")), `sums: ${sums}`);
        assert((await page.locator(".answer-text").innerText()).length > 0, "the page's own prompt is answered");
        return { events: recorded.length };
      }),
    ),

  "the page that a server serves comes up with it, and chats": () =>
    serving(["--slots", "2"], (server) =>
      visit({ browser: WIDE }, async (chromium) => {
        const page = await chromium.open(`${server.url}/`);
        await page.getByText("is ready.").waitFor();
        await ask(page, "Say hello.");
        await page.locator('.answer[data-state="done"]').waitFor();
        await page.locator(".lane").waitFor();
        assert((await page.locator(".answer-text").innerText()).length > 0, "there is an answer");
        same((await server.get("/v1/timelines?last=8")).timelines.length, 1, "the server's timelines");
      }),
    ),

  "a server that refuses or goes away is told in a sentence, and the page lives on": () =>
    visit({ browser: WIDE }, async (chromium, site) => {
      chromium.expect(/Failed to load resource|CORS policy|ERR_/);
      const page = await chromium.open(`${site.url}?server=http://127.0.0.1:9`);
      const failed = page.getByRole("alert");
      await failed.waitFor();
      const refused = await failed.innerText();
      assert(/Could not open the server http:\/\/127\.0\.0\.1:9/.test(refused) && refused.includes("--cors"), refused);
      await serving([], async (closed) => {
        await page.getByRole("button", { name: "Choose something else" }).click();
        await page.getByLabel("Address", { exact: true }).fill(closed.url);
        await page.getByRole("button", { name: "Connect" }).click();
        await failed.getByText(closed.url).first().waitFor();
        assert((await failed.innerText()).includes(`--cors ${site.origin}`), await failed.innerText());
      });
      const server = await serve("--cors", "*", "--slots", "2");
      await page.getByRole("button", { name: "Choose something else" }).click();
      await page.getByLabel("Address", { exact: true }).fill(server.url);
      await page.getByRole("button", { name: "Connect" }).click();
      await ask(page, "Tell me a very long story about the sea.");
      await page.locator('.answer[data-state="streams"]').waitFor();
      await server.end();
      await page.locator('.answer[data-state="trouble"]').waitFor();
      const why = await page.locator(".answer .wrong").innerText();
      assert(why.startsWith(server.url) && why.endsWith("is the server still running?"), why);
      await page.getByText("It is tried again until it answers.").waitFor();
      await screenshot(page, "server-gone");
      // The prompt that failed is a turn of its own; another is answered once the server is back.
      await serving(["--cors", "*", "--port", server.port], async () => {
        await page.getByText("was started again").waitFor();
        await ask(page, "Say hello.");
        await page.locator('.answer[data-state="done"]').waitFor();
      });
      return { refused, why };
    }),

  "a recording of eight answers at 100 tokens a second: no task over 50 ms, and all is shown": () =>
    visit({ browser: WIDE }, async (chromium, site) => {
      await hearing(chromium);
      const recording = await serving(["--cors", "*", "--slots", "8"], async (server) => {
        const page = await chromium.open(`${site.url}?server=${server.url}`);
        await page.getByLabel("Your prompt").waitFor();
        const made = await record(server, page, { count: 8, tokens: 128, rate: 100 });
        // Its server is about to go.
        await page.close();
        return made;
      });
      site.files["recording.json"] = JSON.stringify(recording);
      const page = await chromium.open(`${site.url}?replay=recording.json`);
      return { events: recording.length, ...(await play(chromium, page, recording)) };
    }),
});

/** Looks for long tasks from the moment on at which the recording begins, until all of it is shown. */
async function play(chromium, page, recording) {
  await page.getByText("is ready.").waitFor();
  const [observed, traced] = [await longTasks(page), await tracedTasks(chromium, page)];
  const count = of(recording, "sealed").length;
  await until("every answer has ended", async () => (await page.locator('.answer[data-state="done"]').count()) === count);
  const report = of(recording, "report").at(-1).report;
  await page.getByText(`over n = ${report.n}`).first().waitFor();
  const { tasks, lasted, worked } = await traced();
  const long = await observed();
  const texts = await page.locator(".answer-text").allInnerTexts();
  const told = (ask) => of(recording, "text").filter((one) => one.ask === ask).map(({ text }) => text).join("");
  const words = (text) => text.replace(/[^\p{L}\p{N}]+/gu, "");
  const asks = of(recording, "accepted").map(({ ask }) => ask);
  same(texts.map(words), asks.map(told).map(words), "the answers' words");
  const heads = await page.locator(".answer .figures").allInnerTexts();
  assert(heads.every((said) => said.includes("128 tokens")), `tokens: ${heads}`);
  const timelines = of(await heard(page), "sealed").map(({ timeline }) => timeline);
  await holdAgainst(page, timelines, report);
  same(worked, [], "tasks that the page's thread worked at for more than 50 ms");
  // What the browser's observer counts is how long tasks lasted, with whatever else these processors did meanwhile.
  return { seconds: Math.round(recording.at(-1).at / 1e8) / 10, tasks, lasted, observed: long };
}
