// The agent's side of the server's policies: trigger, estimate, confidence and trust.

import { require } from "./checks.js";
import { readPrivacy, requirePrivacy } from "./privacy.js";
import { anyOf, atLeast, auxiliary, determinant, doubling } from "./triggers.js";

/**
 * @import { Detection } from "./drift.js"
 * @import { NoiseSource, Privacy } from "./privacy.js"
 * @import { Ridge } from "./ridge.js"
 * @import { Trigger } from "./triggers.js"
 * @import { Trust } from "./trust.js"
 * @import { Terms } from "./wire.js"
 */

/**
 * The sizes of a beta by formula. If a policy has ``trust``, beta is in standard deviations of a click.
 * @typedef {{users: number, dimension: number, listLength: number, rounds: number}} ProblemSize
 * @typedef {(ridge: Ridge, problem: ProblemSize) => number} Confidence
 * ``least`` is the minimum of observations in an upload, ``drift`` has the constants of drift detection, or null, and ``privacy`` those
 * of private uploads.
 * @typedef {{name: string, trigger: Trigger, least: number, usesBuffer: boolean, lambda: number,
 *   computeBeta: Confidence, trust: Trust | null, drift: Detection | null, privacy?: Privacy | null}} Policy
 * @typedef {Record<string, any>} Constants
 */

const PRIVATE = "population-private";
const LARGEST_MINIMUM = 10_000; // observations

/** @type {Record<string, {trigger: (constants: Constants) => Trigger, usesBuffer: boolean, hasTrust?: boolean}>} */
const POLICIES = {
  fedlinucb: { trigger: ({ alpha_c }) => determinant(alpha_c), usesBuffer: false },
  "fedc3ucb-h": { trigger: ({ alpha_c, p_scale }) => anyOf(determinant(alpha_c), auxiliary(p_scale)), usesBuffer: false },
  "force-comm": { trigger: ({ alpha_c }) => anyOf(determinant(alpha_c), doubling), usesBuffer: false },
  "no-auxiliary": { trigger: ({ alpha_c }) => determinant(alpha_c), usesBuffer: false },
  population: { trigger: ({ alpha_c }) => anyOf(determinant(alpha_c), doubling), usesBuffer: true, hasTrust: true },
  [PRIVATE]: { trigger: () => doubling, usesBuffer: true, hasTrust: true }, // the time of an upload must not depend on data
};

/** @type {Record<string, (constants: Constants) => Confidence>} */
const CONFIDENCES = {
  constant: ({ beta }) => () => beta,
  // Lemma 1, with the noise level R and min(1, alpha_c) as in its restatement in the appendix.
  theory: ({ noise, delta, alpha_c }) => ({ lambda }, { users, dimension, listLength, rounds }) => {
    const spread = Math.sqrt(1 + users * alpha_c) + users * Math.sqrt(2 * alpha_c);
    const logs = dimension * Math.log1p((listLength * rounds) / (Math.min(1, alpha_c) * lambda * dimension))
      + 2 * Math.log(1 / delta) + 4 * Math.log(rounds * users);
    return Math.sqrt(lambda) + noise * spread * Math.sqrt(logs);
  },
  // The self-normalised bound of one central learner (Abbasi-Yadkori et al. 2011, theorem 2).
  oful: ({ noise, delta }) => ({ lambda, logDet }, { dimension }) =>
    Math.sqrt(lambda) + noise * Math.sqrt(Math.max(0, logDet + (2 * Math.log(1 / delta) - dimension * Math.log(lambda)))),
};

/**
 * Return the private uploads of a server's terms, or null.
 * @param {{policy: string, constants: Constants}} terms @param {NoiseSource} [noise]
 */
export const findPrivacy = ({ policy, constants }, noise) => (policy === PRIVATE ? readPrivacy(constants, noise) : null);

/**
 * Build the policy that the server's terms describe.
 * @param {{policy: string, constants: Constants}} terms @param {NoiseSource} [noise] @returns {Policy}
 */
function buildPolicy({ policy, constants }, noise) {
  const kind = constants.confidence ?? "constant";
  const row = Object.hasOwn(POLICIES, policy) && POLICIES[policy], confidence = Object.hasOwn(CONFIDENCES, kind) && CONFIDENCES[kind];
  require(row, `this agent knows the policies ${Object.keys(POLICIES).join(", ")}, and the server runs ${policy}`);
  require(confidence, `this agent knows a beta that is ${Object.keys(CONFIDENCES).join(", ")}, and the server's is ${kind}`);
  const { trigger, usesBuffer, hasTrust } = row, { lambda_: lambda, every = 4, threshold, limit, drop, caution, block } = constants;
  const trust = hasTrust ? { every, lambda } : null, drift = constants.drift === "restart" ? { threshold, limit, drop, caution, block } : null;
  return { name: policy, trigger: trigger(constants), least: 0, usesBuffer, lambda, computeBeta: confidence(constants), trust, drift, privacy: findPrivacy({ policy, constants }, noise) };
}

/**
 * Reject terms under which an agent could not show lists, or would never upload and so hear of no others.
 * @param {Terms} terms @returns {Terms}
 */
export function checkTerms(terms) {
  const { dimension, longest_list: longest, min_observations: least, constants, features = "" } = terms;
  require(typeof features === "string", `the server's features must be text, got ${typeof features}`);
  require(dimension >= 1 && dimension <= 512 && longest >= 1, `the server's dimension must be in 1..512 and its longest list >= 1, got ${dimension} and ${longest}`);
  require(least <= LARGEST_MINIMUM, `the server's minimum of observations must be <= ${LARGEST_MINIMUM}, got ${least}`);
  for (const [name, value] of Object.entries(constants)) {
    const bound = name === "lambda_" || name === "alpha_c" ? 1e4 : 1e9, isPositive = bound === 1e9 || value > 0;
    require(typeof value !== "number" || (Math.abs(value) <= bound && isPositive), `the server's constant ${name} must be at most ${bound}, got ${value}`);
  }
  for (const name of terms.policy === PRIVATE ? ["lambda_"] : ["lambda_", "alpha_c"]) require(typeof constants[name] === "number", `the server's constant ${name} must be a number`);
  buildPolicy(terms);
  return terms;
}

/**
 * Reject a server of other features than the page's, or than those that an agent has learned from, or of less privacy.
 * @param {Terms} terms @param {string | null} wanted a label, or label:hash; null takes any @param {Terms} [known] of the agent
 */
export function requireFeatures(terms, wanted, known) {
  const { dimension, features: served = "" } = terms;
  const isSame = wanted === null || wanted === served || wanted === served.split(":")[0];
  require(isSame, `the server has features '${served}', the page '${wanted}': connect to a server of the page's, with a store of its own`);
  if (!known) return;
  const { dimension: own, features: learned = "" } = known, advice = "use the server that it enrolled at, or another store";
  require(dimension === own, `the server has dimension ${dimension}, this agent ${own}: ${advice}`);
  require(served === learned, `the server has features '${served}', this agent '${learned}': ${advice}`);
  requirePrivacy(findPrivacy(terms), undefined, findPrivacy(known));
}

/**
 * Build the policy of an agent under the server's terms. ``noise`` is that of private uploads, ``mostEpsilon`` their largest epsilon.
 * @param {Terms} terms @param {{policy?: (policy: Policy, terms: Terms) => Policy, minObservations?: number, noise?: NoiseSource,
 *   mostEpsilon?: number}} options
 * @returns {Policy}
 */
export function followTerms(terms, { policy = (own) => own, minObservations = 2 * terms.dimension, noise, mostEpsilon }) {
  const built = buildPolicy(terms, noise), { privacy = null, trigger, trust, drift } = built, chosen = policy(built, terms);
  requirePrivacy(privacy, mostEpsilon);
  if (privacy) return { ...chosen, privacy, trigger, trust, drift, least: 1 }; // the page cannot change what a promise needs
  const least = Math.max(minObservations, terms.min_observations);
  return { ...chosen, least, trigger: atLeast(chosen.trigger, least) };
}
