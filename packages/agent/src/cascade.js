// The cascade: clicks on a list, and the positions that an agent learns from.

import { require } from "./checks.js";

/**
 * The number of examined positions from the top, the clicked ones among them, and the rewards of the clicks; if there are none, each
 * is 1.
 * @typedef {{examined: number, clicks: number[], rewards?: number[]}} Examination
 * @typedef {number | ArrayLike<number> | null} Places one or several, or none
 * @typedef {number | ArrayLike<number> | null} Reward of all clicks together, or of each; null is 1 for each
 * @typedef {{clicked?: Places, clickedItem?: Places, lookedUntil?: number | null, reward?: Reward | "later"}} Outcome
 */

const GRID = 2 ** -12;

/** Return the reward of each click. @param {Examination} seen */
export const getRewards = ({ clicks, rewards }) => rewards ?? clicks.map(() => 1);

/** Round a reward in [0, 1] to a multiple of 2^-12; reject other numbers. @param {any} reward */
export function roundReward(reward) {
  require(typeof reward === "number" && reward >= 0 && reward <= 1, `a reward must be a number in [0, 1], got ${reward}`);
  return Math.floor(reward / GRID + 0.5) * GRID;
}

/**
 * Return the reward of each of some clicks: several values, or one that all clicks share in equal parts; undefined if each is 1.
 * @param {Reward} reward @param {number} clicks @returns {number[] | undefined}
 */
export function splitReward(reward, clicks) {
  if (reward === null) return undefined;
  require(clicks > 0, "a reward needs a click: without one, leave it out");
  const isSeveral = Array.isArray(reward) || ArrayBuffer.isView(reward);
  if (!isSeveral) roundReward(reward);
  const given = isSeveral ? Array.from(/** @type {any} */ (reward)) : Array(clicks).fill(/** @type {number} */ (reward) / clicks);
  require(given.length === clicks, `rewards must be one, or one for each of ${clicks} clicks, got ${given.length}`);
  const rounded = given.map(roundReward);
  return rounded.every((value) => value === 1) ? undefined : rounded;
}

/**
 * Return the examined positions: up to the last click, or up to ``lookedUntil``; without either, all of them.
 * @param {number} length
 * @param {number[]} clicks positions, counted from 0
 * @param {number | null} [lookedUntil] @param {Reward} [reward] several are in the order of ``clicks`` @returns {Examination}
 */
export function examine(length, clicks, lookedUntil = null, reward = null) {
  const given = [...new Set(clicks)], values = splitReward(reward, given.length);
  const clicked = [...given].sort((first, second) => first - second), last = clicked.at(-1);
  const rewards = values && { rewards: clicked.map((click) => values[given.indexOf(click)]) };
  for (const click of clicked) {
    require(Number.isInteger(click) && click >= 0 && click < length, `a click must be a position in 0..${length - 1}, got ${click}`);
  }
  if (lookedUntil === null) return { examined: last === undefined ? length : last + 1, clicks: clicked, ...rewards };
  const least = last ?? 0, isBelow = Number.isInteger(lookedUntil) && lookedUntil >= least && lookedUntil < length;
  require(isBelow, `lookedUntil must be a position in ${least}..${length - 1}, the last click or below it, got ${lookedUntil}`);
  return { examined: lookedUntil + 1, clicks: clicked, ...rewards };
}

/** Return the clicked positions, from positions or from items. @param {number[]} items @param {Outcome} outcome */
export function readPositions(items, { clicked, clickedItem }) {
  require((clicked === undefined) !== (clickedItem === undefined), "say either clicked or clickedItem, with null if nothing was clicked");
  if (clicked !== undefined) return readAll("clicked", clicked);
  const chosen = readAll("clickedItem", clickedItem);
  for (const item of chosen) require(items.includes(item), `clickedItem must be on the list, which shows items ${items}, got ${item}`);
  return chosen.map((item) => items.indexOf(item));
}

/** @param {string} name @param {any} given @returns {number[]} */
function readAll(name, given) {
  if (given === null) return [];
  const values = Array.isArray(given) || ArrayBuffer.isView(given) ? Array.from(/** @type {any} */ (given)) : [given];
  for (const value of values) require(Number.isSafeInteger(value), `${name} must be a whole number, several, or null, got ${value}`);
  return values;
}
