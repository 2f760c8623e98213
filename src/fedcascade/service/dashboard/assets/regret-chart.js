// The regret chart: this run and its baselines, as lines and a table.

import { drawLines } from "./chart-primitives.js";
import { createTable, fillTable, formatNumber } from "./format.js";

const find = (id) => document.getElementById(id);

export function drawRegret(state, page) {
  const measures = page.live.measures;
  document.body.classList.toggle("no-regret", measures.size === 0);
  if (!measures.size) return;
  const own = state.measures.get("this run") ?? [];
  const second = page.live.health?.demo?.other;
  const series = [
    { name: second, colour: 2, points: measures.get(second) ?? [] },
    { name: "alone", colour: 8, thin: true, points: measures.get("alone") ?? [] },
    { name: "clusters known", colour: 3, thin: true, points: measures.get("clusters known") ?? [] },
    { name: "without resets", colour: 2, thin: true, points: measures.get("without resets") ?? [] },
    { name: "this run", colour: 1, points: own },
  ].filter(({ points }) => points.length);
  const rounds = Math.max(...series.flatMap(({ points }) => points.map(([round]) => round)));
  const words = own.length ? `Regret of this run: ${formatNumber(own.at(-1)[1])} after ${formatNumber(own.at(-1)[0])} rounds` : "Regret of this run";
  drawLines(find("regret"), series, { label: words, yFrom: 0, xTo: rounds, xUnit: " rounds" });
  const findBefore = (points, round) => points.findLast(([at]) => at <= round)?.[1];
  const rows = Array.from({ length: 10 }, (_, step) => Math.round(rounds * (step + 1) / 10));
  const formatCell = (value) => (value === undefined ? "–" : formatNumber(value, 1));
  fillTable(find("regret-table"), () => createTable(words, ["Rounds", ...series.map(({ name }) => name)],
    rows.map((round) => [formatNumber(round), ...series.map(({ name, points }) => formatCell(name === "this run" && round > (points.at(-1)?.[0] ?? 0) ? undefined : findBefore(points, round)))])));
}
