// The ledger of an agent's uploads and the server's confirmations, which both compare after an accident. Each change is a
// function from one state to the next.

import { isChange, isReplacing, keepOwnData, receive, remove, replaceHeld, restartOwnData, skipAnswer, sumPending, takeBack } from "./agent.js";
import { require } from "./checks.js";
import { findPrivacy } from "./policies.js";
import { requirePrivacy } from "./privacy.js";
import { getRidge } from "./ridge.js";
import { add, areSame, check, isCorrection, subtract, unpackStatistics, zero } from "./statistics.js";

/**
 * @import { AgentState, Upload } from "./agent.js"
 * @import { Policy } from "./policies.js"
 * @import { Statistics } from "./statistics.js"
 * @import { Answer, Pooled, Receipt, Standing, EnrolmentAnswer } from "./wire.js"
 */

/**
 * @typedef {{statistics: Statistics, rounds: number, agents: number}} Download
 */
/**
 * The saved state of an agent. ``confirmed`` sums the uploads that the server has counted, ``isSettled`` is true if the server
 * agrees, ``lost`` counts rounds that the server will never get, ``lastChange`` numbers the last confirmed change.
 * @typedef {AgentState & {version: number, enrolment: EnrolmentAnswer, confirmed: Statistics, isSettled: boolean, lastChange: number,
 *   receipt: Receipt | null, lost: number, lastUpload: Upload | null, groupAgents: number}} SavedState
 */

const LARGEST_ROUNDS = 2 ** 53, LARGEST_AGENTS = 2 ** 32; // an extrapolated round stays exact

/**
 * Return the state of an agent that has just enrolled.
 * @param {EnrolmentAnswer} enrolment @param {AgentState} state @returns {SavedState}
 */
export function beginSaved(enrolment, state) {
  const confirmed = zero(enrolment.terms.dimension);
  return { version: 0, lost: 0, lastUpload: null, groupAgents: 0, ...state, enrolment, confirmed, own: null, isSettled: true, lastChange: 0, receipt: null };
}

/**
 * Decide with the server's prior, if it is valid and no upload was answered before.
 * @param {SavedState} before @param {Pooled | undefined} message @param {Policy} policy @returns {SavedState}
 */
export function takePrior(before, message, policy) {
  if (!message) return before;
  const state = keepOwnData(policy, before);
  if (state.download.count) return state;
  try {
    const { statistics, rounds, agents } = checkAnswer(message, state.enrolment.terms.dimension, policy.lambda);
    return restartOwnData(policy, { ...state, download: statistics, rounds, agents, since: 0 });
  } catch {
    return state;
  }
}

/**
 * Store changes of the enrolment; reject another dimension, and less privacy. A download that is invalid under the new lambda is
 * replaced by the confirmed uploads.
 * @template {SavedState} State @param {State} state @param {Partial<EnrolmentAnswer>} changes
 */
export function follow(state, changes) {
  const enrolment = { ...state.enrolment, ...changes }, d = enrolment.terms.dimension, own = state.enrolment.terms.dimension;
  require(d === own, `the server has dimension ${d}, this agent ${own}: enrol a new agent`);
  requirePrivacy(findPrivacy(enrolment.terms), undefined, findPrivacy(state.enrolment.terms));
  if (findPrivacy(enrolment.terms) && !findPrivacy(state.enrolment.terms)) { // uploads without noise must not be sent any more
    const lost = state.outbox.reduce((sum, { statistics }) => sum + statistics.rounds, state.lost);
    return follow({ ...state, outbox: [], lost, enrolment }, {});
  }
  try {
    getRidge(state.download, enrolment.terms.constants.lambda_);
    return { ...state, enrolment };
  } catch {
    return { ...state, enrolment, download: state.first ? zero(d) : state.confirmed };
  }
}

/**
 * Continue under other terms. Own data are rebuilt at once, as they depend on the terms before.
 * @param {SavedState} state @param {EnrolmentAnswer["terms"]} terms @param {(terms: EnrolmentAnswer["terms"]) => Policy} followTerms
 * @returns {SavedState}
 */
export function changeTerms(state, terms, followTerms) {
  const known = keepOwnData(followTerms(state.enrolment.terms), state);
  return keepOwnData(followTerms(terms), follow(known, { terms }));
}

/**
 * Replace an upload that the server has counted by its answer, or count it without one. The answer tells whether both sums agree.
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
 * Continue from the server's sums, send lost data again, and return a note. Uploads that wait are sent first.
 * @param {SavedState} before @param {Standing} standing @param {Policy} policy @returns {{state: SavedState, result: string | null}}
 */
export function settle(before, standing, policy) {
  const state = keepOwnData(policy, before);
  const held = checkStanding(standing, state.enrolment.terms.dimension);
  if (state.outbox.length) return { state: before, result: null };
  const { last_change: lastChange, credential } = standing, uploads = getLastSequence(state, standing);
  const { lost, note, go } = policy.privacy ? compareCounts(state, held, lastChange) : compareSums(state, held, lastChange);
  const settled = { ...state, enrolment: { ...state.enrolment, credential }, confirmed: held, lastChange, isSettled: true, lost: state.lost + lost, uploads };
  if (state.isChangePending) return { state: settled, result: null }; // the next upload replaces what the server holds
  return { state: go ? go(policy, settled) : settled, result: note };
}

/**
 * Give an upload that was not counted an unused number. If a change waits, all uploads that wait become one, because order matters.
 * Private uploads stay as they are: the noise of a sum is not that of an upload.
 * @param {SavedState} before @param {Upload} upload @param {Pick<Standing, "last_sequence">} standing @param {Policy} policy
 * @returns {SavedState}
 */
export function renumber(before, upload, { last_sequence }, policy) {
  const state = keepOwnData(policy, before);
  const sequence = getLastSequence(state, { last_sequence }) + 1, isOne = !policy.privacy && state.outbox.some(isChange);
  const statistics = isOne ? sumPending({ ...state, buffer: zero(state.buffer.moment.length) }) : upload.statistics;
  const renamed = { cause: isOne ? "change" : upload.cause, statistics, sequence }, rest = isOne ? [] : remove(state.outbox, upload);
  return { ...state, uploads: sequence, outbox: state.isChangePending ? rest : [...rest, renamed] };
}

/**
 * Remove an upload that the server will never accept. Unless it is lost, its data go back into the buffer. A private one is lost.
 * @param {SavedState} before @param {Upload} upload @param {boolean} isLost @param {Policy} policy @returns {SavedState}
 */
export function withdraw(before, upload, isLost, policy) {
  const state = keepOwnData(policy, before), { statistics } = upload, lost = state.lost + (isLost || policy.privacy ? statistics.rounds : 0);
  const rest = { ...state, outbox: remove(state.outbox, upload), lost };
  if (isReplacing(rest) || policy.privacy) return rest; // a later upload replaces it, or its data must not be in another one
  if (isChange(upload)) return replaceHeld(policy, rest, isLost ? zero(statistics.moment.length) : statistics);
  return isLost ? restartOwnData(policy, rest) : takeBack(policy, rest, statistics);
}

const COPY = "that this store does not have: a copy of it is or was in use";

/**
 * Compare the counts of private uploads, whose sums the server keeps in another form; nothing is sent again.
 * @param {SavedState} state @param {Statistics} held @param {number} lastChange
 * @returns {ReturnType<typeof compareSums>}
 */
function compareCounts({ confirmed, lastChange: known }, held, lastChange) {
  const missing = confirmed.rounds - held.rounds;
  if (missing > 0) return { lost: missing, note: `the server has lost ${missing} rounds: private uploads are sent once` };
  return { lost: 0, note: missing || lastChange !== known ? `the server holds ${-missing} rounds ${COPY}` : null };
}

/**
 * Compare sums with the server: return lost rounds, a note, and the step that continues from the server's sums.
 * @param {SavedState} state @param {Statistics} held @param {number} lastChange the number of the server's last change
 * @returns {{lost: number, note: string | null, go?: (policy: Policy, settled: SavedState) => SavedState}}
 */
function compareSums({ confirmed, lastChange: known }, held, lastChange) {
  if (areSame(confirmed, held)) return { lost: 0, note: null };
  const missing = subtract(confirmed, held);
  if (lastChange > known) return { lost: 0, note: `the server holds a change ${COPY}`, go: restartOwnData };
  if (lastChange < known) {
    const note = "the server has lost a change of this agent's user: it is sent again";
    return { lost: 0, note, go: (policy, settled) => replaceHeld(policy, settled, confirmed) };
  }
  if (isCorrection(missing, held)) {
    const note = `the server has lost ${missing.rounds} confirmed rounds: they are sent again`;
    return { lost: 0, note, go: (policy, settled) => takeBack(policy, settled, missing) };
  }
  if (isCorrection(subtract(held, confirmed), confirmed)) return { lost: 0, note: `the server holds ${-missing.rounds} rounds ${COPY}` };
  const lost = Math.max(0, missing.rounds);
  return { lost, note: `the server holds other rounds than this agent has sent: at least ${lost} are lost` };
}

/**
 * Return the download of an answer; reject an invalid one.
 * @param {Pooled} answer @param {number} dimension @param {number} lambda @returns {Download}
 */
export function checkAnswer(answer, dimension, lambda) {
  const statistics = unpackChecked(answer, dimension), { system_rounds: rounds, agents } = answer;
  require(rounds <= LARGEST_ROUNDS && agents >= 1 && agents <= LARGEST_AGENTS, `rounds must be <= ${LARGEST_ROUNDS} and agents in 1..${LARGEST_AGENTS}, got ${rounds} and ${agents}`);
  getRidge(statistics, lambda);
  return { statistics, rounds, agents };
}

/**
 * Return the largest sequence number in use; reject one far beyond the agent's own, which would use up all numbers.
 * @param {SavedState} state @param {Pick<Standing, "last_sequence">} standing
 */
function getLastSequence({ uploads }, { last_sequence }) {
  require(last_sequence <= uploads + LARGEST_AGENTS, `the last sequence number must be <= ${uploads + LARGEST_AGENTS}, got ${last_sequence}`);
  return Math.max(last_sequence, uploads);
}

/** Return the server's sums of an agent; reject invalid ones. @param {Standing} standing @param {number} dimension */
const checkStanding = (standing, dimension) => (standing.numbers.length ? unpackChecked(standing, dimension) : zero(dimension));

/** @param {Pooled | Standing} message @param {number} dimension */
function unpackChecked(message, dimension) {
  const statistics = unpackStatistics(message, dimension), largest = Math.max(statistics.count, statistics.rounds);
  check(statistics, dimension);
  require(largest <= LARGEST_ROUNDS, `counts must be at most ${LARGEST_ROUNDS}, got ${largest}`);
  return statistics;
}
