// Linear algebra of small symmetric matrices, in the order of operations of fedcascade.numerics.linear, so results equal
// the Python agent's to the bit. A matrix is a Float64Array, row by row.

const LN2_HIGH = 0.693147180369123816490; // 33 bits: its product with an exponent is exact
const LN2_LOW = 1.90821492927058770002e-10; // the rest of ln 2
const ROOT_TWO = 1.4142135623730951;
const PER_LN2 = 1.4426950408889634;
const ARTANH = Array.from({ length: 10 }, (_, k) => 1 / (2 * (10 - k) + 1)); // in powers of s^2, from the tenth down
const EXP = [1]; // in powers of r, from the fourteenth down
for (let k = 1, factorial = 1; k <= 14; k++) EXP.unshift(1 / (factorial *= k));
const double = new Float64Array(1);
const words = new Uint32Array(double.buffer); // all JavaScript engines in use are little-endian

/**
 * Compute ln x of a positive normal number from sums, products and quotients; the bits of Math.log differ between engines.
 * @param {number} x
 */
export function log(x) {
  if (!(x >= 2 ** -1022 && x < Infinity)) return x > 0 ? x : x === 0 ? -Infinity : NaN;
  double[0] = x;
  let exponent = (words[1] >>> 20) - 1023;
  words[1] = (words[1] & 0xfffff) | 0x3ff00000;
  let m = double[0];
  if (m > ROOT_TWO) {
    m *= 0.5;
    exponent += 1;
  }
  const s = (m - 1) / (m + 1), z = s * s;
  let series = 0;
  for (const factor of ARTANH) series = (series + factor) * z;
  return exponent * LN2_HIGH + (2 * s + (2 * s * series + exponent * LN2_LOW));
}

/** Compute e^x from sums and products; 0 below 2^-1021. @param {number} x */
export function exp(x) {
  if (x < -707) return 0;
  if (!(x < 709)) return Number.isNaN(x) ? NaN : Infinity;
  const whole = Math.floor(x * PER_LN2 + 0.5), r = (x - whole * LN2_HIGH) - whole * LN2_LOW;
  let series = 0;
  for (const factor of EXP) series = series * r + factor;
  words[0] = 0;
  words[1] = (whole + 1023) << 20;
  return series * double[0];
}

/**
 * Compute the upper factor U with shift I + gram = U^T U; it holds a NaN if the sum is not positive definite.
 * @param {Float64Array} gram @param {number} size @param {number} shift
 */
export function factoriseShifted(gram, size, shift) {
  const upper = gram.slice();
  for (let i = 0; i < size; i++) upper[i * size + i] += shift;
  for (let k = 0; k < size; k++) {
    upper.fill(0, k * size, k * size + k);
    const pivot = Math.sqrt(upper[k * size + k]);
    for (let j = k; j < size; j++) upper[k * size + j] /= pivot;
    for (let i = k + 1; i < size; i++) {
      const factor = upper[k * size + i];
      for (let j = i; j < size; j++) upper[i * size + j] -= factor * upper[k * size + j];
    }
  }
  return upper;
}

/** Compute ln det of a matrix from its upper factor. @param {Float64Array} upper @param {number} size */
export function computeLogDet(upper, size) {
  let total = 0;
  for (let k = 0; k < size; k++) total += log(upper[k * size + k]);
  return 2 * total;
}

/**
 * Compute vector^T matrix^-1 vector from the matrix's upper factor.
 * @param {Float64Array} upper @param {Float64Array} vector
 */
export function computeLeverage(upper, vector) {
  const size = vector.length, solution = new Float64Array(size);
  let total = 0;
  for (let k = 0; k < size; k++) {
    let value = vector[k];
    for (let i = 0; i < k; i++) value -= upper[i * size + k] * solution[i];
    solution[k] = value / upper[k * size + k];
    total += solution[k] * solution[k];
  }
  return total;
}

/**
 * Compute the lower triangular R with R^T R = matrix^-1: the width of x is the length of R x.
 * @param {Float64Array} upper @param {number} size
 */
function invertRoot(upper, size) {
  const root = new Float64Array(size * size);
  for (let j = 0; j < size; j++) {
    root[j * size + j] = 1;
    for (let k = 0; k < j; k++) {
      const factor = upper[k * size + j];
      for (let c = 0; c <= k; c++) root[j * size + c] -= factor * root[k * size + c];
    }
    const pivot = upper[j * size + j];
    for (let c = 0; c <= j; c++) root[j * size + c] /= pivot;
  }
  return root;
}

/**
 * Solve for theta, inverse root and ln det of lambda I + gram; ln det is a NaN if that is not definite.
 * @param {Float64Array} gram @param {Float64Array} moment @param {number} lambda
 */
export function solveRidge(gram, moment, lambda) {
  const size = moment.length, upper = factoriseShifted(gram, size, lambda), root = invertRoot(upper, size);
  const theta = new Float64Array(size);
  for (let j = 0; j < size; j++) {
    let value = 0;
    for (let k = 0; k <= j; k++) value += root[j * size + k] * moment[k];
    for (let k = 0; k <= j; k++) theta[k] += root[j * size + k] * value;
  }
  return { theta, root, logDet: computeLogDet(upper, size) };
}

/**
 * Compute U(i) = min(<theta, x> + beta ||x||, 1) for each row of features, with the norm of the inverse matrix.
 * @param {Float64Array} theta @param {Float64Array} root @param {number} beta @param {Float32Array} features
 */
export function computeUcbScores(theta, root, beta, features) {
  const size = theta.length, scores = new Float64Array(features.length / size);
  for (let item = 0; item < scores.length; item++) {
    const at = item * size;
    let mean = 0, square = 0;
    for (let k = 0; k < size; k++) mean += theta[k] * features[at + k];
    for (let j = 0; j < size; j++) {
      let part = 0;
      for (let k = 0; k <= j; k++) part += root[j * size + k] * features[at + k];
      square += part * part;
    }
    scores[item] = Math.min(mean + beta * Math.sqrt(square), 1);
  }
  return scores;
}
