// The oracle for lists within a budget, in a module of its own: pages without costs need not load it.

import { require, requireWhole } from "./checks.js";
import { log } from "./linear.js";
import { selectTop } from "./oracles.js";

/** @import { Oracle } from "./oracles.js" */

const SMALLEST_MISS = 2 ** -53; // smallest 1 - w: a certain click has a finite value
const SLACK = 1 + 1e-12; // sums of costs depend on their order

/**
 * Choose items within a budget by greedy exchanges, with at least half of the best reward.
 * @param {number} length @param {number} limit @returns {Oracle}
 */
export function budget(length, limit) {
  requireWhole("list length", length);
  require(limit > 0 && limit < Infinity, `budget must be a number > 0, got ${limit}`);
  return {
    length,
    choose(scores, ties, { costs }) {
      require(costs, "this oracle needs costs, one per item on offer: none were given");
      const chosen = selectWithinBudget(scores, ties, costs, limit, length);
      require(chosen.length > 0, `no item on offer costs at most the budget, ${limit}: raise it`);
      return chosen;
    },
  };
}

/**
 * Greedy exchanges (fedcascade.learning.knapsack): from the most valuable items on, replace the one that loses least per cost saved.
 * @param {Float64Array} scores @param {ArrayLike<number>} ties @param {ArrayLike<number>} costs @param {number} limit
 * @param {number} length
 */
function selectWithinBudget(scores, ties, costs, limit, length) {
  const values = scores.map((score, item) =>
    costs[item] <= limit * SLACK ? -log(Math.max(1 - Math.min(Math.max(score, 0), 1), SMALLEST_MISS)) : -1);
  const sum = (/** @type {ArrayLike<number>} */ numbers) => listed.reduce((total, item) => (item >= 0 ? total + numbers[item] : total), 0);
  let listed = selectTop(values, ties, length).map((item) => (values[item] < 0 ? -1 : item)), removed = -1;
  while (sum(costs) > limit * SLACK) {
    const [place, incoming] = findCheapestExchange(values, costs, listed);
    removed = listed[place];
    listed[place] = incoming;
  }
  if (removed >= 0 && values[removed] > sum(values)) listed = listed.map((_, place) => (place ? -1 : removed));
  const taken = new Set(listed.filter((item) => item >= 0)), order = selectTop(scores, ties, scores.length);
  let total = sum(costs);
  for (const item of order) {
    if (taken.size < listed.length && values[item] >= 0 && !taken.has(item) && total + costs[item] <= limit * SLACK) {
      taken.add(item);
      total += costs[item];
    }
  }
  return order.filter((item) => taken.has(item));
}

/**
 * Find the place and its new item, -1 for none, that lose least value per cost saved.
 * @param {Float64Array} values @param {ArrayLike<number>} costs @param {number[]} listed
 */
function findCheapestExchange(values, costs, listed) {
  let bestPlace = -1, bestItem = -1, least = Infinity;
  listed.forEach((item, place) => {
    if (item < 0 || costs[item] === 0) return;
    if (values[item] / costs[item] < least) [bestPlace, bestItem, least] = [place, -1, values[item] / costs[item]];
    for (let other = 0; other < values.length; other++) {
      if (values[other] < 0 || listed.includes(other) || costs[other] >= costs[item]) continue;
      const loss = (values[item] - values[other]) / (costs[item] - costs[other]);
      if (loss < least) [bestPlace, bestItem, least] = [place, other, loss];
    }
  });
  return [bestPlace, bestItem];
}
