// The agent of one user, in a browser or in Node. Decisions do not wait for the network, and a crash loses nothing.

import { require, requireWhole } from "./checks.js";
import { AgentClient } from "./client.js";
import { loadOrEnrol, readIdentity } from "./enrolment.js";
import { FallbackAgent, findMissing } from "./fallback.js";
import { followTerms, requireFeatures } from "./policies.js";
import { SavedAgent } from "./saved-agent.js";
import { MemoryStore, openBrowserStore } from "./store.js";
import { ExchangeLoop } from "./sync.js";

/**
 * @import { SavedState } from "./ledger.js"
 * @import { Oracle } from "./oracles.js"
 * @import { ProblemSize } from "./policies.js"
 * @import { AgentOptions } from "./saved-agent.js"
 * @import { Store } from "./store.js"
 * @import { Terms } from "./wire.js"
 */

export { chooseArm } from "./arms.js";
export { AgentError } from "./checks.js";
export { Refused } from "./client.js";
export { FallbackAgent } from "./fallback.js";
export { MemoryStore } from "./store.js";
export { perCategory, topK } from "./oracles.js";
export { normalise } from "./statistics.js";
export { always } from "./triggers.js";

/** @typedef {import("./saved-agent.js").ShownList} ShownList */
/** @typedef {import("./saved-agent.js").OpenList} OpenList */
/** @typedef {import("./events.js").AgentEvents} AgentEvents */
/**
 * The server, and the options of its agent.
 * @typedef {object} ConnectOptions
 * @property {string} url the server's address
 * @property {string | (() => Promise<string> | string) | null} [token] a one-time enrolment token, or a function that fetches
 *   one, called only if this agent has not enrolled; needed the first time, and later if the agent was revoked or
 *   forgotten, or lost by a server that rejects its credential
 * @property {Store | string} [store] where the agent keeps its state: a store, or the name of one in
 *   this browser's IndexedDB; in memory without IndexedDB
 * @property {string} [features] version of the page's features, a label or label:hash; a server of another version is refused
 * @property {number} [mostEpsilon] refuse a server whose private uploads have a larger epsilon, or that has none; Infinity takes any epsilon
 * @property {AgentOptions["policy"]} [policy] changes the server's policy
 * @property {Oracle} [oracle] chooses lists from scores; the best k items if not given
 * @property {number} [minObservations] minimum of an upload, and at least the server's; 2 d if not given
 * @property {ProblemSize} [problem] sizes for a beta by formula; estimated if not given
 * @property {number} [keepLists] drop a list without feedback after this many newer ones
 * @property {number} [keepSeconds] drop a list without feedback after this time; a year if not given
 * @property {[number, number]} [pauses] seconds before the first retry, doubled with each failure, and the longest
 * @property {typeof fetch} [fetch] sends requests
 * @property {() => number} [now] the clock of signatures and lists, in seconds since 1970
 */

/** An agent with a store and a server. Made by ``connect``. */
export class RemoteAgent extends SavedAgent {
  isFallback = /** @type {const} */ (false);
  #loop;
  #client;
  #end = new AbortController();

  /**
   * @param {Store} store @param {SavedState} state @param {AgentClient} client @param {AgentOptions & {pauses: [number, number]}} options
   */
  constructor(store, state, client, options) {
    super(store, state, options);
    this.#client = client;
    this.#loop = new ExchangeLoop(this, client, options.pauses);
    const { signal } = this.#end, wake = () => this.#loop.wake();
    globalThis.addEventListener?.("online", wake, { signal });
    // Uploads in the outbox have enough observations. The buffer stays: closing a page must not reveal the last click.
    globalThis.document?.addEventListener("visibilitychange", wake, { signal });
    wake(); // this tab may have brought a token that another one waits for
  }

  /** The last problem, or null. */
  get trouble() {
    return this.#loop.trouble ?? this.store.trouble;
  }

  /** Retry now, and wait until all uploads are answered; false after ``seconds``. @param {number} [seconds] */
  flush(seconds) {
    this.requireOpen();
    return this.#loop.flush(seconds);
  }

  /** Delete this agent at the server, which subtracts its uploads, and in the store. If that fails, the agent continues. */
  async leave() {
    this.requireOpen();
    await this.#loop.stop();
    try {
      await this.#client.leave();
    } catch (error) {
      this.#loop.start();
      throw error;
    }
    await this.erase();
  }

  /** Delete this agent from the store only; it cannot be used again. */
  async erase() {
    this.requireOpen();
    await this.#loop.stop();
    await this.store.erase();
    this.store.notify({});
    await this.close();
  }

  /** Stop exchanging and close the store, which holds everything already. */
  async close() {
    if (this.#end.signal.aborted) return;
    this.isClosed = true;
    this.#end.abort();
    await this.#loop.stop();
    await this.store.close();
  }
}

/**
 * Connect to a server. The first time, the agent enrols and needs the server; later it starts offline. A browser that cannot run
 * an agent gets one that keeps the page's order, with ``isFallback`` and ``trouble``.
 * @param {ConnectOptions} options @returns {Promise<RemoteAgent | FallbackAgent>}
 */
export async function connect({ url, token = null, features, store: where, pauses = [0.25, 300], fetch: send, now = () => Date.now() / 1000, ...options }) {
  require(/^https?:\/\/[^/]/.test(url), `a server's address looks like https://host:8777, got '${url}'`);
  if (options.minObservations !== undefined) requireWhole("minObservations", options.minObservations, 0);
  if (options.keepLists !== undefined) requireWhole("keepLists", options.keepLists);
  const { keepSeconds = 1, mostEpsilon } = options, follow = (/** @type {Terms} */ terms) => followTerms(terms, options);
  require(mostEpsilon === undefined || mostEpsilon > 0, `mostEpsilon must be a number > 0, got ${mostEpsilon}`);
  require(keepSeconds > 0 && keepSeconds < Infinity, `keepSeconds must be a number > 0, got ${keepSeconds}`);
  const missing = await findMissing();
  if (missing !== null) return new FallbackAgent(missing);
  const store = typeof where === "object" ? where : await openStore(where);
  const transport = { url: url.replace(/\/+$/, ""), fetch: send ?? globalThis.fetch.bind(globalThis), now };
  const check = (/** @type {Terms} */ terms) => {
    requireFeatures(terms, features ?? null);
    follow(terms);
  };
  const isAsked = features !== undefined || mostEpsilon !== undefined;
  try {
    const state = await store.hold("enrolment", undefined, () => loadOrEnrol(store, transport, follow, token, isAsked ? check : null));
    return new RemoteAgent(store, state, new AgentClient(transport, () => readIdentity(store)), { ...options, now, pauses });
  } catch (error) {
    await store.close();
    throw error;
  }
}

/** @param {string} [name] */
async function openStore(name = "fedcascade-agent") {
  return globalThis.indexedDB ? openBrowserStore(name) : new MemoryStore();
}
