// Private uploads: exact noise, drawn once for each upload; a budget; nothing is sent twice.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { begin } from "../src/agent.js";
import { FileStore } from "../src/file-store.js";
import { connect } from "../src/index.js";
import { beginSaved, follow, renumber, settle, withdraw } from "../src/ledger.js";
import { checkTerms, followTerms } from "../src/policies.js";
import { computeEpsilon, computeVariances, findRho, makeNoise, readPrivacy, release } from "../src/privacy.js";
import { SavedAgent } from "../src/saved-agent.js";
import { packNumbers, zero } from "../src/statistics.js";
import { MemoryStore } from "../src/store.js";
import { ExchangeLoop } from "../src/sync.js";
import { always, doubling } from "../src/triggers.js";

const ITEMS = [[0.5, 0.5], [0.5, -0.5], [0.1, 0.9]];
const CONSTANTS = { lambda_: 0.01, beta: 1.5, every: 4, epsilon: 2, delta: 1e-6, unit: "list", uploads: 16, drift: "ignore" };
const TERMS = { policy: "population-private", constants: CONSTANTS, dimension: 2, longest_list: 50, min_observations: 9, terms_id: "t" };
const CREDENTIAL = { agent: 7, enrolled: 1.5, epoch: "first", proof: new Uint8Array(16) };

const withConstants = (changes) => ({ ...TERMS, constants: { ...CONSTANTS, ...changes }, terms_id: JSON.stringify(changes) });

async function makeAgent(options = {}, terms = TERMS, store = new MemoryStore()) {
  const state = beginSaved({ agent: 7, terms, credential: CREDENTIAL }, begin(2));
  await store.update([], () => ({ puts: [["state", state]] }));
  return new SavedAgent(store, state, options);
}

/** Noise of 0, which counts the draws and keeps the variances. */
function countDraws() {
  const drawn = [];
  return { drawn, noise: (variances) => { drawn.push(variances); return variances.map(() => 0); } };
}

/** Fill an array with the words of a generator of fixed start (SplitMix64). */
function makeFill(seed) {
  let state = BigInt(seed);
  return (words) => {
    for (let at = 0; at < words.length; at++) {
      state = BigInt.asUintN(64, state + 0x9e3779b97f4a7c15n);
      let word = BigInt.asUintN(64, (state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n);
      word = BigInt.asUintN(64, (word ^ (word >> 27n)) * 0x94d049bb133111ebn);
      words[at] = word ^ (word >> 31n);
    }
  };
}

test("the sampler has the probabilities of a discrete Gaussian", () => {
  for (const [variance, seed] of [[1n, 1], [4n, 2], [30n, 3]]) {
    const draws = 20_000, drawn = makeNoise(makeFill(seed))(Array(draws).fill(variance)), reach = Math.ceil(3 * Math.sqrt(Number(variance)));
    const weigh = (k) => Math.exp((-k * k) / (2 * Number(variance)));
    let total = 0, square = 0;
    for (let k = -40 * reach; k <= 40 * reach; k++) total += weigh(k);
    const counts = new Map();
    for (const k of drawn.map(Number)) counts.set(k, (counts.get(k) ?? 0) + 1);
    let others = draws, left = 1;
    for (let k = -reach; k <= reach; k++) {
      const expected = (draws * weigh(k)) / total, found = counts.get(k) ?? 0;
      square += (found - expected) ** 2 / expected;
      others -= found;
      left -= weigh(k) / total;
    }
    square += (others - draws * left) ** 2 / (draws * left);
    const freedom = 2 * reach + 1, bound = freedom + 4 * Math.sqrt(2 * freedom) + 8; // exceeded with a probability below 1e-4
    assert.ok(square < bound, `variance ${variance}: chi-square ${square} of ${freedom} degrees of freedom`);
  }
});

test("noise of an upload has its standard deviation, and system noise is used without a source", () => {
  const privacy = readPrivacy(CONSTANTS), [variance] = computeVariances(privacy, 1, 2), draws = 4_000;
  assert.ok(variance > 2n ** 50n, `${variance}`);
  for (const source of [makeNoise(makeFill(4)), privacy.noise]) {
    const scaled = source(Array(draws).fill(variance)).map((k) => Number(k) / Math.sqrt(Number(variance)));
    const mean = scaled.reduce((sum, k) => sum + k, 0) / draws, square = scaled.reduce((sum, k) => sum + k * k, 0) / draws;
    assert.ok(Math.abs(mean) < 6 / Math.sqrt(draws) && Math.abs(square - 1) < 6 * Math.sqrt(2 / draws), `mean ${mean}, variance ${square}`);
  }
});

test("rho is that of Python, and epsilon its inverse", () => {
  const known = [[1, 1e-6, 0.024355969741009176], [5, 1e-6, 0.4630648612510413], [0.5, 1e-9, 0.00395319045856013]];
  for (const [epsilon, delta, rho] of known) {
    assert.ok(Math.abs(findRho(epsilon, delta) / rho - 1) <= 1e-9, `${epsilon}, ${delta}: ${findRho(epsilon, delta)}`);
    assert.ok(Math.abs(computeEpsilon(findRho(epsilon, delta), delta) / epsilon - 1) <= 1e-12);
  }
});

test("uploads follow the schedule and hold first items, whatever the minimum of the server and the page", async () => {
  const { drawn, noise } = countDraws(), agent = await makeAgent({ noise, minObservations: 50 }), sent = [];
  assert.deepEqual([agent.floor, agent.privacy], [1, { epsilon: 2, delta: 1e-6, unit: "list", uploads: 16, spent: 0, isSpent: false }]);
  for (let list = 1; list <= 9; list++) {
    const shown = agent.recommend(ITEMS, { k: 3 }), upload = await agent.feedback(shown, { clicked: list % 2 ? [0, 1] : 2 });
    if (upload) sent.push([list, upload.cause, upload.statistics.rounds, upload.statistics.count, upload.statistics.clicks]);
  }
  assert.deepEqual(sent, [[1, "forced", 1, 1, 1], [2, "forced", 1, 1, 0], [4, "forced", 2, 2, 1], [8, "forced", 4, 4, 2]]);
  assert.deepEqual([drawn.length, drawn[0].length, agent.privacy.spent], [4, 6, 2]);
  assert.deepEqual([agent.state.first.rounds, agent.state.buffer.rounds, agent.state.own.total.clicks], [1, 2, 14]);
});

test("noise is drawn once for an upload, however often the store is opened and the upload is sent", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "fedcascade-agent-")), path = join(folder, "agent.json");
  t.after(() => rmSync(folder, { recursive: true }));
  let store = new FileStore(path), agent = await makeAgent({}, TERMS, store);
  for (let list = 0; list < 4; list++) await agent.feedback(agent.recommend(ITEMS), { clicked: 0 });
  const sent = agent.state.outbox.map(({ statistics }) => packNumbers(statistics)), { first } = agent.state;
  assert.equal(new Set(sent.map(String)).size, 3);
  const fail = () => assert.fail("noise was drawn again");
  for (let opened = 0; opened < 3; opened++) {
    await store.close();
    store = new FileStore(path);
    const [state] = await store.update(["state"], (values) => ({ result: values }));
    agent = new SavedAgent(store, state, { noise: fail });
    await agent.feedback(agent.recommend(ITEMS), { clicked: 0 }); // lists 5 to 7
    await agent.change((before) => ({ state: renumber(before, before.outbox[0], { last_sequence: 40 + opened }, agent.policy) }));
    assert.equal(agent.state.first.rounds, first.rounds + opened + 1);
  }
  assert.deepEqual(agent.state.outbox.map(({ statistics }) => packNumbers(statistics)), sent);
  assert.deepEqual(agent.state.outbox.map(({ sequence }) => sequence), [41, 42, 43]);
  await store.close();
});

test("a user's budget ends the uploads, and the agent goes on learning", async () => {
  const agent = await makeAgent({}, withConstants({ unit: "user", uploads: 2, epsilon: 4 })), spent = [];
  for (let list = 1; list <= 8; list++) {
    const upload = await agent.feedback(agent.recommend(ITEMS), { clicked: 0 });
    assert.equal(upload !== null, list <= 2);
    spent.push(agent.privacy.spent);
  }
  assert.ok(spent[0] > 0 && spent[0] < spent[1] && Math.abs(spent[1] - 4) < 1e-9, `${spent}`);
  assert.deepEqual([agent.privacy.isSpent, agent.unsent, agent.state.first.rounds, agent.state.own.total.rounds], [true, 2, 0, 8]);
});

test("a late reward changes own data only, and counts as a constant before", async () => {
  const agent = await makeAgent(countDraws()), give = () => agent.recommend(ITEMS, { k: 1 });
  const [first, second, third] = [give(), give(), give()];
  await agent.feedback(first, { clicked: 0, reward: 1 });
  await agent.feedback(second, { clicked: 0, reward: "later" });
  await agent.feedback(third, { clicked: 0, reward: "later" });
  const { outbox, first: waiting } = agent.state, [x] = ITEMS[second.items[0]];
  assert.ok(Math.abs(outbox[1].statistics.moment[0] - 0.5 * x) < 2 ** -12, `${outbox[1].statistics.moment}`);
  await agent.reward(second, 0);
  await agent.reward(third, 0);
  assert.deepEqual([agent.state.outbox, agent.state.first], [outbox, waiting]);
  assert.equal(agent.state.own.total.clicks - agent.state.own.total.shortfall, 1);
});

test("nothing is sent again: lost rounds are counted, and a restart drops first items", async () => {
  const agent = await makeAgent(countDraws()), { policy } = agent;
  for (let list = 0; list < 3; list++) await agent.feedback(agent.recommend(ITEMS), { clicked: 0 });
  await agent.receive(agent.state.outbox[0], null);
  await agent.change((state) => ({ state: withdraw(state, state.outbox[0], false, policy) }));
  assert.deepEqual([agent.unsent, agent.lost, agent.state.own.total.rounds, agent.state.first.rounds], [0, 1, 3, 1]);
  const held = { numbers: packNumbers(zero(2)), count: 0, clicks: 0, rounds: 0, last_sequence: 2, last_change: 0, epoch: "first", credential: CREDENTIAL };
  const note = await agent.change((state) => settle(state, held, policy));
  assert.deepEqual([note, agent.lost, agent.unsent], ["the server has lost 1 rounds: private uploads are sent once", 2, 0]);
  await agent.restart();
  assert.deepEqual([agent.state.first.rounds, agent.buffered, agent.state.own.total.rounds], [0, 0, 0]);
  const upload = await agent.feedback(agent.recommend(ITEMS), { clicked: 0 });
  assert.deepEqual([upload.cause, upload.statistics.rounds], ["change", 1]);
});

test("terms that keep no promise are refused in one line", async () => {
  for (const mostEpsilon of [-1, 0, NaN, "much"]) await assert.rejects(connect({ url: "http://server", mostEpsilon }), /mostEpsilon must be a number > 0/);
  const refused = [[{ drift: "restart" }, /without drift=restart/], ...[{ epsilon: 0 }, { delta: 1 }, { unit: "item" }, { uploads: 0.5 }, { epsilon: 1e-5 }, { unit: "user", uploads: 1e9 },
    { epsilon: "much" }].map((changes) => [changes, /private uploads have an invalid constant, got epsilon/])];
  for (const [changes, line] of refused) assert.throws(() => checkTerms(withConstants(changes)), line);
  const kept = followTerms(TERMS, { policy: (own) => ({ ...own, trigger: always, privacy: null, trust: null }) });
  assert.deepEqual([kept.trigger, kept.privacy.epsilon, kept.trust.every], [doubling, 2, 4]);
  const agent = await makeAgent(), population = { ...TERMS, policy: "population", constants: { ...CONSTANTS, alpha_c: 1 } };
  for (const terms of [withConstants({ epsilon: 3 }), withConstants({ delta: 1e-3 }), population]) {
    assert.throws(() => follow(agent.state, { terms }), /wants private uploads of epsilon <= 2 and delta <= 0.000001 for a list, and the server offers/);
  }
  follow(agent.state, { terms: withConstants({ epsilon: 1, unit: "user" }) });
  const user = await makeAgent({}, withConstants({ unit: "user" }));
  for (const changes of [{ unit: "user", uploads: 17 }, { unit: "list" }]) { // 16 more uploads would spend half of rho again
    assert.throws(() => follow(user.state, { terms: withConstants(changes) }), /wants private uploads of epsilon <= 2/);
  }
  follow(user.state, { terms: withConstants({ unit: "user", uploads: 8 }) });
});

test("a sum beyond 53 bits is rounded once, so that noise hides the low bits of data", () => {
  const huge = 2n ** 60n + 129n, privacy = readPrivacy(CONSTANTS, (variances) => variances.map(() => huge)), value = 0.25 + 2 ** -12;
  const statistics = { gram: Float64Array.of(value), moment: Float64Array.of(0), count: 1, clicks: 0, rounds: 1 };
  const sent = release(privacy, { sequence: 1, cause: "forced", statistics });
  assert.equal(sent.statistics.gram[0] / 2 ** -24, Number(huge + BigInt(value * 2 ** 24)));
  assert.equal(typeof makeNoise(makeFill(1))([2n ** 200n])[0], "bigint");
});

test("a page whose browser keeps nothing sends no private upload", async () => {
  const sent = [], store = new MemoryStore(), agent = await makeAgent(countDraws(), TERMS, store);
  const client = { exchange: async (upload) => { sent.push(upload); throw new Error("no answer"); } };
  await agent.feedback(agent.recommend(ITEMS), { clicked: 0 });
  store.trouble = "the browser cannot store this agent";
  const loop = new ExchangeLoop(agent, client, [0.001, 0.01]);
  assert.equal(await loop.flush(0.1), false);
  assert.deepEqual([sent.length, loop.trouble], [0, "private uploads wait: the browser cannot store this agent"]);
  store.trouble = null;
  await loop.flush(0.1);
  assert.ok(sent.length > 0 && sent.every((upload) => upload === sent[0]));
  await loop.stop();
});
