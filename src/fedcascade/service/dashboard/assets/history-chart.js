// The chart of clusters over time: bands, or a line for many agents, with a slider to look back.

import { drawBands, drawLines } from "./chart-primitives.js";
import { formatTime } from "./format.js";
import { estimateNow, getColour, hasNoGroups } from "./page-state.js";

const find = (id) => document.getElementById(id);

export function drawHistory(page) {
  const live = page.live, to = Math.max(live.last, estimateNow(live)), from = live.first;
  find("when").disabled = !from;
  if (!from) { find("river").replaceChildren(); return; }
  const when = from + (find("when").value / find("when").max) * (to - from);
  find("when").setAttribute("aria-valuetext", page.past ? formatTime(when, to - from) : "now");
  const options = { from, to, at: page.past ? when : to, timeText: (value) => formatTime(value, to - from) };
  if (live.detailed) {
    drawBands(find("river"), computeSteps(live), { ...options, label: "Sizes of clusters over time", members: live.members, getColour: (cluster) => (cluster ? getColour(live, cluster) : 0) });
  } else if (hasNoGroups(live)) {
    find("history-note").textContent = "No groups yet.";
    find("river").replaceChildren();
  } else {
    find("history-note").textContent = "The number of clusters over time. Drag the slider to look back.";
    const points = [...live.bins.spans].sort(([a], [b]) => a - b).map(([place, span]) => [live.bins.since + place * live.bins.width, Math.max(...[...span.values()].map(({ clusters }) => clusters))]);
    drawLines(find("river"), [{ name: "clusters", colour: 1, points }], { label: "Number of clusters over time", height: 150, yFrom: 0, xText: options.timeText, integers: true, cursor: page.past ? when : null });
  }
}

// The sizes of clusters after every move. Single agents, and those of former clusters, count as cluster 0.
function computeSteps(state) {
  const where = new Map(), steps = [];
  let place = 0;
  const most = 160, width = Math.max(1, (state.last - state.first) / most);
  for (let step = 0; step <= most && place <= state.moves.length; step++) {
    const until = state.first + step * width;
    let moved = step === 0;
    while (place < state.moves.length && state.moves[place][0] <= until + width / 2) {
      const [, agent, cluster] = state.moves[place++];
      if (state.agents.has(agent)) where.set(agent, cluster);
      moved = true;
    }
    if (!moved) continue;
    const counts = new Map(), sizes = new Map();
    for (const cluster of where.values()) counts.set(cluster, (counts.get(cluster) ?? 0) + 1);
    for (const [cluster, size] of counts) {
      const name = size > 1 && getColour(state, cluster) ? cluster : 0;
      sizes.set(name, (sizes.get(name) ?? 0) + size);
    }
    steps.push({ at: until, sizes });
  }
  return steps;
}
