// The page as a static host serves it: it comes up under any path, and says so where it cannot.

import { assert, axe, claims, destroyDevices, same, screenshot, visit, worker } from "./harness.mjs";

const heading = (page) => page.getByRole("heading", { level: 1 });

await claims({
  "it loads under a sub-path, from its own host alone, and its worker answers": () =>
    visit({ host: { under: "/some/where/" } }, async (chromium, site) => {
      const asked = [];
      chromium.context.on("request", (request) => asked.push(request.url()));
      const page = await chromium.open(site.url);
      await heading(page).waitFor();
      same(await heading(page).innerText(), "Firstlight", "the heading");
      const hello = await (await worker(page)).evaluate(() => globalThis.firstlightScript);
      assert(hello.startsWith(site.url), `the worker runs the page's own script: ${hello}`);
      const elsewhere = asked.filter((url) => !url.startsWith(site.origin) && !/^(data|blob):/.test(url));
      same(elsewhere, [], "requests to other hosts");
      const lost = site.requests.filter(({ status, name }) => status !== 200 && name !== "models.json");
      same(lost, [], "files that the page names and the host lacks");
      same(await page.locator("#firstlight-loading").count(), 0, "what says that it is loading");
      await screenshot(page, "page");
      return { requests: site.requests.length };
    }),

  "while it is loading it says so, and without its program it says what to do": () =>
    visit({}, async (chromium, site) => {
      chromium.expect(/404|Failed to load resource|Failed to fetch|compile/i);
      const page = await chromium.open(site.url);
      const wasm = site.requests.find(({ name }) => name.endsWith(".wasm")).name;
      site.missing.add(wasm);
      const without = await chromium.open(site.url);
      const alert = without.getByRole("alert");
      await alert.waitFor();
      assert(/could not be started: .*Reload the page/.test(await alert.innerText()), await alert.innerText());
      same(await axe(without), [], "axe-core");
      await page.close();
    }),

  "a device that its worker got can be taken away from it": () =>
    visit({}, async (chromium, site) => {
      const page = await chromium.open(site.url, { devices: true });
      const lost = await (await worker(page)).evaluate(async () => {
        const device = await (await navigator.gpu.requestAdapter()).requestDevice();
        globalThis.lost = device.lost.then(({ reason }) => reason);
        return globalThis.firstlightDevices.length;
      });
      assert(lost >= 1, "the hook remembers it");
      assert((await destroyDevices(page)) >= 1, "and it is destroyed");
      same(await (await worker(page)).evaluate(() => globalThis.lost), "destroyed", "what its owner hears");
    }),

  "without JavaScript it says what to allow": () =>
    visit({ browser: { javaScriptEnabled: false } }, async (chromium, site) => {
      const page = await chromium.open(site.url);
      const text = await page.locator("noscript").innerText();
      assert(text.includes("allow JavaScript"), text);
    }),
});
