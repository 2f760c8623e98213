// The loop that speaks to the server: it sends upload after upload, and after an accident both sides compare.

import { BadReply, Refused, computePause, enrolAgent, fetchTerms } from "./client.js";

/**
 * Sends the uploads of an agent, one at a time, oldest first. Of several tabs, the one that holds the lock does it, and when it
 * ends or dies the next one goes on. ``trouble`` says why it waits or what went wrong last, null if nothing did.
 */
export class ExchangeLoop {
  /** @type {string | null} */
  trouble = null;
  #saved;
  #client;
  #token;
  #pauses;
  #stop = new AbortController();
  #isBusy = false;
  #isLeader = false;
  #changes = new EventTarget();
  /** @type {Promise<any>} */
  #ended;

  /**
   * @param {import("./saved-agent.js").SavedAgent} saved
   * @param {import("./client.js").AgentClient} client
   * @param {{token: string | null, pauses: [number, number]}} options
   */
  constructor(saved, client, { token, pauses }) {
    this.#saved = saved;
    this.#client = client;
    this.#token = token;
    this.#pauses = pauses;
    saved.addEventListener("change", () => this.#changes.dispatchEvent(new Event("change")));
    saved.store.listen((note) => {
      if (!this.#isLeader && note.trouble !== undefined) this.#say(note.trouble);
    });
    this.#ended = saved.store.hold("exchanges", this.#stop.signal, () => this.#run()).catch(() => {});
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

  /** Try again now: the page is about to be hidden, or the network is back. */
  wake() {
    this.#changes.dispatchEvent(new Event("wake"));
  }

  #hasWork() {
    return this.#saved.state.outbox.length > 0 || !this.#saved.state.isSettled;
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
    while (!this.#stop.signal.aborted) {
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
  }

  #finish() {
    this.#isBusy = false;
    this.#changes.dispatchEvent(new Event("change"));
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
      const note = await saved.settle(await this.#client.fetchStanding());
      if (note !== null || failures) this.#say(note);
    }
  }

  /**
   * Send an upload, and learn from its answer; returns what was wrong with that, if anything.
   * @param {import("./agent.js").Upload} upload
   */
  async #send(upload) {
    const saved = this.#saved, client = this.#client;
    await saved.store.sync();
    /** @type {import("./wire.js").Answer} */
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

  /**
   * Mend what can be mended after a failure, before the next try; returns what to say of it.
   * @param {unknown} error
   */
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
    if (reason === "unrecognised") await this.#enrolAgain();
    if (!upload) return;
    if (reason === "conflict") await saved.renumber(upload, await client.fetchStanding()); // a copy of this store has used the number
    if (reason === "superseded") await this.#resolveSuperseded(upload);
    if (reason === "too-few") {
      await this.#refreshTerms();
      await saved.withdraw(upload, { isLost: false });
    }
    if (reason === "impossible" || reason === "too-heavy") await saved.withdraw(upload, { isLost: true });
  }

  /** Enrol with the same key: the server was restored from a backup and has lost this agent. */
  async #enrolAgain() {
    const client = this.#client, { credential } = this.#saved.state.welcome;
    const welcome = await enrolAgent(client.transport, client.key, this.#token, credential);
    await this.#saved.follow(welcome);
    client.agent = welcome.agent;
  }

  /**
   * Decide by the sums whether a folded upload is this one; it is given up where they leave that open.
   * @param {import("./agent.js").Upload} upload
   */
  async #resolveSuperseded(upload) {
    const standing = await this.#client.fetchStanding(), saved = this.#saved;
    const excess = standing.rounds - saved.state.confirmed.rounds - upload.statistics.rounds;
    if (excess < 0) await saved.renumber(upload, standing);
    else if (excess === 0) await saved.receive(upload, null);
    else await saved.withdraw(upload, { isLost: true });
  }

  /** Follow the terms that the server has now: another policy or constants, with the agent's own statistics. */
  async #refreshTerms() {
    await this.#saved.follow({ terms: await fetchTerms(this.#client.transport) });
  }
}
