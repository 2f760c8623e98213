// MessagePack, and the messages of protocol 2 (docs/reference-wire.md).

import { AgentError, require } from "./checks.js";
import { packNumbers } from "./statistics.js";

/** @import { Upload } from "./agent.js" */

const PROTOCOL = 2;
export const MSGPACK = "application/msgpack";
const MOST_DEPTH = 8;

/**
 * @typedef {{epoch: string, position: number, proof: Uint8Array}} Receipt
 * @typedef {{agent: number, enrolled: number, epoch: string, proof: Uint8Array}} Credential
 * @typedef {{protocol: number, policy: string, constants: Record<string, any>, dimension: number, longest_list: number,
 *   min_observations: number, terms_id: string, features?: string}} Terms
 * @typedef {{agent: number, terms: Terms, credential: Credential | null}} EnrolmentAnswer
 * @typedef {{count: number, clicks: number, rounds: number, system_rounds: number, agents: number, numbers: Uint8Array}} Pooled
 * @typedef {Pooled & {sequence: number, group_agents: number, held_count: number, held_rounds: number, terms_id: string,
 *   receipt: Receipt}} Answer
 * @typedef {{count: number, clicks: number, rounds: number, numbers: Uint8Array, last_sequence: number, last_change: number,
 *   epoch: string, credential: Credential}} Standing
 */

/** A number that is encoded as float64 even if it is an integer. */
class Float {
  /** @param {number} value */
  constructor(value) {
    this.value = value;
  }
}

/**
 * Encode null, integers, strings, bytes, and arrays and objects of fewer than 16 entries in the shortest MessagePack.
 * @param {any} value @returns {Uint8Array<ArrayBuffer>}
 */
export function encode(value) {
  /** @type {number[]} */
  const bytes = [];
  write(value, bytes);
  return Uint8Array.from(bytes);
}

/**
 * Write a length or number: added to ``fixed`` if it is below ``small``, else after a marker, in 1, 2, 4 or 8 bytes.
 * @param {number[]} bytes @param {number} value @param {number} fixed @param {number} small @param {number} marker of 1 byte
 */
function writeSized(bytes, value, fixed, small, marker) {
  require(Number.isSafeInteger(value) && value >= 0, `a number must be an integer >= 0, got ${value}`);
  if (value < small) bytes.push(fixed + value);
  else {
    const power = [2 ** 8, 2 ** 16, 2 ** 32].filter((limit) => value >= limit).length;
    bytes.push(marker + power);
    for (let shift = 2 ** power - 1; shift >= 0; shift--) bytes.push(Math.floor(value / 2 ** (8 * shift)) % 256);
  }
}

/** @param {any} value @param {number[]} bytes */
function write(value, bytes) {
  if (value === null) bytes.push(0xc0);
  else if (typeof value === "number") writeSized(bytes, value, 0, 0x80, 0xcc);
  else if (value instanceof Float) bytes.push(0xcb, ...new Uint8Array(new Float64Array([value.value]).buffer).reverse());
  else if (typeof value === "string") {
    const text = new TextEncoder().encode(value);
    writeSized(bytes, text.length, 0xa0, 32, 0xd9);
    bytes.push(...text);
  } else if (value instanceof Uint8Array) {
    writeSized(bytes, value.length, 0, 0, 0xc4);
    for (const byte of value) bytes.push(byte);
  } else {
    const isArray = Array.isArray(value), entries = isArray ? value : Object.entries(value).flat(1);
    bytes.push(isArray ? 0x90 + value.length : 0x80 + entries.length / 2);
    for (const entry of entries) write(entry, bytes);
  }
}

/**
 * Decode one value of MessagePack; reject a body that is too short, too deep or too long.
 * @param {Uint8Array} bytes @returns {any}
 */
export function decode(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;
  const take = (/** @type {number} */ size) => {
    require(at + size <= bytes.length, "the body ends too early");
    at += size;
    return at - size;
  };
  const readWhole = (/** @type {number} */ size) => {
    let value = 0;
    for (let from = take(size), k = 0; k < size; k++) value = value * 256 + bytes[from + k];
    return value;
  };
  const readSigned = (/** @type {number} */ size) => {
    const value = readWhole(size);
    return value >= 2 ** (8 * size - 1) ? value - 2 ** (8 * size) : value;
  };
  const readBytes = (/** @type {number} */ size) => bytes.slice(take(size), at);
  const readText = (/** @type {number} */ size) => new TextDecoder("utf-8", { fatal: true }).decode(readBytes(size));
  const readArray = (/** @type {number} */ size, /** @type {number} */ depth) => {
    const values = [];
    while (values.length < size) values.push(read(depth + 1));
    return values;
  };
  const readMap = (/** @type {number} */ size, /** @type {number} */ depth) => {
    /** @type {[string, any][]} */
    const entries = [];
    while (entries.length < size) entries.push([String(read(depth + 1)), read(depth + 1)]);
    return Object.fromEntries(entries);
  };
  /** @param {number} depth @returns {any} */
  const read = (depth) => {
    require(depth <= MOST_DEPTH, "the body is nested too deeply");
    const marker = bytes[take(1)];
    if (marker < 0x80) return marker;
    if (marker < 0x90) return readMap(marker & 0x0f, depth);
    if (marker < 0xa0) return readArray(marker & 0x0f, depth);
    if (marker < 0xc0) return readText(marker & 0x1f);
    if (marker >= 0xe0) return marker - 256;
    switch (marker) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return readBytes(readWhole(2 ** (marker - 0xc4)));
      case 0xca: return view.getFloat32(take(4));
      case 0xcb: return view.getFloat64(take(8));
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return readWhole(2 ** (marker - 0xcc));
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return readSigned(2 ** (marker - 0xd0));
      case 0xd9: case 0xda: case 0xdb: return readText(readWhole(2 ** (marker - 0xd9)));
      case 0xdc: case 0xdd: return readArray(readWhole(2 ** (marker - 0xdb)), depth);
      case 0xde: case 0xdf: return readMap(readWhole(2 ** (marker - 0xdd)), depth);
      default: throw new AgentError(`0x${marker.toString(16)} is not MessagePack that a server sends`);
    }
  };
  const value = read(0);
  require(at === bytes.length, "the body is too long");
  return value;
}

const isWhole = (/** @type {any} */ value) => Number.isSafeInteger(value) && value >= 0;
const isText = (/** @type {any} */ value) => typeof value === "string";
const isBytes = (/** @type {any} */ value) => value instanceof Uint8Array;
const isNumber = (/** @type {any} */ value) => typeof value === "number";
const isObject = (/** @type {any} */ value) => typeof value === "object" && value !== null;

/** @typedef {Record<string, ((value: any) => boolean) | Record<string, (value: any) => boolean>>} Shape */
const RECEIPT = { epoch: isText, position: isWhole, proof: isBytes };
const CREDENTIAL = { agent: isWhole, enrolled: isNumber, epoch: isText, proof: isBytes };
const TERMS = { policy: isText, constants: isObject, dimension: isWhole, longest_list: isWhole, min_observations: isWhole, terms_id: isText };
const COUNTS = { count: isWhole, clicks: isWhole, rounds: isWhole, numbers: isBytes };
/** @type {Record<"answer" | "standing" | "terms" | "enrolment", Shape>} */
const SHAPES = {
  answer: { ...COUNTS, sequence: isWhole, system_rounds: isWhole, agents: isWhole, group_agents: isWhole, held_count: isWhole,
    held_rounds: isWhole, terms_id: isText, receipt: RECEIPT },
  standing: { ...COUNTS, last_sequence: isWhole, last_change: isWhole, epoch: isText, credential: CREDENTIAL },
  terms: TERMS,
  enrolment: { agent: isWhole, terms: TERMS },
};

/**
 * Decode a message of a server; reject missing fields and wrong types.
 * @param {"answer" | "standing" | "terms" | "enrolment"} kind @param {Uint8Array} body @returns {any}
 */
export function decodeMessage(kind, body) {
  const message = decode(body);
  checkShape(kind, message, SHAPES[kind]);
  return message;
}

/** @param {string} name @param {any} value @param {Shape} shape */
function checkShape(name, value, shape) {
  require(isObject(value), `the server's ${name} is not a message`);
  for (const [field, expected] of Object.entries(shape)) {
    if (typeof expected === "function") require(expected(value[field]), `the server's ${name} has an invalid ${field}`);
    else checkShape(`${name}.${field}`, value[field], expected);
  }
}

/**
 * Encode an upload.
 * @param {Upload} upload
 * @param {Receipt | null} receipt the server's last one
 */
export function encodeUpload({ sequence, cause, statistics }, receipt) {
  const { count, clicks, rounds } = statistics;
  return encode({ protocol: PROTOCOL, sequence, cause, count, clicks, rounds, numbers: packNumbers(statistics), receipt });
}

/** @param {Credential | null} credential */
function packCredential(credential) {
  if (!credential) return null;
  const { agent, enrolled, epoch, proof } = credential;
  return { agent, enrolled: new Float(enrolled), epoch, proof };
}

/**
 * Encode the token and the credential of an enrolment, for its signature.
 * @param {string | null} token @param {Credential | null} credential
 */
export const encodeEnrolmentClaim = (token, credential) => encode([token, packCredential(credential)]);

/**
 * Encode an enrolment.
 * @param {{publicKey: Uint8Array, created: number, proof: Uint8Array, token: string | null, credential: Credential | null}} enrolment
 */
export function encodeEnrolment({ publicKey, created, proof, token, credential }) {
  return encode({ protocol: PROTOCOL, public_key: publicKey, created, proof, token, credential: packCredential(credential) });
}
