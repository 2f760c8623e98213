// A sentence for every term of the page: shown under the mouse, and listed at its end.

import { createHtml, createSvg } from "./format.js";

const WORDS = {
  "agents": "An agent is the program of one user: it ranks items, learns from that user's clicks, and uploads sums.",
  "alone": "Agents that never exchange: what each user's own clicks are worth.",
  "alpha_c": "An agent uploads once the determinant of its data has grown by the factor 1 + alpha_c. Small values: many exchanges.",
  "alpha_d": "Two users differ once their estimates are further apart than alpha_d times the sum of their widths. Small values: clusters split sooner.",
  "auxiliary": "A random exchange, so that the server hears of every agent.",
  "beta": "How much uncertainty counts in a score. With 0, an agent shows what it believes is best and does not explore.",
  "change": "An exchange after drift: the agent resets, and replaces what it had uploaded.",
  "clustering error": "The share of users whose cluster at the server is not exactly their true one.",
  "clusters": "Agents that the server believes to have the same taste. They share what they learn.",
  "clusters known": "Agents that share by the true clusters from the start: as good as sharing can be.",
  "clusters over time": "Sizes of the clusters, since the first upload.",
  "determinant": "An exchange because the agent has learned enough; see alpha_c.",
  "drift": "A change of users' preferences. Agents that notice it reset and start over.",
  "exchanges": "An exchange is an upload of an agent, and the server's answer.",
  "forced": "An exchange by any other trigger.",
  "health": "Whether this server can store uploads and keeps up with them.",
  "joined": "Agents that have enrolled since this server started.",
  "left": "Agents that were forgotten since this server started.",
  "latest exchanges": "The newest uploads, with their cause and what they report.",
  "pace": "Rounds per second of the simulation. A round is one user that arrives, one list, and the clicks on it.",
  "policy": "Which agents share, when an agent uploads, and which data its scores come from.",
  "push": "An answer to an agent that did not upload.",
  "refused": "Uploads that the server did not accept, for instance with a wrong signature, or with sums that no clicks can have.",
  "refused uploads": "Uploads that the server did not accept, with the reason.",
  "regret": "Expected clicks of the best lists, minus those of the lists that were shown. Less is better; a flat line has nothing to learn.",
  "resets": "Uploads that replace all earlier ones of an agent, after its user drifted.",
  "reward": "The share of shown lists with a click.",
  "second policy": "Another policy that plays the same rounds: the same users arrive, see the same items, and click by the same random numbers.",
  "seed": "The number that determines users, items and clicks. The same seed gives the same run.",
  "staleness": "How long ago each agent last exchanged: what the server tells others of it is as old.",
  "synchronisation": "An exchange because all agents exchange at once.",
  "this run": "The regret of this server's policy.",
  "turnover": "Agents that came and went, and users that drifted.",
  "users": "Simulated people. Each has an agent, a taste, and a true cluster that the server never sees.",
  "without resets": "The same policy without drift detection.",
};
const PLACES = "h2, h3, #numbers dt, #turnover dt, label, label > span, .legend li, svg text.strong";

// Put the sentence of each term under the mouse; text may change with every drawing.
export function explainWords() {
  for (const element of document.querySelectorAll(PLACES)) {
    const sentence = WORDS[element.textContent.trim().toLowerCase().replace(/\sof [a-z0-9-]+$|[\s\d,]+$/, "")];
    if (!sentence) continue;
    if (element instanceof SVGElement) element.append(createSvg("title", {}, sentence));
    else if (element.title !== sentence) { element.title = sentence; element.classList.add("term"); }
  }
}

export function fillGlossary() {
  const entries = Object.entries(WORDS).flatMap(([word, sentence]) => [createHtml("dt", {}, word), createHtml("dd", {}, sentence)]);
  document.getElementById("words").replaceChildren(...entries);
}
