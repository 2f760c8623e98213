// Ed25519 by WebCrypto: HTTP message signatures (RFC 9421) and digests of bodies (RFC 9530), in the form that servers accept.

import { AgentError } from "./checks.js";

const COVERED = '("@method" "@path" "content-digest" "fedcascade-sequence")';
const PKCS8_HEAD = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20]; // of an Ed25519 seed

/** @typedef {{privateKey: CryptoKey, publicKey: Uint8Array}} Key */
/** @param {Uint8Array} bytes */
const toBase64 = (bytes) => btoa(String.fromCharCode(...bytes));

/** Return whether this browser signs with Ed25519. */
export async function canSign() {
  return getSubtle().generateKey("Ed25519", false, ["sign", "verify"]).then(() => true, () => false);
}

function getSubtle() {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) throw new AgentError("this page has no WebCrypto: serve it by https, or from localhost");
  return subtle;
}

/** Create a key; scripts can only read it if it is extractable. @param {boolean} extractable @returns {Promise<Key>} */
export async function createKey(extractable) {
  try {
    const pair = /** @type {CryptoKeyPair} */ (await getSubtle().generateKey("Ed25519", extractable, ["sign", "verify"]));
    return { privateKey: pair.privateKey, publicKey: new Uint8Array(await getSubtle().exportKey("raw", pair.publicKey)) };
  } catch (error) {
    if (error instanceof AgentError) throw error;
    throw new AgentError("this browser's WebCrypto has no Ed25519: use a newer one");
  }
}

/** Export the 32 bytes of an extractable key, for stores that cannot hold a CryptoKey. @param {Key} key */
export async function exportSeed({ privateKey }) {
  return new Uint8Array(await getSubtle().exportKey("pkcs8", privateKey)).slice(PKCS8_HEAD.length);
}

/** Import the key of a seed of 32 bytes. @param {Uint8Array} seed @param {Uint8Array} publicKey @returns {Promise<Key>} */
export async function importSeed(seed, publicKey) {
  const encoded = Uint8Array.from([...PKCS8_HEAD, ...seed]);
  return { privateKey: await getSubtle().importKey("pkcs8", encoded, "Ed25519", false, ["sign"]), publicKey };
}

/** @param {Key} key @param {Uint8Array<ArrayBuffer>} bytes */
async function signBytes({ privateKey }, bytes) {
  return new Uint8Array(await getSubtle().sign("Ed25519", privateKey, bytes));
}

/**
 * The headers that sign a request.
 * @param {Key} key
 * @param {{agent: number, method: string, path: string, body: Uint8Array<ArrayBuffer>, sequence: number, created: number,
 *   nonce: number}} request
 */
export async function signRequest(key, { agent, method, path, body, sequence, created, nonce }) {
  const digest = `sha-256=:${toBase64(new Uint8Array(await getSubtle().digest("SHA-256", body)))}:`;
  const parameters = `${COVERED};created=${created};keyid="${agent}";nonce="${nonce}";alg="ed25519"`;
  const base = `"@method": ${method}\n"@path": ${path}\n"content-digest": ${digest}\n`
    + `"fedcascade-sequence": ${sequence}\n"@signature-params": ${parameters}`;
  const signature = await signBytes(key, new TextEncoder().encode(base));
  return {
    "content-digest": digest,
    "fedcascade-sequence": String(sequence),
    "signature-input": `agent=${parameters}`,
    signature: `agent=:${toBase64(signature)}:`,
  };
}

/** Sign an enrolment: only the owner of a key can enrol it. @param {Key} key @param {number} created @param {Uint8Array} claim */
export function signEnrolment(key, created, claim) {
  const head = new TextEncoder().encode(`fedcascade enrolment\n${created}\n`), bytes = new Uint8Array(head.length + claim.length);
  bytes.set(head);
  bytes.set(claim, head.length);
  return signBytes(key, bytes);
}

/** A random number of at most 16 digits, which is good for one signature. */
export function drawNonce() {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high % 2 ** 21) * 2 ** 32 + low;
}
