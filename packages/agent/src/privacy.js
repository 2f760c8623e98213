// Private uploads: noise that an agent adds to its sums before they leave it, as in fedcascade.federation.privacy
// (docs/explanation-privacy.md).

import { require } from "./checks.js";

/**
 * @import { Upload } from "./agent.js"
 * @import { Terms } from "./wire.js"
 */

/**
 * Draws whole numbers with mean 0 and these variances.
 * @typedef {(variances: bigint[]) => (bigint | number)[]} NoiseSource
 * ``rho`` is the budget of one upload, in zCDP; ``uploads`` is the most of an agent whose unit is the user.
 * @typedef {{epsilon: number, delta: number, unit: "list" | "user", uploads: number, rho: number, noise: NoiseSource}} Privacy
 * ``spent`` is the epsilon of the uploads so far; with ``isSpent`` the agent sends nothing more.
 * @typedef {{epsilon: number, delta: number, unit: "list" | "user", uploads: number, spent: number, isSpent: boolean}} PrivacyBudget
 */

const LONGEST = 1 + 1e-5; // squared norm of an item's features
const GRAM_SHARE = 0.4, MOMENT_SHARE = 0.56, CLICK_SHARE = 0.04; // of rho
const STEP = 2 ** -24; // of sums of products
const LEAST_RHO = 1e-9; // of an upload
const MOST_DELTA = 1e-5; // of an agent that asks for privacy

/**
 * Read the mechanism from a server's constants.
 * @param {Record<string, any>} constants @param {NoiseSource} [noise] @returns {Privacy}
 */
export function readPrivacy({ epsilon, delta, unit, uploads, drift }, noise = drawNoise) {
  const isKnown = epsilon > 0 && delta > 0 && delta < 1 && (unit === "list" || unit === "user") && Number.isSafeInteger(uploads) && uploads > 0;
  const rho = isKnown ? findRho(epsilon, delta) / (unit === "list" ? 1 : uploads) : 0;
  require(rho >= LEAST_RHO, `the server's private uploads have an invalid constant, got epsilon ${epsilon}, delta ${delta}, unit ${unit} and uploads ${uploads}`);
  require(drift !== "restart", "private uploads need a server without drift=restart");
  return { epsilon, delta, unit, uploads, rho, noise };
}

/**
 * Reject terms with less privacy than the page asks for, or than the agent was promised.
 * @param {Privacy | null} offered @param {number | undefined} most the largest epsilon; undefined takes any @param {Privacy | null} [promised]
 */
export function requirePrivacy(offered, most, promised) {
  const wanted = promised ?? (most === undefined ? null : { epsilon: most, delta: MOST_DELTA, unit: "list" });
  if (!wanted) return;
  const { epsilon, delta, unit } = wanted, got = offered ? `epsilon ${offered.epsilon} and delta ${offered.delta} for a ${offered.unit}` : "none";
  // More uploads of a user, with less noise each, would come on top of those that are spent.
  const isSame = unit === "list" || (offered?.unit === "user" && offered.uploads <= (promised?.uploads ?? 0));
  require(offered && isSame && offered.epsilon <= epsilon && offered.delta <= delta, `this agent wants private uploads of epsilon <= ${epsilon} and delta <= ${delta} for a ${unit}, and the server offers ${got}`);
}

/** Return the budget of an agent after so many uploads. @param {Privacy} privacy @param {number} sent @returns {PrivacyBudget} */
export function measureBudget({ rho, noise, ...terms }, sent) {
  const { epsilon, delta, unit, uploads } = terms, isUser = unit === "user";
  const spent = isUser ? computeEpsilon(Math.min(sent, uploads) * rho, delta) : epsilon; // no list is in two uploads
  return { ...terms, spent: sent ? spent : 0, isSpent: isUser && sent >= uploads };
}

/**
 * Return an upload of first items with noise, or null once the user's budget is spent.
 * @param {Privacy} privacy @param {Upload} upload @returns {Upload | null}
 */
export function release(privacy, { statistics, ...upload }) {
  if (privacy.unit === "user" && upload.sequence > privacy.uploads) return null;
  const { rounds } = statistics, gram = statistics.gram.slice(), d = statistics.moment.length;
  const noise = privacy.noise(computeVariances(privacy, rounds, d));
  let at = 0;
  const addNoise = (/** @type {number} */ value) => STEP * Number(BigInt(value / STEP) + BigInt(noise[at++])); // rounded once, after the exact sum
  for (let i = 0; i < d; i++) for (let j = i; j < d; j++) gram[j * d + i] = gram[i * d + j] = addNoise(gram[i * d + j]);
  const moment = statistics.moment.map(addNoise), clicks = statistics.clicks + Number(noise[at]);
  return { ...upload, statistics: { gram, moment, count: rounds, clicks: Math.min(Math.max(clicks, 0), rounds), rounds } };
}

/**
 * Return the variances of the noise of an upload in steps: of the gram's upper triangle, the moment and the clicks. Entries beside the
 * diagonal have half of its variance, because each counts twice in the norm of x x^T.
 * @param {Privacy} privacy @param {number} lists @param {number} d
 */
export function computeVariances({ unit, rho }, lists, d) {
  const reach = unit === "list" ? 1 : lists, scale = (/** @type {number} */ share) => reach / Math.sqrt(2 * rho * share);
  const gram = LONGEST * scale(GRAM_SHARE), moment = Math.sqrt(LONGEST) * scale(MOMENT_SHARE), sigmas = [];
  for (let i = 0; i < d; i++) for (let j = i; j < d; j++) sigmas.push((i === j ? gram : gram / Math.SQRT2) / STEP);
  return [...sigmas, ...Array(d).fill(moment / STEP), scale(CLICK_SHARE)].map((sigma) => BigInt(Math.ceil(sigma ** 2)));
}

/**
 * Apply a function to each order of the Renyi divergence and the rest of the bound on delta at it (Canonne, Kamath, Steinke 2020,
 * corollary 13).
 * @param {number} delta @param {(order: number, rest: number) => number} compute
 */
const mapOrders = (delta, compute) => Array.from({ length: 4000 }, (_, at) => {
  const order = 1 + 10 ** ((6 * at) / 3999 - 2), above = order - 1;
  return compute(order, (Math.log(delta) + Math.log(above) - order * Math.log1p(-1 / order)) / above);
});

/** Return the largest rho whose zCDP gives (epsilon, delta)-differential privacy. @param {number} epsilon @param {number} delta */
export const findRho = (epsilon, delta) => Math.max(...mapOrders(delta, (order, rest) => (epsilon + rest) / order));

/** Return the epsilon of rho-zCDP at a delta. @param {number} rho @param {number} delta */
export const computeEpsilon = (rho, delta) => Math.min(...mapOrders(delta, (order, rest) => order * rho - rest));

/**
 * Make a source of discrete Gaussian noise, exact in whole numbers (algorithms 1 to 3 of the same).
 * @param {(words: BigUint64Array) => unknown} fill fills an array with random bits @returns {NoiseSource}
 */
export function makeNoise(fill) {
  const words = new BigUint64Array(256);
  let used = words.length;
  const drawWord = () => {
    if (used === words.length) {
      fill(words);
      used = 0;
    }
    return words[used++];
  };
  const drawBelow = (/** @type {bigint} */ bound) => {
    const bits = (bound - 1n).toString(2).length;
    for (;;) {
      let value = 0n;
      for (let left = bits; left > 0; left -= 64) value = (value << 64n) | drawWord();
      value = BigInt.asUintN(bits, value);
      if (value < bound) return value;
    }
  };
  /** Return true with probability exp(-numerator / denominator). @param {bigint} numerator @param {bigint} denominator @returns {boolean} */
  const flip = (numerator, denominator) => {
    for (; numerator > denominator; numerator -= denominator) if (!flip(1n, 1n)) return false;
    let count = 1n;
    while (drawBelow(denominator * count) < numerator) count++;
    return count % 2n === 1n;
  };
  /** Return k with a probability proportional to exp(-|k| / scale). @param {bigint} scale */
  const drawLaplace = (scale) => {
    for (;;) {
      const isPositive = drawBelow(2n);
      let size = drawBelow(scale);
      if (!flip(size, scale)) continue;
      while (flip(1n, 1n)) size += scale;
      if (size || isPositive) return isPositive ? size : -size; // zero once, not as +0 and -0
    }
  };
  return (variances) => variances.map((variance) => {
    const scale = BigInt(Math.floor(Math.sqrt(Number(variance)))) + 1n; // any scale is exact, this one rejects few
    for (;;) {
      const drawn = drawLaplace(scale), size = drawn < 0n ? -drawn : drawn;
      if (flip((size * scale - variance) ** 2n, 2n * variance * scale * scale)) return drawn;
    }
  });
}

const drawNoise = makeNoise((words) => crypto.getRandomValues(words));
