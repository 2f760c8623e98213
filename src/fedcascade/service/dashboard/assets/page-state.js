// The state of the page: built from a whole view, changed by updates. Nothing here touches the document.

const MOST_BINS = 240;
const LATEST = 12;
const COLOURS = 8;

export function buildState(view) {
  const state = {
    position: view.position, at: view.at, heard: Date.now(), first: view.first, last: view.last,
    head: view.head, detailed: view.detailed, enrolled: view.enrolled, members: view.members,
    uploads: view.uploads, rounds: view.rounds, clicks: view.clicks, clusters: view.clusters,
    agents: new Map(), moves: view.moves ?? [], sizes: view.sizes, ages: view.ages,
    causes: new Map(Object.entries(view.causes)), bins: buildBins(view.bins), latest: view.latest,
    measures: new Map(), refused: view.refused, health: view.health, colours: new Map(),
  };
  for (const [agent, last, uploads, rounds, clicks, cluster] of view.agents ?? []) {
    state.agents.set(agent, { agent, last, uploads, rounds, clicks, cluster });
  }
  addMeasures(state, view.measures);
  assignColours(state);
  return state;
}

// An update applies only to the position at which it starts.
export function canApply(state, update) {
  return update.after === state.position && update.detailed === state.detailed;
}

export function applyUpdate(state, update) {
  state.position = state.head = update.position;
  state.at = update.at;
  state.heard = Date.now();
  state.uploads += update.uploads;
  state.members = update.members;
  state.enrolled = Math.max(state.enrolled, update.members);
  state.clusters = update.clusters;
  state.refused = update.refused;
  state.health = update.health;
  for (const [at, cause, exchanges, rounds, count, clicks, clusters] of update.rows) {
    state.first ||= at;
    state.last = Math.max(state.last, at);
    state.rounds += rounds;
    state.clicks += clicks;
    state.causes.set(cause, (state.causes.get(cause) ?? 0) + exchanges);
    addToBin(state.bins, at, [cause, exchanges, rounds, count, clicks, clusters]);
  }
  state.latest = [...state.latest, ...update.latest].slice(-LATEST);
  for (const [agent, last, uploads, rounds, clicks] of update.agents ?? []) {
    const totals = state.agents.get(agent) ?? { agent, uploads: 0, rounds: 0, clicks: 0, cluster: 0 };
    Object.assign(totals, { last, uploads: totals.uploads + uploads, rounds: totals.rounds + rounds, clicks: totals.clicks + clicks });
    state.agents.set(agent, totals);
  }
  for (const move of update.moves ?? []) {
    state.moves.push(move);
    const totals = state.agents.get(move[1]);
    if (totals) totals.cluster = move[2];
  }
  if (update.sizes) state.sizes = update.sizes;
  if (update.ages) state.ages = update.ages;
  addMeasures(state, update.measures);
  if (update.moves?.length || update.sizes) assignColours(state);
}

export const estimateNow = (state) => state.at + (Date.now() - state.heard);

// The number of clusters of two agents or more.
export const countGroups = (state) => (state.detailed ? listClusters(state).filter(({ size }) => size > 1).length
  : state.sizes.histogram.reduce((sum, [size, times]) => sum + (size > 1 ? times : 0), 0));

// Agents that the server has not grouped are one population: each learns from its prior.
export const hasNoGroups = (state) => state.members > 1 && countGroups(state) === 0;

// The clusters with their agents, the largest first.
export function listClusters(state) {
  const clusters = new Map();
  for (const { agent, cluster } of state.agents.values()) {
    if (!clusters.has(cluster)) clusters.set(cluster, []);
    clusters.get(cluster).push(agent);
  }
  return [...clusters].map(([cluster, agents]) => ({ cluster, agents: agents.sort((a, b) => a - b), size: agents.length }))
    .sort((a, b) => b.size - a.size || a.cluster - b.cluster);
}

function addMeasures(state, measures) {
  for (const [series, round, regret, reward] of measures) {
    if (!state.measures.has(series)) state.measures.set(series, []);
    state.measures.get(series).push([round, regret, reward]);
  }
}

// A cluster of two or more agents gets the first free colour and keeps it.
export function assignColours(state) {
  const sizes = state.detailed ? listClusters(state).map(({ cluster, size }) => [cluster, size]) : state.sizes.largest;
  const shared = new Set(sizes.filter(([, size]) => size > 1).map(([cluster]) => cluster));
  for (const cluster of state.colours.keys()) if (!shared.has(cluster)) state.colours.delete(cluster);
  const taken = new Set();
  for (const [cluster] of sizes) {  // of two that share a colour, the larger keeps it
    const own = state.colours.get(cluster);
    if (own && taken.has(own) && taken.size < COLOURS) state.colours.delete(cluster);
    else if (own) taken.add(own);
  }
  for (const cluster of [...shared].sort((a, b) => a - b)) {
    if (state.colours.has(cluster)) continue;
    const free = Array.from({ length: COLOURS }, (_, place) => place + 1).find((colour) => !taken.has(colour));
    const chosen = free ?? 1 + (cluster % COLOURS);
    state.colours.set(cluster, chosen);
    taken.add(chosen);
  }
}

export const getColour = (state, cluster) => state.colours.get(cluster) ?? 0;

function buildBins({ since, width, rows }) {
  const bins = { since, width, spans: new Map() };
  for (const [place, ...row] of rows) merge(bins.spans, place, row);
  return bins;
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
