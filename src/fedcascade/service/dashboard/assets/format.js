// Numbers and times as text, and elements of the page.

const whole = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const formatNumber = (value, digits = 0) =>
  digits ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : whole.format(Math.round(value));

export const formatPercent = (share, digits = 1) => `${formatNumber(100 * share, digits)} %`;

export const formatCount = (value, one, many = `${one}s`) => `${formatNumber(value)} ${value === 1 ? one : many}`;

export function formatTime(at, span = 0) {
  if (!at) return "unknown";
  const date = new Date(at);
  return span > 86_400_000 ? `${day.format(date)} ${clock.format(date).slice(0, 5)}` : clock.format(date);
}

export function formatAge(milliseconds) {
  const seconds = Math.max(0, milliseconds / 1000);
  for (const [name, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size) return `${formatNumber(seconds / size, seconds < 10 * size && name !== "min" ? 1 : 0)} ${name}`;
  }
  return `${formatNumber(seconds, seconds < 10 ? 1 : 0)} s`;
}

export const computeMedian = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
};

// Create an element of HTML; children are elements or text, never markup.
export function createHtml(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function createSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Create a table with a caption for screen readers; the first cell of a row names the row.
export function createTable(caption, head, rows) {
  const textual = new Set((rows[0] ?? []).slice(1).flatMap((cell, place) => (cell instanceof Node || /^[a-z]/.test(cell) ? [place] : [])));
  return createHtml("table", {},
    createHtml("caption", { class: "hidden" }, caption),
    createHtml("thead", {}, createHtml("tr", {}, ...head.map((name, place) => createHtml("th", { scope: "col", class: textual.has(place - 1) ? "words" : null }, name)))),
    createHtml("tbody", {}, ...rows.map(([first, ...others]) => createHtml("tr", {},
      createHtml("th", { scope: "row" }, String(first)), ...others.map((cell, place) => createHtml("td", { class: textual.has(place) ? "words" : null }, cell instanceof Node ? cell : String(cell)))))));
}

// Fill an element with a table, unless it is in closed details.
export function fillTable(element, make) {
  const details = element.closest("details");
  if (details && !details.open) return;
  element.tabIndex = 0;
  element.setAttribute("role", "group");
  const drawn = make();
  if (!element.hasAttribute("aria-label")) element.setAttribute("aria-label", drawn.caption?.textContent ?? "Table");
  element.replaceChildren(drawn);
}
