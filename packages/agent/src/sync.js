// The loop that speaks to the server: it sends upload after upload, and after an accident both sides compare.

import { isChange } from "./agent.js";
import { BadReply, Refused, computePause, fetchTerms } from "./client.js";
import { enrol } from "./enrolment.js";
import { follow, renumber, settle, withdraw } from "./ledger.js";

/**
 * @import { Upload } from "./agent.js"
 * @import { AgentClient } from "./client.js"
 * @import { SavedAgent } from "./saved-agent.js"
 * @import { Answer, Standing } from "./wire.js"
 */

/**
 * Sends the uploads of an agent, one at a time, oldest first. Of several tabs, the one that holds the lock does it, and when it
 * ends or dies the next one goes on. ``trouble`` says why it waits or what went wrong last, null if nothing did.
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
    saved.addEventListener("change", () => this.#tell("change"));
    saved.store.listen((note) => {
      if (note.isWake) this.#tell("wake");
      if (!this.#isLeader && note.trouble !== undefined) this.#say(note.trouble);
    });
    this.start();
  }

  /** Speak from now on, as soon as no other tab does. */
  start() {
    this.#stop = new AbortController();
    this.#ended = this.#saved.store.hold("exchanges", this.#stop.signal, () => this.#run()).catch(() => {});
  }

  /**
   * Wait until nothing is left to send or to compare; false after ``seconds``. Whoever waits by its own patience tries at once.
   * @param {number} [seconds]
   */
  async flush(seconds = Infinity) {
    const deadline = Date.now() + 1000 * seconds;
    this.wake();
    while (!this.#isDone()) {
      const left = deadline - Date.now();
      if (left <= 0 || this.#stop.signal.aborted) return false;
      await this.#wait(Math.min(left, 1000)); // a tab that does not speak looks again
      await this.#saved.refresh();
    }
    return true;
  }

  /** End the loop, after the request that is under way. */
  async stop() {
    this.#stop.abort(new Error("closed"));
    await this.#ended;
  }

  /** Try again now, in whichever tab speaks: somebody waits, the page is about to be hidden, or the network is back. */
  wake() {
    this.#tell("wake");
    this.#saved.store.notify({ isWake: true });
  }

  /** @param {"change" | "wake"} name */
  #tell(name) {
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
  #say(trouble) {
    if (trouble === this.trouble) return;
    this.trouble = trouble;
    if (this.#isLeader) this.#saved.store.notify({ trouble });
    if (trouble !== null) this.#saved.reportTrouble(trouble);
  }

  /** Wait for a change, a call to wake, the end, or so many milliseconds. @param {number} milliseconds @param {string[]} [names] */
  #wait(milliseconds, names = ["change", "wake"]) {
    return new Promise((resolve) => {
      const end = new AbortController(), options = { signal: end.signal };
      const finish = () => {
        end.abort();
        clearTimeout(timer);
        resolve(undefined);
      };
      const timer = setTimeout(finish, Math.min(milliseconds, 2 ** 31 - 1));
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
        await this.#wait(60_000);
        continue;
      }
      try {
        this.#isBusy = true;
        await this.#work(failures);
        failures = 0;
        this.#finish();
      } catch (error) {
        failures += 1;
        this.#say(await this.#recover(error));
        this.#finish();
        await this.#pause(computePause(failures, this.#pauses, 0), error instanceof Refused ? error.retryAfter : 0);
      }
    }
    this.#isLeader = false;
  }

  #finish() {
    this.#isBusy = false;
    this.#tell("change");
  }

  /** @param {number} seconds @param {number} retryAfter what the server asked for, which nobody cuts short */
  async #pause(seconds, retryAfter) {
    if (retryAfter > 0) return this.#wait(1000 * Math.max(seconds, retryAfter), []);
    const isOffline = globalThis.navigator?.onLine === false; // then only 'online' is worth another try
    return this.#wait(1000 * (isOffline ? Math.max(seconds, this.#pauses[1]) : seconds), ["wake"]);
  }

  /** @param {number} failures */
  async #work(failures) {
    const saved = this.#saved, [upload] = saved.state.outbox;
    if (upload) {
      this.#say(await this.#send(upload));
    } else {
      const standing = await this.#client.fetchStanding(), note = await saved.change((state) => settle(state, standing, saved.policy));
      if (note !== null || failures) this.#say(note);
    }
  }

  /** Send an upload, and learn from its answer; returns what was wrong with that, if anything. @param {Upload} upload */
  async #send(upload) {
    const saved = this.#saved, client = this.#client;
    await saved.store.sync();
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
    if (trouble === null && answer.terms_id !== saved.state.welcome.terms.terms_id) await this.#refreshTerms();
    return trouble;
  }

  /** Mend what can be mended after a failure, before the next try; returns what to say of it. @param {unknown} error */
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

  /** Do what a refusal asks for; most ask for patience alone. @param {Refused} refusal */
  async #answerRefusal({ reason }) {
    const saved = this.#saved, client = this.#client, [upload] = saved.state.outbox;
    if (reason === "unrecognised") await this.#enrol({ credential: saved.state.welcome.credential }); // forgotten, or lost by a restore
    if (reason === "revoked") await this.#enrol({ withNewKey: true }); // what it taught stays with the server
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

  /** @param {Upload} upload @param {{isLost: boolean}} fate */
  #withdraw(upload, { isLost }) {
    return this.#saved.change((state) => ({ state: withdraw(state, upload, isLost, this.#saved.policy) }));
  }

  /** Enrol again, and go on under the number that the server gives. @param {Parameters<typeof enrol>[3]} grounds */
  async #enrol(grounds) {
    const { store } = this.#saved, { version } = await store.hold("enrolment", undefined, () => enrol(store, this.#client.transport, (terms) => this.#saved.followTerms(terms), grounds));
    store.notify({ version });
    await this.#saved.refresh();
  }

  /** Decide by the sums whether a folded upload is this one; it is given up where they leave that open. @param {Upload} upload */
  async #resolveSuperseded(upload) {
    const standing = await this.#client.fetchStanding(), saved = this.#saved;
    const excess = isChange(upload) ? Math.min(0, standing.last_change - upload.sequence)
      : standing.rounds - saved.state.confirmed.rounds - upload.statistics.rounds;
    if (excess < 0) await this.#renumber(upload, standing);
    else if (excess === 0) await saved.receive(upload, null);
    else await this.#withdraw(upload, { isLost: true });
  }

  /** Follow the terms that the server has now: another policy or constants, with the agent's own statistics. */
  async #refreshTerms() {
    const terms = await fetchTerms(this.#client.transport);
    await this.#saved.change((state) => ({ state: follow(state, { terms }) }));
  }
}
