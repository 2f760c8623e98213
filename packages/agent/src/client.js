// A client that signs and sends the requests of one agent; how long to wait after a failure.

import { AgentError } from "./checks.js";
import { drawNonce, signEnrolment, signRequest } from "./sign.js";
import { MSGPACK, decodeMessage, encodeEnrolment, encodeGrounds, encodeUpload } from "./wire.js";

const NOTHING = new Uint8Array();
const REPLY_SECONDS = 10;

/** A request that the server has refused: a word for programs, a line for people. */
export class Refused extends AgentError {
  /** @param {number} status @param {string} reason @param {string} detail @param {number} retryAfter seconds, 0 if not said */
  constructor(status, reason, detail, retryAfter) {
    super(detail);
    this.status = status;
    this.reason = reason;
    this.retryAfter = retryAfter;
  }
}

/** A reply of success that cannot be read. */
export class BadReply extends AgentError {}

/** @typedef {{url: string, fetch: typeof fetch, now: () => number}} Transport ``now`` in seconds since 1970 */
/** @typedef {{status: number, headers: Headers, body: Uint8Array}} Reply */

/**
 * @param {Transport} transport
 * @param {string} method @param {string} path @param {Uint8Array<ArrayBuffer>} body @param {Record<string, string>} headers
 * @returns {Promise<Reply>}
 */
async function send(transport, method, path, body, headers) {
  const keepalive = globalThis.document?.visibilityState === "hidden" && body.length < 60_000;
  const signal = AbortSignal.timeout(1000 * REPLY_SECONDS), common = { "content-type": MSGPACK, accept: MSGPACK };
  try {
    const reply = await transport.fetch(transport.url + path, { method, signal, keepalive, credentials: "omit", cache: "no-store",
      headers: { ...common, ...headers }, body: method === "POST" ? body : undefined });
    return { status: reply.status, headers: reply.headers, body: new Uint8Array(await reply.arrayBuffer()) };
  } catch (error) {
    throw new AgentError(`${method} ${path}: the server cannot be reached (${error instanceof Error ? error.message : error})`);
  }
}

/**
 * The server's time, if it has refused a request because this clock is wrong.
 * @param {Reply} reply
 */
function readServerTime({ status, headers }) {
  const text = headers.get("fedcascade-time") ?? "";
  return status === 401 && /^\d{1,12}$/.test(text) ? Number(text) : null;
}

/**
 * @param {Reply} reply
 * @param {"answer" | "standing" | "terms" | "welcome" | null} kind
 */
function decodeReply({ status, headers, body }, kind) {
  if (status >= 400) {
    let refusal = { reason: "unknown", detail: `status ${status}` };
    try {
      refusal = { ...refusal, ...JSON.parse(new TextDecoder().decode(body)) };
    } catch {
      // a proxy answered
    }
    const wait = headers.get("retry-after") ?? "";
    throw new Refused(status, String(refusal.reason), String(refusal.detail), /^\d+$/.test(wait) ? Number(wait) : 0);
  }
  try {
    return kind && decodeMessage(kind, body);
  } catch (error) {
    throw new BadReply(`the server's reply makes no sense: ${/** @type {Error} */ (error).message}`);
  }
}

export class AgentClient {
  #offset = 0; // seconds that the server's clock is ahead

  /** @param {Transport} transport @param {import("./sign.js").Key} key @param {number} agent */
  constructor(transport, key, agent) {
    this.transport = transport;
    this.key = key;
    this.agent = agent;
  }

  /**
   * @param {import("./agent.js").Upload} upload
   * @param {import("./wire.js").Receipt | null} receipt
   * @returns {Promise<import("./wire.js").Answer>}
   */
  async exchange(upload, receipt) {
    const answer = await this.#send("POST", "/v1/exchanges", encodeUpload(upload, receipt), upload.sequence, "answer");
    if (answer.sequence !== upload.sequence) throw new BadReply(`the server answered upload ${answer.sequence}, and upload ${upload.sequence} was sent`);
    return answer;
  }

  /** @returns {Promise<import("./wire.js").Standing>} */
  fetchStanding() {
    return this.#send("GET", `/v1/agents/${this.agent}`, NOTHING, 0, "standing");
  }

  leave() {
    return this.#send("DELETE", `/v1/agents/${this.agent}`, NOTHING, 0, null);
  }

  /**
   * Send a signed request; once more if the server finds this agent's clock wrong.
   * @param {string} method @param {string} path @param {Uint8Array} body @param {number} sequence
   * @param {"answer" | "standing" | null} kind
   */
  async #send(method, path, body, sequence, kind) {
    const bytes = /** @type {Uint8Array<ArrayBuffer>} */ (body);
    const attempt = async () => {
      const created = Math.floor(this.transport.now() + this.#offset);
      const headers = await signRequest(this.key, { agent: this.agent, method, path, body: bytes, sequence, created, nonce: drawNonce() });
      return send(this.transport, method, path, bytes, headers);
    };
    const reply = await attempt(), time = readServerTime(reply);
    if (time === null) return decodeReply(reply, kind);
    this.#offset = time - this.transport.now();
    return decodeReply(await attempt(), kind);
  }
}

/**
 * Enrol an agent with a token, or again with a credential.
 * @param {Transport} transport
 * @param {import("./sign.js").Key} key
 * @param {string | null} token
 * @param {import("./wire.js").Credential | null} credential
 * @returns {Promise<import("./wire.js").Welcome>}
 */
export async function enrolAgent(transport, key, token, credential) {
  const attempt = async (/** @type {number} */ now) => {
    const created = Math.floor(now), proof = await signEnrolment(key, created, encodeGrounds(token, credential));
    const body = encodeEnrolment({ publicKey: key.publicKey, created, proof, token, credential });
    return send(transport, "POST", "/v1/agents", /** @type {Uint8Array<ArrayBuffer>} */ (body), {});
  };
  const reply = await attempt(transport.now()), time = readServerTime(reply);
  const { agent, terms, credential: fresh = null } = decodeReply(time === null ? reply : await attempt(time), "welcome");
  return { agent, terms, credential: fresh };
}

/**
 * What a server runs: policy, constants, dimension.
 * @param {Transport} transport
 * @returns {Promise<import("./wire.js").Terms>}
 */
export async function fetchTerms(transport) {
  return decodeReply(await send(transport, "GET", "/v1/terms", NOTHING, {}), "terms");
}

/**
 * Seconds until the next try: exponential back-off with jitter, and never sooner than the server asked for.
 * @param {number} failures
 * @param {[number, number]} pauses seconds before the first retry, and the longest pause
 * @param {number} retryAfter
 */
export function computePause(failures, [first, longest], retryAfter, draw = Math.random()) {
  return Math.max(retryAfter, Math.min(longest, first * 2 ** Math.min(failures - 1, 30)) * (0.5 + 0.5 * draw));
}
