// Enrolment. Keys and tokens are stored before they are sent, so a crash cannot make an agent use one twice.

import { begin } from "./agent.js";
import { require } from "./checks.js";
import { Refused, enrolAgent, fetchTerms } from "./client.js";
import { beginSaved, follow, takePrior } from "./ledger.js";
import { requireFeatures } from "./policies.js";
import { createKey, exportSeed, importSeed } from "./sign.js";

/**
 * @import { Transport } from "./client.js"
 * @import { SavedState } from "./ledger.js"
 * @import { Key } from "./sign.js"
 * @import { Store } from "./store.js"
 * @import { Policy } from "./policies.js"
 * @import { Credential, Terms } from "./wire.js"
 */

/** @typedef {(terms: Terms) => Policy} FollowTerms builds the policy for a server's terms */

const NO_TOKEN = "the server does not know this agent: ask the operator for an enrolment token";

/**
 * Load the agent of a store, or enrol one. The token is stored: an agent that the server has lost may need it later. Terms are
 * checked before a token is made or used.
 * @param {Store} store @param {Transport} transport @param {FollowTerms} followTerms @param {string | (() => Promise<string> | string) | null} token
 * @param {((terms: Terms) => void) | null} check rejects terms @returns {Promise<SavedState>}
 */
export async function loadOrEnrol(store, transport, followTerms, token, check) {
  const given = typeof token === "string" ? token : null;
  const [state, known] = await store.update(["state", "token"], (values) => ({ puts: given === null ? [] : [["token", given]], result: values }));
  if (check && (state || known || token)) check(state?.enrolment.terms ?? await fetchTerms(transport));
  if (!state && !given && !known && typeof token === "function") {
    const made = await token();
    require(typeof made === "string", `token() must give the text of an enrolment token, got ${typeof made}`);
    await store.update([], () => ({ puts: [["token", made.trim()]] }));
  }
  return state ?? enrol(store, transport, followTerms);
}

/**
 * Enrol with a credential or a token, with a new key if the old one was revoked. Resolves to the agent's new state.
 * @param {Store} store @param {Transport} transport @param {FollowTerms} followTerms
 * @param {{credential?: Credential | null, withNewKey?: boolean}} [claim] @returns {Promise<SavedState>}
 */
export async function enrol(store, transport, followTerms, { credential = null, withNewKey = false } = {}) {
  const keyName = withNewKey ? "nextKey" : "key", entry = await prepareKey(store, keyName);
  const [token = null, stored] = await store.update(["token", "state"], (values) => ({ result: values }));
  if (token === null && !credential) throw new Refused(403, "enrolment", NO_TOKEN, 0);
  if (stored) requireFeatures(await fetchTerms(transport), null, stored.enrolment.terms);
  try {
    const { prior, ...enrolment } = await enrolAgent(transport, await readKey(entry), token, credential);
    return await store.update(["state"], ([state]) => {
      const agent = state ? follow(state, enrolment) : begin(enrolment.terms.dimension);
      const saved = state && !withNewKey ? agent : beginSaved(enrolment, agent); // the server holds nothing of a new key
      const next = { ...takePrior(saved, prior, followTerms(enrolment.terms)), version: saved.version + 1 }, isTokenUsed = credential?.agent !== enrolment.agent;
      return { puts: [["key", entry], ["state", next]], deletes: isTokenUsed ? ["nextKey", "token"] : ["nextKey"], result: next };
    });
  } catch (error) {
    if (!(error instanceof Refused) || error.reason !== "enrolment") throw error;
    await store.update([], () => ({ deletes: ["token"] })); // it is not valid
    throw credential ? new Refused(403, "enrolment", NO_TOKEN, 0) : error;
  } finally {
    await store.sync();
  }
}

/** Read the key and number of a store's agent; another tab may have enrolled it again. @param {Store} store */
export async function readIdentity(store) {
  const [entry, state] = await store.update(["key", "state"], (values) => ({ result: values }));
  require(state, "this agent is closed: connect again");
  return { key: await readKey(entry), agent: /** @type {number} */ (state.enrolment.agent) };
}

/** Load a key by name; create it if there is none. @param {Store} store @param {string} name */
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
