// The panels of the dashboard. Regret, clusters and history have files of their own.

import { buildLegend, drawBars, drawColumns, drawDots, drawLines } from "./chart-primitives.js";
import { drawTreemap } from "./cluster-chart.js";
import { computeMedian, createHtml, createTable, fillTable, formatAge, formatCount, formatNumber, formatPercent, formatTime } from "./format.js";
import { drawHistory } from "./history-chart.js";
import { countGroups, estimateNow, getColour, hasNoGroups, listClusters } from "./page-state.js";
import { drawRegret } from "./regret-chart.js";

const find = (id) => document.getElementById(id);
const CAUSES = [["determinant", 1], ["auxiliary", 5], ["forced", 4], ["synchronisation", 3], ["push", 2], ["change", 7]];
const AGE_NAMES = ["10 s", "1 m", "5 m", "30 m", "1 h", "6 h", "1 d", "1 w", "more"];
const REASONS = {
  "impossible": "statistics that no data can have", "malformed": "not a valid message",
  "altered": "changed in transit", "unsigned": "no signature", "stale": "signature too old",
  "replayed": "signature used before", "unrecognised": "unknown agent or wrong key", "revoked": "agent revoked",
  "conflict": "sequence number used before", "too-many-requests": "rate limit exceeded", "store-unavailable": "store not available",
  "protocol": "unsupported protocol version", "content-type": "neither JSON nor MessagePack", "request": "unknown request",
};

export function drawPanels(state, page, clusterChart, truth = null) {
  drawNumbers(state);
  drawClusters(state, clusterChart, truth);
  drawRegret(state, page);
  drawReward(state);
  drawHistory(page);
  drawCauses(state);
  drawPrivacy(state);
  drawStaleness(state);
  drawTurnover(page);
  drawHealth(state, page);
  drawRefusals(state);
  drawLatest(state);
}

function drawNumbers(state) {
  const recent = computeRate(state);
  const quiet = state.detailed ? computeMedian([...state.agents.values()].map(({ last }) => estimateNow(state) - last)) : null;
  const refusals = Object.values(state.refused).reduce((sum, value) => sum + value, 0);
  const entries = [
    ["Clusters", hasNoGroups(state) ? "None" : formatNumber(countGroups(state)), describeGroups(state)],
    ["Agents", formatNumber(state.members), `of ${formatNumber(state.enrolled)} enrolled`],
    ["Exchanges", formatNumber(state.uploads), recent === null ? "" : `${formatNumber(recent.rate, recent.rate < 10 ? 1 : 0)}/s in the last ${formatAge(recent.window)}`],
    ["Reward", ...describeReward(state)],
    ["Staleness", !state.members ? "–" : quiet === null ? computeRecentShare(state.ages) : formatAge(quiet), quiet === null ? "exchanged in the last 5 min" : "median since last exchange"],
    ["Refused", formatNumber(refusals), refusals ? "uploads, by reason below" : "all uploads were valid"],
  ];
  const list = find("numbers");
  if (list.children.length !== entries.length) {
    list.replaceChildren(...entries.map(([name]) => createHtml("div", {}, createHtml("dt", {}, name), createHtml("dd", { id: `number-${name.toLowerCase()}` }))));
  }
  entries.forEach(([, value, small], place) => list.children[place].lastChild.replaceChildren(value, createHtml("small", {}, small || "\u00a0")));
}

const computeRecentShare = (ages) => formatPercent((ages[0] + ages[1] + ages[2]) / Math.max(1, ages.reduce((sum, value) => sum + value, 0)), 0);

// Clicks that have values are worth less than their number.
function describeReward({ rounds, clicks, health }) {
  const [clickRate, reward] = health?.rates ?? [0, 0], share = rounds ? formatPercent(clicks / rounds) : "–";
  if (reward === clickRate) return [share, `of ${formatNumber(rounds)} lists were clicked`];
  return [formatNumber(reward, 2), `per list; ${share} of ${formatNumber(rounds)} lists were clicked`];
}

function describeGroups(state) {
  if (hasNoGroups(state)) return "one population, no groups yet";
  if (!state.detailed) return `largest: ${formatCount(state.sizes.largest[0]?.[1] ?? 0, "agent")}`;
  return `${formatCount(state.clusters - countGroups(state), "agent")} in none`;
}

// Exchanges per second over the last 15 seconds, or over the last bin if that is longer.
function computeRate(state) {
  const { since, width, spans } = state.bins;
  const window = Math.max(15_000, width), end = estimateNow(state), from = end - window;
  let exchanges = 0;
  for (const [place, span] of spans) {
    if (since + (place + 1) * width > from) for (const totals of span.values()) exchanges += totals.exchanges;
  }
  return spans.size ? { rate: exchanges / (window / 1000), window } : null;
}

function drawClusters(state, clusterChart, truth) {
  const clusters = state.detailed ? listClusters(state) : [];
  const words = hasNoGroups(state) ? `One population of ${formatCount(state.members, "agent")}, no groups yet`
    : `${formatCount(countGroups(state), "cluster")} of ${formatCount(state.members, "agent")}`;
  find("clusters-note").textContent = state.members === 0 ? "No uploads yet."
    : hasNoGroups(state) ? "One population, no groups yet: what all agents have in common is each one's prior."
    : state.detailed ? "Each dot is an agent. Agents in one circle pool their statistics. A ring marks a new upload."
      : "Each area is a cluster, in proportion to its number of agents.";
  if (state.detailed && state.members) clusterChart.draw(state, words, truth);
  else if (state.members) drawTreemap(find("clusters"), state, words);
  else find("clusters").replaceChildren();
  fillTable(find("clusters-table"), () => state.detailed
    ? createTable(words, ["Cluster", "Size", "Agents"], clusters.map(({ cluster, size, agents }) => [cluster, formatNumber(size), createHtml("span", { class: "words" }, agents.join(", "))]))
    : createTable(words, ["Size", "Clusters of that size"], state.sizes.histogram.map(([size, times]) => [formatNumber(size), formatNumber(times)])));
}

function drawReward(state) {
  const { since, width, spans } = state.bins;
  const points = [...spans].sort(([a], [b]) => a - b).map(([place, span]) => {
    const all = [...span.values()];
    return [since + (place + 0.5) * width, all.reduce((sum, { clicks }) => sum + clicks, 0), all.reduce((sum, { rounds }) => sum + rounds, 0)];
  }).filter(([, , rounds]) => rounds);
  const smoothed = smooth(points);
  const words = state.rounds ? `${formatPercent(state.clicks / state.rounds)} of all lists were clicked` : "No lists yet";
  if (smoothed.length > 1) drawLines(find("reward"), [{ name: "clicked", colour: 1, points: smoothed }], { label: words, height: 150, yText: (value) => formatPercent(value, Number.isInteger(Number((100 * value).toFixed(6))) ? 0 : 1), xText: (value) => formatTime(value, state.last - state.first) });
  else find("reward").replaceChildren();
  fillTable(find("reward-table"), () => createTable(words, ["Time", "Lists", "Clicked"], points.slice(-60).map(([when, clicks, rounds]) => [formatTime(when, state.last - state.first), formatNumber(rounds), formatPercent(clicks / rounds)])));
}

// Average each point over neighbours that together hold a twentieth of all lists, because few lists are noisy.
function smooth(points) {
  const need = points.reduce((sum, [, , rounds]) => sum + rounds, 0) / 20;
  return points.map(([when], place) => {
    let low = place, high = place, clicks = points[place][1], rounds = points[place][2];
    while (rounds < need && (low > 0 || high < points.length - 1)) {
      if (low > 0) { low -= 1; clicks += points[low][1]; rounds += points[low][2]; }
      if (high < points.length - 1) { high += 1; clicks += points[high][1]; rounds += points[high][2]; }
    }
    return [when, clicks / rounds];
  });
}

function drawCauses(state) {
  const named = CAUSES.map(([name, colour]) => ({ name, colour, value: state.causes.get(name) ?? 0 })).filter(({ value }) => value);
  const words = named.length ? `Exchanges by cause: ${named.map(({ name, value }) => `${name} ${formatNumber(value)}`).join(", ")}` : "No exchanges yet";
  if (named.length) drawColumns(find("causes"), state.bins, named, { label: words, until: Math.max(estimateNow(state), state.last), timeText: (value) => formatTime(value, state.last - state.first) });
  else find("causes").replaceChildren();
  find("causes").append(buildLegend(named));
  const rows = [...state.bins.spans].sort(([a], [b]) => b - a).slice(0, 60);
  fillTable(find("causes-table"), () => createTable(words, ["From", ...named.map(({ name }) => name)],
    rows.map(([place, span]) => [formatTime(state.bins.since + place * state.bins.width, state.last - state.first), ...named.map(({ name }) => formatNumber(span.get(name)?.exchanges ?? 0))])));
}

function drawPrivacy({ health }) {
  const spent = (health?.privacy ?? []).map(([epsilon, agents]) => [formatNumber(epsilon, 2), agents]), words = "Agents by epsilon that they have spent";
  find("privacy-card").hidden = !spent.length;
  if (!spent.length) return;
  drawBars(find("privacy"), spent, { label: words });
  fillTable(find("privacy-table"), () => createTable(words, ["Epsilon", "Agents"], spent.map(([epsilon, agents]) => [epsilon, formatNumber(agents)])));
}

function drawStaleness(state) {
  if (!state.detailed) {
    const entries = state.ages.map((value, place) => [AGE_NAMES[place], value]);
    drawBars(find("ages"), entries, { label: "Agents by time since their last exchange" });
    fillTable(find("ages-table"), () => createTable("Agents by time since their last exchange", ["Up to", "Agents"], entries.map(([name, value]) => [name, formatNumber(value)])));
    return;
  }
  const agents = [...state.agents.values()].map((agent) => ({ ...agent, age: Math.max(0, estimateNow(state) - agent.last), colour: getColour(state, agent.cluster) })).sort((a, b) => b.age - a.age);
  const words = agents.length ? `Stalest agent: ${agents[0].agent}, ${formatAge(agents[0].age)}` : "No uploads yet";
  if (agents.length) drawDots(find("ages"), agents, { label: words });
  else find("ages").replaceChildren();
  fillTable(find("ages-table"), () => createTable(words, ["Agent", "Age", "Cluster", "Exchanges", "Lists"],
    agents.map(({ agent, age, cluster, uploads, rounds }) => [agent, formatAge(age), cluster, formatNumber(uploads), formatNumber(rounds)])));
}

function drawTurnover(page) {
  const { joined, left, resets } = page.live.health;
  const entries = [["Joined", joined], ["Left", left], ["Resets", resets]];
  const list = find("turnover"), key = JSON.stringify(entries);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...entries.map(([name, value]) => createHtml("div", {}, createHtml("dt", {}, name), createHtml("dd", {}, formatNumber(value)))));
}

function drawHealth(state, page) {
  const { healthy, waiting, started, outsized, paused, trial } = page.live.health;
  const lines = [
    page.trouble ? ["bad", `Store not readable: ${page.trouble}`] : healthy ? ["good", "Store available"] : ["bad", "Store not writable"],
    page.lost ? ["bad", "Connection to the server lost"] : ["good", waiting > 100 ? `${formatNumber(waiting)} jobs waiting` : "No backlog"],
    ...outsized.map(([agent, share, ratio]) => ["bad", `Agent ${agent} holds ${Math.round(100 * share)}% of its cluster's observations, ${formatNumber(ratio)} times as many as the median agent`]),
    ...(paused ? [["bad", "Exchanges are paused: agents go on alone"]] : []),
    ...(trial ? describeTrial(trial) : []),
    ["note", `Uptime: ${formatAge(estimateNow(page.live) - started)}`],
    ["note", `Log position: ${formatNumber(state.position)}`],
  ];
  const list = find("health"), key = JSON.stringify(lines);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...lines.map(([kind, text]) => createHtml("li", { "data-kind": kind }, text)));
}

// The arms of an A/B test, and what the guardrail says of their difference.
function describeTrial({ arms, lower, upper, alarm, margin }) {
  const formatPoints = (value) => `${value < 0 ? "−" : "+"}${formatNumber(100 * Math.abs(value), 2)}`;
  const rows = Object.entries(arms).map(([arm, [lists, clicks]]) => ["note", `${arm}: ${formatPercent(clicks / Math.max(1, lists))} of ${formatCount(lists, "list")} clicked`]);
  const interval = `${formatPoints(lower)} to ${formatPoints(upper)} points`;
  if (lower <= -1 && upper >= 1) return [...rows, ["note", "Treatment − control: not known yet"]];
  return [...rows, alarm ? ["bad", `Treatment − control: ${interval}, below −${formatNumber(100 * margin, 2)}`] : ["good", `Treatment − control: ${interval}`]];
}

function drawRefusals(state) {
  const rows = Object.entries(state.refused).sort(([, a], [, b]) => b - a);
  const key = JSON.stringify(rows), place = find("refused");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (!rows.length) { place.replaceChildren(createHtml("p", { class: "note" }, "None: every upload was signed, in turn, and possible.")); return; }
  fillTable(place, () => createTable("Refused uploads by reason", ["Reason", "Uploads"],
    rows.map(([reason, value]) => [reason, formatNumber(value)])));
  place.querySelectorAll("th[scope=row]").forEach((cell) => cell.append(createHtml("span", { class: "note" }, ` ${REASONS[cell.textContent] ?? ""}`)));
}

function drawLatest(state) {
  const rows = [...state.latest].reverse().slice(0, 8);
  const key = JSON.stringify([rows, state.clusters]), place = find("latest");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  fillTable(place, () => createTable("Latest exchanges", ["Position", "Time", "Agent", "Cause", "Lists", "Clicked"],
    rows.map(([position, when, agent, cause, rounds, clicks]) => [formatNumber(position), formatTime(when), agent, cause, formatNumber(rounds), formatNumber(clicks)])));
}
