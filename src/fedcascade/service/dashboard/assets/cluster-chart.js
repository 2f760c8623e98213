// The chart of clusters: agents as dots in circles, or a treemap of many agents.

import { createSvg, formatCount, formatNumber } from "./format.js";
import { startChart } from "./chart-primitives.js";
import { getColour, hasNoGroups, listClusters } from "./page-state.js";

const DOT = 15;
const SPACING = DOT * 1.48;
const GOLDEN = Math.PI * (3 - Math.sqrt(5));

// Circles start from their last places, so that they move little.
export function createClusterChart(element, visitor = () => null) {
  const places = new Map();
  const nodes = new Map();
  let drawing = null, layers = null, size = "";

  function prepare() {
    const width = Math.max(260, element.clientWidth), height = Math.max(300, Math.min(element.clientHeight || 460, 620));
    if (size !== `${width} ${height}` || !drawing?.isConnected) {
      size = `${width} ${height}`;
      layers = { hulls: createSvg("g"), agents: createSvg("g") };
      drawing = createSvg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }, layers.hulls, layers.agents);
      element.replaceChildren(drawing);
      nodes.clear();
    }
    return [width, height];
  }

  function draw(state, label, truth = null) {
    const [width, height] = prepare();
    drawing.setAttribute("aria-label", label);
    const circles = arrange(listClusters(state), places, width / height);
    const fit = fitInto(circles, width, height);
    for (const circle of circles) {
      const colour = truth ? 0 : getColour(state, circle.cluster), alone = circle.size === 1;
      if (!alone) drawHull(`hull ${circle.cluster}`, fit, circle, colour);
      circle.agents.forEach((agent, order) => {
        const [dx, dy] = circle.seats[order];
        drawDot(agent, fit.x(circle.x + dx), fit.y(circle.y + dy), fit.scale, colour, circle, truth?.get(agent) ?? null);
      });
    }
    removeAbsent(circles);
  }

  function drawHull(key, fit, circle, colour) {
    let node = nodes.get(key);
    if (!node) {
      node = { hull: createSvg("circle", { cx: fit.x(circle.x), cy: fit.y(circle.y), r: 0 }), text: createSvg("text", { "text-anchor": "middle" }) };
      layers.hulls.append(node.hull, node.text);
      nodes.set(key, node);
    }
    node.hull.setAttribute("class", `hull k${colour}`);
    for (const [name, value] of [["cx", fit.x(circle.x)], ["cy", fit.y(circle.y)], ["r", circle.inner * fit.scale]]) node.hull.setAttribute(name, value.toFixed(1));
    node.text.setAttribute("x", fit.x(circle.x).toFixed(1));
    node.text.setAttribute("y", (fit.y(circle.y) - circle.inner * fit.scale - 5).toFixed(1));
    node.text.textContent = `cluster ${circle.cluster} · ${formatNumber(circle.size)}`;
    node.circle = circle;
  }

  // The true cluster of an agent, if it is shown, is its letter and colour.
  function drawDot(agent, x, y, scale, colour, circle, cluster) {
    let node = nodes.get(agent);
    if (!node) {
      node = { group: createSvg("g", {}, createSvg("circle"), createSvg("text", {}, String(agent)), createSvg("title")) };
      layers.agents.append(node.group);
      nodes.set(agent, node);
    }
    node.group.setAttribute("class", `agent moves k${cluster === null ? colour : 1 + (cluster % 8)}${agent === visitor() ? " you" : ""}`);
    node.group.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px)`;
    const [ring, text, title] = node.group.children;
    ring.setAttribute("r", (DOT * scale * 0.92).toFixed(1));
    text.textContent = agent === visitor() ? "you" : cluster === null ? String(agent).slice(-3) : String.fromCharCode(65 + cluster);  // the last digits fit into a dot
    text.style.fontSize = `${Math.max(6, Math.min(12, 11.5 * scale)).toFixed(1)}px`;
    const known = cluster === null ? "" : `, truly of cluster ${String.fromCharCode(65 + cluster)}`;
    title.textContent = circle.size > 1 ? `agent ${agent}, in cluster ${circle.cluster}${known}` : `agent ${agent}, alone${known}`;
    node.circle = circle;
    node.radius = DOT * scale;
  }

  function removeAbsent(circles) {
    const present = new Set(circles);
    for (const [key, node] of nodes) {
      if (present.has(node.circle)) continue;
      for (const part of Object.values(node)) if (part instanceof Element) part.remove();
      nodes.delete(key);
    }
  }

  // Show a ring around an agent that has just uploaded.
  function pulse(agent) {
    const node = nodes.get(agent);
    if (!node) return;
    const ring = createSvg("circle", { class: "pulse", r: node.radius });
    ring.addEventListener("animationend", () => ring.remove());
    node.group.prepend(ring);
    node.group.append(ring);
    setTimeout(() => ring.remove(), 1200);
  }

  return { draw, pulse };
}

// Seats on Vogel's spiral, around their mean.
function computeSeats(size) {
  const points = Array.from({ length: size }, (_, order) => {
    const away = SPACING * Math.sqrt(order + 0.5);
    return [away * Math.cos(order * GOLDEN), away * Math.sin(order * GOLDEN)];
  });
  const middle = [0, 1].map((axis) => points.reduce((sum, point) => sum + point[axis], 0) / size);
  return points.map(([x, y]) => [x - middle[0], y - middle[1]]);
}

const computeRadius = (seats) => Math.max(...seats.map(([x, y]) => Math.hypot(x, y))) + (seats.length > 1 ? DOT * 1.45 : DOT);

// Pull circles towards the middle without overlap.
function arrange(clusters, places, aspect) {
  const circles = clusters.map((group, order) => {
    const before = places.get(group.cluster) ?? chooseStart(group, places, order, aspect);
    const seats = computeSeats(group.size), radius = computeRadius(seats);
    return { ...group, ...before, seats, inner: radius, outer: radius + (group.size > 1 ? 12 : 3.5) };
  });
  for (let step = 0; step < 260; step++) {
    const pull = 0.05 * (1 - step / 300);
    for (const circle of circles) {
      circle.x -= circle.x * pull / aspect;
      circle.y -= circle.y * pull * aspect;
    }
    for (let i = 0; i < circles.length; i++) for (let j = 0; j < i; j++) separate(circles[i], circles[j]);
  }
  places.clear();
  for (const { cluster, x, y, agents } of circles) places.set(cluster, { x, y, of: agents });
  return circles;
}

// A new cluster starts where its agents were, else on a spiral.
function chooseStart(group, places, order, aspect) {
  for (const { x, y, of } of places.values()) {
    if (of?.some((agent) => group.agents.includes(agent))) return { x: x + (order % 2 ? 9 : -9), y: y + (order % 3) * 7 };
  }
  const away = 44 * Math.sqrt(order);
  return { x: away * Math.cos(order * GOLDEN) * aspect, y: away * Math.sin(order * GOLDEN) };
}

function separate(one, two) {
  const dx = two.x - one.x || 0.01, dy = two.y - one.y || 0.01;
  const gap = Math.hypot(dx, dy), overlap = one.outer + two.outer - gap;
  if (overlap <= 0) return;
  const share = two.size / (one.size + two.size), push = overlap * 0.5 / gap;
  one.x -= dx * push * share * 1.6;
  one.y -= dy * push * share * 1.6;
  two.x += dx * push * (1 - share) * 1.6;
  two.y += dy * push * (1 - share) * 1.6;
}

function fitInto(circles, width, height) {
  const left = Math.min(...circles.map(({ x, outer }) => x - outer)), right = Math.max(...circles.map(({ x, outer }) => x + outer));
  const top = Math.min(...circles.map(({ y, outer }) => y - outer)) - 8, bottom = Math.max(...circles.map(({ y, outer }) => y + outer));
  const scale = Math.min(1.5, width / (right - left), height / (bottom - top));
  return {
    scale,
    x: (value) => width / 2 + (value - (left + right) / 2) * scale,
    y: (value) => height / 2 + (value - (top + bottom) / 2) * scale,
  };
}

// One area per cluster, in proportion to its agents.
export function drawTreemap(element, state, label) {
  const height = Math.max(300, Math.min(element.clientHeight || 460, 620));
  const area = startChart(element, height, label, { top: 0, right: 0, bottom: 0, left: 0 });
  const cells = hasNoGroups(state) ? [{ size: state.members, name: "one population", colour: 0 }] : state.sizes.largest.map(([cluster, size]) => ({ size, name: `cluster ${cluster}`, colour: getColour(state, cluster) }));
  if (state.sizes.others && !hasNoGroups(state)) cells.push({ size: state.sizes.others_agents, name: `${formatCount(state.sizes.others, "smaller cluster")}`, colour: 0 });
  for (const { size, name, colour, x, y, w, h } of squarify(cells, 0, 0, area.width, height)) {
    const cell = createSvg("g", { class: `k${colour}` }, createSvg("rect", { class: "area", x: x + 1, y: y + 1, width: Math.max(0, w - 2), height: Math.max(0, h - 2), rx: 4 }),
      createSvg("title", {}, `${name}: ${formatCount(size, "agent")}`));
    if (w > 54 && h > 36) cell.append(createSvg("text", { class: "strong", x: x + 9, y: y + 20 }, formatNumber(size)));
    if (w > 84 && h > 50) cell.append(createSvg("text", { x: x + 9, y: y + 36 }, name));
    area.drawing.append(cell);
  }
}

// A squarified treemap (Bruls, Huizing and van Wijk, 2000): rows of cells that are as square as they can be.
export function squarify(cells, x, y, w, h) {
  const total = cells.reduce((sum, { size }) => sum + size, 0), placed = [];
  let rest = [...cells].sort((a, b) => b.size - a.size), space = w * h / (total || 1);
  while (rest.length) {
    const side = Math.min(w, h);
    let row = [rest[0]];
    while (row.length < rest.length && computeWorstRatio([...row, rest[row.length]], side, space) <= computeWorstRatio(row, side, space)) row = rest.slice(0, row.length + 1);
    const thick = row.reduce((sum, { size }) => sum + size, 0) * space / side;
    let at = 0;
    for (const cell of row) {
      const long = cell.size * space / thick;
      placed.push(w < h ? { ...cell, x: x + at, y, w: long, h: thick } : { ...cell, x, y: y + at, w: thick, h: long });
      at += long;
    }
    if (w < h) { y += thick; h -= thick; } else { x += thick; w -= thick; }
    rest = rest.slice(row.length);
  }
  return placed;
}

function computeWorstRatio(row, side, space) {
  const sum = row.reduce((total, { size }) => total + size, 0) * space;
  return Math.max(...row.map(({ size }) => Math.max((side * side * size * space) / (sum * sum), (sum * sum) / (side * side * size * space))));
}
