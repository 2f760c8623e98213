// What an agent has sent and the server has confirmed, so that both can compare after an accident. Each change is a function
// from one state to the next.

import { keepOwnData, receive, restartOwnData, sumPending, takeBack } from "./agent.js";
import { require } from "./checks.js";
import { getRidge } from "./ridge.js";
import { add, check, isPossible, subtract, unpackStatistics, zero } from "./statistics.js";
import { restateDownload } from "./trust.js";

/**
 * @import { AgentState, Upload } from "./agent.js"
 * @import { Policy } from "./policies.js"
 * @import { Statistics } from "./statistics.js"
 * @import { Answer, Pooled, Receipt, Standing, Welcome } from "./wire.js"
 */

/**
 * @typedef {{statistics: Statistics, rounds: number, agents: number}} Download
 * @typedef {{policy: Policy, floor: number}} Rules the policy that an agent runs, and the fewest observations of an upload
 */
/**
 * What is kept of an agent. ``confirmed`` is what the server has counted, ``isSettled`` whether both sides agree on that,
 * ``lost`` how many rounds the server will never learn from.
 * @typedef {AgentState & {version: number, welcome: Welcome, confirmed: Statistics, isSettled: boolean,
 *   receipt: Receipt | null, lost: number, lastUpload: Upload | null, groupAgents: number}} SavedState
 */

const LARGEST_ROUNDS = 2 ** 53, LARGEST_AGENTS = 2 ** 32; // so that an extrapolated round is exact
const TOLERANCE = 1e-6; // of sums over features that are on no grid

/**
 * The state of an agent that has just enrolled, of which the server holds nothing.
 * @param {Welcome} welcome @param {AgentState} state @returns {SavedState}
 */
export function beginSaved(welcome, state) {
  const confirmed = zero(welcome.terms.dimension);
  return { version: 0, lost: 0, lastUpload: null, groupAgents: 0, ...state, welcome, confirmed, own: null, isSettled: true, receipt: null };
}

/**
 * Go on with what the server knows of anybody, if that is of use, unless an upload was answered before.
 * @param {SavedState} state @param {Pooled} [message] @returns {SavedState}
 */
export function takeWelcome(state, message) {
  const { terms } = state.welcome;
  if (!message || state.download.count) return state;
  try {
    const { statistics, rounds, agents } = checkAnswer(message, terms.dimension, terms.constants.lambda_);
    return { ...state, download: statistics, rounds, agents, since: 0 };
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
  const state = keepOwnData(policy, before), outbox = remove(state.outbox, upload);
  const statistics = state.own ? restateDownload(state.own, sumPending({ ...state, outbox })) : add(state.download, upload.statistics);
  const known = { statistics, rounds: state.rounds, agents: state.agents };
  const confirmed = add(state.confirmed, upload.statistics), receipt = answer?.receipt ?? state.receipt;
  const isSameEpoch = !state.receipt || state.receipt.epoch === receipt?.epoch;
  const isHeld = answer?.held_count === confirmed.count && answer?.held_rounds === confirmed.rounds;
  const groupAgents = download && answer ? answer.group_agents : state.groupAgents;
  return { ...state, ...receive(policy, state, upload, download ?? known), confirmed, receipt, groupAgents, lastUpload: upload, isSettled: isSameEpoch && isHeld };
}

/**
 * Go on from what the server holds, and send again what it has lost; with a line about what happened. Nothing happens while
 * uploads wait: they come first, so that both sides count the same.
 * @param {SavedState} before @param {Standing} standing @param {Rules} rules @returns {{state: SavedState, result: string | null}}
 */
export function settle(before, standing, { policy, floor }) {
  const state = keepOwnData(policy, before);
  const held = checkStanding(standing, state.welcome.terms.dimension);
  if (state.outbox.length) return { state: before, result: null };
  const { missing, lost, note } = compareSums(state.confirmed, held), uploads = Math.max(state.uploads, standing.last_sequence);
  const welcome = { ...state.welcome, credential: standing.credential };
  const settled = { ...state, welcome, confirmed: held, isSettled: true, lost: state.lost + lost, uploads };
  return { state: missing ? { ...settled, ...takeBack(policy, settled, missing, floor).state } : settled, result: note };
}

/**
 * Give an upload that was not counted a number that the server does not know.
 * @param {SavedState} before @param {Upload} upload @param {Standing} standing @param {Rules} rules @returns {SavedState}
 */
export function renumber(before, upload, { last_sequence }, { policy }) {
  const state = keepOwnData(policy, before);
  const sequence = Math.max(last_sequence, state.uploads) + 1;
  return { ...state, uploads: sequence, outbox: [...remove(state.outbox, upload), { ...upload, sequence }] };
}

/**
 * Send an upload no more: the server will never take it. What is not lost goes back into the buffer.
 * @param {SavedState} before @param {Upload} upload @param {boolean} isLost @param {Rules} rules @returns {SavedState}
 */
export function withdraw(before, upload, isLost, { policy, floor }) {
  const state = keepOwnData(policy, before), rest = { ...state, outbox: remove(state.outbox, upload) };
  if (!isLost) return { ...rest, ...takeBack(policy, rest, upload.statistics, floor).state };
  return restartOwnData(policy, { ...rest, lost: state.lost + upload.statistics.rounds });
}

/** @param {Upload[]} outbox @param {Upload} upload */
const remove = (outbox, upload) => outbox.filter(({ sequence }) => sequence !== upload.sequence);

/**
 * What the server has lost of what it had confirmed, how many rounds are lost for good, and a line about it.
 * @param {Statistics} confirmed @param {Statistics} held @returns {{missing: Statistics | null, lost: number, note: string | null}}
 */
function compareSums(confirmed, held) {
  const missing = subtract(confirmed, held), nothing = { missing: null, lost: 0 };
  const isSame = [missing.count, missing.clicks, missing.rounds, ...missing.gram, ...missing.moment].every((value) => Math.abs(value) <= TOLERANCE);
  if (isSame) return { ...nothing, note: null };
  if (isPossible(missing)) return { missing, lost: 0, note: `the server has lost ${missing.rounds} rounds that it had confirmed: they are sent again` };
  if (isPossible(subtract(held, confirmed))) {
    return { ...nothing, note: `the server holds ${-missing.rounds} rounds that this store does not know: a copy of it is or was in use` };
  }
  const lost = Math.max(0, missing.rounds);
  return { missing: null, lost, note: `the server holds other rounds than this agent has sent: ${lost} are lost, or more` };
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
