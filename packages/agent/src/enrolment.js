// Enrolment: keys and tokens are stored before they are sent, so that none is used twice, whatever crashes.

import { begin } from "./agent.js";
import { require } from "./checks.js";
import { Refused, enrolAgent } from "./client.js";
import { beginSaved, follow, takeWelcome } from "./ledger.js";
import { createKey, exportSeed, importSeed } from "./sign.js";

/**
 * @import { Transport } from "./client.js"
 * @import { SavedState } from "./ledger.js"
 * @import { Key } from "./sign.js"
 * @import { Store } from "./store.js"
 * @import { Policy } from "./policies.js"
 * @import { Credential, Terms } from "./wire.js"
 */

/** @typedef {(terms: Terms) => Policy} FollowTerms the policy that the agent runs under a server's terms */

const NO_TOKEN = "the server does not know this agent, which needs an enrolment token: ask the operator for one";

/**
 * The agent of a store; where there is none, one enrols. The token is kept, for now or for the day when the server does not
 * know the agent any more.
 * @param {Store} store @param {Transport} transport @param {FollowTerms} followTerms @param {string | null} token
 * @returns {Promise<SavedState>}
 */
export async function loadOrEnrol(store, transport, followTerms, token) {
  const state = await store.update(["state"], ([stored]) => ({ puts: token === null ? [] : [["token", token]], result: stored }));
  return state ?? enrol(store, transport, followTerms);
}

/**
 * Enrol with a credential, or with a token; with a new key where the old one is revoked. Resolves to the agent's new state.
 * @param {Store} store @param {Transport} transport @param {FollowTerms} followTerms
 * @param {{credential?: Credential | null, withNewKey?: boolean}} [grounds] @returns {Promise<SavedState>}
 */
export async function enrol(store, transport, followTerms, { credential = null, withNewKey = false } = {}) {
  const keyName = withNewKey ? "nextKey" : "key", entry = await prepareKey(store, keyName);
  const [token = null] = await store.update(["token"], (values) => ({ result: values }));
  if (token === null && !credential) throw new Refused(403, "enrolment", NO_TOKEN, 0);
  try {
    const { download, ...welcome } = await enrolAgent(transport, await readKey(entry), token, credential);
    return await store.update(["state"], ([state]) => {
      const agent = state ? follow(state, welcome) : begin(welcome.terms.dimension);
      const saved = state && !withNewKey ? agent : beginSaved(welcome, agent); // who has a new key has taught nothing yet
      const next = { ...takeWelcome(saved, download, followTerms(welcome.terms)), version: saved.version + 1 }, isTokenUsed = credential?.agent !== welcome.agent;
      return { puts: [["key", entry], ["state", next]], deletes: isTokenUsed ? ["nextKey", "token"] : ["nextKey"], result: next };
    });
  } catch (error) {
    if (!(error instanceof Refused) || error.reason !== "enrolment") throw error;
    await store.update([], () => ({ deletes: ["token"] })); // it will never be taken
    throw credential ? new Refused(403, "enrolment", NO_TOKEN, 0) : error;
  } finally {
    await store.sync();
  }
}

/** Under which key and number the agent of a store signs now; another tab may have enrolled it anew. @param {Store} store */
export async function readIdentity(store) {
  const [entry, state] = await store.update(["key", "state"], (values) => ({ result: values }));
  require(state, "this agent is closed: connect again");
  return { key: await readKey(entry), agent: /** @type {number} */ (state.welcome.agent) };
}

/** The stored key of that name, made if there is none. @param {Store} store @param {string} name */
async function prepareKey(store, name) {
  const [stored] = await store.update([name], (values) => ({ result: values }));
  if (stored) return stored;
  const key = await createKey(!store.holdsKeys);
  const entry = store.holdsKeys ? key : { seed: await exportSeed(key), publicKey: key.publicKey };
  await store.update([], () => ({ puts: [[name, entry]] }));
  return entry;
}

/** @param {any} entry a key, or the bytes of one @returns {Promise<Key>} */
const readKey = async (entry) => (entry.seed ? importSeed(entry.seed, entry.publicKey) : entry);
