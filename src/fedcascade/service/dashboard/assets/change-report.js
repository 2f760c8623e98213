// The report after half of a demo's users changed: clicks, regret, resets and moves.

import { createHtml, createTable, formatCount, formatNumber, formatPercent } from "./format.js";

const SPAN = 1_000;  // rounds before the change, after it, and at the end

// Clicks and regret per round of the points between two rounds; null where there are fewer than two points.
function measureSpan(points, from, to) {
  const inside = points.filter(([round]) => round >= from && round <= to);
  if (inside.length < 2) return null;
  const [first, last] = [inside[0], inside.at(-1)], rounds = last[0] - first[0];
  return rounds ? { regret: (last[1] - first[1]) / rounds, reward: (last[2] - first[2]) / rounds } : null;
}

export function summariseChange(demo, measures, moves, now) {
  const change = demo.changes.at(-1);
  const own = measures.get("this run") ?? [], round = own.at(-1)?.[0] ?? change.round;
  const spans = [[change.round - SPAN, change.round], [change.round, Math.min(round, change.round + SPAN)], [Math.max(change.round, round - SPAN), round]];
  const resets = demo.resets - change.resets, minutes = Math.max(now - change.at, 1_000) / 60_000;
  return {
    round: change.round, users: change.users, resets, perMinute: resets / minutes,
    moved: new Set(moves.filter(([at]) => at >= change.at).map(([, agent]) => agent)).size,
    own: spans.map(([from, to]) => measureSpan(own, from, to)),
    without: spans.map(([from, to]) => measureSpan(measures.get("without resets") ?? [], from, to)),
  };
}

export function drawChangeReport(element, demo, state, now) {
  element.hidden = !demo.changes?.length;
  if (element.hidden) return;
  const { round, users, resets, perMinute, moved, own, without } = summariseChange(demo, state.measures, state.moves, now);
  const words = `${formatCount(users, "user")} changed at round ${formatNumber(round)}. Since then: ${formatCount(resets, "reset")} (${formatNumber(perMinute, 1)} per minute), ${formatCount(moved, "agent")} moved to another cluster.`;
  const share = (span) => (span ? formatPercent(span.reward) : "–"), lost = (span) => (span ? formatNumber(1_000 * span.regret, 1) : "–");
  const rows = [["Lists clicked", ...own.map(share)], ["Regret per 1,000 rounds", ...own.map(lost)], ["Regret without resets", ...without.map(lost)]];
  const key = JSON.stringify([words, rows]);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  Object.assign(element.dataset, { resets, moved });
  element.replaceChildren(createHtml("p", {}, words), createTable("Before and after the change", ["Measure", "1,000 rounds before", "1,000 rounds after", "Last 1,000 rounds"], rows));
}
