// Triggers of uploads. A trigger maps an occasion to a cause, or null.

import { log } from "./linear.js";
import { computeGrowth } from "./ridge.js";

/**
 * @import { Ridge } from "./ridge.js"
 * @import { Statistics } from "./statistics.js"
 */

/**
 * The inputs of a trigger at the end of a round: t, a uniform number, the user's arrivals, the last download and the buffer.
 * @typedef {{round: number, draw: number, arrivals: number, download: Ridge,
 *   buffer: Statistics}} Occasion
 * @typedef {"determinant" | "auxiliary" | "forced" | "synchronisation" | "change"} Cause
 * @typedef {(occasion: Occasion) => Cause | null} Trigger
 */

/**
 * Algorithm 2, line 13, first half: det(Sigma + Sigma_loc) > (1 + alpha_c) det(Sigma).
 * @param {number} alphaC @returns {Trigger}
 */
export const determinant = (alphaC) => ({ download, buffer }) =>
  computeGrowth(download, buffer) > Math.log1p(alphaC) ? "determinant" : null;

/** Algorithm 2, line 13, second half: p < p_t = scale ln(t) / t. @param {number} scale @returns {Trigger} */
export const auxiliary = (scale) => ({ draw, round }) => (draw < Math.min(1, (scale * log(round)) / round) ? "auxiliary" : null);

/** Fire at the 1st, 2nd, 4th, 8th, ... arrival of the user. @type {Trigger} */
export const doubling = ({ arrivals }) => {
  let odd = arrivals;
  while (odd % 2 === 0 && odd > 0) odd /= 2;
  return odd === 1 ? "forced" : null;
};

/** Fire in every round. @type {Trigger} */
export const always = () => "forced";

/** Fire when one of the triggers fires; the first one gives the cause. @param {...Trigger} triggers @returns {Trigger} */
export const anyOf = (...triggers) => (occasion) => {
  for (const trigger of triggers) {
    const cause = trigger(occasion);
    if (cause) return cause;
  }
  return null;
};

/**
 * Fire when the trigger does, but never with fewer observations: an upload of one would reveal it.
 * @param {Trigger} trigger @param {number} observations @returns {Trigger}
 */
export const atLeast = (trigger, observations) => (occasion) => (occasion.buffer.count >= observations ? trigger(occasion) : null);
