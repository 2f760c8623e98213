// The shop window: one list after another, and what the agent and the server make of the answers.

import { count, html, number, svg } from "./format.js";
import { frame, scale } from "./charts.js";

const at = (id) => document.getElementById(id);
let shown = null;

async function ask(method, body) {
  const reply = await fetch("/live/shop", { method, headers: body ? { "content-type": "application/json" } : {}, body: body && JSON.stringify(body) });
  const told = await reply.json();
  if (!reply.ok) throw new Error(told.detail ?? `status ${reply.status}`);
  return told;
}

async function answer(clicked) {
  busy(true);
  try {
    show(await ask("POST", { impression: shown.impression, clicked }));
    at("films").querySelector("button")?.focus({ preventScroll: true });
  } catch (problem) {
    at("said").textContent = problem.message;
  } finally {
    busy(false);
  }
}

function busy(yes) {
  for (const button of document.querySelectorAll("#films button, #pass")) button.disabled = yes;
}

function show(told) {
  shown = told;
  at("title").textContent = `You are user ${told.agent}`;
  at("films").replaceChildren(...told.films.map(({ title, words }, place) => {
    const button = html("button", { type: "button", class: "film" }, html("span", { class: "rank" }, String(place + 1)),
      html("strong", {}, title), html("span", { class: "words" }, words.join(", ")));
    button.addEventListener("click", () => answer(place));
    return html("li", {}, button);
  }));
  at("said").textContent = said(told);
  placed(told);
  likes(told);
}

function said({ rounds, clicks, uploaded, buffered, floor }) {
  if (!rounds) return "This is your first list: your agent knows nothing about you.";
  if (uploaded) return `Your agent has just told the server the sum of ${count(uploaded, "film")} you looked at.`;
  const kept = `${count(buffered, "film")} you looked at ${buffered === 1 ? "is" : "are"} known to your agent alone`;
  return `You clicked ${number(clicks)} of ${count(rounds, "list")}. ${kept}; it will tell the server a sum of ${floor} or more.`;
}

function placed({ cluster, others }) {
  at("place").textContent = cluster === null ? "Nowhere yet" : others.length ? `Cluster ${cluster}` : "By yourself";
  at("place-note").textContent = cluster === null ? "The server hears of you with your agent's first upload."
    : others.length ? `You share what is learned with ${count(others.length, "other agent")}: ${others.slice(0, 30).join(", ")}${others.length > 30 ? ", …" : ""}.`
      : "So far, nobody's clicks look enough like yours. Go on, and the server will decide again at each upload.";
}

// From the opposite on the left to the attribute on the right.
function likes({ likes }) {
  const rows = likes.map(([much, little, amount]) => `${much} rather than ${little}: ${number(amount, 2)}`);
  const area = frame(at("likes"), 30 * likes.length + 8, rows.join("; "), { top: 4, right: 92, bottom: 4, left: 104 });
  const x = scale(-1, 1, area.left, area.right), middle = x(0);
  likes.forEach(([much, little, amount], place) => {
    const y = area.top + 30 * place + 15, end = x(Math.max(-1, Math.min(1, amount)));
    area.drawing.append(svg("line", { class: "axis", x1: area.left, x2: area.right, y1: y, y2: y }),
      svg("rect", { class: `fill k${amount < 0 ? 2 : 1}`, x: Math.min(middle, end), width: Math.abs(end - middle), y: y - 6, height: 12, rx: 2 }),
      svg("text", { class: amount < -0.15 ? "strong" : "", x: area.left - 8, y: y + 4, "text-anchor": "end" }, little),
      svg("text", { class: amount > 0.15 ? "strong" : "", x: area.right + 8, y: y + 4 }, much));
  });
  area.drawing.append(svg("line", { class: "axis", x1: middle, x2: middle, y1: area.top, y2: area.bottom }));
}

at("pass").addEventListener("click", () => answer(null));
ask("GET").then((told) => { show(told); busy(false); }, (problem) => { at("said").textContent = problem.message; });
