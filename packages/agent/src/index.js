// The agent of one user, in a browser or in Node: decisions never wait for the network, and nothing is lost if the page dies.

import { begin } from "./agent.js";
import { require, requireWhole } from "./checks.js";
import { AgentClient, enrolAgent } from "./client.js";
import { SavedAgent, beginSaved } from "./saved-agent.js";
import { createKey, exportSeed, importSeed } from "./sign.js";
import { MemoryStore, openBrowserStore } from "./store.js";
import { ExchangeLoop } from "./sync.js";

export { AgentError } from "./checks.js";
export { Refused } from "./client.js";
export { MemoryStore } from "./store.js";
export { budget, perCategory, topK } from "./oracles.js";
export { normalise } from "./statistics.js";
export { always } from "./triggers.js";

/** @typedef {import("./saved-agent.js").ShownList} ShownList */
/**
 * Where the server is, and how to be its agent.
 * @typedef {object} ConnectOptions
 * @property {string} url the server's address
 * @property {string | null} [token] a one-time enrolment token, needed the first time
 * @property {import("./store.js").Store | string} [store] where the agent keeps what it learns: a store, or the name of one in
 *   this browser's IndexedDB; memory if there is none
 * @property {import("./saved-agent.js").Wishes["policy"]} [policy] makes another policy of the server's
 * @property {import("./oracles.js").Oracle} [oracle] chooses lists from scores; the best k items if not given
 * @property {number} [minObservations] an upload never holds fewer; 2 d if not given, and never fewer than the server asks for
 * @property {import("./policies.js").ProblemSize} [problem] the sizes for a beta by formula; what is known of them if not given
 * @property {number} [keepLists] a list without feedback is dropped once so many others were shown after it
 * @property {number} [keepSeconds] it is dropped after so long, too; a year if not given
 * @property {[number, number]} [pauses] seconds before the first retry, which double with every failure, and the longest
 * @property {typeof fetch} [fetch] how requests travel
 * @property {() => number} [now] seconds since 1970
 */

/** An agent with a memory in a store and a server far away. Made by ``connect``. */
export class RemoteAgent extends SavedAgent {
  #loop;
  #client;
  #options;
  #end = new AbortController();

  /**
   * @param {import("./store.js").Store} store
   * @param {import("./saved-agent.js").SavedState} state
   * @param {AgentClient} client
   * @param {import("./saved-agent.js").Wishes & {token: string | null, pauses: [number, number]}} options
   */
  constructor(store, state, client, options) {
    super(store, state, options);
    this.#client = client;
    this.#options = options;
    this.#loop = new ExchangeLoop(this, client, options);
    const { signal } = this.#end, wake = () => this.#loop.wake();
    globalThis.addEventListener?.("online", wake, { signal });
    // What is in the outbox has met the floor. The buffer stays: whoever closes a page must not reveal the last click.
    globalThis.document?.addEventListener("visibilitychange", wake, { signal });
  }

  /** Why the agent waits or what went wrong last; null if nothing did. */
  get trouble() {
    return this.#loop.trouble ?? this.store.trouble;
  }

  /** Wait until every upload has been answered and counted; false after ``seconds``. @param {number} [seconds] */
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
      this.#loop = new ExchangeLoop(this, this.#client, this.#options);
      throw error;
    }
    await this.store.erase();
    await this.close();
  }

  /** Stop speaking and close the store; everything is in it already. */
  async close() {
    if (this.isClosed) return;
    this.isClosed = true;
    this.#end.abort();
    await this.#loop.stop();
    await this.store.close();
  }
}

/**
 * Connect to a server. The first time, the agent enrols and needs the server; later it starts offline.
 * @param {ConnectOptions} options
 * @returns {Promise<RemoteAgent>}
 */
export async function connect({ url, token = null, store: where, pauses = [0.25, 300], fetch: send, now = () => Date.now() / 1000, ...wishes }) {
  require(/^https?:\/\/[^/]/.test(url), `a server's address looks like https://host:8777, got '${url}'`);
  if (wishes.minObservations !== undefined) requireWhole("minObservations", wishes.minObservations, 0);
  if (wishes.keepLists !== undefined) requireWhole("keepLists", wishes.keepLists);
  const store = typeof where === "object" ? where : await openStore(where);
  const transport = { url: url.replace(/\/+$/, ""), fetch: send ?? globalThis.fetch.bind(globalThis), now };
  try {
    const { key, state } = await store.hold("enrolment", undefined, () => loadOrEnrol(store, transport, token));
    return new RemoteAgent(store, state, new AgentClient(transport, key, state.welcome.agent), { ...wishes, token, pauses });
  } catch (error) {
    await store.close();
    throw error;
  }
}

/** @param {string} [name] */
async function openStore(name = "fedcascade-agent") {
  return globalThis.indexedDB ? openBrowserStore(name) : new MemoryStore();
}

/**
 * Load the agent of a store, or enrol one, with a key that is stored before it is sent: if the reply is lost, the same key gets
 * the same number.
 * @param {import("./store.js").Store} store
 * @param {import("./client.js").Transport} transport
 * @param {string | null} token
 */
async function loadOrEnrol(store, transport, token) {
  const [stored, state] = await store.update(["key", "state"], (values) => ({ result: values }));
  require(state || token, "the first connect needs an enrolment token: ask the operator for one");
  const key = stored ? await readKey(stored) : await makeKey(store);
  if (state) return { key, state };
  const welcome = await enrolAgent(transport, key, token, null), enrolled = beginSaved(welcome, begin(welcome.terms.dimension));
  await store.update([], () => ({ puts: [["state", enrolled]] }));
  await store.sync();
  return { key, state: enrolled };
}

/** @param {any} stored */
const readKey = async (stored) => (stored.seed ? importSeed(stored.seed, stored.publicKey) : stored);

/** @param {import("./store.js").Store} store */
async function makeKey(store) {
  const key = await createKey(!store.holdsKeys);
  const entry = store.holdsKeys ? key : { seed: await exportSeed(key), publicKey: key.publicKey };
  await store.update([], () => ({ puts: [["key", entry]] }));
  return key;
}
