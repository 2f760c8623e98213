// The shop window. The visitor's agent lives in this page: it decides what to show, learns from the clicks, and keeps them.

import { AgentError, always, connect } from "/agent/index.js";
import { createHtml, createSvg, createTable, fillTable, formatCount, formatNumber } from "./format.js";
import { makeScale, startChart } from "./chart-primitives.js";

const SHOWN = 10, OFFERED = 60, REMEMBERED = 8;
const PREFIX = "fedcascade-shop ";
const find = (id) => document.getElementById(id);
let agent, shop, shown, offered;

async function fetchJson(path, body) {
  const options = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const reply = await fetch(path, options), content = await reply.json();
  if (!reply.ok) throw new Error(content.detail ?? `status ${reply.status}`);
  return content;
}

// Connect this browser's agent; the first time in this demo, it gets a token and enrols. It sends as soon as it may.
async function connectVisitor() {
  const options = { url: location.origin, store: PREFIX + shop.epoch, policy: (policy) => ({ ...policy, trigger: always }) };
  try {
    return await connect(options);
  } catch (error) {
    if (!(error instanceof AgentError) || !/token/.test(error.message)) throw error;
    return connect({ ...options, token: (await fetchJson("/live/visitors", {})).token });
  }
}

// Databases of demos that have ended are of no use.
async function forgetEndedDemos() {
  for (const { name } of (await indexedDB.databases?.()) ?? []) {
    if (name?.startsWith(PREFIX) && name !== PREFIX + shop.epoch) indexedDB.deleteDatabase(name);
  }
}

function showNextList() {
  offered = shop.films.map((film) => [Math.random(), film]).sort(([a], [b]) => a - b).slice(0, OFFERED).map(([, film]) => film);
  shown = agent.recommend(offered.map(({ features }) => features), { k: SHOWN });
  find("films").replaceChildren(...shown.items.map((item, place) => {
    const { title, words } = offered[item];
    const button = createHtml("button", { type: "button", class: "film" }, createHtml("span", { class: "rank" }, String(place + 1)),
      createHtml("strong", {}, title), createHtml("span", { class: "words" }, words.join(", ")));
    button.addEventListener("click", () => choose(place));
    return createHtml("li", {}, button);
  }));
}

async function choose(clicked) {
  disableButtons(true);
  try {
    const upload = await agent.feedback(shown, { clicked });
    remember(clicked === null ? "None of ten films" : offered[shown.items[clicked]].title);
    showNextList();
    find("said").textContent = describeProgress(upload);
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

const readHistory = () => JSON.parse(localStorage.getItem(PREFIX + shop.epoch) ?? "[]");

function remember(title) {
  localStorage.setItem(PREFIX + shop.epoch, JSON.stringify([...readHistory(), title].slice(-REMEMBERED)));
  showHistory();
}

function showHistory() {
  const titles = readHistory().reverse();
  find("history").replaceChildren(...titles.map((title) => createHtml("li", {}, title)));
}

// What this agent has learned from in all: what the server has counted, what is on its way, and what waits.
function countRounds() {
  const { confirmed, outbox, buffer } = agent.state;
  const all = [confirmed, buffer, ...outbox.map(({ statistics }) => statistics)];
  return { rounds: all.reduce((sum, { rounds }) => sum + rounds, 0), clicks: all.reduce((sum, { clicks }) => sum + clicks, 0) };
}

function describeProgress(upload) {
  if (agent.isFallback) return agent.trouble;
  const { rounds, clicks } = countRounds();
  if (!rounds) return "This is your first list: your agent knows nothing about you.";
  if (upload) return `Your agent tells the server the sum of ${formatCount(upload.statistics.count, "film")} you looked at.`;
  return `You clicked ${formatNumber(clicks)} of ${formatCount(rounds, "list")}. Your agent will tell the server a sum over ${agent.floor} films or more.`;
}

function showAgent() {
  if (agent.isFallback) return;
  const { groupAgents, buffer, lastUpload, outbox } = agent.state, others = groupAgents - 1;
  find("place").textContent = groupAgents === 0 ? "Nowhere yet" : others ? `With ${formatCount(others, "other")}` : "By yourself";
  find("place-note").textContent = groupAgents === 0 ? "The server hears of you with your agent's first upload."
    : others ? "Their sums and yours are added up, and all of you learn from that."
      : "So far, nobody's clicks look enough like yours. Go on, and the server will decide again at each upload.";
  drawLikes(agent.estimate);
  const alone = buffer.count ? `${formatCount(buffer.count, "film")} you looked at ${buffer.count === 1 ? "is" : "are"} known to your agent alone.`
    : "Nothing waits to be sent.";
  find("kept-note").textContent = `Your last answers, and a key that no script can read. ${alone}`;
  find("kept-sums").hidden = buffer.count === 0;
  if (buffer.count) showStatistics("kept", buffer);
  const sent = lastUpload?.statistics;
  find("sent-note").textContent = sent
    ? `Upload ${lastUpload.sequence}: ${formatCount(sent.count, "film")}, ${formatCount(sent.clicks, "click")}, as one sum of ${formatCount(sent.moment.length * (sent.moment.length + 3) / 2, "number")}. No title, no order, no time.`
    : "Nothing so far.";
  find("sent-sums").hidden = !sent;
  if (sent) showStatistics("sent", sent);
  const waiting = outbox.length ? `${formatCount(outbox.length, "upload")} not sent yet. ` : "";
  find("trouble").textContent = waiting + (agent.trouble ?? "");
}

const signed = (value) => `k${value < 0 ? 2 : 1}`;
const nameOf = (place) => shop.attributes[place]?.[0] ?? "any film";

// A gram as squares, as dark as their numbers are large, and beside it the moment: what was clicked.
function showStatistics(id, { gram, moment }) {
  const d = moment.length, label = `Sums over films: what they have in common, ${d} by ${d} numbers; and ${d} of what was clicked`;
  const area = startChart(find(`${id}-picture`), 26 * d + 26, label, { top: 22, right: 10, bottom: 4, left: 84 });
  const side = Math.min(26, (area.right - area.left) / (d + 2)), largest = Math.max(1e-9, ...gram.map(Math.abs), ...moment.map(Math.abs));
  const drawCell = (row, column, value) => createSvg("rect", { class: `fill cell ${signed(value)}`, x: area.left + side * column, y: area.top + side * row,
    width: side - 2, height: side - 2, rx: 2, "fill-opacity": (0.06 + 0.94 * Math.abs(value) / largest).toFixed(3) });
  for (let row = 0; row < d; row++) {
    area.drawing.append(createSvg("text", { x: area.left - 8, y: area.top + side * row + side / 2 + 3, "text-anchor": "end" }, nameOf(row)));
    for (let column = 0; column < d; column++) area.drawing.append(drawCell(row, column, gram[row * d + column]));
    area.drawing.append(drawCell(row, d + 0.5, moment[row]));
  }
  area.drawing.append(createSvg("text", { x: area.left, y: 14 }, "looked at"),
    createSvg("text", { x: area.left + side * (d + 1.5), y: 14, "text-anchor": "end" }, "clicked"));
  const rows = Array.from({ length: d }, (_, row) => [nameOf(row), ...Array.from(gram.slice(row * d, row * d + d), (value) => formatNumber(value, 3)), formatNumber(moment[row], 3)]);
  fillTable(find(`${id}-numbers`), () => createTable(label, ["", ...Array.from({ length: d }, (_, place) => nameOf(place)), "clicked"], rows));
}

// One bar per attribute: to the left for its opposite, to the right for the attribute.
function drawLikes(estimate) {
  const likes = shop.attributes.map(([much, little], place) => [much, little, estimate[place] * Math.SQRT2]);
  const rows = likes.map(([much, little, amount]) => `${much} rather than ${little}: ${formatNumber(amount, 2)}`);
  const area = startChart(find("likes"), 30 * likes.length + 8, rows.join("; "), { top: 4, right: 92, bottom: 4, left: 104 });
  const x = makeScale(-1, 1, area.left, area.right), middle = x(0);
  likes.forEach(([much, little, amount], place) => {
    const y = area.top + 30 * place + 15, end = x(Math.max(-1, Math.min(1, amount)));
    area.drawing.append(createSvg("line", { class: "axis", x1: area.left, x2: area.right, y1: y, y2: y }),
      createSvg("rect", { class: `fill ${signed(amount)}`, x: Math.min(middle, end), width: Math.abs(end - middle), y: y - 6, height: 12, rx: 2 }),
      createSvg("text", { class: amount < -0.15 ? "strong" : "", x: area.left - 8, y: y + 4, "text-anchor": "end" }, little),
      createSvg("text", { class: amount > 0.15 ? "strong" : "", x: area.right + 8, y: y + 4 }, much));
  });
  area.drawing.append(createSvg("line", { class: "axis", x1: middle, x2: middle, y1: area.top, y2: area.bottom }));
}

async function leave() {
  disableButtons(true);
  await agent.leave();
  for (const name of [PREFIX + shop.epoch, "fedcascade-visitor"]) localStorage.removeItem(name);
  find("films").replaceChildren();
  find("said").textContent = "The server has subtracted and erased what you sent, and this browser has forgotten you. Load the page to begin anew.";
  find("leave").hidden = true;
}

async function start() {
  shop = await fetchJson("/live/films");
  agent = await connectVisitor();
  localStorage.setItem("fedcascade-visitor", String(agent.id));
  for (const event of ["change", "trouble"]) agent.addEventListener(event, showAgent);
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", showAgent);
  addEventListener("resize", showAgent); // pictures are as wide as their place
  find("pass").addEventListener("click", () => choose(null));
  find("leave").addEventListener("click", () => leave().catch(showProblem));
  find("title").textContent = "You are one of the users";
  showNextList();
  showHistory();
  showAgent();
  find("said").textContent = describeProgress(null);
  disableButtons(false);
  await forgetEndedDemos();
}

const showProblem = (problem) => { find("said").textContent = problem.message; };
start().catch(showProblem);
