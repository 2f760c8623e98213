// Trust: the weight of the server's prior at an agent, and the noise of the agent's clicks. The order of operations is that of
// fedcascade.federation.trust, so results equal the Python agent's to the bit.

import { computeLeverage, computeLogDet, exp, factoriseShifted, log } from "./linear.js";
import { add, subtract, zero } from "./statistics.js";

/**
 * @import { Timeline } from "./drift.js"
 * @import { Statistics } from "./statistics.js"
 */

/**
 * ``every`` is the number of own rounds between two weighings, ``lambda`` the ridge's.
 * @typedef {{every: number, lambda: number}} Trust
 */
/**
 * An agent's own data, apart from others' data: ``total`` of all observations; ``others``, others' part of the last download,
 * without counts; ``noise``, the variance of a click in that download; ``weight`` of others' part; standard ``deviation`` of an
 * own click; and, with drift detection, the ``timeline`` of observations.
 * @typedef {{total: Statistics, others: Statistics, noise: number, weight: number, deviation: number,
 *   timeline: Timeline | null}} OwnData
 */

const WEIGHTS = [1, 0.25]; // candidate weights of the server's prior
const SCALES = [1, 1 / 8, 1 / 64, 1 / 512]; // variances of theta without the server's prior, as shares of the prior's
const LOG_ODDS_OF_NONE = 4; // prior log-odds of the first scale against each other scale and each weight
const TYPICAL_CLICKS = 2, TYPICAL_COUNT = 4; // pseudo-counts: the variance starts at 1/4
const LEAST_NOISE = 1e-3; // smallest variance of a click

/** Return own data without a download. @param {Statistics} total @param {Timeline | null} timeline @returns {OwnData} */
export const beginOwnData = (total, timeline) =>
  ({ total, others: zero(total.moment.length), noise: 0.25, weight: 0, deviation: 0.5, timeline });

/** Estimate the variance of a reward. @param {{count: number, clicks: number, shortfall?: number}} statistics */
export function estimateNoise({ count, clicks, shortfall = 0 }) {
  const rate = (clicks - shortfall + TYPICAL_CLICKS) / (count + TYPICAL_COUNT);
  return Math.max(LEAST_NOISE, rate * (1 - rate));
}

/**
 * Split others' data from a download; ``pending`` are own data that the server did not have. With private uploads a download holds
 * others' data only.
 * @param {OwnData} own @param {Statistics} download @param {Statistics} pending @param {unknown} [privacy] @returns {OwnData}
 */
export function splitDownload(own, download, pending, privacy) {
  const held = subtract(own.total, pending), { gram, moment } = subtract(privacy ? add(download, held) : download, held);
  return { ...own, others: { gram, moment, count: 0, clicks: 0, rounds: 0 }, noise: estimateNoise(download) };
}

/**
 * Weigh others' data; return own data, and the download to decide with.
 * @param {OwnData} own @param {Trust} trust @param {Statistics} pending @returns {{own: OwnData, download: Statistics}}
 */
export function weighOthers(own, trust, pending) {
  const { total, others } = own, d = total.moment.length, noise = estimateNoise(total);
  const prior = noise * d, scale = noise / own.noise, isKnown = sumDiagonal(others.gram, d) !== 0;
  const scaled = isKnown ? { gram: others.gram.map((value) => scale * value), moment: others.moment.map((value) => scale * value) } : zero(d);
  for (let i = 0; isKnown && i < d; i++) scaled.gram[i * d + i] += scale * trust.lambda - prior;
  const weight = isKnown ? averageWeight(total, scaled, noise, prior) : 0;
  const { gram, moment, ...counts } = subtract(total, pending);
  const download = {
    gram: gram.map((value, at) => value + weight * scaled.gram[at]),
    moment: moment.map((value, at) => value + weight * scaled.moment[at]),
    ...counts,
  };
  for (let i = 0; i < d; i++) download.gram[i * d + i] += prior - trust.lambda;
  return { own: { ...own, weight, deviation: Math.sqrt(noise) }, download };
}

/** @param {Float64Array} gram @param {number} d */
function sumDiagonal(gram, d) {
  let trace = 0;
  for (let i = 0; i < d; i++) trace += gram[i * d + i];
  return trace;
}

/**
 * Compute the log marginal likelihood of clicks for theta ~ N(0, variance / prior I).
 * @param {{gram: Float64Array, moment: Float64Array}} statistics @param {number} variance of a click @param {number} prior
 */
export function measureEvidence({ gram, moment }, variance, prior) {
  const d = moment.length, upper = factoriseShifted(gram, d, prior);
  return 0.5 * (computeLeverage(upper, moment) / variance - computeLogDet(upper, d) + d * log(prior));
}

/**
 * Compute the posterior mean of the weight of the server's prior, given own clicks. Narrow priors without the server compete too.
 * @param {Statistics} own @param {{gram: Float64Array, moment: Float64Array}} others @param {number} variance @param {number} prior
 */
function averageWeight(own, others, variance, prior) {
  const likelihoods = WEIGHTS.map((weight) => {
    const part = { gram: others.gram.map((value) => weight * value), moment: others.moment.map((value) => weight * value) };
    const joint = { gram: part.gram.map((value, at) => own.gram[at] + value), moment: part.moment.map((value, at) => own.moment[at] + value) };
    return measureEvidence(joint, variance, prior) - measureEvidence(part, variance, prior);
  });
  const without = SCALES.map((scale) => measureEvidence(own, variance, prior / scale));
  without[0] += LOG_ODDS_OF_NONE;
  const largest = Math.max(...likelihoods, ...without);
  let total = 0, mean = 0;
  likelihoods.forEach((likelihood, place) => {
    const probability = exp(likelihood - largest);
    total += probability;
    mean += probability * WEIGHTS[place];
  });
  for (const likelihood of without) total += exp(likelihood - largest);
  return mean / total;
}

/**
 * Return the usable part of a download: all of it, or own data if the rest is no valid prior. The server then holds other data
 * of this agent than the agent has sent, and both compare sums later.
 * @param {OwnData} own @param {Trust} trust @param {Statistics} download @param {Statistics} pending
 */
export function trimDownload({ total }, { lambda }, download, pending) {
  const held = subtract(total, pending), d = total.moment.length;
  const upper = factoriseShifted(subtract(download, held).gram, d, lambda);
  if (Number.isFinite(computeLogDet(upper, d))) return download;
  return held.count >= 0 ? held : zero(d);
}
