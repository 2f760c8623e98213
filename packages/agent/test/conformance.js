// Holds this agent against the cases of `make vectors`: each check returns what it computed and what the case expects.
// Runs in Node and in a browser.

import { begin } from "../src/agent.js";
import { examine } from "../src/cascade.js";
import { beginTimeline, followList } from "../src/drift.js";
import { exp, log } from "../src/linear.js";
import { budget } from "../src/knapsack.js";
import { perCategory, topK } from "../src/oracles.js";
import { followTerms } from "../src/policies.js";
import { beginSaved, changeTerms, follow, renumber, settle, takePrior, withdraw } from "../src/ledger.js";
import { computeVariances, measureBudget, readPrivacy, release } from "../src/privacy.js";
import { computeGrowth, computeScores, getRidge } from "../src/ridge.js";
import { SavedAgent } from "../src/saved-agent.js";
import { importSeed, signEnrolment, signRequest } from "../src/sign.js";
import { isPossible, normalise, observe, packNumbers, readFeatures, unpackStatistics, zero } from "../src/statistics.js";
import { MemoryStore } from "../src/store.js";
import { beginOwnData, splitDownload, weighOthers } from "../src/trust.js";
import { decodeMessage, encodeEnrolment, encodeEnrolmentClaim, encodeUpload } from "../src/wire.js";

const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const fromHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const readStatistics = (described) => unpackStatistics({ ...described, numbers: fromHex(described.numbers) }, described.dimension);
const describe = (statistics) => ({ count: statistics.count, clicks: statistics.clicks, rounds: statistics.rounds,
  dimension: statistics.moment.length, numbers: toHex(packNumbers(statistics)) });
const readProof = (message) => message && { ...message, proof: fromHex(message.proof) };
const flatten = (rows) => Float32Array.from(rows.flat());
const toRows = (flat, d) => Array.from({ length: flat.length / d }, (_, row) => Array.from(flat.subarray(row * d, row * d + d)));
const orRefuse = (work) => {
  try {
    return work();
  } catch {
    return null;
  }
};

export const CHECKS = {
  logarithms: ({ x, log: expected }) => [log(x), expected],
  exponentials: ({ x, exp: expected }) => [exp(x), expected],
  features: ({ dimension, items, rounded, normalised }) =>
    [[orRefuse(() => toRows(readFeatures(items, dimension), dimension)), orRefuse(() => normalise(items))], [rounded, normalised]],
  statistics: ({ before, listed, click, after }) =>
    [orRefuse(() => describe(observe(readStatistics(before), flatten(listed), examine(listed.length, click === null ? [] : [click])))), after],
  ridges({ statistics, lambda, beta, items, buffer, theta, log_det, growth, scores }) {
    const ridge = getRidge(readStatistics(statistics), lambda);
    const computed = { theta: [...ridge.theta], log_det: ridge.logDet, growth: computeGrowth(ridge, readStatistics(buffer)),
      scores: [...computeScores(ridge, flatten(items), beta)] };
    return [computed, { theta, log_det, growth, scores }];
  },
  trust({ lambda, total, pending, download, weight, deviation, believed }) {
    const waiting = readStatistics(pending), own = splitDownload(beginOwnData(readStatistics(total), null), readStatistics(download), waiting);
    const weighed = weighOthers(own, { every: 4, lambda }, waiting);
    return [[weighed.own.weight, weighed.own.deviation, describe(weighed.download)], [weight, deviation, believed]];
  },
  drift({ dimension, lambda, detection, lists }) {
    let total = zero(dimension), timeline = beginTimeline(total);
    const computed = lists.map(({ listed, click }) => {
      const features = flatten(listed), seen = examine(listed.length, click === null ? [] : [click]), estimate = getRidge(total, lambda);
      const all = observe(total, features, seen), followed = followList(timeline, all, detection, features, seen, estimate);
      ({ timeline } = followed);
      total = followed.kept ?? all;
      return { changed: followed.kept !== null, cusum: timeline.cusum, levels: timeline.blocks.map(({ level }) => level), total: describe(total) };
    });
    return [computed, lists.map(({ after }) => after)];
  },
  oracles({ oracle, length, limit, budget: most, scores, ties, categories, costs, list }) {
    const built = { "top-k": () => topK(length), "per-category": () => perCategory(length, limit), budget: () => budget(length, most) }[oracle]();
    return [orRefuse(() => built.choose(Float64Array.from(scores), ties, { categories, costs })), list];
  },
  triggers({ policy, constants, floor, round, draw, arrivals, download, buffer, cause }) {
    const terms = { policy, constants, dimension: download.dimension, min_observations: 0 };
    const built = followTerms(terms, { minObservations: floor });
    const occasion = { round, draw, arrivals, download: getRidge(readStatistics(download), built.lambda), buffer: readStatistics(buffer) };
    return [built.trigger(occasion), cause];
  },
  possible: ({ statistics, is_possible }) => [isPossible(readStatistics(statistics)), is_possible],
  uploads: ({ sequence, cause, statistics, receipt, body }) =>
    [toHex(encodeUpload({ sequence, cause, statistics: readStatistics(statistics) }, readProof(receipt))), body],
  answers({ dimension, body, sequence, system_rounds, agents, receipt, pooled }) {
    const answer = orRefuse(() => decodeMessage("answer", fromHex(body)));
    if (!pooled) return [answer, null];
    const computed = { sequence: answer.sequence, system_rounds: answer.system_rounds, agents: answer.agents,
      receipt: { ...answer.receipt, proof: toHex(answer.receipt.proof) }, pooled: describe(unpackStatistics(answer, dimension)) };
    return [computed, { sequence, system_rounds, agents, receipt, pooled }];
  },
  async signatures({ seed, public_key, body, headers, ...request }) {
    const key = await importSeed(fromHex(seed), fromHex(public_key));
    return [await signRequest(key, { ...request, body: fromHex(body) }), headers];
  },
  async enrolments({ seed, public_key, created, token, credential, claim, proof, body }) {
    const key = await importSeed(fromHex(seed), fromHex(public_key)), word = readProof(credential);
    const signed = encodeEnrolmentClaim(token, word), signature = await signEnrolment(key, created, signed);
    const message = encodeEnrolment({ publicKey: key.publicKey, created, proof: signature, token, credential: word });
    return [[toHex(signed), toHex(signature), toHex(message)], [claim, proof, body]];
  },
  sessions: playSession,
  rewards: ({ before, listed, clicks, reward, after }) =>
    [orRefuse(() => describe(observe(readStatistics(before), flatten(listed), examine(listed.length, clicks, null, reward)))), after],
  valued_sessions: playSession,
  privacy({ constants, sequence, statistics, rho, spent, is_spent, noise, variances, released }) {
    const privacy = readPrivacy(constants, () => noise), sums = readStatistics(statistics), budget = measureBudget(privacy, sequence);
    const upload = release(privacy, { sequence, cause: "forced", statistics: sums }), drawn = upload && computeVariances(privacy, sums.rounds, sums.moment.length);
    const computed = [orNear(privacy.rho, rho), orNear(budget.spent, spent), budget.isSpent,
      (drawn ?? []).map((variance, at) => orNear(Number(variance), Number(variances[at]), 1)), upload && describe(upload.statistics)]; // variances are rounded up
    return [computed, [rho, spent, is_spent, variances.map(Number), released]];
  },
  private_sessions: playSession,
};

/** Return the expected number if the computed one is near to it: Python finds rho to one part in 10^9. */
const orNear = (computed, expected, slack = 0) => (Math.abs(computed - expected) <= 1e-9 * Math.abs(expected) + slack ? expected : computed);

/** Play the steps of a session, and collect what every step gave and what the agent knows after it. */
async function playSession({ terms, min_observations, keep_lists, keep_seconds, steps }) {
  const store = new MemoryStore(), credential = { agent: 7, enrolled: 1.5, epoch: "first", proof: new Uint8Array(16) };
  const state = beginSaved({ agent: 7, terms, credential }, begin(terms.dimension));
  const options = { minObservations: min_observations, keepLists: keep_lists, keepSeconds: keep_seconds, now: () => session.now,
    noise: () => session.noise.pop() };
  await store.update([], () => ({ puts: [["state", state]] }));
  const session = { agent: new SavedAgent(store, state, options), store, options, impressions: new Map(), now: 0, noise: [] };
  const computed = [], expected = [];
  for (const step of steps) {
    session.now = step.now;
    if (step.noise) session.noise.push(step.noise);
    computed.push(await STEPS[step.step](session, step), await describeAgent(session, step.after.privacy), session.noise.length);
    expected.push(EXPECTED[step.step](step), step.after, 0);
  }
  return [computed, expected];
}

async function describeAgent({ agent, impressions }, budget) {
  await agent.refresh();
  const { buffered, unsent, lost, estimate, state } = agent, names = new Map([...impressions].map(([number, name]) => [name, number]));
  const open = (await agent.openLists()).map(({ impression, items, shownAt }) => ({ impression: names.get(impression), items, shown_at: shownAt }));
  return { buffered, unsent, lost, estimate: [...estimate], arrivals: state.arrivals, uploads: state.uploads, open_lists: open,
    privacy: agent.privacy && [orNear(agent.privacy.spent, budget?.[0]), agent.privacy.isSpent] };
}

const STEPS = {
  async recommend({ agent, impressions }, { items, k, ties, impression }) {
    const shown = agent.recommend(items, { k, ties });
    impressions.set(impression, shown.impression);
    return shown.items;
  },
  async feedback({ agent, impressions }, { impression, round, draw, clicked, clicked_item, looked_until, reward }) {
    const outcome = { clicked, clickedItem: clicked_item, lookedUntil: looked_until, reward, round: round ?? undefined, draw };
    const upload = await agent.feedback(impressions.get(impression), outcome);
    return upload && { ...upload, statistics: describe(upload.statistics) };
  },
  reward: ({ agent, impressions }, { impression, value }) => agent.reward(impressions.get(impression), value).then(() => true, () => false),
  async answer({ agent }, { body }) {
    await agent.receive(agent.state.outbox[0], decodeMessage("answer", fromHex(body)));
    return agent.state.isSettled;
  },
  async skip({ agent }) {
    await agent.receive(agent.state.outbox[0], null);
    return agent.state.isSettled;
  },
  async prior({ agent }, { body }) {
    await agent.change((state) => ({ state: takePrior(state, decodeMessage("enrolment", fromHex(body)).prior, agent.policy) }));
    return agent.hasPrior;
  },
  settle: async ({ agent }, { body }) => (await agent.change((state) => settle(state, decodeMessage("standing", fromHex(body)), agent.policy))) !== null,
  withdraw: ({ agent }, { is_lost }) => agent.change((state) => ({ state: withdraw(state, state.outbox[0], is_lost, agent.policy), result: null })),
  renumber: ({ agent }, { last_sequence }) => agent.change((state) => ({ state: renumber(state, state.outbox[0], { last_sequence }, agent.policy), result: null })),
  start_over: ({ agent }) => agent.restart().then(() => null),
  async refused({ agent, impressions }, { items, k, impression, clicked }) {
    try {
      if (items) agent.recommend(items, { k });
      else await agent.feedback(impressions.get(impression) ?? `${impression}-x`, { clicked });
    } catch (error) {
      return error.message.includes("\n") ? error.message : "refused";
    }
    return "taken";
  },
  async renew({ agent, store }, { agent: number }) {
    await store.update(["state"], ([state]) => {
      const saved = beginSaved({ ...state.enrolment, agent: number }, follow(state, { agent: number }));
      return { puts: [["state", { ...saved, version: saved.version + 1 }]] };
    });
    await agent.refresh();
    return agent.id;
  },
  async terms({ agent }, { terms }) {
    await agent.change((state) => ({ state: changeTerms(state, terms, (each) => agent.followTerms(each)) }));
    return null;
  },
  async restart(session) {
    const [state] = await session.store.update(["state"], (values) => ({ result: values }));
    session.agent = new SavedAgent(session.store, state, session.options);
    return null;
  },
};

const EXPECTED = {
  recommend: ({ list }) => list,
  feedback: ({ upload }) => upload,
  reward: ({ is_taken }) => is_taken,
  answer: ({ is_settled }) => is_settled,
  skip: ({ is_settled }) => is_settled,
  prior: ({ has_prior }) => has_prior,
  settle: ({ is_lost }) => is_lost,
  withdraw: () => null,
  renumber: () => null,
  start_over: () => null,
  refused: () => "refused",
  renew: ({ agent }) => agent,
  terms: () => null,
  restart: () => null,
};

/** Where two values differ first, to the bit; null if nowhere. */
export function findDifference(computed, expected, path = "") {
  if (Object.is(computed, expected) || (computed === 0 && expected === 0)) return null;
  if (typeof computed !== "object" || typeof expected !== "object" || computed === null || expected === null) {
    return `${path || "result"}: ${JSON.stringify(computed)} instead of ${JSON.stringify(expected)}`;
  }
  for (const key of new Set([...Object.keys(computed), ...Object.keys(expected)])) {
    const difference = findDifference(computed[key], expected[key], `${path}.${key}`);
    if (difference) return difference;
  }
  return null;
}

/** Check the cases of a file; returns how many there are, and the differences. */
export async function checkFile({ kind, cases }) {
  const differences = [];
  for (const [number, one] of cases.entries()) {
    try {
      const difference = findDifference(...(await CHECKS[kind](one)));
      if (difference) differences.push(`${kind} ${number}: ${difference}`);
    } catch (error) {
      differences.push(`${kind} ${number}: ${error.stack}`);
    }
  }
  return { cases: cases.length, differences };
}
