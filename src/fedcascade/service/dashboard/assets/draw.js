// Every figure and table of the dashboard, from what the page knows.

import { bars, columns, dots, legend, lines, river } from "./charts.js";
import { treemap } from "./clusters.js";
import { ago, count, fill, html, median, number, percent, table, time } from "./format.js";
import { colourOf, groups, now } from "./state.js";

const at = (id) => document.getElementById(id);
const CAUSES = [["determinant", 1], ["auxiliary", 5], ["forced", 4], ["synchronisation", 3], ["push", 2]];
const AGE_NAMES = ["10 s", "1 m", "5 m", "30 m", "1 h", "6 h", "1 d", "1 w", "more"];
const REASONS = {
  "impossible": "numbers that no honest agent can have", "malformed": "not a message of the protocol",
  "altered": "changed on the way, or not signed by its sender", "unsigned": "no signature", "stale": "signed too long ago",
  "replayed": "a signature used before", "unknown-agent": "nobody of that number", "revoked": "may not speak any more",
  "conflict": "another upload has that number", "too-many-requests": "faster than allowed", "store-unavailable": "the store was away",
  "protocol": "a version not spoken here", "content-type": "neither JSON nor MessagePack", "request": "not a request we know",
};

export function drawAll(state, view, figure) {
  numbers(state);
  clusters(state, figure);
  regret(state, view);
  reward(state);
  history(state, view);
  causes(state);
  staleness(state);
  health(state, view);
  refused(state);
  latest(state);
}

function numbers(state) {
  const recent = rate(state);
  const quiet = state.detailed ? median([...state.agents.values()].map(({ last }) => now(state) - last)) : null;
  const refusals = Object.values(state.refused).reduce((sum, value) => sum + value, 0);
  const entries = [
    ["Clusters", number(state.clusters), state.detailed ? alone(state) : `largest has ${number(state.sizes.largest[0]?.[1] ?? 0)} agents`],
    ["Agents", number(state.members), state.enrolled > state.members ? `${number(state.enrolled - state.members)} more enrolled` : "all that enrolled"],
    ["Exchanges", number(state.uploads), recent === null ? "" : `${number(recent, recent < 10 ? 1 : 0)} a second lately`],
    ["Reward", state.rounds ? percent(state.clicks / state.rounds) : "–", `of ${number(state.rounds)} lists were clicked`],
    ["Staleness", quiet === null ? share(state.ages) : ago(quiet), quiet === null ? "spoke in the last 5 min" : "half spoke more recently"],
    ["Refused", number(refusals), refusals ? "uploads" : "no upload so far"],
  ];
  const list = at("numbers");
  if (list.children.length !== entries.length) {
    list.replaceChildren(...entries.map(([name]) => html("div", {}, html("dt", {}, name), html("dd", { id: `number-${name.toLowerCase()}` }))));
  }
  entries.forEach(([, value, small], place) => list.children[place].lastChild.replaceChildren(value, html("small", {}, small || "\u00a0")));
}

const share = (ages) => percent((ages[0] + ages[1] + ages[2]) / Math.max(1, ages.reduce((sum, value) => sum + value, 0)), 0);

function alone(state) {
  const single = groups(state).filter(({ size }) => size === 1).length;
  return single ? `${number(single)} of them a single agent` : "nobody is alone";
}

// Exchanges per second over the last half minute or so of bins.
function rate(state) {
  const { since, width, spans } = state.bins;
  const window = Math.max(15_000, width), end = now(state), from = end - window;
  let exchanges = 0;
  for (const [place, span] of spans) {
    if (since + (place + 1) * width > from) for (const one of span.values()) exchanges += one.exchanges;
  }
  return spans.size ? exchanges / (window / 1000) : null;
}

function clusters(state, figure) {
  const found = state.detailed ? groups(state) : [];
  const words = `${count(state.clusters, "cluster")} of ${count(state.members, "agent")}`;
  at("clusters-note").textContent = state.members === 0 ? "No agent has spoken yet."
    : state.detailed ? "A dot is an agent. Agents in one circle share what they learn; a ring spreads from one that has just spoken."
      : "An area is a cluster, as large as it has agents.";
  if (state.detailed && state.members) figure.draw(state, words);
  else if (state.members) treemap(at("clusters"), state, words);
  else at("clusters").replaceChildren();
  fill(at("clusters-table"), () => state.detailed
    ? table(words, ["Cluster", "Agents", "Who"], found.map(({ cluster, size, agents }) => [cluster, number(size), html("span", { class: "words" }, agents.join(", "))]))
    : table(words, ["Size", "Clusters of that size"], state.sizes.histogram.map(([size, clusters]) => [number(size), number(clusters)])));
}

function regret(state, view) {
  const known = view.live.measures;
  document.body.classList.toggle("no-regret", known.size === 0);
  if (!known.size) return;
  const own = state.measures.get("this run") ?? [];
  const series = [
    { name: "alone", colour: 8, thin: true, points: known.get("alone") ?? [] },
    { name: "clusters known", colour: 3, thin: true, points: known.get("clusters known") ?? [] },
    { name: "this run", colour: 1, points: own },
  ].filter(({ points }) => points.length);
  const rounds = Math.max(...series.flatMap(({ points }) => points.map(([round]) => round)));
  const words = own.length ? `Regret of this run: ${number(own.at(-1)[1])} after ${number(own.at(-1)[0])} rounds` : "Regret of this run";
  lines(at("regret"), series, { label: words, yFrom: 0, xTo: rounds, xUnit: " rounds" });
  const before = (points, round) => points.findLast(([at]) => at <= round)?.[1];
  const rows = Array.from({ length: 10 }, (_, step) => Math.round(rounds * (step + 1) / 10));
  const cell = (value) => (value === undefined ? "–" : number(value, 1));
  fill(at("regret-table"), () => table(words, ["Rounds", ...series.map(({ name }) => name)],
    rows.map((round) => [number(round), ...series.map(({ name, points }) => cell(name === "this run" && round > (points.at(-1)?.[0] ?? 0) ? undefined : before(points, round)))])));
}

function reward(state) {
  const { since, width, spans } = state.bins;
  const points = [...spans].sort(([a], [b]) => a - b).map(([place, span]) => {
    const all = [...span.values()];
    return [since + (place + 0.5) * width, all.reduce((sum, { clicks }) => sum + clicks, 0), all.reduce((sum, { rounds }) => sum + rounds, 0)];
  }).filter(([, , rounds]) => rounds);
  const smooth = smoothed(points);
  const words = state.rounds ? `${percent(state.clicks / state.rounds)} of all lists were clicked` : "No lists so far";
  if (smooth.length > 1) lines(at("reward"), [{ name: "clicked", colour: 1, points: smooth }], { label: words, height: 150, yText: (value) => percent(value, Number.isInteger(Number((100 * value).toFixed(6))) ? 0 : 1), xText: (value) => time(value, state.last - state.first) });
  else at("reward").replaceChildren();
  fill(at("reward-table"), () => table(words, ["Around", "Lists", "Clicked"], points.slice(-60).map(([when, clicks, rounds]) => [time(when, state.last - state.first), number(rounds), percent(clicks / rounds)])));
}

// Each point is the share over neighbours that hold a twentieth of all lists: few lists say little.
function smoothed(points) {
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

function history(state, view) {
  const live = view.live, to = Math.max(live.last, now(live)), from = live.first;
  at("when").disabled = !from;
  if (!from) { at("river").replaceChildren(); return; }
  const when = from + (at("when").value / at("when").max) * (to - from);
  at("when").setAttribute("aria-valuetext", view.past ? time(when, to - from) : "now");
  const options = { from, to, at: view.past ? when : to, timeText: (value) => time(value, to - from) };
  if (live.detailed) {
    river(at("river"), steps(live), { ...options, label: "Sizes of clusters over time", members: live.members, colourOf: (cluster) => (cluster ? colourOf(live, cluster) : 0) });
  } else {
    at("history-note").textContent = "The number of clusters over time. Drag the slider to look back.";
    const points = [...live.bins.spans].sort(([a], [b]) => a - b).map(([place, span]) => [live.bins.since + place * live.bins.width, Math.max(...[...span.values()].map(({ clusters }) => clusters))]);
    lines(at("river"), [{ name: "clusters", colour: 1, points }], { label: "Number of clusters over time", height: 150, yFrom: 0, xText: options.timeText, integers: true, cursor: view.past ? when : null });
  }
}

// The sizes of clusters after every move; agents alone or in clusters that are no more are counted together, as 0.
function steps(state) {
  const where = new Map(), found = [];
  let place = 0;
  const most = 160, width = Math.max(1, (state.last - state.first) / most);
  for (let step = 0; step <= most && place <= state.moves.length; step++) {
    const until = state.first + step * width;
    let moved = step === 0;
    while (place < state.moves.length && state.moves[place][0] <= until + width / 2) {
      const [, agent, cluster] = state.moves[place++];
      if (state.agents.has(agent)) where.set(agent, cluster);
      moved = true;
    }
    if (!moved) continue;
    const counted = new Map(), sizes = new Map();
    for (const cluster of where.values()) counted.set(cluster, (counted.get(cluster) ?? 0) + 1);
    for (const [cluster, size] of counted) {
      const name = size > 1 && colourOf(state, cluster) ? cluster : 0;
      sizes.set(name, (sizes.get(name) ?? 0) + size);
    }
    found.push({ at: until, sizes });
  }
  return found;
}

function causes(state) {
  const named = CAUSES.map(([name, colour]) => ({ name, colour, value: state.causes.get(name) ?? 0 })).filter(({ value }) => value);
  const words = named.length ? `Exchanges by cause: ${named.map(({ name, value }) => `${name} ${number(value)}`).join(", ")}` : "No exchanges yet";
  columns(at("causes"), state.bins, named, { label: words, until: Math.max(now(state), state.last), timeText: (value) => time(value, state.last - state.first) });
  at("causes").append(legend(named));
  const rows = [...state.bins.spans].sort(([a], [b]) => b - a).slice(0, 60);
  fill(at("causes-table"), () => table(words, ["From", ...named.map(({ name }) => name)],
    rows.map(([place, span]) => [time(state.bins.since + place * state.bins.width, state.last - state.first), ...named.map(({ name }) => number(span.get(name)?.exchanges ?? 0))])));
}

function staleness(state) {
  if (!state.detailed) {
    const entries = state.ages.map((value, place) => [AGE_NAMES[place], value]);
    bars(at("ages"), entries, { label: "How many agents last exchanged how long ago" });
    fill(at("ages-table"), () => table("How many agents last exchanged how long ago", ["Up to", "Agents"], entries.map(([name, value]) => [name, number(value)])));
    return;
  }
  const agents = [...state.agents.values()].map((one) => ({ ...one, age: Math.max(0, now(state) - one.last), colour: colourOf(state, one.cluster) })).sort((a, b) => b.age - a.age);
  const words = agents.length ? `The stalest agent is ${agents[0].agent}: ${ago(agents[0].age)}` : "No agent has spoken yet";
  dots(at("ages"), agents, { label: words });
  fill(at("ages-table"), () => table(words, ["Agent", "Ago", "Cluster", "Exchanges", "Lists"],
    agents.map(({ agent, age, cluster, uploads, rounds }) => [agent, ago(age), cluster, number(uploads), number(rounds)])));
}

function health(state, view) {
  const { healthy, waiting, started } = view.live.health;
  const lines = [
    view.trouble ? ["bad", `The store cannot be read: ${view.trouble}`] : healthy ? ["good", "The store answers"] : ["bad", "The store cannot be written just now"],
    view.lost ? ["bad", "This page has lost the server"] : ["good", waiting > 100 ? `${number(waiting)} jobs wait for the writer` : "The writer keeps up"],
    ["note", `This server has run for ${ago(now(view.live) - started)}`],
    ["note", `The log is at position ${number(state.position)}`],
  ];
  const list = at("health"), key = JSON.stringify(lines);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...lines.map(([kind, text]) => html("li", { "data-kind": kind }, text)));
}

function refused(state) {
  const rows = Object.entries(state.refused).sort(([, a], [, b]) => b - a);
  const key = JSON.stringify(rows), place = at("refused");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (!rows.length) { place.replaceChildren(html("p", { class: "note" }, "None.")); return; }
  fill(place, () => table("Refused uploads by reason", ["Reason", "Uploads"],
    rows.map(([reason, value]) => [reason, number(value)]).map(([reason, value]) => [reason, value])));
  place.querySelectorAll("th[scope=row]").forEach((cell) => cell.append(html("span", { class: "note" }, ` ${REASONS[cell.textContent] ?? ""}`)));
}

function latest(state) {
  const rows = [...state.latest].reverse().slice(0, 8);
  const key = JSON.stringify([rows, state.clusters]), place = at("latest");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  fill(place, () => table("Latest exchanges", ["Number", "Time", "Agent", "Cause", "Lists", "Clicked"],
    rows.map(([position, when, agent, cause, rounds, clicks]) => [number(position), time(when), agent, cause, number(rounds), number(clicks)])));
}
