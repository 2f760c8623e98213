// The agent of one user as values: recommend, observe, upload, receive (Algorithm 2). No files, no network, no clock.

import { roundReward } from "./cascade.js";
import { require, requireWhole } from "./checks.js";
import { beginTimeline, correctTimeline, followList } from "./drift.js";
import { release } from "./privacy.js";
import { computeScores, getRidge } from "./ridge.js";
import { add, areSame, observe as addRound, subtract, zero } from "./statistics.js";
import { beginOwnData, splitDownload, trimDownload, weighOthers } from "./trust.js";

/**
 * @import { Examination } from "./cascade.js"
 * @import { Attributes, Oracle } from "./oracles.js"
 * @import { Policy, ProblemSize } from "./policies.js"
 * @import { Ridge } from "./ridge.js"
 * @import { Statistics } from "./statistics.js"
 * @import { OwnData } from "./trust.js"
 */

/**
 * An upload with the cause ``change`` replaces all earlier ones of its agent.
 * @typedef {{sequence: number, cause: string, statistics: Statistics}} Upload
 */
/**
 * The state of an agent: counts of arrivals and uploads, the buffer, unanswered uploads (oldest first), the last download, the
 * server's rounds and agents at that download, and arrivals since. ``isChangePending`` marks a changed user whose change upload
 * has not been sent; ``own`` holds own data if the policy keeps them apart; ``confirmed`` sums the uploads that the server has counted;
 * ``era`` counts the changes of the user. ``first`` sums the first items since the last upload, which are all that a private upload
 * holds; the outbox of such an agent holds uploads with noise.
 * @typedef {{arrivals: number, uploads: number, buffer: Statistics, outbox: Upload[], download: Statistics, isChangePending: boolean,
 *   rounds: number, agents: number, since: number, own?: OwnData | null, confirmed?: Statistics, era?: number, first?: Statistics}} AgentState
 */

/** Return the state of an agent without data. @param {number} dimension @returns {AgentState} */
export function begin(dimension) {
  const nothing = zero(dimension);
  return { arrivals: 0, uploads: 0, buffer: nothing, outbox: [], download: nothing, isChangePending: false, rounds: 0, agents: 1, since: 0 };
}

/** Extrapolate t, assuming that all users arrive equally often. @param {AgentState} state */
export const estimateRound = ({ arrivals, rounds, agents, since }) => Math.min(Number.MAX_SAFE_INTEGER, Math.max(1, arrivals, rounds + agents * since));

/** Return whether an upload replaces the earlier ones. @param {Upload} upload */
export const isChange = ({ cause }) => cause === "change";

/** Return whether a waiting upload, or the next one, replaces the server's data. @param {AgentState} state */
export const isReplacing = ({ isChangePending, outbox }) => isChangePending || outbox.some(isChange);

/** @param {Upload[]} outbox @param {Upload} upload */
export const remove = (outbox, upload) => outbox.filter(({ sequence }) => sequence !== upload.sequence);

/** Sum the own data that the last download does not hold. @param {AgentState} state */
export function sumPending({ outbox, buffer, isChangePending, first }) {
  if (first) return buffer; // answers hold others' data only
  const current = isChangePending ? [] : outbox.slice(Math.max(0, outbox.findLastIndex(isChange)));
  return current.map(({ statistics }) => statistics).reduceRight(add, buffer);
}

/** Return whether agents keep their own data apart from others' data. @param {Policy} policy */
export const keepsOwnData = ({ trust, drift }) => Boolean(trust || drift);

/** @type {WeakMap<AgentState, {policy: Policy, state: AgentState}>} */
const kept = new WeakMap();

/**
 * Return the state with own data, if the policy keeps them apart.
 * @template {AgentState} State @param {Policy} policy @param {State} state @returns {State}
 */
export function keepOwnData(policy, state) {
  const isStart = policy.privacy && !state.first;
  if (!keepsOwnData(policy) || (!isStart && state.own && !state.own.timeline === !policy.drift)) return state;
  let known = kept.get(state);
  if (known?.policy !== policy) kept.set(state, known = { policy, state: restartOwnData(policy, isStart ? startPrivate(state) : state) });
  return /** @type {State} */ (known.state);
}

/** Start private uploads without data of before. @param {AgentState} state @returns {AgentState} */
function startPrivate(state) {
  const nothing = zero(state.buffer.moment.length);
  return { ...state, first: nothing, buffer: nothing, own: null };
}

/**
 * Rebuild own data from confirmed and pending data; others' data come with the next download. A download before the first
 * upload holds others' data only.
 * @template {AgentState} State @param {Policy} policy @param {State} state @returns {State}
 */
export function restartOwnData(policy, state) {
  if (!keepsOwnData(policy)) return state;
  const { download, buffer, confirmed } = state, pending = sumPending(state), nothing = zero(buffer.moment.length);
  const known = state.own ? subtract(state.own.total, pending) : nothing; // the server's copy of private data has noise
  const held = policy.privacy ? known : isReplacing(state) ? nothing : confirmed ?? nothing, own = renewOwnData(policy, state, add(held, pending));
  const isNewcomer = policy.trust && !held.count && !download.count;
  return weigh(policy, { ...state, own: isNewcomer ? splitDownload(own, download, pending, policy.privacy) : own });
}

/**
 * Replace own data, and drop others' data. The timeline stays if the total is the same.
 * @param {Policy} policy @param {AgentState} state @param {Statistics} total
 */
function renewOwnData({ drift }, { own }, total) {
  const isKnown = own?.timeline && areSame(own.total, total);
  return beginOwnData(total, drift && (isKnown ? own.timeline : beginTimeline(total)));
}

/**
 * Start over for a changed user, keeping ``kept``; an upload with the cause ``change`` becomes pending.
 * @template {AgentState} State @param {Policy} policy @param {State} state @param {Statistics} kept @returns {State}
 */
export function restart(policy, state, kept) {
  const own = keepsOwnData(policy) ? renewOwnData(policy, state, kept) : null;
  const nothing = zero(kept.moment.length), first = state.first && nothing;
  return weigh(policy, { ...state, own, buffer: kept, download: nothing, isChangePending: true, first });
}

/** Count a change of the user, after which earlier lists take no reward. @template {AgentState} State @param {State} state @returns {State} */
export const startEra = (state) => ({ ...state, era: (state.era ?? 0) + 1 });

/**
 * Weigh others' data if the policy has ``trust``.
 * @template {AgentState} State @param {Policy} policy @param {State} state @returns {State}
 */
function weigh({ trust }, state) {
  return trust && state.own ? { ...state, ...weighOthers(state.own, trust, sumPending(state)) } : state;
}

/** @type {WeakMap<AgentState, Ridge>} */
const estimates = new WeakMap();

/**
 * Return the estimate from the last download and pending own data.
 * @param {Policy} policy @param {AgentState} state
 */
export function getEstimate(policy, state) {
  state = keepOwnData(policy, state);
  if (!policy.usesBuffer) return getRidge(state.download, policy.lambda);
  const known = estimates.get(state);
  if (known?.lambda === policy.lambda) return known;
  const estimate = getRidge(add(state.download, sumPending(state)), policy.lambda);
  estimates.set(state, estimate);
  return estimate;
}

/**
 * Algorithm 2, lines 1 to 3: score the items on offer and give the scores to the oracle.
 * @param {Policy} policy @param {AgentState} state
 * @param {Float32Array} features one row per item
 * @param {{oracle: Oracle, ties: ArrayLike<number>, problem: ProblemSize,
 *   attributes?: Attributes}} options
 */
export function chooseList(policy, state, features, { oracle, ties, problem, attributes = {} }) {
  const d = state.buffer.moment.length, items = features.length / d;
  require(ties.length === items, `ties must hold a word for each of ${items} items, got ${ties.length}`);
  checkAttributes(items, attributes);
  const ridge = getEstimate(policy, state), deviation = policy.trust ? keepOwnData(policy, state).own?.deviation ?? 1 : 1;
  const chosen = oracle.choose(computeScores(ridge, features, deviation * policy.computeBeta(ridge, problem)), ties, attributes);
  checkList(chosen, items, oracle.length);
  const listed = new Float32Array(chosen.length * d);
  chosen.forEach((item, place) => listed.set(features.subarray(item * d, item * d + d), place * d));
  return { items: chosen, features: listed };
}

/** @param {number} items @param {Attributes} attributes */
function checkAttributes(items, { categories, costs }) {
  const areKinds = !categories || (categories.length === items && Array.from(categories).every(Number.isSafeInteger));
  require(areKinds, `categories must be a whole number for each of ${items} items`);
  const arePrices = !costs || (costs.length === items && Array.from(costs).every((cost) => Number.isFinite(cost) && cost >= 0));
  require(arePrices, `costs must be a finite number >= 0 for each of ${items} items`);
}

/**
 * Reject a list that is empty, too long, repeats an item or names one that is not on offer.
 * @param {number[]} chosen @param {number} items @param {number} length
 */
function checkList(chosen, items, length) {
  require(chosen.length >= 1 && chosen.length <= length, `a list must hold 1 to ${length} items, got ${chosen.length}`);
  require(new Set(chosen).size === chosen.length, `a list must hold distinct items, got ${chosen}`);
  const isOffered = chosen.every((item) => Number.isInteger(item) && item >= 0 && item < items);
  require(isOffered, `a list must name items 0..${items - 1}, got ${chosen}`);
}

/**
 * Algorithm 2, lines 4 to 19: learn from a click, and upload if the trigger fires.
 * @param {Policy} policy @param {AgentState} state
 * @param {Float32Array} listed features of the list, first position first
 * @param {Examination} examination @param {{round: number, draw: number, arrivals: number}} occasion
 * @returns {{state: AgentState, upload: Upload | null}}
 */
export function observe(policy, state, listed, examination, { round, draw, arrivals }) {
  requireWhole("round", round);
  require(!policy.drift || examination.clicks.length <= 1, "change detection learns from one click of a list");
  const next = followUser(policy, keepOwnData(policy, state), listed, examination);
  if (next.isChangePending) return sendIfDue(policy, next);
  const download = getRidge(next.download, policy.lambda);
  const cause = policy.trigger({ round, draw, arrivals, download, buffer: next.buffer });
  return cause ? sendBuffer(policy, next, cause) : { state: next, upload: null };
}

const PRIOR_REWARD = 0.5; // of a click, before its user has any

/**
 * Return the mean reward of the user's clicks so far, and of one more with the prior mean. With private uploads it is the prior mean:
 * the upload of a list must not depend on other lists.
 * @param {Policy} policy @param {AgentState} state
 */
export function expectReward({ privacy }, state) {
  if (privacy) return PRIOR_REWARD;
  const pending = sumPending(state), { clicks, shortfall = 0 } = isReplacing(state) || !state.confirmed ? pending : add(state.confirmed, pending);
  return roundReward(Math.min(1, Math.max(0, (PRIOR_REWARD + clicks - shortfall) / (1 + clicks))));
}

/**
 * Add the difference of a late reward to the buffer and to own data; the next upload carries it.
 * @template {AgentState} State @param {Policy} policy @param {State} before @param {Statistics} difference
 * @param {number} round of own data, that of the list @returns {State}
 */
export function correct(policy, before, difference, round) {
  const state = keepOwnData(policy, before), { own } = state, next = { ...state, buffer: add(state.buffer, difference) };
  if (!own) return next;
  const timeline = own.timeline && correctTimeline(own.timeline, difference, round);
  return weigh(policy, { ...next, own: { ...own, total: add(own.total, difference), timeline } });
}

/**
 * Learn from a list, detect a changed user in own data, and weigh others' data.
 * @param {Policy} policy @param {AgentState} state @param {Float32Array} listed @param {Examination} seen
 */
function followUser(policy, state, listed, seen) {
  const { trust, drift } = policy, { own } = state;
  const first = state.first && addRound(state.first, listed, keepFirst(seen));
  const next = { ...state, buffer: addRound(state.buffer, listed, seen), since: state.since + 1, first };
  if (!own || !keepsOwnData(policy)) return next;
  const total = addRound(own.total, listed, seen);
  const { timeline, kept } = drift && own.timeline
    ? followList(own.timeline, total, drift, listed, seen, getEstimate(policy, state)) : { timeline: null, kept: null };
  const followed = { ...next, own: { ...own, total: kept ?? total, timeline } };
  if (kept) return restart(policy, startEra(followed), kept);
  return trust && total.rounds % trust.every === 0 ? weigh(policy, followed) : followed;
}

/** Return the part of the feedback that is about the first item. @param {Examination} seen @returns {Examination} */
const keepFirst = ({ clicks, rewards }) => (clicks[0] === 0 ? { examined: 1, clicks: [0], rewards: rewards?.slice(0, 1) } : { examined: 1, clicks: [] });

/**
 * Send the buffer if it has enough observations; as a change if one is pending.
 * @template {AgentState} State @param {Policy} policy @param {State} state @returns {{state: State, upload: Upload | null}}
 */
function sendIfDue(policy, state) {
  const isDue = state.buffer.count >= Math.max(1, policy.least);
  return isDue ? sendBuffer(policy, state, state.isChangePending ? "change" : "forced") : { state, upload: null };
}

/**
 * Algorithm 1, line 8: put the buffer into the outbox, and start an empty one. A private upload holds the first items, and gets its
 * noise here, once; own data join the download at once, because answers hold others' data only.
 * @template {AgentState} State @param {Policy} policy @param {State} state @param {string} cause
 * @returns {{state: State, upload: Upload | null}}
 */
function sendBuffer({ privacy }, state, cause) {
  const { buffer, first } = state, isPrivate = privacy && first, nothing = zero(buffer.moment.length);
  const made = { sequence: state.uploads + 1, cause, statistics: isPrivate ? first : buffer }, upload = isPrivate ? release(privacy, made) : made;
  const sent = { ...state, uploads: made.sequence, buffer: nothing, outbox: upload ? [...state.outbox, upload] : state.outbox, isChangePending: false };
  return { state: isPrivate ? { ...sent, first: nothing, download: add(state.download, buffer) } : sent, upload };
}

/**
 * Algorithm 1, line 11: replace an upload by its download. A download for the user before a change is not used.
 * @template {AgentState} State @param {Policy} policy @param {State} state @param {Upload} upload
 * @param {{statistics: Statistics, rounds: number, agents: number}} download @returns {State}
 */
export function receive(policy, state, upload, { statistics, rounds, agents }) {
  const answered = { ...state, outbox: remove(state.outbox, upload), rounds, agents, since: 0 };
  if (isReplacing(answered)) return answered;
  const next = { ...answered, download: statistics };
  if (!policy.trust || !next.own) return next;
  const pending = sumPending(next), { privacy } = policy, trimmed = privacy ? statistics : trimDownload(next.own, policy.trust, statistics, pending);
  return weigh(policy, { ...next, own: splitDownload(next.own, trimmed, pending, privacy) });
}

/**
 * Count an upload whose answer cannot be used; others' data stay those of the last download.
 * @template {AgentState} State @param {Policy} policy @param {State} state @param {Upload} upload @returns {State}
 */
export function skipAnswer(policy, state, upload) {
  const counted = { ...state, outbox: remove(state.outbox, upload) };
  if (isReplacing(counted)) return counted;
  return policy.trust ? weigh(policy, counted) : { ...counted, download: add(state.download, upload.statistics) };
}

/**
 * Put statistics back into the buffer, and send it if it has enough observations.
 * @template {AgentState} State @param {Policy} policy @param {State} state @param {Statistics} statistics
 */
export function takeBack(policy, state, statistics) {
  const next = { ...state, buffer: add(state.buffer, statistics) };
  return sendIfDue(policy, next.isChangePending ? next : weigh(policy, next)).state;
}

/**
 * Replace the server's data by statistics and pending data, once these are enough for an upload.
 * @template {AgentState} State @param {Policy} policy @param {State} state @param {Statistics} statistics
 */
export function replaceHeld(policy, state, statistics) {
  const kept = add(statistics, sumPending(state));
  return sendIfDue(policy, restart(policy, { ...state, outbox: [] }, kept)).state;
}
