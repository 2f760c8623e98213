// The loop of exchanges: it sends uploads one by one, and compares sums with the server after an accident.

import { isChange } from "./agent.js";
import { require } from "./checks.js";
import { BadReply, Refused, computePause, fetchTerms } from "./client.js";
import { enrol } from "./enrolment.js";
import { changeTerms, renumber, settle, withdraw } from "./ledger.js";

/**
 * @import { Upload } from "./agent.js"
 * @import { AgentClient } from "./client.js"
 * @import { SavedAgent } from "./saved-agent.js"
 * @import { Answer, Standing } from "./wire.js"
 */

/**
 * The exchanges of an agent, one upload at a time, oldest first. One tab holds the lock and exchanges; when it ends or dies,
 * the next one takes over. ``trouble`` is the last problem, or null.
 */
export class ExchangeLoop {
  /** @type {string | null} */
  trouble = null;
  #saved;
  #client;
  #pauses;
  #stop = new AbortController();
  #isBusy = false;
  #isLeader = false;
  #changes = new EventTarget();
  /** @type {Promise<any>} */
  #ended = Promise.resolve();

  /** @param {SavedAgent} saved @param {AgentClient} client @param {[number, number]} pauses */
  constructor(saved, client, pauses) {
    this.#saved = saved;
    this.#client = client;
    this.#pauses = pauses;
    saved.addEventListener("change", () => this.#dispatch("change"));
    saved.store.listen((note) => {
      if (note.isWake) this.#dispatch("wake");
      if (!this.#isLeader && note.trouble !== undefined) this.#setTrouble(note.trouble);
    });
    this.start();
  }

  /** Start exchanging, as soon as no other tab does. */
  start() {
    this.#stop = new AbortController();
    this.#ended = this.#saved.store.hold("exchanges", this.#stop.signal, () => this.#run()).catch(() => {});
  }

  /**
   * Retry now, and wait until nothing is left to send or to compare; false after ``seconds``.
   * @param {number} [seconds]
   */
  async flush(seconds = Infinity) {
    const deadline = Date.now() + 1000 * seconds;
    this.wake();
    while (!this.#isDone()) {
      const left = deadline - Date.now();
      if (left <= 0 || this.#stop.signal.aborted) return false;
      await this.#wait(Math.min(left, 1000)); // a tab without the lock polls
      await this.#saved.refresh();
    }
    return true;
  }

  /** Stop the loop after the request in flight. */
  async stop() {
    this.#stop.abort(new Error("closed"));
    await this.#ended;
  }

  /** Retry now, in the tab that holds the lock: a caller waits, the page is about to be hidden, or the network is back. */
  wake() {
    this.#dispatch("wake");
    this.#saved.store.notify({ isWake: true });
  }

  /** @param {"change" | "wake"} name */
  #dispatch(name) {
    this.#changes.dispatchEvent(new Event(name));
  }

  #hasWork() {
    const { outbox, isSettled } = this.#saved.state;
    return !this.#saved.isClosed && (outbox.length > 0 || !isSettled);
  }

  #isDone() {
    return !this.#isBusy && !this.#hasWork();
  }

  /** @param {string | null} trouble */
  #setTrouble(trouble) {
    if (trouble === this.trouble) return;
    this.trouble = trouble;
    if (this.#isLeader) this.#saved.store.notify({ trouble });
    if (trouble !== null) this.#saved.reportTrouble(trouble);
  }

  /**
   * Wait for an event, the end, or a number of milliseconds; Node may exit meanwhile if ``isIdle``.
   * @param {number} milliseconds @param {string[]} [names] @param {boolean} [isIdle]
   */
  #wait(milliseconds, names = ["change", "wake"], isIdle = false) {
    return new Promise((resolve) => {
      const end = new AbortController(), options = { signal: end.signal };
      const finish = () => {
        end.abort();
        clearTimeout(timer);
        resolve(undefined);
      };
      const timer = setTimeout(finish, Math.min(milliseconds, 2 ** 31 - 1));
      if (isIdle) /** @type {any} */ (timer).unref?.();
      for (const name of names) this.#changes.addEventListener(name, finish, options);
      this.#stop.signal.addEventListener("abort", finish, options);
      if (this.#stop.signal.aborted) finish();
    });
  }

  async #run() {
    this.#isLeader = true;
    let failures = 0;
    await this.#saved.refresh().catch(() => {});
    while (!this.#stop.signal.aborted && !this.#saved.isClosed) {
      if (!this.#hasWork()) {
        await this.#wait(60_000, undefined, true);
        continue;
      }
      try {
        this.#isBusy = true;
        await this.#work(failures);
        failures = 0;
        this.#finish();
      } catch (error) {
        failures += 1;
        this.#setTrouble(await this.#recover(error));
        this.#finish();
        await this.#pause(computePause(failures, this.#pauses, 0), error instanceof Refused ? error.retryAfter : 0);
      }
    }
    this.#isLeader = false;
  }

  #finish() {
    this.#isBusy = false;
    this.#dispatch("change");
  }

  /** @param {number} seconds @param {number} retryAfter the server's minimum, which ``wake`` does not cut short */
  async #pause(seconds, retryAfter) {
    if (retryAfter > 0) return this.#wait(1000 * Math.max(seconds, retryAfter), []);
    const isOffline = globalThis.navigator?.onLine === false; // then wait for the event 'online'
    return this.#wait(1000 * (isOffline ? Math.max(seconds, this.#pauses[1]) : seconds), ["wake"]);
  }

  /** @param {number} failures */
  async #work(failures) {
    const saved = this.#saved, [upload] = saved.state.outbox;
    if (upload) {
      this.#setTrouble(await this.#send(upload));
    } else {
      const standing = await this.#client.fetchStanding(), note = await saved.change((state) => settle(state, standing, saved.policy));
      if (note !== null || failures) this.#setTrouble(note);
    }
  }

  /** Send an upload and take its answer; return the problem, if any. @param {Upload} upload */
  async #send(upload) {
    const saved = this.#saved, client = this.#client;
    await saved.store.sync();
    // What this page sends, a later one would send again with another noise.
    require(!saved.policy.privacy || saved.store.trouble === null, `private uploads wait: ${saved.store.trouble}`);
    /** @type {Answer} */
    let answer;
    try {
      answer = await client.exchange(upload, saved.state.receipt);
    } catch (error) {
      if (!(error instanceof BadReply) || (await client.fetchStanding()).last_sequence < upload.sequence) throw error;
      await saved.receive(upload, null);
      return `upload ${upload.sequence} was counted, but ${error.message}`;
    }
    const trouble = await saved.receive(upload, answer);
    if (trouble === null && answer.terms_id !== saved.state.enrolment.terms.terms_id) await this.#refreshTerms();
    return trouble;
  }

  /** Recover from a failure before the next attempt; return the problem in one line. @param {unknown} error */
  async #recover(error) {
    const line = error instanceof Error ? error.message : String(error);
    if (!(error instanceof Refused)) return line;
    try {
      await this.#answerRefusal(error);
      return line;
    } catch (second) {
      return `${line}; ${second instanceof Error ? second.message : second}`;
    }
  }

  /** Act on a refusal; most need only another attempt. @param {Refused} refusal */
  async #answerRefusal({ reason }) {
    const saved = this.#saved, client = this.#client, [upload] = saved.state.outbox;
    if (reason === "unrecognised") await this.#enrol({ credential: saved.state.enrolment.credential }); // forgotten, or lost by a restored server
    if (reason === "revoked") await this.#enrol({ withNewKey: true }); // its uploads stay at the server
    if (!upload) return;
    if (reason === "conflict") await this.#renumber(upload, await client.fetchStanding()); // a copy of this store has used the number
    if (reason === "superseded") await this.#resolveSuperseded(upload);
    if (reason === "too-few") await this.#refreshTerms().then(() => this.#withdraw(upload, { isLost: false }));
    if (reason === "impossible" || reason === "too-heavy") await this.#withdraw(upload, { isLost: true });
  }

  /** @param {Upload} upload @param {Standing} standing */
  #renumber(upload, standing) {
    return this.#saved.change((state) => ({ state: renumber(state, upload, standing, this.#saved.policy) }));
  }

  /** @param {Upload} upload @param {{isLost: boolean}} options */
  #withdraw(upload, { isLost }) {
    return this.#saved.change((state) => ({ state: withdraw(state, upload, isLost, this.#saved.policy) }));
  }

  /** Enrol again under the server's new number. @param {Parameters<typeof enrol>[3]} claim */
  async #enrol(claim) {
    const { store } = this.#saved, { version } = await store.hold("enrolment", undefined, () => enrol(store, this.#client.transport, (terms) => this.#saved.followTerms(terms), claim));
    store.notify({ version });
    await this.#saved.refresh();
  }

  /** Decide by the sums whether the server has counted an upload before it folded the log; drop it if in doubt. @param {Upload} upload */
  async #resolveSuperseded(upload) {
    const standing = await this.#client.fetchStanding(), saved = this.#saved;
    const excess = isChange(upload) ? Math.min(0, standing.last_change - upload.sequence)
      : standing.rounds - saved.state.confirmed.rounds - upload.statistics.rounds;
    if (excess < 0) await this.#renumber(upload, standing);
    else if (excess === 0) await saved.receive(upload, null);
    else await this.#withdraw(upload, { isLost: true });
  }

  /** Fetch the server's terms, and continue under them with the same statistics. */
  async #refreshTerms() {
    const terms = await fetchTerms(this.#client.transport);
    await this.#saved.change((state) => ({ state: changeTerms(state, terms, (each) => this.#saved.followTerms(each)) }));
  }
}
