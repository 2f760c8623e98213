// An agent with its memory in a store: what happens to it is saved in the same step. Nothing here waits for a network.

import { chooseList, estimateRound, getEstimate, observe, receive, takeBack } from "./agent.js";
import { require } from "./checks.js";
import { topK } from "./oracles.js";
import { followTerms } from "./policies.js";
import { getRidge } from "./ridge.js";
import { add, check, examine, isPossible, readFeatures, subtract, unpackStatistics, zero } from "./statistics.js";

/**
 * @typedef {import("./agent.js").Upload} Upload
 * @typedef {import("./statistics.js").Statistics} Statistics
 * @typedef {import("./wire.js").Answer} Answer
 * @typedef {import("./wire.js").Standing} Standing
 * @typedef {import("./wire.js").Welcome} Welcome
 */
/**
 * What is kept of an agent. ``confirmed`` is what the server has counted, ``isSettled`` whether both sides agree on that,
 * ``lost`` how many rounds the server will never learn from.
 * @typedef {import("./agent.js").AgentState & {version: number, welcome: Welcome, confirmed: Statistics, isSettled: boolean,
 *   receipt: import("./wire.js").Receipt | null, lost: number, lastUpload: Upload | null, groupAgents: number}} SavedState
 */
/**
 * @typedef {{policy?: (policy: import("./policies.js").Policy, terms: import("./wire.js").Terms) => import("./policies.js").Policy,
 *   oracle?: import("./oracles.js").Oracle, minObservations?: number, problem?: import("./policies.js").ProblemSize,
 *   keepLists?: number, keepSeconds?: number}} Wishes
 * @typedef {number | ArrayLike<number> | null} Places one or several, or none
 * @typedef {{impression: string, items: number[], features: Float32Array}} ShownList
 */

const KEEP_LISTS = 1024, KEEP_SECONDS = 365 * 86_400;
const LARGEST_ROUNDS = 2 ** 53, LARGEST_AGENTS = 2 ** 32; // so that an extrapolated round is exact

export class SavedAgent extends EventTarget {
  /** @type {SavedState} */
  state;
  isClosed = false;
  #tab = Math.random().toString(36).slice(2, 8);
  #unsaved = 0; // lists that were shown and are not in the state yet
  #wishes;
  /** @type {{terms: import("./wire.js").Terms, policy: import("./policies.js").Policy, floor: number} | null} */
  #followed = null;

  /** @param {import("./store.js").Store} store @param {SavedState} state @param {Wishes} [wishes] */
  constructor(store, state, wishes = {}) {
    super();
    this.store = store;
    this.state = state;
    this.#wishes = wishes;
    this.#follow(state.welcome.terms);
    store.listen((note) => this.hear(note));
  }

  /**
   * Choose a list; at once, and saved soon after. Its ``impression`` names it, for feedback now or days later: it waits until
   * ``keepLists`` others were shown, or ``keepSeconds`` have passed.
   * @param {ArrayLike<number> | ArrayLike<ArrayLike<number>>} items one row of features per item, each of length at most 1; they
   *   are rounded to multiples of 2^-12
   * @param {{k?: number, oracle?: import("./oracles.js").Oracle, ties?: ArrayLike<number>, categories?: ArrayLike<number>,
   *   costs?: ArrayLike<number>}} [options] ``ties`` is a random word per item, by which equal scores are ordered
   * @returns {ShownList}
   */
  recommend(items, { k = 4, oracle = this.#wishes.oracle ?? topK(k), ties, categories, costs } = {}) {
    this.requireOpen();
    const { state, dimension } = this, { terms } = state.welcome, features = readFeatures(items, dimension);
    require(oracle.length <= terms.longest_list, `a list of this server has at most ${terms.longest_list} items, got k = ${oracle.length}`);
    const words = ties ?? crypto.getRandomValues(new Uint32Array(features.length / dimension));
    const problem = this.#wishes.problem ?? this.#estimateProblemSize(oracle.length);
    const { policy } = this.#follow(terms);
    const chosen = chooseList(policy, state, features, { oracle, ties: words, problem, attributes: { categories, costs } });
    const key = /** @type {[number, string]} */ ([state.arrivals + ++this.#unsaved, this.#tab]);
    this.#saveList(key, chosen).catch((error) => this.reportTrouble(error.message));
    return { impression: key.join("-"), ...chosen };
  }

  /** @param {[number, string]} key @param {{items: number[], features: Float32Array}} chosen */
  async #saveList(key, chosen) {
    try {
      await this.#change((state) => {
        const arrivals = state.arrivals + 1;
        return { state: { ...state, arrivals }, puts: [[key, { ...chosen, arrivals, shownAt: Date.now() }]], forgetThrough: key[0] - (this.#wishes.keepLists ?? KEEP_LISTS) };
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
   * @param {{clicked?: Places, clickedItem?: Places, lookedUntil?: number | null, round?: number, draw?: number}} outcome
   *   ``clicked`` is the position that was clicked, counted from 0, or several, or null; ``clickedItem`` instead of it names rows
   *   of the items that ``recommend`` was given; ``round`` is t, where the caller knows it; ``draw`` the round's uniform number
   * @returns {Promise<Upload | null>}
   */
  async feedback(impression, { clicked, clickedItem, lookedUntil = null, round, draw = Math.random() }) {
    this.requireOpen();
    require((clicked === undefined) !== (clickedItem === undefined), "say either clicked or clickedItem, with null if nothing was clicked");
    const name = typeof impression === "string" ? impression : impression.impression, key = parseImpression(name);
    const upload = await this.#change((state, list) => {
      const { keepLists = KEEP_LISTS, keepSeconds = KEEP_SECONDS } = this.#wishes;
      const isOpen = list && Date.now() - list.shownAt <= 1000 * keepSeconds;
      require(isOpen, `agent ${this.id} has no open list ${name}: feedback is for a list that was shown and not yet answered, and a list waits until ${keepLists} others were shown, ${keepSeconds / 86_400} days at most`);
      const seen = examine(list.items.length, readPositions(list.items, clicked, clickedItem), lookedUntil);
      const t = round ?? estimateRound({ ...state, since: state.since + 1 });
      const occasion = { round: t, draw, arrivals: list.arrivals };
      const learned = observe(this.#follow(state.welcome.terms).policy, state, list.features, seen, occasion);
      return { state: { ...state, ...learned.state }, deletes: [key], result: learned.upload };
    }, [key]);
    this.#announce("feedback", { clicked, upload });
    return upload;
  }

  /** The number under which the server knows this agent. */
  get id() {
    return this.state.welcome.agent;
  }

  get dimension() {
    return this.state.welcome.terms.dimension;
  }

  /** The fewest observations of an upload. */
  get floor() {
    return this.#follow(this.state.welcome.terms).floor;
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
    return getEstimate(this.#follow(this.state.welcome.terms).policy, this.state).theta.slice();
  }

  /** @param {string} note */
  reportTrouble(note) {
    this.#announce("trouble", { trouble: note });
  }

  /** Hear from another tab that something has changed; the exchange loop hears more. @param {any} _note */
  hear(_note) {
    this.refresh().catch(() => {});
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
   */
  async receive(upload, answer) {
    /** @type {unknown} */
    let trouble = null, download = null;
    try {
      download = answer && checkAnswer(answer, this.dimension, this.#follow(this.state.welcome.terms).policy.lambda);
    } catch (error) {
      trouble = error;
    }
    await this.#change((state) => {
      const known = { statistics: add(state.download, upload.statistics), rounds: state.rounds, agents: state.agents };
      const confirmed = add(state.confirmed, upload.statistics), receipt = answer?.receipt ?? state.receipt;
      const isSameEpoch = !state.receipt || state.receipt.epoch === receipt?.epoch;
      const isHeld = answer?.held_count === confirmed.count && answer?.held_rounds === confirmed.rounds;
      const groupAgents = download && answer ? answer.group_agents : state.groupAgents;
      const learned = receive(state, upload, /** @type {any} */ (download) ?? known);
      return { state: { ...state, ...learned, confirmed, receipt, groupAgents, lastUpload: upload, isSettled: Boolean(answer) && isSameEpoch && isHeld } };
    });
    this.#announce("upload", { upload });
    if (download) this.#announce("download", { download, groupAgents: this.state.groupAgents });
    return trouble instanceof Error ? `the answer to upload ${upload.sequence} is of no use: ${trouble.message}` : null;
  }

  /**
   * Go on from what the server holds of this agent, and send again what it has lost; returns what happened.
   * Nothing happens while uploads wait: they come first, so that both sides count the same.
   * @param {Standing} standing
   * @returns {Promise<string | null>}
   */
  async settle(standing) {
    const held = checkStanding(standing, this.dimension);
    return this.#change((state) => {
      if (state.outbox.length) return { state, result: null };
      const { missing, lost, note } = compareSums(state.confirmed, held);
      const welcome = { ...state.welcome, credential: standing.credential };
      const settled = { ...state, welcome, confirmed: held, isSettled: true, lost: state.lost + lost,
        uploads: Math.max(state.uploads, standing.last_sequence) };
      return { state: missing ? { ...settled, ...takeBack(settled, missing, this.floor).state } : settled, result: note };
    });
  }

  /**
   * Give an upload that was not counted a number that the server does not know.
   * @param {Upload} upload
   * @param {Standing} standing
   */
  renumber(upload, standing) {
    return this.#change((state) => {
      const sequence = Math.max(standing.last_sequence, state.uploads) + 1;
      return { state: { ...state, uploads: sequence, outbox: [...without(state.outbox, upload), { ...upload, sequence }] } };
    });
  }

  /**
   * Send an upload no more: the server will never take it. What is not lost goes back into the buffer.
   * @param {Upload} upload
   * @param {{isLost: boolean}} fate
   */
  withdraw(upload, { isLost }) {
    return this.#change((state) => {
      const rest = { ...state, outbox: without(state.outbox, upload) };
      if (isLost) return { state: { ...rest, lost: state.lost + upload.statistics.rounds } };
      return { state: { ...rest, ...takeBack(rest, upload.statistics, this.floor).state } };
    });
  }

  /**
   * Keep the server's words, and go on as the agent that they describe.
   * @param {Partial<Welcome>} words
   */
  follow(words) {
    return this.#change((state) => {
      const welcome = { ...state.welcome, ...words }, d = welcome.terms.dimension;
      require(d === this.dimension, `the server has dimension ${d}, this agent ${this.dimension}: enrol a new one`);
      this.#follow(welcome.terms);
      return { state: { ...state, welcome } };
    });
  }

  /** @param {import("./wire.js").Terms} terms */
  #follow(terms) {
    if (this.#followed?.terms.terms_id !== terms.terms_id || !this.#followed) this.#followed = { terms, ...followTerms(terms, this.#wishes) };
    return this.#followed;
  }

  /** @param {number} listLength */
  #estimateProblemSize(listLength) {
    return { users: this.state.agents, dimension: this.dimension, listLength, rounds: estimateRound(this.state) };
  }

  /**
   * Change what is kept, from what is kept now, and take it over.
   * @param {(state: SavedState, list: any) => {state: SavedState, puts?: [import("./store.js").EntryKey, any][],
   *   deletes?: import("./store.js").EntryKey[], forgetThrough?: number, result?: any}} work
   * @param {import("./store.js").EntryKey[]} [keys]
   */
  async #change(work, keys = []) {
    const { state, result } = await this.store.update(["state", ...keys], ([stored, list]) => {
      require(stored, "this agent has left: connect again");
      const { state: next, puts = [], result: outcome, ...more } = work(stored, list);
      const saved = { ...next, version: stored.version + 1 };
      return { ...more, puts: [["state", saved], ...puts], result: { state: saved, result: outcome } };
    });
    this.#adopt(state);
    this.store.notify({ version: state.version });
    return result;
  }

  /** @param {SavedState | undefined} state */
  #adopt(state) {
    if (!state || state.version <= this.state.version) return;
    this.state = state;
    this.#announce("change", {});
  }

  /** @param {string} name @param {any} detail */
  #announce(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/**
 * The state of an agent that has just enrolled.
 * @param {Welcome} welcome
 * @param {import("./agent.js").AgentState} state
 * @returns {SavedState}
 */
export function beginSaved(welcome, state) {
  const confirmed = zero(welcome.terms.dimension);
  return { ...state, version: 1, welcome, confirmed, isSettled: true, receipt: null, lost: 0, lastUpload: null, groupAgents: 0 };
}

/**
 * The positions that were clicked, from positions or from items.
 * @param {number[]} items
 * @param {Places | undefined} clicked
 * @param {Places | undefined} clickedItem
 */
function readPositions(items, clicked, clickedItem) {
  const given = clicked === undefined ? clickedItem : clicked;
  const isGood = given === null || typeof given === "number" || Array.isArray(given) || ArrayBuffer.isView(given);
  require(isGood, `clicked must be a position, several, or null, got ${given}`);
  const chosen = given === null ? [] : typeof given === "number" ? [given] : Array.from(/** @type {ArrayLike<number>} */ (given));
  if (clicked !== undefined) return chosen;
  for (const item of chosen) require(items.includes(item), `clickedItem must be on the list, which shows items ${items}, got ${item}`);
  return chosen.map((item) => items.indexOf(item));
}

/** @param {string} name @returns {[number, string]} */
function parseImpression(name) {
  const [arrival, tab = ""] = name.split("-");
  return [Number.isSafeInteger(Number(arrival)) ? Number(arrival) : -1, tab];
}

/** @param {Upload[]} outbox @param {Upload} upload */
const without = (outbox, upload) => outbox.filter(({ sequence }) => sequence !== upload.sequence);

/**
 * Compare what the server has confirmed with what it holds; call this with an empty outbox.
 * @param {Statistics} confirmed
 * @param {Statistics} held
 * @returns {{missing: Statistics | null, lost: number, note: string | null}}
 */
function compareSums(confirmed, held) {
  const missing = subtract(confirmed, held), nothing = { missing: null, lost: 0 };
  const isSame = [missing.count, missing.clicks, missing.rounds, ...missing.gram, ...missing.moment].every((value) => Math.abs(value) <= 1e-6);
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
 * @param {Answer} answer
 * @param {number} dimension
 * @param {number} lambda
 */
function checkAnswer(answer, dimension, lambda) {
  const statistics = unpackStatistics(answer, dimension), { system_rounds: rounds, agents } = answer;
  check(statistics, dimension);
  require(rounds <= LARGEST_ROUNDS && agents <= LARGEST_AGENTS, `there can be ${LARGEST_ROUNDS} rounds of ${LARGEST_AGENTS} agents, got ${rounds} of ${agents}`);
  checkCounts(statistics);
  getRidge(statistics, lambda);
  return { statistics, rounds, agents };
}

/**
 * What the server holds of an agent; refused if nobody can hold that.
 * @param {Standing} standing
 * @param {number} dimension
 */
function checkStanding(standing, dimension) {
  if (standing.numbers.length === 0) return zero(dimension);
  const held = unpackStatistics(standing, dimension);
  check(held, dimension);
  checkCounts(held);
  return held;
}

/** @param {Statistics} statistics */
function checkCounts({ count, rounds }) {
  const largest = Math.max(count, rounds);
  require(largest <= LARGEST_ROUNDS, `counts must be at most ${LARGEST_ROUNDS}, got ${largest}`);
}
