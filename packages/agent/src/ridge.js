// Ridge regression on sufficient statistics: estimate, scores, growth of the log-determinant.

import { require } from "./checks.js";
import { computeLogDet, computeUcbScores, factoriseShifted, solveRidge } from "./linear.js";
import { add } from "./statistics.js";

/** @import { Statistics } from "./statistics.js" */

/**
 * A ridge estimate: theta, the root R with ||R x|| the width of x, and the log-determinant.
 * @typedef {{theta: Float64Array, root: Float64Array, logDet: number, lambda: number, statistics: Statistics}} Ridge
 */

/** @type {WeakMap<Statistics, Ridge>} */
const solved = new WeakMap();

/**
 * Return the ridge estimate of statistics: Sigma = lambda I + gram, theta = Sigma^-1 moment. Cached for each value.
 * @param {Statistics} statistics @param {number} lambda @returns {Ridge}
 */
export function getRidge(statistics, lambda) {
  const known = solved.get(statistics);
  if (known?.lambda === lambda) return known;
  require(lambda > 0 && lambda < Infinity, `lambda must be a number > 0, got ${lambda}`);
  const ridge = { ...solveRidge(statistics.gram, statistics.moment, lambda), lambda, statistics };
  require(Number.isFinite(ridge.logDet), "gram must be positive semi-definite");
  solved.set(statistics, ridge);
  return ridge;
}

/**
 * ln det(Sigma + gram of the buffer) - ln det(Sigma): the growth by the buffer.
 * @param {Ridge} ridge @param {Statistics} buffer
 */
export function computeGrowth(ridge, buffer) {
  const d = buffer.moment.length, { gram } = add(ridge.statistics, buffer);
  return computeLogDet(factoriseShifted(gram, d, ridge.lambda), d) - ridge.logDet;
}

/**
 * U(i) for every row of features (Algorithm 2, line 2).
 * @param {Ridge} ridge @param {Float32Array} features @param {number} beta
 */
export const computeScores = (ridge, features, beta) => computeUcbScores(ridge.theta, ridge.root, beta, features);
