// The dashboard: log in if needed, follow the server, draw.

import { drawChangeReport } from "./change-report.js";
import { createClusterChart } from "./cluster-chart.js";
import { createHtml, formatCount, formatNumber } from "./format.js";
import { applyUpdate, buildState, canApply, estimateNow } from "./page-state.js";
import { followEvents } from "./event-stream.js";
import { drawPanels } from "./panels.js";

const find = (id) => document.getElementById(id);
const PACES = [0, 10, 30, 100, 300, 1000, 5000];
const page = { live: null, past: null, lost: false, trouble: "", views: 0, session: null };
const clusterChart = createClusterChart(find("clusters"), () => Number(localStorage.getItem("fedcascade-visitor")));
let due = 0, announcedAt = 0;

async function sendRequest(path, method = "GET", body = undefined) {
  const reply = await fetch(path, { method, headers: body ? { "content-type": "application/json" } : {}, body: body && JSON.stringify(body) });
  const content = await reply.json();
  if (!reply.ok) throw new Error(content.detail ?? `status ${reply.status}`);
  return content;
}

async function startPage() {
  page.session = await sendRequest("/live/session");
  find("login").hidden = page.session.known;
  find("page").hidden = !page.session.known;
  if (!page.session.known) {
    showStatus("waiting", "not logged in");
    find("token").focus();
    return;
  }
  find("leave").hidden = Boolean(page.session.demo);
  const { policy, dimension } = page.session.terms;
  find("runs").textContent = `${policy}, d = ${dimension}`;
  if (page.session.demo) showDemo(page.session.demo);
  followEvents({ onView, onUpdate, onHealth, onTrouble: (detail) => { page.trouble = detail; draw(); }, onLost, onAlive });
}

function onView(view) {
  page.live = buildState(view);
  page.views += 1;
  page.trouble = "";
  onAlive();
}

function onUpdate(update) {
  if (!page.live || !canApply(page.live, update)) return false;
  const before = page.live.clusters;
  applyUpdate(page.live, update);
  page.trouble = "";
  if (!page.past) for (const [, , agent] of update.latest) clusterChart.pulse(agent);
  announceClusters(before, update);
  draw();
  return true;
}

function onHealth(health) {
  if (page.live) page.live.health = health;
  draw();
}

// Announce changes of the number of clusters to screen readers, at most every four seconds.
function announceClusters(before, update) {
  if (update.clusters === before || Date.now() - announcedAt < 4000) return;
  announcedAt = Date.now();
  find("announcement").textContent = `${formatCount(update.clusters, "cluster")} now, of ${formatCount(update.members, "agent")}.`;
}

function onLost() { page.lost = true; draw(); }
function onAlive() { page.lost = false; draw(); }

function showStatus(kind, text) {
  const line = find("status");
  if (line.textContent !== text) line.textContent = text;
  line.dataset.kind = kind;
}

// Draw in the next frame, at most four times per second.
function draw() {
  if (due) return;
  due = setTimeout(() => requestAnimationFrame(() => { due = 0; drawNow(); }), page.live && page.drawn ? 220 : 0);
}

function drawNow() {
  if (!page.live) return;
  page.drawn = true;
  const state = page.past ?? page.live;
  if (page.lost) showStatus("lost", "connection lost, reconnecting");
  else if (page.past) showStatus("past", "past");
  else showStatus("live", "live");
  if (page.live.health?.demo) showDemo(page.live.health.demo);
  drawPanels(state, page, clusterChart);
  Object.assign(find("main").dataset, { position: state.position, uploads: state.uploads, clusters: state.clusters, views: page.views });
}

function showDemo(demo) {
  find("demo").hidden = false;
  if (demo.story) find("story").replaceChildren(...demo.story.map((sentence) => createHtml("li", {}, sentence)));
  const done = demo.state === "done";
  find("progress").max = demo.rounds;
  find("progress").value = demo.round;
  find("progress-text").textContent = done ? `all ${formatNumber(demo.rounds)} rounds played` : `round ${formatNumber(demo.round)} of ${formatNumber(demo.rounds)}`;
  if (document.activeElement !== find("pace")) showPace(demo.pace);
  find("drift").hidden = !demo.drift;
  find("shop-link").hidden = Boolean(demo.drift);  // a visitor's agent cannot drift
  if (page.live) drawChangeReport(find("change-report"), demo, page.live, estimateNow(page.live));
}

find("change-minds").addEventListener("click", () => sendRequest("/live/changes", "POST", {}).catch((problem) => { find("announcement").textContent = problem.message; }));

function showPace(pace) {
  const nearest = PACES.reduce((best, choice, place) => (Math.abs(choice - pace) < Math.abs(PACES[best] - pace) ? place : best), 0);
  find("pace").value = nearest;
  const text = PACES[nearest] === 0 ? "paused" : nearest === PACES.length - 1 ? "maximum" : `${formatNumber(PACES[nearest])} rounds/s`;
  find("pace-text").textContent = text;
  find("pace").setAttribute("aria-valuetext", text);
}

// Send one request at a time, because two at once could arrive in either order.
let wantedPace = null, sending = false;
find("pace").addEventListener("input", () => {
  wantedPace = PACES[find("pace").value];
  showPace(wantedPace);
  if (!sending) sendPace();
});

async function sendPace() {
  sending = true;
  while (wantedPace !== null) {
    const pace = wantedPace;
    wantedPace = null;
    await sendRequest("/live/demo", "PUT", { pace }).catch(() => find("pace").blur());  // the next update shows the actual pace
  }
  sending = false;
}

let timer = 0;
find("when").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(lookBack, 60);
});

async function lookBack() {
  const slider = find("when"), share = slider.value / slider.max;
  if (share === 1) return returnToNow();
  const { first } = page.live;
  const past = await sendRequest(`/live/view?at=${Math.round(first + share * (estimateNow(page.live) - first))}`);
  if (slider.value / slider.max !== share) return;
  page.past = buildState(past);
  page.past.colours = new Map([...page.past.colours, ...page.live.colours]);
  find("now").hidden = false;
  draw();
}

function returnToNow() {
  page.past = null;
  find("when").value = find("when").max;
  find("now").hidden = true;
  draw();
}
find("now").addEventListener("click", () => { returnToNow(); find("when").focus(); });

find("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await sendRequest("/live/session", "POST", { token: find("token").value.trim() });
    find("login-problem").textContent = "";
    await startPage();
  } catch (problem) {
    find("login-problem").textContent = problem.message;
  }
});
find("leave").addEventListener("click", async () => { await sendRequest("/live/session", "DELETE"); location.reload(); });
document.querySelectorAll("details").forEach((details) => details.addEventListener("toggle", draw));
new ResizeObserver(draw).observe(find("main"));
setInterval(() => { if (page.live && !document.hidden) draw(); }, 1000);
startPage();
