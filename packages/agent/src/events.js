// The events of an agent, with the types of their details.

/**
 * @import { Upload } from "./agent.js"
 * @import { Outcome } from "./cascade.js"
 * @import { Download } from "./ledger.js"
 */

/**
 * The events by name. ``change``: the state has changed, in this tab or another.
 * @typedef {object} AgentEvents
 * @property {CustomEvent<{clicked: Outcome["clicked"], upload: Upload | null}>} feedback
 * @property {CustomEvent<{upload: Upload}>} upload
 * @property {CustomEvent<{download: Download, groupAgents: number}>} download
 * @property {CustomEvent<{trouble: string}>} trouble
 * @property {CustomEvent<{}>} change
 */

/** An event target whose listeners get the type of the event that they name. */
export class TypedEventTarget extends EventTarget {
  /**
   * Listen to an event.
   * @override @template {keyof AgentEvents} Name
   * @param {Name} name @param {((event: AgentEvents[Name]) => void) | EventListenerObject | null} listener
   * @param {boolean | AddEventListenerOptions} [options]
   */
  addEventListener(name, listener, options) {
    super.addEventListener(name, /** @type {EventListener} */ (listener), options);
  }
}
