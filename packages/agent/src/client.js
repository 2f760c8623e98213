// The client that signs and sends the requests of one agent, and the pause after a failure.

import { AgentError } from "./checks.js";
import { checkTerms } from "./policies.js";
import { drawNonce, signEnrolment, signRequest } from "./sign.js";
import { MSGPACK, decodeMessage, encodeEnrolment, encodeEnrolmentClaim, encodeUpload } from "./wire.js";

/**
 * @import { Upload } from "./agent.js"
 * @import { Key } from "./sign.js"
 * @import { Answer, Credential, Pooled, Receipt, Standing, Terms, EnrolmentAnswer } from "./wire.js"
 */

const NOTHING = new Uint8Array();
const REPLY_SECONDS = 10;
const LONGEST_WAIT = 3600; // seconds; an agent asks again after an hour, however long a server wants it to wait

/** A request that the server refused: a reason for programs, and one line for people. */
export class Refused extends AgentError {
  name = "Refused";

  /** @param {number} status @param {string} reason @param {string} detail @param {number} retryAfter seconds, 0 if not given */
  constructor(status, reason, detail, retryAfter) {
    super(detail);
    this.status = status;
    this.reason = reason;
    this.retryAfter = retryAfter;
  }
}

/** A successful reply that cannot be decoded. */
export class BadReply extends AgentError {
  name = "BadReply";
}

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

/** Return the server's time from a refusal for a wrong clock. @param {Reply} reply */
function readServerTime({ status, headers }) {
  const text = headers.get("fedcascade-time") ?? "";
  return status === 401 && /^\d{1,12}$/.test(text) ? Number(text) : null;
}

/** @param {Reply} reply @param {"answer" | "standing" | "terms" | "enrolment" | null} kind */
function decodeReply({ status, headers, body }, kind) {
  if (status >= 400) {
    let refusal = { reason: "unknown", detail: `status ${status}` };
    try {
      refusal = { ...refusal, ...JSON.parse(new TextDecoder().decode(body)) };
    } catch {
      // a proxy answered
    }
    const wait = headers.get("retry-after") ?? "";
    throw new Refused(status, String(refusal.reason), String(refusal.detail), /^\d+$/.test(wait) ? Math.min(Number(wait), LONGEST_WAIT) : 0);
  }
  try {
    return kind && decodeMessage(kind, body);
  } catch (error) {
    throw new BadReply(`the server's reply cannot be decoded: ${/** @type {Error} */ (error).message}`);
  }
}

/** @typedef {{key: Key, agent: number}} Identity */
/** @param {number} agent */
const getAgentPath = (agent) => `/v1/agents/${agent}`;

export class AgentClient {
  #offset = 0; // seconds that the server's clock is ahead
  #identify;

  /** @param {Transport} transport @param {() => Promise<Identity>} identify returns key and number, before each request */
  constructor(transport, identify) {
    this.transport = transport;
    this.#identify = identify;
  }

  /** @param {Upload} upload @param {Receipt | null} receipt @returns {Promise<Answer>} */
  async exchange(upload, receipt) {
    const { sequence } = upload, answer = await this.#send("POST", () => "/v1/exchanges", "answer", encodeUpload(upload, receipt), sequence);
    if (answer.sequence !== sequence) throw new BadReply(`the server answered upload ${answer.sequence} instead of ${sequence}`);
    return answer;
  }

  /** @returns {Promise<Standing>} */
  fetchStanding() {
    return this.#send("GET", getAgentPath, "standing");
  }

  leave() {
    return this.#send("DELETE", getAgentPath, null);
  }

  /**
   * Send a signed request; retry once with the server's time if this clock is wrong.
   * @param {string} method @param {(agent: number) => string} getPath @param {"answer" | "standing" | null} kind
   * @param {Uint8Array<ArrayBuffer>} [body] @param {number} [sequence]
   */
  async #send(method, getPath, kind, body = NOTHING, sequence = 0) {
    const { key, agent } = await this.#identify(), path = getPath(agent);
    const attempt = async () => {
      const created = Math.floor(this.transport.now() + this.#offset);
      return send(this.transport, method, path, body, await signRequest(key, { agent, method, path, body, sequence, created, nonce: drawNonce() }));
    };
    const reply = await attempt(), time = readServerTime(reply);
    if (time === null) return decodeReply(reply, kind);
    this.#offset = time - this.transport.now();
    return decodeReply(await attempt(), kind);
  }
}

/**
 * Enrol an agent with a token, or again with a credential.
 * @param {Transport} transport @param {Key} key @param {string | null} token @param {Credential | null} credential
 * @returns {Promise<EnrolmentAnswer & {prior?: Pooled}>}
 */
export async function enrolAgent(transport, key, token, credential) {
  const attempt = async (/** @type {number} */ now) => {
    const created = Math.floor(now), proof = await signEnrolment(key, created, encodeEnrolmentClaim(token, credential));
    const body = encodeEnrolment({ publicKey: key.publicKey, created, proof, token, credential });
    return send(transport, "POST", "/v1/agents?prior=1", body, {});
  };
  const reply = await attempt(transport.now()), time = readServerTime(reply);
  const { agent, terms, credential: fresh = null, prior } = decodeReply(time === null ? reply : await attempt(time), "enrolment");
  return { agent, terms: checkTerms(terms), credential: fresh, prior };
}

/** Fetch the server's policy, constants and limits. @param {Transport} transport @returns {Promise<Terms>} */
export async function fetchTerms(transport) {
  return checkTerms(decodeReply(await send(transport, "GET", "/v1/terms", NOTHING, {}), "terms"));
}

/**
 * Compute the seconds until the next attempt: exponential backoff with jitter, and at least ``retryAfter``.
 * @param {number} failures
 * @param {[number, number]} pauses seconds before the first retry, and the longest pause
 * @param {number} retryAfter
 */
export function computePause(failures, [first, longest], retryAfter, draw = Math.random()) {
  return Math.max(retryAfter, Math.min(longest, first * 2 ** Math.min(failures - 1, 30)) * (0.5 + 0.5 * draw));
}
