// An agent with its memory in a store: what happens to it is saved in the same step. Nothing here waits for a network.

import { chooseList, estimateRound, getEstimate, keepOwnData, keepsOwnData, observe, restart } from "./agent.js";
import { examine, readPositions } from "./cascade.js";
import { require } from "./checks.js";
import { checkAnswer, confirm } from "./ledger.js";
import { topK } from "./oracles.js";
import { followTerms } from "./policies.js";
import { readFeatures, zero } from "./statistics.js";

/**
 * @import { Upload } from "./agent.js"
 * @import { Outcome } from "./cascade.js"
 * @import { Download, SavedState } from "./ledger.js"
 * @import { Oracle } from "./oracles.js"
 * @import { Policy, ProblemSize } from "./policies.js"
 * @import { EntryKey, Expiry, Store } from "./store.js"
 * @import { Answer, Terms } from "./wire.js"
 */

/**
 * What an application wants of its agent; ``now`` says when a list is shown, in seconds since 1970.
 * @typedef {{policy?: (policy: Policy, terms: Terms) => Policy, oracle?: Oracle, minObservations?: number,
 *   problem?: ProblemSize, keepLists?: number, keepSeconds?: number, now?: () => number}} Wishes
 * @typedef {{impression: string, items: number[], features: Float32Array}} ShownList
 * @typedef {{impression: string, items: number[], shownAt: number}} OpenList a list without feedback, and when it was shown
 */

export class SavedAgent extends EventTarget {
  /** @type {SavedState} */
  state;
  isClosed = false;
  #tab = Math.random().toString(36).slice(2, 8);
  #unsaved = 0; // lists that were shown and are not in the state yet
  #wishes;
  /** @type {{terms: Terms, policy: Policy} | null} */
  #followed = null;

  /** @param {Store} store @param {SavedState} state @param {Wishes} [wishes] */
  constructor(store, state, { keepLists = 1024, keepSeconds = 365 * 86_400, now = () => Date.now() / 1000, ...wishes } = {}) {
    super();
    this.store = store;
    this.state = state;
    this.#wishes = { ...wishes, keepLists, keepSeconds, now };
    this.followTerms(state.welcome.terms);
    store.listen(() => this.refresh().catch(() => {}));
  }

  /**
   * Choose a list; at once, and saved soon after. Its ``impression`` names it, for feedback now or days later: it waits until
   * ``keepLists`` others were shown, or ``keepSeconds`` have passed.
   * @param {ArrayLike<number> | ArrayLike<ArrayLike<number>>} items one row of features per item, each of length at most 1; they
   *   are rounded to multiples of 2^-12
   * @param {{k?: number, oracle?: Oracle, ties?: ArrayLike<number>, categories?: ArrayLike<number>,
   *   costs?: ArrayLike<number>}} [options] ``ties`` is a random word per item, by which equal scores are ordered
   * @returns {ShownList}
   */
  recommend(items, { k = 4, oracle = this.#wishes.oracle ?? topK(k), ties, categories, costs } = {}) {
    this.requireOpen();
    const { state, dimension } = this, { terms } = state.welcome, features = readFeatures(items, dimension);
    require(oracle.length <= terms.longest_list, `a list of this server has at most ${terms.longest_list} items, got k = ${oracle.length}`);
    const words = ties ?? crypto.getRandomValues(new Uint32Array(features.length / dimension));
    const problem = this.#wishes.problem ?? this.#estimateProblemSize(oracle.length);
    const chosen = chooseList(this.followTerms(terms), state, features, { oracle, ties: words, problem, attributes: { categories, costs } });
    const key = /** @type {[number, string]} */ ([state.arrivals + ++this.#unsaved, this.#tab]);
    this.#saveList(key, chosen).catch((error) => this.reportTrouble(error.message));
    return { impression: nameList(key), ...chosen };
  }

  /** @param {[number, string]} key @param {{items: number[], features: Float32Array}} chosen */
  async #saveList(key, chosen) {
    const { keepLists, keepSeconds, now } = this.#wishes, shownAt = now();
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
   * Learn from a list. When this resolves, no crash can lose it; it resolves to the upload that will be sent, if there is one.
   * What the user looked at counts, and what was clicked of it counts as liked: all positions up to the last click, up to
   * ``lookedUntil`` where that is given, and the whole list where there is neither.
   * @param {ShownList | string} impression the list, or its name
   * @param {Outcome & {round?: number, draw?: number}} outcome
   *   ``clicked`` is the position that was clicked, counted from 0, or several, or null; ``clickedItem`` instead of it names rows
   *   of the items that ``recommend`` was given; ``round`` is t, where the caller knows it; ``draw`` the round's uniform number
   * @returns {Promise<Upload | null>}
   */
  async feedback(impression, outcome) {
    this.requireOpen();
    const name = String(typeof impression === "object" ? impression?.impression : impression), key = parseImpression(name);
    const { lookedUntil = null, round, draw = Math.random() } = outcome ?? {};
    const upload = await this.change((state, list) => {
      const { keepLists, keepSeconds } = this.#wishes;
      const isOpen = list && list.shownAt >= this.#findOldest(), kept = `a list waits until ${keepLists} others were shown, ${keepSeconds / 86_400} days at most`;
      require(isOpen, `agent ${this.id} has no open list ${name}: ${kept}, and has one feedback`);
      const seen = examine(list.items.length, readPositions(list.items, outcome ?? {}), lookedUntil);
      const t = round ?? estimateRound({ ...state, since: state.since + 1 });
      const occasion = { round: t, draw, arrivals: list.arrivals };
      const learned = observe(this.followTerms(state.welcome.terms), state, list.features, seen, occasion);
      return { state: { ...state, ...learned.state }, deletes: [key], result: learned.upload };
    }, [key]);
    this.#announce("feedback", { clicked: outcome.clicked, upload });
    return upload;
  }

  /**
   * Start over for another user: nothing that this agent learned so far counts any more. Under ``drift=restart`` an agent finds changes
   * by itself; this is for a caller that knows of one. The next upload replaces all earlier ones at the server.
   */
  async restart() {
    this.requireOpen();
    await this.change((state) => ({ state: restart(this.followTerms(state.welcome.terms), state, zero(this.dimension)) }));
  }

  /** The lists that wait for feedback, oldest first. @returns {Promise<OpenList[]>} */
  async openLists() {
    this.requireOpen();
    const lists = await this.store.readLists(), oldest = this.#findOldest();
    return lists.filter(([, { shownAt }]) => shownAt >= oldest)
      .map(([key, { items, shownAt }]) => ({ impression: nameList(key), items, shownAt }));
  }

  /** When the oldest list was shown that may have feedback now, in seconds since 1970. */
  #findOldest() {
    return this.#wishes.now() - this.#wishes.keepSeconds;
  }

  /** The number under which the server knows this agent. */
  get id() {
    return this.state.welcome.agent;
  }

  get dimension() {
    return this.state.welcome.terms.dimension;
  }

  /** The policy that this agent runs. */
  get policy() {
    return this.followTerms(this.state.welcome.terms);
  }

  /** The fewest observations of an upload. */
  get floor() {
    return this.policy.least;
  }

  /** Whether it decides with what the server knows of anybody: from enrolment to the first answer. */
  get isWelcomed() {
    const { download, own } = keepOwnData(this.policy, this.state);
    return !download.count && (this.policy.trust && own ? own.others : download).gram.some(Boolean);
  }

  /** How many observations wait for an upload. */
  get buffered() {
    return this.state.buffer.count;
  }

  /** How many uploads wait for an answer. */
  get unsent() {
    return this.state.outbox.length;
  }

  /** How many rounds the server will never learn from. */
  get lost() {
    return this.state.lost;
  }

  /** Theta, as this agent estimates it now. */
  get estimate() {
    return getEstimate(this.policy, this.state).theta.slice();
  }

  /** @param {string} trouble */
  reportTrouble(trouble) {
    this.#announce("trouble", { trouble });
  }

  /** Read what other tabs have written. */
  async refresh() {
    this.#adopt(await this.store.update(["state"], ([state]) => ({ result: state })));
  }

  requireOpen() {
    require(!this.isClosed, "this agent is closed: connect again");
  }

  /**
   * Go on with an answer in the place of an upload; an answer of no use leaves what was known, and the upload itself.
   * @param {Upload} upload
   * @param {Answer | null} answer null if there was none that can be read
   * @returns {Promise<string | null>} what was wrong with the answer
   */
  async receive(upload, answer) {
    let trouble = null, download = /** @type {Download | null} */ (null);
    try {
      download = answer && checkAnswer(answer, this.dimension, this.policy.lambda);
    } catch (error) {
      trouble = `the answer to upload ${upload.sequence} is of no use: ${/** @type {Error} */ (error).message}`;
    }
    await this.change((state) => ({ state: confirm(state, upload, answer, download, this.followTerms(state.welcome.terms)) }));
    this.#announce("upload", { upload });
    if (download) this.#announce("download", { download, groupAgents: this.state.groupAgents });
    return trouble;
  }

  /** The policy that this agent runs under a server's terms. @param {Terms} terms */
  followTerms(terms) {
    if (this.#followed?.terms.terms_id !== terms.terms_id) this.#followed = { terms, policy: followTerms(terms, this.#wishes) };
    return this.#followed.policy;
  }

  /** @param {number} listLength */
  #estimateProblemSize(listLength) {
    return { users: this.state.agents, dimension: this.dimension, listLength, rounds: estimateRound(this.state) };
  }

  /**
   * Change what is kept, from what is kept now, and take it over.
   * @param {(state: SavedState, list: any) => {state: SavedState, puts?: [EntryKey, any][],
   *   deletes?: EntryKey[], forget?: Expiry, result?: any}} work
   * @param {EntryKey[]} [keys]
   */
  async change(work, keys = []) {
    const { state, result } = await this.store.update(["state", ...keys], ([stored, list]) => {
      if (!stored) this.isClosed = true; // in another tab
      this.requireOpen();
      const { state: next, puts = [], result: outcome, ...more } = work(stored, list);
      const own = keepsOwnData(this.followTerms(next.welcome.terms)) ? next.own : null;
      const saved = { ...next, own, version: stored.version + 1 };
      return { ...more, puts: [["state", saved], ...puts], result: { state: saved, result: outcome } };
    });
    this.#adopt(state);
    this.store.notify({ version: state.version });
    return result;
  }

  /** @param {SavedState | undefined} state none if another tab has left */
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

/** @param {string} name @returns {[number, string]} */
function parseImpression(name) {
  const [arrival, tab = ""] = name.split("-");
  return [Number.isSafeInteger(Number(arrival)) ? Number(arrival) : -1, tab];
}
