// Oracles: from scores to a feasible list. Equal scores go by the larger tie-break, then by index.

import { require, requireWhole } from "./checks.js";

/**
 * Attributes of the items on offer, beside their features.
 * @typedef {{categories?: ArrayLike<number>, costs?: ArrayLike<number>}} Attributes
 * @typedef {{length: number, choose: (scores: Float64Array, ties: ArrayLike<number>, attributes: Attributes) => number[]}} Oracle
 */

/**
 * Select the items with the largest scores, in descending order.
 * @param {Float64Array} scores @param {ArrayLike<number>} ties @param {number} length
 */
export function selectTop(scores, ties, length) {
  const size = Math.min(length, scores.length);
  /** @type {number[]} */
  const chosen = [];
  const goesBefore = (/** @type {number} */ item, /** @type {number} */ listed) =>
    scores[item] !== scores[listed] ? scores[item] > scores[listed] : ties[item] > ties[listed];
  for (let item = 0; item < scores.length; item++) {
    if (chosen.length === size && !goesBefore(item, chosen[size - 1])) continue;
    let place = chosen.length < size ? chosen.length : size - 1;
    for (; place > 0 && goesBefore(item, chosen[place - 1]); place--) chosen[place] = chosen[place - 1];
    chosen[place] = item;
  }
  return chosen;
}

/** Choose the ``length`` best items, best first. @param {number} length @returns {Oracle} */
export function topK(length) {
  requireWhole("list length", length);
  return { length, choose: (scores, ties) => selectTop(scores, ties, length) };
}

/** Choose the best items with at most ``limit`` of any category. @param {number} length @param {number} [limit] @returns {Oracle} */
export function perCategory(length, limit = 1) {
  requireWhole("list length", length);
  requireWhole("limit", limit);
  return {
    length,
    choose(scores, ties, { categories }) {
      require(categories, "this oracle needs categories, one per item on offer: none were given");
      /** @type {number[]} */
      const chosen = [];
      for (const item of selectTop(scores, ties, scores.length)) {
        const alike = chosen.filter((listed) => categories[listed] === categories[item]).length;
        if (chosen.length < length && alike < limit) chosen.push(item);
      }
      return chosen;
    },
  };
}
