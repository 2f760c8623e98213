// Charts as SVG: axes, lines, columns, bars, dots, bands. Each fills the width of its element.

import { createHtml, createSvg, formatAge, formatNumber } from "./format.js";

const MARGIN = { top: 10, right: 12, bottom: 24, left: 44 };

export function startChart(element, height, label, margin = MARGIN) {
  const width = Math.max(260, element.clientWidth || 600);
  const drawing = createSvg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  element.replaceChildren(drawing);
  return { drawing, width, height, left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
}

export const makeScale = (from, to, start, end) => (value) => start + ((value - from) / (to - from || 1)) * (end - start);

// Round numbers that divide a range into about `parts` parts.
export function computeTicks(from, to, parts = 4) {
  const rough = (to - from || 1) / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const values = [];
  for (let value = Math.ceil(from / step - 1e-9) * step; value <= to + step * 1e-9; value += step) values.push(value || 0);  // no -0
  return values;
}

export function drawAxes(area, x, y, { xTicks, yTicks, xText = formatNumber, yText = formatNumber }) {
  const { drawing, left, right, bottom } = area;
  for (const value of yTicks) {
    drawing.append(createSvg("line", { class: "axis", x1: left, x2: right, y1: y(value), y2: y(value) }),
      createSvg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, yText(value)));
  }
  xTicks.forEach((value, place) => {
    const anchor = place === xTicks.length - 1 && area.width - x(value) < 30 ? "end" : x(value) < left + 12 ? "start" : "middle";
    drawing.append(createSvg("text", { x: x(value), y: bottom + 18, "text-anchor": anchor }, xText(value)));
  });
}

const buildPath = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// Lines with their names at their ends. series: {name, colour, points: [[x, y]], thin}
export function drawLines(element, series, { label, height = 190, yFrom, yText, xText, xTo, xUnit = "", integers = false, cursor = null }) {
  const area = startChart(element, height, label, { ...MARGIN, right: 106 });
  const all = series.flatMap(({ points }) => points);
  const top = Math.max(...all.map(([, value]) => value), 1e-9);
  const least = Math.min(...all.map(([, value]) => value));
  const low = yFrom ?? (least < top ? least : top - 0.05);
  const yTicks = computeTicks(low, top, 4).filter((value) => !integers || Number.isInteger(value));
  const last = Math.max(xTo ?? 0, ...all.map(([at]) => at));
  const first = Math.min(xTo ? 0 : Infinity, ...all.map(([at]) => at));
  const x = makeScale(first, last, area.left, area.right);
  const y = makeScale(Math.min(low, yTicks[0] ?? low), Math.max(top, yTicks.at(-1) ?? top), area.bottom, area.top);
  const xTicks = xText ? [first, last] : computeTicks(first, last, area.width < 420 ? 2 : 4);
  drawAxes(area, x, y, { xTicks, yTicks, yText, xText: (value) => `${(xText ?? formatNumber)(value)}${value === xTicks.at(-1) ? xUnit : ""}` });
  if (cursor !== null) area.drawing.append(createSvg("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: area.top, y2: area.bottom }));
  const ends = [];
  for (const { name, colour, points, thin } of series) {
    if (!points.length) continue;
    area.drawing.append(createSvg("path", { class: `line k${colour}${thin ? " thin" : ""}`, d: buildPath(points.map(([at, value]) => [x(at), y(value)])) }));
    ends.push({ name, colour, x: x(points.at(-1)[0]), y: y(points.at(-1)[1]) });
  }
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, place) => {
    if (place) end.y = Math.max(end.y, ends[place - 1].y + 15);
    area.drawing.append(createSvg("text", { class: `strong k${end.colour}`, x: Math.min(end.x, area.right) + 7, y: end.y + 4 }, end.name));
  });
}

// Columns stacked by cause. bins.spans: Map(place -> Map(cause -> {exchanges}))
export function drawColumns(element, bins, causes, { label, height = 170, until, timeText }) {
  const area = startChart(element, height, label);
  const places = Math.max(12, Math.ceil((until - bins.since) / bins.width));
  const totals = [...bins.spans].map(([, span]) => [...span.values()].reduce((sum, { exchanges }) => sum + exchanges, 0));
  const top = Math.max(1, ...totals);
  const yTicks = computeTicks(0, top, 3).filter(Number.isInteger);
  const x = makeScale(0, places, area.left, area.right);
  const y = makeScale(0, Math.max(top, yTicks.at(-1) ?? 1), area.bottom, area.top);
  drawAxes(area, x, y, { xTicks: [0, places], yTicks, xText: (place) => timeText(bins.since + place * bins.width) });
  const wide = Math.max(1, x(1) - x(0) - (x(1) - x(0) > 4 ? 1 : 0));
  for (const [place, span] of bins.spans) {
    let sum = 0;
    for (const { name, colour } of causes) {
      const exchanges = span.get(name)?.exchanges ?? 0;
      if (!exchanges) continue;
      area.drawing.append(createSvg("rect", { class: `fill k${colour}`, x: x(place), width: wide, y: y(sum + exchanges), height: y(sum) - y(sum + exchanges) }));
      sum += exchanges;
    }
  }
}

export function buildLegend(entries) {
  return createHtml("ul", { class: "legend" }, ...entries.map(({ name, colour, value }) => createHtml("li", {},
    createSvg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, createSvg("circle", { class: `fill k${colour}`, cx: 5, cy: 5, r: 5 })), `${name} ${formatNumber(value)}`)));
}

// One bar for each entry [name, count].
export function drawBars(element, entries, { label, height = 170 }) {
  const area = startChart(element, height, label, { ...MARGIN, bottom: 24 });
  const top = Math.max(1, ...entries.map(([, value]) => value));
  const yTicks = computeTicks(0, top, 3).filter(Number.isInteger);
  const x = makeScale(0, entries.length, area.left, area.right);
  const y = makeScale(0, Math.max(top, yTicks.at(-1) ?? 1), area.bottom, area.top);
  drawAxes(area, x, y, { xTicks: [], yTicks });
  entries.forEach(([name, value], place) => {
    area.drawing.append(createSvg("rect", { class: "fill k1", x: x(place) + 2, width: Math.max(1, x(1) - x(0) - 4), y: y(value), height: area.bottom - y(value) }),
      createSvg("text", { x: (x(place) + x(place + 1)) / 2, y: area.bottom + 18, "text-anchor": "middle" }, name));
  });
}

const LABEL_ROOM = 50;  // pixels from one label of an age to the next
const AGES = [1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400];

// One dot per agent on a logarithmic scale of ages, stacked where several have about the same age.
export function drawDots(element, agents, { label, height = 170 }) {
  const area = startChart(element, height, label, { ...MARGIN, left: 12 });
  const oldest = Math.max(60, ...agents.map(({ age }) => age / 1000));
  const end = AGES.find((seconds) => seconds >= oldest) ?? oldest;
  const x = makeScale(0, Math.log10(end + 1), area.left, area.right);
  const locate = (seconds) => x(Math.log10(seconds + 1));
  area.drawing.append(createSvg("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }));
  let taken = -Infinity;  // up to where there is a label; the first and the last of them always have room
  for (const seconds of [0, ...AGES.filter((tick) => tick < end), end]) {
    const inner = seconds > 0 && seconds < end;
    if (inner && (locate(seconds) - taken < LABEL_ROOM || area.right - locate(seconds) < LABEL_ROOM)) continue;
    taken = locate(seconds);
    const anchor = seconds === 0 ? "start" : seconds === end ? "end" : "middle";
    area.drawing.append(createSvg("text", { x: locate(seconds), y: area.bottom + 18, "text-anchor": anchor }, seconds ? formatAge(seconds * 1000).replace(".0", "") : "now"));
  }
  const slots = Math.max(10, Math.floor((area.right - area.left) / 11));
  const stacks = new Map();
  for (const agent of agents) {
    const slot = Math.min(slots - 1, Math.floor((locate(agent.age / 1000) - area.left) / ((area.right - area.left) / slots)));
    if (!stacks.has(slot)) stacks.set(slot, []);
    stacks.get(slot).push(agent);
  }
  const highest = Math.max(1, ...[...stacks.values()].map(({ length }) => length));
  const step = Math.min(11, (area.bottom - area.top) / highest);
  for (const [slot, stack] of stacks) {
    stack.sort((a, b) => a.colour - b.colour || a.agent - b.agent).forEach((agent, level) => {
      area.drawing.append(createSvg("circle", { class: `fill k${agent.colour}`, r: Math.min(4.4, step / 2.2),
        cx: area.left + (slot + 0.5) * ((area.right - area.left) / slots), cy: area.bottom - 6 - level * step },
      createSvg("title", {}, `agent ${agent.agent}: ${formatAge(agent.age)}`)));
    });
  }
}

// One band per cluster over time, as high as it has agents; agents alone are the grey band at the bottom. steps: [{at, sizes: Map(cluster -> size)}]
export function drawBands(element, steps, { label, height = 150, from, to, at, getColour, timeText, members }) {
  const area = startChart(element, height, label);
  const x = makeScale(from, to, area.left, area.right);
  const y = makeScale(0, Math.max(1, members), area.bottom, area.top);
  drawAxes(area, x, y, { xTicks: [from, to], yTicks: computeTicks(0, members, 2).filter(Number.isInteger), xText: timeText });
  const clusters = [...new Set(steps.flatMap(({ sizes }) => [...sizes.keys()]))].sort((a, b) => (a ? a : -1) - (b ? b : -1));
  const base = steps.map(() => 0);
  for (const cluster of clusters) {
    const upper = [], lower = [];
    steps.forEach((step, place) => {
      const size = step.sizes.get(cluster) ?? 0;
      const left = x(step.at), right = x(steps[place + 1]?.at ?? to);
      lower.push([left, y(base[place])], [right, y(base[place])]);
      base[place] += size;
      upper.push([left, y(base[place])], [right, y(base[place])]);
    });
    area.drawing.append(createSvg("path", { class: `band k${getColour(cluster)}`, d: `${buildPath(upper)}${buildPath(lower.reverse()).replace("M", "L")}Z` },
      createSvg("title", {}, cluster ? `cluster ${cluster}` : "alone, or in a cluster that is no more")));
  }
  if (at < to) area.drawing.append(createSvg("line", { class: "cursor", x1: x(at), x2: x(at), y1: area.top, y2: area.bottom }));
}
