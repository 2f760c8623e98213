// Drift detection in an agent's own clicks. The order of operations is that of fedcascade.federation.changes, so results equal
// the Python agent's to the bit.

import { getRewards } from "./cascade.js";
import { log } from "./linear.js";
import { computeScores } from "./ridge.js";
import { add, observe, subtract, zero } from "./statistics.js";
import { estimateNoise, measureEvidence } from "./trust.js";

/**
 * @import { Examination } from "./cascade.js"
 * @import { Ridge } from "./ridge.js"
 * @import { Statistics } from "./statistics.js"
 */

/**
 * The constants of the two tests, split and CUSUM: fedcascade.federation.changes:ChangeDetection explains them.
 * @typedef {{threshold: number, limit: number, drop: number, caution: number, block: number}} Detection
 */
/**
 * Own data in the order of time, in blocks of 2^level times as many rounds as a new one; the CUSUM, and the sum of
 * observations ``since`` it was last 0.
 * @typedef {{level: number, statistics: Statistics}} Block
 * @typedef {{blocks: Block[], since: Statistics, cusum: number}} Timeline
 */

const MOST_BLOCKS = 32;
const FEWEST = 4; // observations that a test needs before a change
const LEAST_LIKELY = 0.05, MOST_LIKELY = 0.95; // the CUSUM uses items with a click probability between these

/** Return the timeline of data in unknown order. @param {Statistics} total @returns {Timeline} */
export const beginTimeline = (total) =>
  ({ blocks: total.count ? [{ level: 0, statistics: total }] : [], since: zero(total.moment.length), cusum: 0 });

/**
 * Add a list, which ``total`` holds already, to the timeline. If the user has changed, ``kept`` are the changed user's data, else null.
 * @param {Timeline} timeline @param {Statistics} total @param {Detection} detection @param {Float32Array} listed
 * @param {Examination} seen @param {Ridge} estimate that the list was chosen with
 * @returns {{timeline: Timeline, kept: Statistics | null}}
 */
export function followList(timeline, total, detection, listed, seen, estimate) {
  const nothing = zero(total.moment.length), opened = openBlock(timeline.blocks, detection.block, nothing);
  const { level, statistics } = opened[opened.length - 1], newest = observe(statistics, listed, seen);
  const blocks = opened.with(-1, { level, statistics: newest });
  const { cusum, since } = followClicks(timeline, detection, listed, seen, computeScores(estimate, listed, -detection.caution));
  const first = newest.rounds >= detection.block ? findCut(blocks, total, detection.threshold) : 0;
  if (first) {
    const left = blocks.slice(first);
    return { timeline: { blocks: left, since: nothing, cusum: 0 }, kept: left.map((block) => block.statistics).reduce(add) };
  }
  const hasFallen = cusum > detection.limit && total.count >= since.count + FEWEST;
  return hasFallen ? { timeline: beginTimeline(since), kept: since } : { timeline: { blocks, since, cusum }, kept: null };
}

/**
 * Add the difference of a late reward to the block that holds the list of a round.
 * @param {Timeline} timeline @param {Statistics} difference @param {number} round
 */
export function correctTimeline(timeline, difference, round) {
  const { blocks } = timeline;
  if (!blocks.length) return timeline;
  let end = 0;
  const found = blocks.findIndex(({ statistics }) => (end += statistics.rounds) >= round), place = found < 0 ? blocks.length - 1 : found;
  return { ...timeline, blocks: blocks.with(place, { ...blocks[place], statistics: add(blocks[place].statistics, difference) }) };
}

/**
 * Return blocks with space for a list in the last one; of three blocks of one size, merge the two older ones.
 * @param {Block[]} blocks @param {number} size @param {Statistics} nothing
 */
function openBlock(blocks, size, nothing) {
  if (blocks.length && blocks[blocks.length - 1].statistics.rounds < size) return blocks;
  let merged = blocks;
  const find = (/** @type {number} */ level) => merged.filter((block) => block.level === level);
  for (let level = 0; find(level).length > 2; level++) merged = mergeBlocks(merged, merged.indexOf(find(level)[0]));
  if (merged.length === MOST_BLOCKS) merged = mergeBlocks(merged, 0);
  return [...merged, { level: 0, statistics: nothing }];
}

/** Merge a block with the next one. @param {Block[]} blocks @param {number} place */
function mergeBlocks(blocks, place) {
  const [first, second] = blocks.slice(place);
  return blocks.toSpliced(place, 2, { level: first.level + 1, statistics: add(first.statistics, second.statistics) });
}

/**
 * Find the first block of a changed user by the evidence for two users; 0 if it is too weak.
 * @param {Block[]} blocks @param {Statistics} total @param {number} threshold
 */
function findCut(blocks, total, threshold) {
  const d = total.moment.length, noise = estimateNoise(total), prior = noise * d, whole = measureEvidence(total, noise, prior);
  let newer = zero(d), least = -threshold, cut = 0;
  for (let first = blocks.length - 1; first > 0; first--) {
    newer = add(newer, blocks[first].statistics);
    const older = subtract(total, newer);
    if (older.count < FEWEST) break;
    const gain = whole - (measureEvidence(older, noise, prior) + measureEvidence(newer, noise, prior));
    if (gain < least) [least, cut] = [gain, first];
  }
  return cut;
}

/**
 * Update the CUSUM with a list; ``predictions`` are lower bounds on the click probability of each position.
 * @param {Timeline} timeline @param {Detection} detection @param {Float32Array} listed @param {Examination} seen
 * @param {Float64Array} predictions
 */
function followClicks({ cusum, since }, { drop }, listed, seen, predictions) {
  let isZero = cusum === 0;
  const rewards = getRewards(seen);
  for (let position = 0; position < seen.examined; position++) {
    const expected = Math.min(MOST_LIKELY, predictions[position]), lower = expected - drop;
    if (lower < LEAST_LIKELY) continue;
    const place = seen.clicks.indexOf(position), reward = place < 0 ? 0 : rewards[place]; // y of a click, and 1 - y of none
    const odds = reward > 0 ? reward * log(lower / expected) : 0;
    cusum = Math.max(0, cusum + (reward < 1 ? odds + (1 - reward) * log((1 - lower) / (1 - expected)) : odds));
    isZero ||= cusum === 0;
  }
  const kept = isZero ? zero(since.moment.length) : since;
  return { cusum, since: cusum > 0 ? observe(kept, listed, seen) : kept };
}
