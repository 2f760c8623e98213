// The panel of a demo: story, pace, pause, settings, the second policy, and the true clusters.

import { drawChangeReport } from "./change-report.js";
import { createClusterChart } from "./cluster-chart.js";
import { drawLines } from "./chart-primitives.js";
import { createHtml, createTable, fillTable, formatCount, formatNumber, formatPercent } from "./format.js";
import { assignColours, estimateNow, listClusters } from "./page-state.js";

const find = (id) => document.getElementById(id);
const PACES = [0, 10, 30, 100, 300, 1000, 5000];
const other = { chart: null, state: { agents: new Map(), colours: new Map(), detailed: true } };
let paceBefore = 100, shownPace = 0;

export function showDemo(demo, page) {
  page.run ??= demo.run;
  if (page.run !== demo.run) return location.reload();  // another demo runs at this address
  find("demo").hidden = false;
  if (demo.story) introduce(demo);
  const done = demo.state === "done";
  find("progress").max = demo.rounds;
  find("progress").value = demo.round;
  find("progress-text").textContent = done ? `all ${formatNumber(demo.rounds)} rounds played` : `round ${formatNumber(demo.round)} of ${formatNumber(demo.rounds)}`;
  if (document.activeElement !== find("pace")) showPace(demo.pace);
  find("change-minds").hidden = find("drift-note").hidden = !demo.drift;
  const ready = 300 * demo.users;
  find("drift-note").textContent = `${demo.round < ready ? `Best from round ${formatNumber(ready)} on, when each user has had 300 lists.` : "Ready: each user has had 300 lists."} Expect fewer clicks at once, resets after 30 to 60 lists of each changed user, and settled clusters after about 100.`;
  find("shop-link").hidden = Boolean(demo.drift);  // a visitor's agent cannot drift
  if (page.live) drawChangeReport(find("change-report"), demo, page.live, estimateNow(page.live));
}

// What a new page needs once: the story, and the settings that run now.
function introduce(demo) {
  find("story").replaceChildren(...demo.story.map((sentence) => createHtml("li", {}, sentence)));
  find("settings").hidden = !demo.policies;
  if (!demo.policies) return;
  const form = find("restart").elements;
  const fill = (name, choices) => form[name].replaceChildren(...choices.map((choice) => createHtml("option", {}, choice)));
  fill("policy", demo.policies.served);
  fill("other", demo.policies.others);
  for (const name of ["policy", "other", "beta", "alpha_c", "alpha_d", "clusters", "users", "seed"]) form[name].value = demo[name] ?? "";
  form.drift.checked = demo.drift;
}

function showPace(pace) {
  const nearest = PACES.reduce((best, choice, place) => (Math.abs(choice - pace) < Math.abs(PACES[best] - pace) ? place : best), 0);
  find("pace").value = nearest;
  shownPace = PACES[nearest];
  const text = shownPace === 0 ? "paused" : nearest === PACES.length - 1 ? "maximum" : `${formatNumber(shownPace)} rounds/s`;
  find("pace-text").textContent = text;
  find("pace").setAttribute("aria-valuetext", text);
  find("pause").textContent = shownPace ? "Pause" : "Go on";
}

// Send one request at a time, because two at once could arrive in either order.
let wantedPace = null, sending = false;

async function setPace(pace, sendRequest) {
  wantedPace = pace;
  showPace(pace);
  if (sending) return;
  sending = true;
  while (wantedPace !== null) {
    const next = wantedPace;
    wantedPace = null;
    await sendRequest("live/demo", "PUT", { pace: next }).catch(() => find("pace").blur());  // the next update shows the actual pace
  }
  sending = false;
}

export function connectDemo(sendRequest, draw) {
  find("pace").addEventListener("input", () => setPace(PACES[find("pace").value], sendRequest));
  find("pause").addEventListener("click", () => {
    if (shownPace) paceBefore = shownPace;
    setPace(shownPace ? 0 : paceBefore, sendRequest);
  });
  find("change-minds").addEventListener("click", () => sendRequest("live/changes", "POST", {}).catch((problem) => { find("announcement").textContent = problem.message; }));
  find("truth").addEventListener("change", draw);
  find("restart").addEventListener("submit", async (event) => {
    event.preventDefault();
    const form = find("restart").elements, number = (name) => (form[name].value === "" ? null : Number(form[name].value));
    const settings = { policy: form.policy.value, other: form.other.value, drift: form.drift.checked };
    for (const name of ["beta", "alpha_c", "alpha_d", "clusters", "users", "seed"]) settings[name] = number(name);
    find("restart-problem").textContent = "";
    try {
      await sendRequest("live/restart", "POST", { settings });
      find("restart-note").textContent = "Starting over: the page follows in about ten seconds.";
    } catch (problem) {
      find("restart-problem").textContent = problem.message;
    }
  });
}

// The true cluster of each agent if it is to be shown, else null.
export function readTruth(page) {
  const truth = page.live.health?.demo?.truth;
  find("truth-label").hidden = !truth;
  find("truth-label").title = "Letters and colours of the true clusters, which the server never sees";
  return truth && find("truth").checked ? new Map(truth) : null;
}

// The clusters of the second policy, and the clustering error of both.
export function drawOtherPolicy(page) {
  const demo = page.live.health?.demo, groups = demo?.groups;
  document.body.classList.toggle("two-policies", Boolean(groups));
  find("other-card").hidden = !groups;
  if (!demo) return;
  if (groups) {
    find("clusters-title").textContent = `Clusters of ${demo.policy}`;
    find("other-title").textContent = `Clusters of ${demo.other}`;
    const { state } = other;
    state.agents = new Map(groups.filter(([agent]) => agent).map(([agent, cluster]) => [agent, { agent, cluster: cluster + 1 }]));
    assignColours(state);
    const words = formatCount(listClusters(state).length, "cluster") + ` of ${formatCount(state.agents.size, "agent")}`;
    find("other-note").textContent = `The same users with another policy: ${words}.`;
    other.chart ??= createClusterChart(find("other-clusters"));
    if (state.agents.size) other.chart.draw(state, words, readTruth(page));
  }
  drawError(page, demo);
}

function drawError(page, demo) {
  const own = page.live.measures.get("error") ?? [], second = page.live.measures.get("other error") ?? [];
  find("error-card").hidden = own.length < 2;
  if (own.length < 2) return;
  const series = [{ name: demo.policy, colour: 1, points: own }];
  if (second.length) series.push({ name: demo.other, colour: 2, points: second });
  const rounds = own.at(-1)[0], words = `Clustering error after ${formatNumber(rounds)} rounds: ${series.map(({ name, points }) => `${name} ${formatPercent(points.at(-1)[1], 0)}`).join(", ")}`;
  drawLines(find("error"), series, { label: words, height: 150, yFrom: 0, xTo: rounds, xUnit: " rounds", yText: (value) => formatPercent(value, 0) });
  const findBefore = (points, round) => points.findLast(([at]) => at <= round)?.[1];
  fillTable(find("error-table"), () => createTable(words, ["Rounds", ...series.map(({ name }) => name)],
    Array.from({ length: 10 }, (_, step) => Math.round(rounds * (step + 1) / 10)).map((round) => [formatNumber(round), ...series.map(({ points }) => formatPercent(findBefore(points, round) ?? 1, 0))])));
}
