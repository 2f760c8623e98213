// The agent of one user, in a browser or in Node: decisions never wait for the network, and nothing is lost if the page dies.

import { require, requireWhole } from "./checks.js";
import { AgentClient } from "./client.js";
import { loadOrEnrol, readIdentity } from "./enrolment.js";
import { followTerms } from "./policies.js";
import { SavedAgent } from "./saved-agent.js";
import { MemoryStore, openBrowserStore } from "./store.js";
import { ExchangeLoop } from "./sync.js";

/**
 * @import { SavedState } from "./ledger.js"
 * @import { Oracle } from "./oracles.js"
 * @import { ProblemSize } from "./policies.js"
 * @import { Wishes } from "./saved-agent.js"
 * @import { Store } from "./store.js"
 */

export { AgentError } from "./checks.js";
export { Refused } from "./client.js";
export { MemoryStore } from "./store.js";
export { perCategory, topK } from "./oracles.js";
export { normalise } from "./statistics.js";
export { always } from "./triggers.js";

/** @typedef {import("./saved-agent.js").ShownList} ShownList */
/** @typedef {import("./saved-agent.js").OpenList} OpenList */
/**
 * Where the server is, and how to be its agent.
 * @typedef {object} ConnectOptions
 * @property {string} url the server's address
 * @property {string | null} [token] a one-time enrolment token, needed the first time, and later only if the agent was revoked or
 *   forgotten, or the server has lost it and does not take its credential
 * @property {Store | string} [store] where the agent keeps what it learns: a store, or the name of one in
 *   this browser's IndexedDB; memory if there is none
 * @property {Wishes["policy"]} [policy] makes another policy of the server's
 * @property {Oracle} [oracle] chooses lists from scores; the best k items if not given
 * @property {number} [minObservations] an upload never holds fewer; 2 d if not given, and never fewer than the server asks for
 * @property {ProblemSize} [problem] the sizes for a beta by formula; what is known of them if not given
 * @property {number} [keepLists] a list without feedback is dropped once so many others were shown after it
 * @property {number} [keepSeconds] it is dropped after so long, too; a year if not given
 * @property {[number, number]} [pauses] seconds before the first retry, which double with every failure, and the longest
 * @property {typeof fetch} [fetch] how requests travel
 * @property {() => number} [now] what time signatures and lists carry, in seconds since 1970
 */

/** An agent with a memory in a store and a server far away. Made by ``connect``. */
export class RemoteAgent extends SavedAgent {
  #loop;
  #client;
  #end = new AbortController();

  /**
   * @param {Store} store @param {SavedState} state @param {AgentClient} client @param {Wishes & {pauses: [number, number]}} options
   */
  constructor(store, state, client, options) {
    super(store, state, options);
    this.#client = client;
    this.#loop = new ExchangeLoop(this, client, options.pauses);
    const { signal } = this.#end, wake = () => this.#loop.wake();
    globalThis.addEventListener?.("online", wake, { signal });
    // What is in the outbox has met the floor. The buffer stays: whoever closes a page must not reveal the last click.
    globalThis.document?.addEventListener("visibilitychange", wake, { signal });
    wake(); // a token may have come with this tab, for which another one waits
  }

  /** Why the agent waits or what went wrong last; null if nothing did. */
  get trouble() {
    return this.#loop.trouble ?? this.store.trouble;
  }

  /** Try at once, and wait until every upload was answered and counted; false after ``seconds``. @param {number} [seconds] */
  flush(seconds) {
    this.requireOpen();
    return this.#loop.flush(seconds);
  }

  /** Be forgotten: the server subtracts and erases what this agent sent, and the store is emptied. If it fails, the agent goes on. */
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

  /** Delete everything that this device keeps of the agent, whatever the server holds; it cannot be used again. */
  async erase() {
    this.requireOpen();
    await this.#loop.stop();
    await this.store.erase();
    this.store.notify({});
    await this.close();
  }

  /** Stop speaking and close the store; everything is in it already. */
  async close() {
    if (this.#end.signal.aborted) return;
    this.isClosed = true;
    this.#end.abort();
    await this.#loop.stop();
    await this.store.close();
  }
}

/**
 * Connect to a server. The first time, the agent enrols and needs the server; later it starts offline.
 * @param {ConnectOptions} options @returns {Promise<RemoteAgent>}
 */
export async function connect({ url, token = null, store: where, pauses = [0.25, 300], fetch: send, now = () => Date.now() / 1000, ...wishes }) {
  require(/^https?:\/\/[^/]/.test(url), `a server's address looks like https://host:8777, got '${url}'`);
  if (wishes.minObservations !== undefined) requireWhole("minObservations", wishes.minObservations, 0);
  if (wishes.keepLists !== undefined) requireWhole("keepLists", wishes.keepLists);
  const { keepSeconds = 1 } = wishes;
  require(keepSeconds > 0 && keepSeconds < Infinity, `keepSeconds must be a number > 0, got ${keepSeconds}`);
  const store = typeof where === "object" ? where : await openStore(where);
  const transport = { url: url.replace(/\/+$/, ""), fetch: send ?? globalThis.fetch.bind(globalThis), now };
  try {
    const state = await store.hold("enrolment", undefined, () => loadOrEnrol(store, transport, (terms) => followTerms(terms, wishes), token));
    return new RemoteAgent(store, state, new AgentClient(transport, () => readIdentity(store)), { ...wishes, now, pauses });
  } catch (error) {
    await store.close();
    throw error;
  }
}

/** @param {string} [name] */
async function openStore(name = "fedcascade-agent") {
  return globalThis.indexedDB ? openBrowserStore(name) : new MemoryStore();
}
