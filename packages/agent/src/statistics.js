// Sufficient statistics of uploads and downloads. They add and subtract, and never change in place.

import { getRewards } from "./cascade.js";
import { require } from "./checks.js";
import { computeLeverage, computeLogDet, factoriseShifted } from "./linear.js";

/** @import { Examination } from "./cascade.js" */

const GRID = 2 ** -12;
const LARGEST_TOTAL = 500_000_000; // float64 holds multiples of 2^-24 exactly below 2^29
const LARGEST_SQUARE = 1 + 1e-5;
const SLACK = 1e-6;

/**
 * Gram matrix (row by row), moment and counts of examined items; ``shortfall`` is clicks minus the sum of their rewards, 0 if not given.
 * @typedef {{gram: Float64Array, moment: Float64Array, count: number, clicks: number, rounds: number, shortfall?: number}} Statistics
 */

/** @param {number} dimension @returns {Statistics} */
export function zero(dimension) {
  return { gram: new Float64Array(dimension * dimension), moment: new Float64Array(dimension), count: 0, clicks: 0, rounds: 0 };
}

/** @param {Statistics} first @param {Statistics} second @param {1 | -1} sign @returns {Statistics} */
function combine(first, second, sign) {
  const sizes = [first.moment.length, second.moment.length];
  require(sizes[0] === sizes[1], `dimensions must agree, got ${sizes[0]} and ${sizes[1]}`);
  return {
    gram: first.gram.map((value, at) => value + sign * second.gram[at]),
    moment: first.moment.map((value, at) => value + sign * second.moment[at]),
    count: first.count + sign * second.count,
    clicks: first.clicks + sign * second.clicks,
    rounds: first.rounds + sign * second.rounds,
    shortfall: (first.shortfall ?? 0) + sign * (second.shortfall ?? 0),
  };
}

/** @param {Statistics} first @param {Statistics} second */
export const add = (first, second) => combine(first, second, 1);

/** @param {Statistics} first @param {Statistics} second */
export const subtract = (first, second) => combine(first, second, -1);

const TOLERANCE = 1e-6; // of sums over features that are on no grid

/** Return whether two sums are equal. @param {Statistics} first @param {Statistics} second */
export function areSame(first, second) {
  const { gram, moment, count, clicks, rounds, shortfall = 0 } = subtract(first, second);
  return [count, clicks, rounds, shortfall, ...gram, ...moment].every((value) => Math.abs(value) <= TOLERANCE);
}

/**
 * Return the features of items as rows of multiples of 2^-12, rounded toward zero so that no norm grows.
 * @param {ArrayLike<number> | ArrayLike<ArrayLike<number>>} items one row per item, or all numbers in a row
 * @param {number} dimension
 */
export function readFeatures(items, dimension) {
  const isFlat = ArrayBuffer.isView(items), size = (items?.length ?? 0) * (isFlat ? 1 : dimension);
  const isWhole = size > 0 && size % dimension === 0;
  const isRectangular = isFlat || Array.from(/** @type {any} */ (items ?? [])).every((row) => row?.length === dimension);
  require(isWhole && isRectangular, `items must have ${dimension} features each, and there must be at least one item`);
  const features = new Float32Array(size);
  for (let item = 0; item < size / dimension; item++) {
    let square = 0;
    for (let k = 0; k < dimension; k++) {
      const value = isFlat ? /** @type {Float32Array} */ (items)[item * dimension + k] : /** @type {any} */ (items)[item][k];
      require(typeof value === "number" && Number.isFinite(value), "features must be finite numbers");
      const rounded = Math.trunc(value / GRID) * GRID + 0; // + 0 turns -0 into 0
      features[item * dimension + k] = rounded;
      square += rounded * rounded;
    }
    require(square <= LARGEST_SQUARE, `features must have norm <= 1, got ${Number(Math.sqrt(square).toPrecision(6))}`);
  }
  return features;
}

/**
 * Scale each row to length 1 and round it to the grid; a row of zeros stays as it is.
 * @param {ArrayLike<ArrayLike<number>>} rows
 */
export function normalise(rows) {
  const width = rows?.[0]?.length ?? 0, isTable = width > 0 && Array.from(rows).every((row) => row?.length === width);
  require(isTable, "features must have one row per item, all of one length");
  return Array.from(rows, (row) => {
    const values = Array.from(row), largest = Math.max(...values.map(Math.abs));
    require(Number.isFinite(largest), "features must be finite numbers");
    const scaled = values.map((value) => value / (largest || 1)); // squares neither overflow nor underflow
    const length = Math.sqrt(scaled.reduce((sum, value) => sum + value * value, 0)) || 1;
    return scaled.map((value) => Math.trunc(value / length / GRID) * GRID + 0);
  });
}

/**
 * Add a list (Algorithm 2, lines 5 and 6). Each further click counts as another round, so there are never more clicks than
 * rounds.
 * @param {Statistics} before
 * @param {Float32Array} listed features of each position, first position first
 * @param {Examination} seen @returns {Statistics}
 */
export function observe(before, listed, seen) {
  const { examined, clicks } = seen, rewards = getRewards(seen);
  const d = before.moment.length, gram = before.gram.slice(), moment = before.moment.slice();
  for (let at = 0; at < examined * d; at += d) {
    for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) gram[i * d + j] += listed[at + i] * listed[at + j];
  }
  clicks.forEach((click, at) => { for (let i = 0; i < d; i++) moment[i] += rewards[at] * listed[click * d + i]; });
  const { count, rounds } = before, shortfall = rewards.reduce((sum, reward) => sum + 1 - reward, before.shortfall ?? 0);
  return { gram, moment, count: count + examined, clicks: before.clicks + clicks.length, rounds: rounds + Math.max(1, clicks.length), shortfall };
}

/**
 * Return the difference that other rewards of the clicks of a list make.
 * @param {Float32Array} listed @param {Examination} seen @param {number[]} rewards @param {number} dimension
 */
export function computeCorrection(listed, seen, rewards, dimension) {
  const difference = zero(dimension), expected = getRewards(seen);
  seen.clicks.forEach((click, at) => {
    const change = rewards[at] - expected[at];
    difference.shortfall = (difference.shortfall ?? 0) - change;
    for (let i = 0; i < dimension; i++) difference.moment[i] += change * listed[click * dimension + i];
  });
  return difference;
}

/**
 * Reject statistics of another dimension, and those that no data can have.
 * @param {Statistics} statistics @param {number} dimension
 */
export function check({ gram, moment, count, clicks, rounds, shortfall = 0 }, dimension) {
  const fits = moment.length === dimension && gram.length === dimension * dimension;
  require(fits, `statistics must have the shapes of dimension ${dimension}, got a moment of ${moment.length}`);
  require(gram.every(Number.isFinite) && moment.every(Number.isFinite) && Number.isFinite(shortfall), "gram and moment must be finite, and gram symmetric");
  const isCounted = clicks >= 0 && clicks <= count && rounds >= 0;
  require(isCounted, `counts must satisfy 0 <= clicks <= count and rounds >= 0, got ${clicks}, ${count}, ${rounds}`);
}

/**
 * Return whether data can have these statistics, as the server checks it (fedcascade.service.protocol.validation:check_upload).
 * @param {Statistics} statistics
 */
export function isPossible(statistics) {
  const { clicks, shortfall = 0 } = statistics, leverage = measureLeverage(statistics), reward = clicks - shortfall;
  return leverage !== null && shortfall >= 0 && reward >= 0 && leverage <= reward * (1 + SLACK) + SLACK;
}

/**
 * Return whether data can have these statistics after ``earlier`` ones whose rewards they may correct.
 * @param {Statistics} statistics @param {Statistics} earlier
 */
export const isCorrection = (statistics, earlier) => measureLeverage(statistics) !== null && isPossible(add(earlier, statistics));

/** Return the leverage of a moment, or null if no items have this gram and these counts. @param {Statistics} statistics */
function measureLeverage({ gram, moment, count, clicks, rounds, shortfall = 0 }) {
  const d = moment.length, isOnGrid = (/** @type {number} */ value) => Number.isInteger(value / GRID / GRID);
  if (!(clicks >= 0 && clicks <= rounds && rounds <= count && count <= LARGEST_TOTAL && rounds > 0)) return null;
  if (!gram.every(isOnGrid) || !moment.every(isOnGrid) || !Number.isInteger(shortfall / GRID)) return null;
  let trace = 0;
  for (let i = 0; i < d; i++) trace += gram[i * d + i];
  const upper = factoriseShifted(gram, d, 2 ** -52 * (d + 2) ** 2 * Math.max(trace, GRID * GRID));
  const isBounded = trace <= count * LARGEST_SQUARE * (1 + SLACK) && Number.isFinite(computeLogDet(upper, d));
  return isBounded ? computeLeverage(upper, moment) : null;
}

/**
 * Pack gram and moment as little-endian float64: the upper triangle row by row, then the moment, and a shortfall that is not 0.
 * @param {Statistics} statistics
 */
export function packNumbers({ gram, moment, shortfall = 0 }) {
  const d = moment.length, bytes = new Uint8Array(4 * d * (d + 3) + (shortfall ? 8 : 0)), view = new DataView(bytes.buffer);
  let at = 0;
  for (let i = 0; i < d; i++) for (let j = i; j < d; j++, at += 8) view.setFloat64(at, gram[i * d + j], true);
  for (let i = 0; i < d; i++, at += 8) view.setFloat64(at, moment[i], true);
  if (shortfall) view.setFloat64(at, shortfall, true);
  return bytes;
}

/**
 * Unpack statistics from the bytes of ``packNumbers`` and the counts of a message.
 * @param {{numbers: Uint8Array, count: number, clicks: number, rounds: number}} message @param {number} dimension
 * @returns {Statistics}
 */
export function unpackStatistics({ numbers, count, clicks, rounds }, dimension) {
  const d = dimension, expected = (d * (d + 3)) / 2, hasShortfall = numbers.length === 8 * expected + 8;
  require(numbers.length === 8 * expected || hasShortfall, `numbers must hold ${expected} float64 in dimension ${d}, got ${numbers.length / 8}`);
  const { gram, moment } = zero(d), view = new DataView(numbers.buffer, numbers.byteOffset, numbers.length);
  let at = 0;
  for (let i = 0; i < d; i++) {
    for (let j = i; j < d; j++, at += 8) gram[i * d + j] = gram[j * d + i] = view.getFloat64(at, true);
  }
  for (let i = 0; i < d; i++, at += 8) moment[i] = view.getFloat64(at, true);
  return { gram, moment, count, clicks, rounds, shortfall: hasShortfall ? view.getFloat64(at, true) : 0 };
}
