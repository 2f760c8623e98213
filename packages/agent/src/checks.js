// Refusals of bad input, in one line each.

/** What cannot be done, in one line: what was wrong, what was expected. */
export class AgentError extends Error {}

/** Refuse with one line unless a condition holds. @param {unknown} condition @param {string} line @returns {asserts condition} */
export function require(condition, line) {
  if (!condition) throw new AgentError(line);
}

/** Refuse what is not a whole number of at least ``least``. @param {string} name @param {unknown} value @param {number} [least] */
export function requireWhole(name, value, least = 1) {
  require(Number.isSafeInteger(value) && Number(value) >= least, `${name} must be a whole number >= ${least}, got ${value}`);
}
