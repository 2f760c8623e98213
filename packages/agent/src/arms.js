// Arms of an A/B test, as the Python agent assigns them.

import { require } from "./checks.js";

const BUCKETS = 200;

/**
 * Return arm and bucket of a user: the control arm for a share of all users, always the same.
 * @param {string} user @param {{share?: number, experiment?: string}} [options] another experiment assigns users independently
 * @returns {Promise<["control" | "treatment", number]>}
 */
export async function chooseArm(user, { share = 0.1, experiment = "" } = {}) {
  require(share >= 0 && share <= 1, `share must be in [0, 1], got ${share}`);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${experiment}\n${user}`)));
  const read = (/** @type {number} */ start) => digest.slice(start, start + 6).reduce((sum, byte) => 256 * sum + byte, 0);
  return [read(0) < share * 2 ** 48 ? "control" : "treatment", read(6) % BUCKETS];
}
