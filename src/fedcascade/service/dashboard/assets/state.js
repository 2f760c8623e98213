// What the page knows: made from a picture, brought up to date by frames. Nothing here touches the document.

const MOST_BINS = 240;
const LATEST = 12;
const COLOURS = 8;

export function fromPicture(picture) {
  const state = {
    position: picture.position, at: picture.at, heard: Date.now(), first: picture.first, last: picture.last,
    head: picture.head, detailed: picture.detailed, enrolled: picture.enrolled, members: picture.members,
    uploads: picture.uploads, rounds: picture.rounds, clicks: picture.clicks, clusters: picture.clusters,
    agents: new Map(), moves: picture.moves ?? [], sizes: picture.sizes, ages: picture.ages,
    causes: new Map(Object.entries(picture.causes)), bins: bins(picture.bins), latest: picture.latest,
    measures: new Map(), refused: picture.refused, health: picture.health, colours: new Map(),
  };
  for (const [agent, last, uploads, rounds, clicks, cluster] of picture.agents ?? []) {
    state.agents.set(agent, { agent, last, uploads, rounds, clicks, cluster });
  }
  addMeasures(state, picture.measures);
  colour(state);
  return state;
}

// A frame goes from one position to the next. One that does not begin where the page is must not be applied.
export function fits(state, frame) {
  return frame.after === state.position && frame.detailed === state.detailed;
}

export function applyFrame(state, frame) {
  state.position = state.head = frame.position;
  state.at = frame.at;
  state.heard = Date.now();
  state.uploads += frame.uploads;
  state.members = frame.members;
  state.enrolled = Math.max(state.enrolled, frame.members);
  state.clusters = frame.clusters;
  state.refused = frame.refused;
  state.health = frame.health;
  for (const [at, cause, exchanges, rounds, count, clicks, clusters] of frame.rows) {
    state.first ||= at;
    state.last = Math.max(state.last, at);
    state.rounds += rounds;
    state.clicks += clicks;
    state.causes.set(cause, (state.causes.get(cause) ?? 0) + exchanges);
    addToBin(state.bins, at, [cause, exchanges, rounds, count, clicks, clusters]);
  }
  state.latest = [...state.latest, ...frame.latest].slice(-LATEST);
  for (const [agent, last, uploads, rounds, clicks] of frame.agents ?? []) {
    const known = state.agents.get(agent) ?? { agent, uploads: 0, rounds: 0, clicks: 0, cluster: 0 };
    Object.assign(known, { last, uploads: known.uploads + uploads, rounds: known.rounds + rounds, clicks: known.clicks + clicks });
    state.agents.set(agent, known);
  }
  for (const move of frame.moves ?? []) {
    state.moves.push(move);
    const known = state.agents.get(move[1]);
    if (known) known.cluster = move[2];
  }
  if (frame.sizes) state.sizes = frame.sizes;
  if (frame.ages) state.ages = frame.ages;
  addMeasures(state, frame.measures);
  if (frame.moves?.length || frame.sizes) colour(state);
}

export const now = (state) => state.at + (Date.now() - state.heard);

// The clusters with their agents, the largest first.
export function groups(state) {
  const found = new Map();
  for (const one of state.agents.values()) {
    if (!found.has(one.cluster)) found.set(one.cluster, []);
    found.get(one.cluster).push(one.agent);
  }
  return [...found].map(([cluster, agents]) => ({ cluster, agents: agents.sort((a, b) => a - b), size: agents.length }))
    .sort((a, b) => b.size - a.size || a.cluster - b.cluster);
}

function addMeasures(state, measures) {
  for (const [series, round, regret, reward] of measures) {
    if (!state.measures.has(series)) state.measures.set(series, []);
    state.measures.get(series).push([round, regret, reward]);
  }
}

// A cluster of two or more gets the first colour that is free, and keeps it.
function colour(state) {
  const sizes = state.detailed ? groups(state).map(({ cluster, size }) => [cluster, size]) : state.sizes.largest;
  const shared = new Set(sizes.filter(([, size]) => size > 1).map(([cluster]) => cluster));
  for (const cluster of state.colours.keys()) if (!shared.has(cluster)) state.colours.delete(cluster);
  const taken = new Set();
  for (const [cluster] of sizes) {  // of two that had to share a colour, the larger keeps it
    const own = state.colours.get(cluster);
    if (own && taken.has(own) && taken.size < COLOURS) state.colours.delete(cluster);
    else if (own) taken.add(own);
  }
  for (const cluster of [...shared].sort((a, b) => a - b)) {
    if (state.colours.has(cluster)) continue;
    const free = Array.from({ length: COLOURS }, (_, place) => place + 1).find((one) => !taken.has(one));
    const chosen = free ?? 1 + (cluster % COLOURS);
    state.colours.set(cluster, chosen);
    taken.add(chosen);
  }
}

export const colourOf = (state, cluster) => state.colours.get(cluster) ?? 0;

function bins({ since, width, rows }) {
  const made = { since, width, spans: new Map() };
  for (const [place, ...row] of rows) merge(made.spans, place, row);
  return made;
}

function addToBin(bins, at, row) {
  bins.since ||= at;
  while ((at - bins.since) / bins.width >= MOST_BINS) coarsen(bins);
  merge(bins.spans, Math.floor((at - bins.since) / bins.width), row);
}

function coarsen(bins) {
  const spans = new Map();
  for (const [place, causes] of bins.spans) {
    for (const [cause, span] of causes) merge(spans, place >> 1, [cause, span.exchanges, span.rounds, span.count, span.clicks, span.clusters]);
  }
  bins.spans = spans;
  bins.width *= 2;
}

function merge(spans, place, [cause, exchanges, rounds, count, clicks, clusters]) {
  if (!spans.has(place)) spans.set(place, new Map());
  const causes = spans.get(place);
  const span = causes.get(cause) ?? { exchanges: 0, rounds: 0, count: 0, clicks: 0, clusters: 0 };
  causes.set(cause, {
    exchanges: span.exchanges + exchanges, rounds: span.rounds + rounds, count: span.count + count,
    clicks: span.clicks + clicks, clusters,
  });
}
