import { browser, host, screenshot, longTasks, axe } from "./harness.mjs";
import { serve, hearing, heard, of, hears, paced, tokens } from "./native.mjs";
import { writeFileSync } from "node:fs";
const site = await host(); const server = await serve("--cors", "*", "--slots", "8");
const c = await browser({viewport:{width:1440,height:900}}); await hearing(c);
try {
  const page = await c.open(site.url); await page.getByText("No model lies").waitFor(); await screenshot(page,"empty");
  await page.close();
  const p = await c.open(`${site.url}?server=${server.url}`);
  await p.locator("#composer").waitFor(); await screenshot(p,"ready");
  await p.fill("#composer","Tell me a story about a lighthouse."); await p.selectOption(".composer select","8");
  await p.locator("summary", {hasText:/Sampling|settings/i}).first().click(); await screenshot(p,"settings");
  console.log(await p.locator(".composer").innerText());
  const ids = await p.$$eval("[id^=sampling-]", all => all.map(x=>x.id+"="+x.value)); console.log(ids);
  await p.fill("#sampling-max_tokens","128");
  await p.locator("summary", {hasText:/Sampling|settings/i}).first().click();
  const lt = await longTasks(p);
  await p.locator("#composer").press("Enter");
  await hears(p,"text", r=>tokens(r)>200); await screenshot(p,"chatting");
  await hears(p,"end", r=>of(r,"finished").length===8 && of(r,"sealed").length===8 && of(r,"report").at(-1)?.n===8 || of(r,"report").at(-1)?.report?.n===8);
  await screenshot(p,"burst"); console.log("long live", await lt());
  const rec = (await heard(p)).filter(({event})=>!event.hello&&!event.models);
  writeFileSync("/tmp/t2/recording.json", JSON.stringify(paced(rec,100)));
  console.log(rec.length, tokens(rec), Object.keys(rec[0].event), JSON.stringify(of(rec,"report").at(-1)).slice(0,200));
  await p.locator("#tl-lane-"+of(rec,"sealed")[3].timeline.engine_id).click(); await screenshot(p,"opened");
  await p.locator(".timelines-pane").evaluate(e=>e.scrollTo(0,100000)); await screenshot(p,"report");
  await p.locator(".timelines-pane").evaluate(e=>e.scrollTo(0,700)); await screenshot(p,"opened2");
  console.log("axe", await axe(p));
} finally { console.log(c.errors); await c.context.close(); await server.end(); await site.close(); }
