// Errors for bad input, in one line each.

/** An error in one line: what was wrong, and what was expected. */
export class AgentError extends Error {
  name = "AgentError";
}

/** Throw an error with this line unless a condition holds. @param {unknown} condition @param {string} line @returns {asserts condition} */
export function require(condition, line) {
  if (!condition) throw new AgentError(line);
}

/** Require an integer of at least ``least``. @param {string} name @param {unknown} value @param {number} [least] */
export function requireWhole(name, value, least = 1) {
  require(Number.isSafeInteger(value) && Number(value) >= least, `${name} must be a whole number >= ${least}, got ${value}`);
}
