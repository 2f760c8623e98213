// The dashboard: log in if needed, follow the server, draw.

import { createClusterChart } from "./cluster-chart.js";
import { connectDemo, drawOtherPolicy, readTruth, showDemo } from "./demo-panel.js";
import { createHtml, formatCount, formatNumber } from "./format.js";
import { applyUpdate, buildState, canApply, countGroups, estimateNow, hasNoGroups } from "./page-state.js";
import { followEvents } from "./event-stream.js";
import { explainWords, fillGlossary } from "./glossary.js";
import { drawPanels } from "./panels.js";

const find = (id) => document.getElementById(id);
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
  page.session = await sendRequest("live/session");
  const key = /^#key=(.+)$/.exec(location.hash)?.[1];  // of a demo, in the link that its command prints
  if (key && !page.session.known) {
    await sendRequest("live/session", "POST", { token: key }).catch(() => {});  // the login form follows
    page.session = await sendRequest("live/session");
  }
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
  if (page.session.demo) showDemo(page.session.demo, page);
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
  if (hasNoGroups(page.live)) return;
  find("announcement").textContent = `${formatCount(countGroups(page.live), "cluster")} now, of ${formatCount(update.members, "agent")}.`;
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
  if (page.live.health?.demo) showDemo(page.live.health.demo, page);
  drawPanels(state, page, clusterChart, readTruth(page));
  drawOtherPolicy(page);
  explainWords();
  Object.assign(find("main").dataset, { position: state.position, uploads: state.uploads, clusters: state.clusters, views: page.views });
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
  const past = await sendRequest(`live/view?at=${Math.round(first + share * (estimateNow(page.live) - first))}`);
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
    await sendRequest("live/session", "POST", { token: find("token").value.trim() });
    find("login-problem").textContent = "";
    await startPage();
  } catch (problem) {
    find("login-problem").textContent = problem.message;
  }
});
find("leave").addEventListener("click", async () => { await sendRequest("live/session", "DELETE"); location.reload(); });
document.querySelectorAll("details").forEach((details) => details.addEventListener("toggle", draw));
new ResizeObserver(draw).observe(find("main"));
setInterval(() => { if (page.live && !document.hidden) draw(); }, 1000);
connectDemo(sendRequest, draw);
fillGlossary();
startPage();
