// The cascade: clicks on a list, and the positions that an agent learns from.

import { require } from "./checks.js";

/**
 * The number of examined positions from the top, and the clicked ones among them.
 * @typedef {{examined: number, clicks: number[]}} Examination
 * @typedef {number | ArrayLike<number> | null} Places one or several, or none
 * @typedef {{clicked?: Places, clickedItem?: Places, lookedUntil?: number | null}} Outcome
 */

/**
 * Return the examined positions: up to the last click, or up to ``lookedUntil``; without either, all of them.
 * @param {number} length
 * @param {number[]} clicks positions, counted from 0
 * @param {number | null} [lookedUntil] @returns {Examination}
 */
export function examine(length, clicks, lookedUntil = null) {
  const clicked = [...new Set(clicks)].sort((first, second) => first - second), last = clicked.at(-1);
  for (const click of clicked) {
    require(Number.isInteger(click) && click >= 0 && click < length, `a click must be a position in 0..${length - 1}, got ${click}`);
  }
  if (lookedUntil === null) return { examined: last === undefined ? length : last + 1, clicks: clicked };
  const least = last ?? 0, isBelow = Number.isInteger(lookedUntil) && lookedUntil >= least && lookedUntil < length;
  require(isBelow, `lookedUntil must be a position in ${least}..${length - 1}, the last click or below it, got ${lookedUntil}`);
  return { examined: lookedUntil + 1, clicks: clicked };
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
