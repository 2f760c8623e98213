// The shop window: one list after another, and what the agent and the server make of the answers.

import { createHtml, createSvg, formatCount, formatNumber } from "./format.js";
import { makeScale, startChart } from "./chart-primitives.js";

const find = (id) => document.getElementById(id);
let shown = null;

async function sendRequest(method, body) {
  const reply = await fetch("/live/shop", { method, headers: body ? { "content-type": "application/json" } : {}, body: body && JSON.stringify(body) });
  const content = await reply.json();
  if (!reply.ok) throw new Error(content.detail ?? `status ${reply.status}`);
  return content;
}

async function sendChoice(clicked) {
  disableButtons(true);
  try {
    showList(await sendRequest("POST", { impression: shown.impression, clicked }));
    find("films").querySelector("button")?.focus({ preventScroll: true });
  } catch (problem) {
    find("said").textContent = problem.message;
  } finally {
    disableButtons(false);
  }
}

function disableButtons(disabled) {
  for (const button of document.querySelectorAll("#films button, #pass")) button.disabled = disabled;
}

function showList(list) {
  shown = list;
  find("title").textContent = "You are one of the users";
  find("films").replaceChildren(...list.films.map(({ title, words }, place) => {
    const button = createHtml("button", { type: "button", class: "film" }, createHtml("span", { class: "rank" }, String(place + 1)),
      createHtml("strong", {}, title), createHtml("span", { class: "words" }, words.join(", ")));
    button.addEventListener("click", () => sendChoice(place));
    return createHtml("li", {}, button);
  }));
  find("said").textContent = describeProgress(list);
  showPlace(list);
  drawLikes(list);
}

function describeProgress({ rounds, clicks, uploaded, buffered, floor }) {
  if (!rounds) return "This is your first list: your agent knows nothing about you.";
  if (uploaded) return `Your agent has just told the server the sum of ${formatCount(uploaded, "film")} you looked at.`;
  const buffer = `${formatCount(buffered, "film")} you looked at ${buffered === 1 ? "is" : "are"} known to your agent alone`;
  return `You clicked ${formatNumber(clicks)} of ${formatCount(rounds, "list")}. ${buffer}; it will tell the server a sum of ${floor} or more.`;
}

function showPlace({ cluster, others }) {
  find("place").textContent = cluster === null ? "Nowhere yet" : others.length ? `Cluster ${cluster}` : "By yourself";
  find("place-note").textContent = cluster === null ? "The server hears of you with your agent's first upload."
    : others.length ? `You share what is learned with ${formatCount(others.length, "other agent")}: ${others.slice(0, 30).join(", ")}${others.length > 30 ? ", …" : ""}.`
      : "So far, nobody's clicks look enough like yours. Go on, and the server will decide again at each upload.";
}

// One bar per attribute: to the left for its opposite, to the right for the attribute.
function drawLikes({ likes }) {
  const rows = likes.map(([much, little, amount]) => `${much} rather than ${little}: ${formatNumber(amount, 2)}`);
  const area = startChart(find("likes"), 30 * likes.length + 8, rows.join("; "), { top: 4, right: 92, bottom: 4, left: 104 });
  const x = makeScale(-1, 1, area.left, area.right), middle = x(0);
  likes.forEach(([much, little, amount], place) => {
    const y = area.top + 30 * place + 15, end = x(Math.max(-1, Math.min(1, amount)));
    area.drawing.append(createSvg("line", { class: "axis", x1: area.left, x2: area.right, y1: y, y2: y }),
      createSvg("rect", { class: `fill k${amount < 0 ? 2 : 1}`, x: Math.min(middle, end), width: Math.abs(end - middle), y: y - 6, height: 12, rx: 2 }),
      createSvg("text", { class: amount < -0.15 ? "strong" : "", x: area.left - 8, y: y + 4, "text-anchor": "end" }, little),
      createSvg("text", { class: amount > 0.15 ? "strong" : "", x: area.right + 8, y: y + 4 }, much));
  });
  area.drawing.append(createSvg("line", { class: "axis", x1: middle, x2: middle, y1: area.top, y2: area.bottom }));
}

find("pass").addEventListener("click", () => sendChoice(null));
sendRequest("GET").then((list) => { showList(list); disableButtons(false); }, (problem) => { find("said").textContent = problem.message; });
