// An agent with a store: each call is saved before it resolves, and none waits for the network.

import { chooseList, correct, estimateRound, expectReward, getEstimate, keepOwnData, keepsOwnData, observe, restart, startEra } from "./agent.js";
import { examine, getRewards, readPositions, splitReward } from "./cascade.js";
import { require } from "./checks.js";
import { TypedEventTarget } from "./events.js";
import { checkAnswer, confirm } from "./ledger.js";
import { topK } from "./oracles.js";
import { followTerms } from "./policies.js";
import { measureBudget } from "./privacy.js";
import { computeCorrection, readFeatures, zero } from "./statistics.js";

/**
 * @import { Upload } from "./agent.js"
 * @import { Outcome } from "./cascade.js"
 * @import { Download, SavedState } from "./ledger.js"
 * @import { Oracle } from "./oracles.js"
 * @import { Policy, ProblemSize } from "./policies.js"
 * @import { NoiseSource } from "./privacy.js"
 * @import { EntryKey, Expiry, Store } from "./store.js"
 * @import { Answer, Terms } from "./wire.js"
 */

/**
 * The options of an agent; ``now`` is its clock, in seconds since 1970, and ``noise`` that of private uploads, for tests.
 * @typedef {{policy?: (policy: Policy, terms: Terms) => Policy, oracle?: Oracle, minObservations?: number,
 *   problem?: ProblemSize, keepLists?: number, keepSeconds?: number, now?: () => number, mostEpsilon?: number, noise?: NoiseSource}} AgentOptions
 * @typedef {{impression: string, items: number[], features: Float32Array}} ShownList
 * @typedef {{impression: string, items: number[], shownAt: number}} OpenList a list without feedback
 */

export class SavedAgent extends TypedEventTarget {
  /** @type {SavedState} */
  state;
  isClosed = false;
  #tab = Math.random().toString(36).slice(2, 8);
  #unsaved = 0; // lists that are not in the state yet
  #options;
  /** @type {{terms: Terms, policy: Policy} | null} */
  #followed = null;

  /** @param {Store} store @param {SavedState} state @param {AgentOptions} [options] */
  constructor(store, state, { keepLists = 1024, keepSeconds = 365 * 86_400, now = () => Date.now() / 1000, ...options } = {}) {
    super();
    this.store = store;
    this.state = state;
    this.#options = { ...options, keepLists, keepSeconds, now };
    this.followTerms(state.enrolment.terms);
    store.listen(() => this.refresh().catch(() => {}));
  }

  /**
   * Choose a list; it is saved soon after. Its ``impression`` names it for feedback, until ``keepLists`` others were shown or
   * ``keepSeconds`` have passed.
   * @param {ArrayLike<number> | ArrayLike<ArrayLike<number>>} items one row of features per item, of norm at most 1; they are
   *   rounded to multiples of 2^-12
   * @param {{k?: number, oracle?: Oracle, ties?: ArrayLike<number>, categories?: ArrayLike<number>,
   *   costs?: ArrayLike<number>}} [options] ``ties`` is a random word per item that breaks ties
   * @returns {ShownList}
   */
  recommend(items, { k = 4, oracle = this.#options.oracle ?? topK(k), ties, categories, costs } = {}) {
    this.requireOpen();
    const { state, dimension } = this, { terms } = state.enrolment, features = readFeatures(items, dimension);
    require(oracle.length <= terms.longest_list, `k must be <= ${terms.longest_list}, the longest list of this server, got ${oracle.length}`);
    const words = ties ?? crypto.getRandomValues(new Uint32Array(features.length / dimension));
    const problem = this.#options.problem ?? this.#estimateProblemSize(oracle.length);
    const chosen = chooseList(this.followTerms(terms), state, features, { oracle, ties: words, problem, attributes: { categories, costs } });
    const key = /** @type {[number, string]} */ ([state.arrivals + ++this.#unsaved, this.#tab]);
    this.#saveList(key, chosen).catch((error) => this.reportTrouble(error.message));
    return { impression: nameList(key), ...chosen };
  }

  /** @param {[number, string]} key @param {{items: number[], features: Float32Array}} chosen */
  async #saveList(key, chosen) {
    const { keepLists, keepSeconds, now } = this.#options, shownAt = now();
    try {
      await this.change((state) => {
        const arrivals = state.arrivals + 1, forget = { through: key[0] - keepLists, before: shownAt - keepSeconds };
        return { state: { ...state, arrivals }, puts: [[key, { ...chosen, arrivals, shownAt }]], forget };
      });
    } finally {
      this.#unsaved--;
    }
  }

  /**
   * Learn from a list. When this resolves, the feedback is stored; it resolves to the upload that will be sent, if any.
   * Examined positions count: up to the last click, up to ``lookedUntil`` if given, or the whole list.
   * @param {ShownList | string} impression the list, or its name
   * @param {Outcome & {round?: number, draw?: number}} outcome
   *   ``clicked`` is the clicked position, counted from 0, or several, or null; ``clickedItem`` names rows of the items instead;
   *   ``reward`` is the value of the click in [0, 1], 1 if not given; several clicks share it equally, or have one each, in the order
   *   given. A ``reward`` of "later" counts as the mean reward of this user's clicks so far, until ``reward`` is called.
   *   ``round`` is t, estimated if not given; ``draw`` the round's uniform number
   * @returns {Promise<Upload | null>}
   */
  async feedback(impression, outcome) {
    this.requireOpen();
    const { name, key } = readImpression(impression), { lookedUntil = null, reward = null, round, draw = Math.random() } = outcome ?? {};
    const upload = await this.change((state, list) => {
      this.#requireList(list && !list.seen ? list : null, `open list ${name}`, "feedback");
      const policy = this.followTerms(state.enrolment.terms);
      const positions = [...new Set(readPositions(list.items, outcome ?? {}))], isLate = reward === "later" && positions.length > 0;
      const expected = isLate ? positions.map(() => expectReward(policy, state)) : null;
      const seen = examine(list.items.length, positions, lookedUntil, reward === "later" ? expected : reward);
      const t = round ?? estimateRound({ ...state, since: state.since + 1 });
      const occasion = { round: t, draw, arrivals: list.arrivals };
      const learned = observe(policy, state, list.features, seen, occasion);
      const next = { ...state, ...learned.state }, kept = { ...list, seen, era: next.era ?? 0, round: next.own?.total.rounds ?? 0 };
      return { state: next, puts: isLate ? [[key, kept]] : [], deletes: isLate ? [] : [key], result: learned.upload };
    }, [key]);
    this.#announce("feedback", { clicked: outcome.clicked, upload });
    return upload;
  }

  /**
   * Give a list its reward, once, after feedback with the reward "later". What was learned is corrected by the difference to the
   * expected reward; the next upload carries the correction. The list expires as it does for feedback, and when the user changes.
   * @param {ShownList | string} impression the list, or its name
   * @param {number | ArrayLike<number>} value in [0, 1]; several clicks share it equally, or have one each, from the top
   */
  async reward(impression, value) {
    this.requireOpen();
    const { name, key } = readImpression(impression);
    await this.change((state, list) => {
      this.#requireList(list?.seen && list.era === (state.era ?? 0) ? list : null, `list without its reward ${name}`, "it");
      const rewards = getRewards({ ...list.seen, rewards: splitReward(value ?? NaN, list.seen.clicks.length) });
      const difference = computeCorrection(list.features, list.seen, rewards, this.dimension);
      return { state: correct(this.followTerms(state.enrolment.terms), state, difference, list.round), deletes: [key] };
    }, [key]);
  }

  /** Reject a missing or expired list. @param {any} list @param {string} name @param {string} what is taken once */
  #requireList(list, name, what) {
    const { keepLists, keepSeconds } = this.#options, kept = `a list expires after ${keepLists} newer ones or ${keepSeconds / 86_400} days`;
    require(list && list.shownAt >= this.#findOldest(), `agent ${this.id} has no ${name}: ${kept}, and takes ${what} once`);
  }

  /**
   * Start over for another user, without earlier data. Under ``drift=restart`` an agent detects changes by itself; this is for a
   * caller that knows of one. The next upload replaces all earlier ones at the server.
   */
  async restart() {
    this.requireOpen();
    await this.change((state) => ({ state: restart(this.followTerms(state.enrolment.terms), startEra(state), zero(this.dimension)) }));
  }

  /** List the lists without feedback, oldest first. @returns {Promise<OpenList[]>} */
  async openLists() {
    this.requireOpen();
    const lists = await this.store.readLists(), oldest = this.#findOldest();
    return lists.filter(([, { shownAt, seen }]) => shownAt >= oldest && !seen)
      .map(([key, { items, shownAt }]) => ({ impression: nameList(key), items, shownAt }));
  }

  /** Return the time before which lists have expired, in seconds since 1970. */
  #findOldest() {
    return this.#options.now() - this.#options.keepSeconds;
  }

  /** The agent's number at the server. */
  get id() {
    return this.state.enrolment.agent;
  }

  get dimension() {
    return this.state.enrolment.terms.dimension;
  }

  /** The agent's policy. */
  get policy() {
    return this.followTerms(this.state.enrolment.terms);
  }

  /** The minimum of observations in an upload. */
  get floor() {
    return this.policy.least;
  }

  /** True from enrolment to the first answer, if the server sent a prior. */
  get hasPrior() {
    const { download, own } = keepOwnData(this.policy, this.state);
    return !download.count && (this.policy.trust && own ? own.others : download).gram.some(Boolean);
  }

  /** The number of observations in the buffer. */
  get buffered() {
    return this.state.buffer.count;
  }

  /** The number of unanswered uploads. */
  get unsent() {
    return this.state.outbox.length;
  }

  /** The number of rounds that the server will never get. */
  get lost() {
    return this.state.lost;
  }

  /** What private uploads promise, and the epsilon that they have spent; null if uploads are not private. */
  get privacy() {
    return this.policy.privacy ? measureBudget(this.policy.privacy, this.state.uploads) : null;
  }

  /** The current estimate of theta. */
  get estimate() {
    return getEstimate(this.policy, this.state).theta.slice();
  }

  /** @param {string} trouble */
  reportTrouble(trouble) {
    this.#announce("trouble", { trouble });
  }

  /** Load the state that other tabs have written. */
  async refresh() {
    this.#adopt(await this.store.update(["state"], ([state]) => ({ result: state })));
  }

  requireOpen() {
    require(!this.isClosed, "this agent is closed: connect again");
  }

  /**
   * Replace an upload by its answer; an invalid answer leaves the last download, and counts the upload.
   * @param {Upload} upload
   * @param {Answer | null} answer null if it cannot be decoded
   * @returns {Promise<string | null>} the problem with the answer
   */
  async receive(upload, answer) {
    let trouble = null, download = /** @type {Download | null} */ (null);
    try {
      download = answer && checkAnswer(answer, this.dimension, this.policy.lambda);
    } catch (error) {
      trouble = `the answer to upload ${upload.sequence} is invalid: ${/** @type {Error} */ (error).message}`;
    }
    await this.change((state) => ({ state: confirm(state, upload, answer, download, this.followTerms(state.enrolment.terms)) }));
    this.#announce("upload", { upload });
    if (download) this.#announce("download", { download, groupAgents: this.state.groupAgents });
    return trouble;
  }

  /** Return the policy for a server's terms. @param {Terms} terms */
  followTerms(terms) {
    if (this.#followed?.terms.terms_id !== terms.terms_id) this.#followed = { terms, policy: followTerms(terms, this.#options) };
    return this.#followed.policy;
  }

  /** @param {number} listLength */
  #estimateProblemSize(listLength) {
    return { users: this.state.agents, dimension: this.dimension, listLength, rounds: estimateRound(this.state) };
  }

  /**
   * Change the stored state in one transaction, and adopt it.
   * @param {(state: SavedState, list: any) => {state: SavedState, puts?: [EntryKey, any][],
   *   deletes?: EntryKey[], forget?: Expiry, result?: any}} work
   * @param {EntryKey[]} [keys]
   */
  async change(work, keys = []) {
    const { state, result } = await this.store.update(["state", ...keys], ([stored, list]) => {
      if (!stored) this.isClosed = true; // in another tab
      this.requireOpen();
      const { state: next, puts = [], result: outcome, ...more } = work(stored, list);
      const own = keepsOwnData(this.followTerms(next.enrolment.terms)) ? next.own : null;
      const saved = { ...next, own, version: stored.version + 1 };
      return { ...more, puts: [["state", saved], ...puts], result: { state: saved, result: outcome } };
    });
    this.#adopt(state);
    this.store.notify({ version: state.version });
    return result;
  }

  /** @param {SavedState | undefined} state undefined if another tab has left */
  #adopt(state) {
    if (state && state.version <= this.state.version) return;
    this.state = state ?? this.state;
    this.isClosed ||= !state;
    this.#announce("change", {});
  }

  /** @param {string} name @param {any} detail */
  #announce(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/** @param {EntryKey} key */
const nameList = (key) => /** @type {[number, string]} */ (key).join("-");

/** Return the name and the key of a list. @param {ShownList | string} impression @returns {{name: string, key: [number, string]}} */
function readImpression(impression) {
  const name = String(typeof impression === "object" ? impression?.impression : impression), [arrival, tab = ""] = name.split("-");
  return { name, key: [Number.isSafeInteger(Number(arrival)) ? Number(arrival) : -1, tab] };
}
