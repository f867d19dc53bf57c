// What the page shows of timelines and a report, held against the figures as they were measured.

import { same } from "./harness.mjs";

/** Three figures and a unit, as the page writes times. */
export function short(nanos) {
  const [scale, unit] = [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]].find(([one]) => nanos < 999.5 * one) ?? [1e9, "s"];
  const value = nanos / scale;
  if (value < 99.95 && Number.isInteger(value)) {
    return `${value} ${unit}`;
  }
  const decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${value.toFixed(decimals)} ${unit}`;
}

const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
/** Milliseconds with three decimals, cut. */
const millis = (nanos) =>
  nanos === undefined || nanos === null ? "–" : `${grouped(Math.floor(nanos / 1e6))}.${String(Math.floor(nanos / 1e3) % 1000).padStart(3, "0")}`;
/** All numbers of a tree. */
export const sum = (tree) => (typeof tree === "number" ? tree : Object.values(tree).reduce((all, one) => all + sum(one), 0));

/** Opens a table by its caption and reads its body, cell by cell. */
export async function table(page, caption) {
  const details = page.locator("details", { has: page.getByText(`Table: ${caption}`, { exact: true }) });
  await details.locator("summary").click();
  await details.locator("tbody tr").first().waitFor();
  return details.locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
}

/** What each lane and each row of the report says is held against whoever measured. */
export async function holdAgainst(page, timelines, report) {
  const lanes = await table(page, "requests with a lane");
  const first = Math.min(...timelines.map(({ stamps }) => stamps.received));
  const expected = [...timelines]
    .sort((a, b) => a.stamps.received - b.stamps.received || a.engine_id - b.engine_id)
    .map((one) => {
      const { inbox, queue_wait, requeue, lost_prefill, prefill } = one.parts;
      return [
        `r${one.engine_id}`,
        one.finish_reason.replace("_", " "),
        millis(one.stamps.received - first),
        ...[sum(inbox), sum(queue_wait), sum(requeue) + lost_prefill, sum(prefill)].map(millis),
        ...[one.engine_ttft, one.ttft, sum(one.decode), one.e2e].map(millis),
        grouped(one.tokens.prompt),
        grouped(one.tokens.generated),
        grouped(one.preemptions),
      ];
    });
  same(lanes, expected, "the table of lanes");
  const { ttft_parts, engine_ttft_parts, wholes } = report;
  const heads = await page.locator(".mean-head").allInnerTexts();
  const mean = ({ n }, whole) => `${short(Math.floor(whole / n))} over n = ${n}`;
  const means = [["engine TTFT", engine_ttft_parts, engine_ttft_parts.engine_ttft], ["TTFT", ttft_parts, ttft_parts.ttft]];
  // What nothing was streamed of has no TTFT.
  const measured = means.filter(([, { n }]) => n > 0).map(([name, parts, whole]) => `Mean ${name} ${mean(parts, whole)}`);
  same(heads, measured, "the means");
  const percentiles = await page
    .getByRole("region", { name: "Percentiles" })
    .locator("tbody tr")
    .evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  const row = (name, of) =>
    of ? [name, ...[of.p50, of.p90, of.p95, of.p99].map(short), grouped(of.n)] : [name, "–", "–", "–", "–", "0"];
  same(
    percentiles,
    [
      row("TTFT", wholes.ttft),
      row("engine TTFT", wholes.engine_ttft),
      row("queue", wholes.queue),
      row("prefill", wholes.prefill),
      row("ITL", wholes.inter_token),
      row("TPOT", wholes.time_per_output_token),
      row("end to end", wholes.e2e),
    ],
    "the percentiles",
  );
}
