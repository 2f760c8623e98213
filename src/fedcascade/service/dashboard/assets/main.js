// The dashboard: logs in where it must, follows the server, draws.

import { bubbles } from "./clusters.js";
import { count, html, number } from "./format.js";
import { applyFrame, fits, fromPicture, now } from "./state.js";
import { follow } from "./stream.js";
import { drawAll } from "./draw.js";

const at = (id) => document.getElementById(id);
const PACES = [0, 10, 30, 100, 300, 1000, 5000];
const view = { live: null, past: null, lost: false, trouble: "", pictures: 0, session: null };
const figure = bubbles(at("clusters"), () => view.live?.health?.demo?.visitor);
let due = 0, spokenAt = 0;

async function ask(path, method = "GET", body = undefined) {
  const reply = await fetch(path, { method, headers: body ? { "content-type": "application/json" } : {}, body: body && JSON.stringify(body) });
  const told = await reply.json();
  if (!reply.ok) throw new Error(told.detail ?? `status ${reply.status}`);
  return told;
}

async function begin() {
  view.session = await ask("/live/session");
  at("login").hidden = view.session.known;
  at("page").hidden = !view.session.known;
  if (!view.session.known) {
    status("waiting", "not logged in");
    at("token").focus();
    return;
  }
  at("leave").hidden = Boolean(view.session.demo);
  const { policy, dimension } = view.session.terms;
  at("runs").textContent = `${policy}, d = ${dimension}`;
  if (view.session.demo) showDemo(view.session.demo);
  follow({ onPicture, onFrame, onHealth, onTrouble: (detail) => { view.trouble = detail; draw(); }, onLost, onAlive });
}

function onPicture(picture) {
  view.live = fromPicture(picture);
  view.pictures += 1;
  view.trouble = "";
  onAlive();
}

function onFrame(frame) {
  if (!view.live || !fits(view.live, frame)) return false;
  const before = view.live.clusters;
  applyFrame(view.live, frame);
  view.trouble = "";
  if (!view.past) for (const [, , agent] of frame.latest) figure.pulse(agent);
  speak(before, frame);
  draw();
  return true;
}

function onHealth(health) {
  if (view.live) view.live.health = health;
  draw();
}

// Those who listen hear of changes that matter, and not more often than one can bear.
function speak(before, frame) {
  if (frame.clusters === before || Date.now() - spokenAt < 4000) return;
  spokenAt = Date.now();
  at("spoken").textContent = `${count(frame.clusters, "cluster")} now, of ${count(frame.members, "agent")}.`;
}

function onLost() { view.lost = true; draw(); }
function onAlive() { view.lost = false; draw(); }

function status(kind, text) {
  const line = at("status");
  if (line.textContent !== text) line.textContent = text;
  line.dataset.kind = kind;
}

// Drawing waits for the next frame of the screen, and happens at most four times a second.
function draw() {
  if (due) return;
  due = setTimeout(() => requestAnimationFrame(() => { due = 0; drawNow(); }), view.live && view.drawn ? 220 : 0);
}

function drawNow() {
  if (!view.live) return;
  view.drawn = true;
  const state = view.past ?? view.live;
  if (view.lost) status("lost", "connection lost, trying again");
  else if (view.past) status("past", "looking back");
  else status("live", "live");
  if (view.live.health?.demo) showDemo(view.live.health.demo);
  drawAll(state, view, figure);
  Object.assign(at("main").dataset, { position: state.position, uploads: state.uploads, clusters: state.clusters, pictures: view.pictures });
}

function showDemo(demo) {
  at("demo").hidden = false;
  if (demo.story) at("story").replaceChildren(...demo.story.map((sentence) => html("li", {}, sentence)));
  const done = demo.state === "done";
  at("progress").max = demo.rounds;
  at("progress").value = demo.round;
  at("progress-text").textContent = done ? `all ${number(demo.rounds)} rounds played` : `round ${number(demo.round)} of ${number(demo.rounds)}`;
  if (document.activeElement !== at("pace")) setPace(demo.pace);
}

function setPace(pace) {
  const nearest = PACES.reduce((best, one, place) => (Math.abs(one - pace) < Math.abs(PACES[best] - pace) ? place : best), 0);
  at("pace").value = nearest;
  const text = PACES[nearest] === 0 ? "paused" : nearest === PACES.length - 1 ? "as fast as it goes" : `${number(PACES[nearest])} rounds/s`;
  at("pace-text").textContent = text;
  at("pace").setAttribute("aria-valuetext", text);
}

// One request at a time, and the newest wish last: two on their way at once could arrive in either order.
let wish = null, telling = false;
at("pace").addEventListener("input", () => {
  wish = PACES[at("pace").value];
  setPace(wish);
  if (!telling) tellPace();
});

async function tellPace() {
  telling = true;
  while (wish !== null) {
    const pace = wish;
    wish = null;
    await ask("/live/demo", "PUT", { pace }).catch(() => at("pace").blur());  // the next frame then shows the pace it has
  }
  telling = false;
}

let asked = 0;
at("when").addEventListener("input", () => {
  clearTimeout(asked);
  asked = setTimeout(lookBack, 60);
});

async function lookBack() {
  const slider = at("when"), share = slider.value / slider.max;
  if (share === 1) return backToNow();
  const { first } = view.live;
  const past = await ask(`/live/picture?at=${Math.round(first + share * (now(view.live) - first))}`);
  if (slider.value / slider.max !== share) return;
  view.past = fromPicture(past);
  view.past.colours = new Map([...view.past.colours, ...view.live.colours]);
  at("now").hidden = false;
  draw();
}

function backToNow() {
  view.past = null;
  at("when").value = at("when").max;
  at("now").hidden = true;
  draw();
}
at("now").addEventListener("click", () => { backToNow(); at("when").focus(); });

at("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await ask("/live/session", "POST", { token: at("token").value.trim() });
    at("login-problem").textContent = "";
    await begin();
  } catch (problem) {
    at("login-problem").textContent = problem.message;
  }
});
at("leave").addEventListener("click", async () => { await ask("/live/session", "DELETE"); location.reload(); });
document.querySelectorAll("details").forEach((details) => details.addEventListener("toggle", draw));
new ResizeObserver(draw).observe(at("main"));
setInterval(() => { if (view.live && !document.hidden) draw(); }, 1000);
begin();
