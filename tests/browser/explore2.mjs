import { browser, host, screenshot, longTasks, axe } from "./harness.mjs";
import { readFileSync } from "node:fs";
const rec = JSON.parse(readFileSync("/tmp/t2/recording.json","utf8"));
const fast = rec.map(({at,event})=>({at:Math.round(at/50),event}));
const half = fast.slice(0, 500);
const site = await host({files:{"fast.json":JSON.stringify(fast),"half.json":JSON.stringify(half)}});
const c = await browser({viewport:{width:1440,height:900}});
const p = await c.open(`${site.url}?replay=fast.json`);
await p.locator(".lane").nth(7).waitFor(); await p.getByText("n = 8").first().waitFor();
await p.locator(".lane").nth(5).click();
await p.locator(".gaps button").click(); await p.locator(".gap-blame:not(:empty)").waitFor();
const wide = () => p.evaluate(()=>document.documentElement.scrollWidth-innerWidth);
for (const [w,h] of [[1440,900],[1024,768],[360,740]]) for (const s of ["light","dark"]) {
  await p.setViewportSize({width:w,height:h}); await p.emulateMedia({colorScheme:s});
  if (w<960) await p.keyboard.press("t");
  const tl=p.locator(".timelines-pane");
  let n=0; const H=await tl.evaluate(e=>[e.scrollHeight,e.clientHeight]);
  if (s==="dark"||w!==1024) for (let y=0;y<H[0];y+=H[1]-20) { await tl.evaluate((e,y)=>e.scrollTo(0,y),y); await screenshot(p,`o-${w}-${s}-${n++}`); }
  const t=performance.now(); console.log(w,s,H,await wide(),await axe(p), Math.round(performance.now()-t));
  if (w<960) {await p.keyboard.press("t"); await screenshot(p,`c-${w}-${s}`); await p.keyboard.press("Escape"); }
}
await c.context.close(); await site.close();
