// What a page gets in a browser that cannot run an agent: its own order of items, and the reason.

import { AgentError, requireWhole } from "./checks.js";
import { TypedEventTarget } from "./events.js";
import { canSign } from "./sign.js";

/**
 * @import { Upload } from "./agent.js"
 * @import { Outcome } from "./cascade.js"
 * @import { OpenList, ShownList } from "./saved-agent.js"
 */

/** Return why this browser cannot run an agent, or null if it can. @returns {Promise<string | null>} */
export async function findMissing() {
  if (!globalThis.crypto?.subtle) return "this page has no WebCrypto: serve it by https, or from localhost";
  if (globalThis.document && !globalThis.navigator?.locks) return "this browser has no locks between tabs (navigator.locks): use a newer one";
  return (await canSign()) ? null : "this browser's WebCrypto has no Ed25519: use a newer one";
}

/** An agent that shows items in the page's order, learns nothing and sends nothing. ``trouble`` says why. */
export class FallbackAgent extends TypedEventTarget {
  isFallback = /** @type {const} */ (true);
  id = null;
  dimension = 0;
  floor = 0;
  buffered = 0;
  unsent = 0;
  lost = 0;
  hasPrior = false;
  isClosed = false;
  /** @type {number[]} */
  estimate = [];

  /** @param {string} trouble */
  constructor(trouble) {
    super();
    this.trouble = trouble;
  }

  /** Return the first ``k`` items. @param {ArrayLike<any>} items @param {{k?: number}} [options] @returns {ShownList} */
  recommend(items, { k = 4 } = {}) {
    requireWhole("k", k);
    if (!items?.length) throw new AgentError("a list needs at least one item, got none");
    return { impression: "", items: Array.from({ length: Math.min(k, items.length) }, (_, at) => at), features: new Float32Array() };
  }

  /** @param {ShownList | string} _shown @param {Outcome} [_outcome] @returns {Promise<Upload | null>} */
  async feedback(_shown, _outcome) {
    return null;
  }

  /** @param {ShownList | string} _shown @param {number | ArrayLike<number>} _value */
  async reward(_shown, _value) {}

  /** @returns {Promise<OpenList[]>} */
  async openLists() {
    return [];
  }

  /** @param {number} [_seconds] */
  async flush(_seconds) {
    return true;
  }

  async restart() {}
  async leave() {}
  async erase() {}
  async close() {}
}
