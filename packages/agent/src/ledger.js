// What an agent has sent and the server has confirmed, so that both can compare after an accident. Each change is a function
// from one state to the next.

import { isChange, isReplacing, keepOwnData, receive, remove, replaceHeld, restartOwnData, skipAnswer, sumPending, takeBack } from "./agent.js";
import { require } from "./checks.js";
import { getRidge } from "./ridge.js";
import { add, areSame, check, isPossible, subtract, unpackStatistics, zero } from "./statistics.js";

/**
 * @import { AgentState, Upload } from "./agent.js"
 * @import { Policy } from "./policies.js"
 * @import { Statistics } from "./statistics.js"
 * @import { Answer, Pooled, Receipt, Standing, Welcome } from "./wire.js"
 */

/**
 * @typedef {{statistics: Statistics, rounds: number, agents: number}} Download
 */
/**
 * What is kept of an agent. ``confirmed`` is what the server has counted, ``isSettled`` whether both sides agree on that,
 * ``lost`` how many rounds the server will never learn from, ``lastChange`` the number of the last change that was confirmed.
 * @typedef {AgentState & {version: number, welcome: Welcome, confirmed: Statistics, isSettled: boolean, lastChange: number,
 *   receipt: Receipt | null, lost: number, lastUpload: Upload | null, groupAgents: number}} SavedState
 */

const LARGEST_ROUNDS = 2 ** 53, LARGEST_AGENTS = 2 ** 32; // so that an extrapolated round is exact

/**
 * The state of an agent that has just enrolled, of which the server holds nothing.
 * @param {Welcome} welcome @param {AgentState} state @returns {SavedState}
 */
export function beginSaved(welcome, state) {
  const confirmed = zero(welcome.terms.dimension);
  return { version: 0, lost: 0, lastUpload: null, groupAgents: 0, ...state, welcome, confirmed, own: null, isSettled: true, lastChange: 0, receipt: null };
}

/**
 * Go on with the server's prior, if that is of use, unless an upload was answered before.
 * @param {SavedState} before @param {Pooled | undefined} message @param {Policy} policy @returns {SavedState}
 */
export function takeWelcome(before, message, policy) {
  const state = keepOwnData(policy, before);
  if (!message || state.download.count) return state;
  try {
    const { statistics, rounds, agents } = checkAnswer(message, state.welcome.terms.dimension, policy.lambda);
    return restartOwnData(policy, { ...state, download: statistics, rounds, agents, since: 0 });
  } catch {
    return state;
  }
}

/**
 * Keep the server's words; refuse those of another dimension. A download of which no ridge can be made with the lambda of today
 * gives way to what the server has counted.
 * @template {SavedState} State @param {State} state @param {Partial<Welcome>} words
 */
export function follow(state, words) {
  const welcome = { ...state.welcome, ...words }, d = welcome.terms.dimension, own = state.welcome.terms.dimension;
  require(d === own, `the server has dimension ${d}, this agent ${own}: enrol a new one`);
  try {
    getRidge(state.download, welcome.terms.constants.lambda_);
    return { ...state, welcome };
  } catch {
    return { ...state, welcome, download: state.confirmed };
  }
}

/**
 * Go on with a download in the place of an upload that the server has counted; without one, with what was known and the upload.
 * The answer, if it is good, says whether both sums agree.
 * @param {SavedState} before @param {Upload} upload @param {Answer | null} answer @param {Download | null} download
 * @param {Policy} policy @returns {SavedState}
 */
export function confirm(before, upload, answer, download, policy) {
  const state = keepOwnData(policy, before);
  const confirmed = isChange(upload) ? upload.statistics : add(state.confirmed, upload.statistics), receipt = answer?.receipt ?? state.receipt;
  const lastChange = isChange(upload) ? upload.sequence : state.lastChange;
  const isSameEpoch = !state.receipt || state.receipt.epoch === receipt?.epoch;
  const isHeld = answer?.held_count === confirmed.count && answer?.held_rounds === confirmed.rounds;
  const groupAgents = download && answer ? answer.group_agents : state.groupAgents;
  const received = download ? receive(policy, state, upload, download) : skipAnswer(policy, state, upload);
  return { ...received, confirmed, receipt, groupAgents, lastChange, lastUpload: upload, isSettled: isSameEpoch && isHeld };
}

/**
 * Go on from what the server holds, and send again what it has lost; with a line about what happened. Nothing happens while
 * uploads wait: they come first, so that both sides count the same.
 * @param {SavedState} before @param {Standing} standing @param {Policy} policy @returns {{state: SavedState, result: string | null}}
 */
export function settle(before, standing, policy) {
  const state = keepOwnData(policy, before);
  const held = checkStanding(standing, state.welcome.terms.dimension);
  if (state.outbox.length) return { state: before, result: null };
  const { last_change: lastChange, credential } = standing, uploads = Math.max(state.uploads, standing.last_sequence);
  const { lost, note, go } = compareSums(state, held, lastChange);
  const settled = { ...state, welcome: { ...state.welcome, credential }, confirmed: held, lastChange, isSettled: true, lost: state.lost + lost, uploads };
  if (state.isChangePending) return { state: settled, result: null }; // the next upload replaces what the server holds
  return { state: go ? go(policy, settled) : settled, result: note };
}

/**
 * Give an upload that was not counted a number that the server does not know. Where a change waits, all that waits becomes one upload:
 * the order matters then.
 * @param {SavedState} before @param {Upload} upload @param {Pick<Standing, "last_sequence">} standing @param {Policy} policy
 * @returns {SavedState}
 */
export function renumber(before, upload, { last_sequence }, policy) {
  const state = keepOwnData(policy, before);
  const sequence = Math.max(last_sequence, state.uploads) + 1, isOne = state.outbox.some(isChange);
  const statistics = isOne ? sumPending({ ...state, buffer: zero(state.buffer.moment.length) }) : upload.statistics;
  const renamed = { cause: isOne ? "change" : upload.cause, statistics, sequence }, rest = isOne ? [] : remove(state.outbox, upload);
  return { ...state, uploads: sequence, outbox: state.isChangePending ? rest : [...rest, renamed] };
}

/**
 * Send an upload no more: the server will never take it. What is not lost goes back into the buffer.
 * @param {SavedState} before @param {Upload} upload @param {boolean} isLost @param {Policy} policy @returns {SavedState}
 */
export function withdraw(before, upload, isLost, policy) {
  const state = keepOwnData(policy, before), { statistics } = upload, lost = state.lost + (isLost ? statistics.rounds : 0);
  const rest = { ...state, outbox: remove(state.outbox, upload), lost };
  if (isReplacing(rest)) return rest; // a later upload replaces it
  if (isChange(upload)) return replaceHeld(policy, rest, isLost ? zero(statistics.moment.length) : statistics);
  return isLost ? restartOwnData(policy, rest) : takeBack(policy, rest, statistics);
}

/**
 * How many rounds are lost for good, a line about what happened, and how to go on from what the server holds.
 * @param {SavedState} state @param {Statistics} held @param {number} lastChange the number of the last change that the server knows
 * @returns {{lost: number, note: string | null, go?: (policy: Policy, settled: SavedState) => SavedState}}
 */
function compareSums({ confirmed, lastChange: known }, held, lastChange) {
  if (areSame(confirmed, held)) return { lost: 0, note: null };
  const missing = subtract(confirmed, held), copy = "that this store does not know: a copy of it is or was in use";
  if (lastChange > known) return { lost: 0, note: `the server knows of a change ${copy}`, go: restartOwnData };
  if (lastChange < known) {
    const note = "the server has lost a change of this agent's user: it is sent again";
    return { lost: 0, note, go: (policy, settled) => replaceHeld(policy, settled, confirmed) };
  }
  if (isPossible(missing)) {
    const note = `the server has lost ${missing.rounds} rounds that it had confirmed: they are sent again`;
    return { lost: 0, note, go: (policy, settled) => takeBack(policy, settled, missing) };
  }
  if (isPossible(subtract(held, confirmed))) return { lost: 0, note: `the server holds ${-missing.rounds} rounds ${copy}` };
  const lost = Math.max(0, missing.rounds);
  return { lost, note: `the server holds other rounds than this agent has sent: ${lost} are lost, or more` };
}

/**
 * The download of an answer; refused if no agent can decide with it.
 * @param {Pooled} answer @param {number} dimension @param {number} lambda @returns {Download}
 */
export function checkAnswer(answer, dimension, lambda) {
  const statistics = unpackChecked(answer, dimension), { system_rounds: rounds, agents } = answer;
  require(rounds <= LARGEST_ROUNDS && agents <= LARGEST_AGENTS, `there can be ${LARGEST_ROUNDS} rounds of ${LARGEST_AGENTS} agents, got ${rounds} of ${agents}`);
  getRidge(statistics, lambda);
  return { statistics, rounds, agents };
}

/** What the server holds of an agent; refused if nobody can hold that. @param {Standing} standing @param {number} dimension */
const checkStanding = (standing, dimension) => (standing.numbers.length ? unpackChecked(standing, dimension) : zero(dimension));

/** @param {Pooled | Standing} message @param {number} dimension */
function unpackChecked(message, dimension) {
  const statistics = unpackStatistics(message, dimension), largest = Math.max(statistics.count, statistics.rounds);
  check(statistics, dimension);
  require(largest <= LARGEST_ROUNDS, `counts must be at most ${LARGEST_ROUNDS}, got ${largest}`);
  return statistics;
}
