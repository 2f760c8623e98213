// An agent without a server: lists expire, feedback comes late and once, bad input gets one line and changes nothing.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { begin } from "../src/agent.js";
import { FileStore } from "../src/file-store.js";
import { connect, normalise, perCategory } from "../src/index.js";
import { beginSaved } from "../src/ledger.js";
import { SavedAgent } from "../src/saved-agent.js";
import { packNumbers } from "../src/statistics.js";
import { MemoryStore } from "../src/store.js";
import { encode } from "../src/wire.js";

const ITEMS = [[0.5, 0.5], [0.5, -0.5], [0.1, 0.9]];
const TERMS = { policy: "population", constants: { alpha_c: 5, lambda_: 4, beta: 1, confidence: "constant" }, dimension: 2, longest_list: 50,
  min_observations: 1, terms_id: "t" };

async function makeAgent(options = {}, terms = TERMS) {
  const store = new MemoryStore(), state = beginSaved({ agent: 7, terms, credential: null }, begin(2));
  await store.update([], () => ({ puts: [["state", state]] }));
  return new SavedAgent(store, state, options);
}

test("a list waits for feedback, late and once", async () => {
  const agent = await makeAgent({ minObservations: 9 }), [first, second] = [agent.recommend(ITEMS), agent.recommend(ITEMS)];
  await agent.feedback(second, { clicked: 0 });
  await agent.feedback(first.impression, { clicked: null });
  await assert.rejects(agent.feedback(first, { clicked: null }), /has no open list/);
  assert.deepEqual([agent.buffered, agent.state.buffer.rounds, agent.state.buffer.clicks], [4, 2, 1]);
});

test("a list expires by number and by time", async () => {
  const agent = await makeAgent({ keepLists: 2 }), [first, second] = [1, 2, 3].map(() => agent.recommend(ITEMS));
  await assert.rejects(agent.feedback(first, { clicked: 0 }), /expires after 2 newer ones/);
  await agent.feedback(second, { clicked: 0 });
  assert.deepEqual((await agent.openLists()).length, 1);
});

test("a list expires by time, and its features go with the next one", async () => {
  let time = 1e9;
  const agent = await makeAgent({ keepSeconds: 86_400, now: () => time }), first = agent.recommend(ITEMS, { k: 2 });
  time += 50_000;
  const second = agent.recommend(ITEMS, { k: 2 });
  assert.deepEqual(await agent.openLists(), [first, second].map(({ impression, items }, at) => ({ impression, items, shownAt: 1e9 + 50_000 * at })));
  time += 50_000;
  assert.deepEqual((await agent.openLists()).map(({ impression }) => impression), [second.impression]);
  await assert.rejects(agent.feedback(first, { clicked: 0 }), /has no open list 1-\w+: a list expires after 1024 newer ones or 1 days/);
  agent.recommend(ITEMS);
  assert.deepEqual((await agent.store.readLists()).map(([[arrival]]) => arrival), [2, 3]);
});

test("bad input gets one line, and nothing changes", async () => {
  const agent = await makeAgent(), shown = agent.recommend(ITEMS, { k: 2 });
  const calls = [() => agent.recommend([]), () => agent.recommend([[NaN, 0]]), () => agent.recommend(ITEMS, { k: 0 }), () => agent.recommend(ITEMS, { k: 51 }),
    () => agent.recommend(ITEMS, { k: 1.5 }), () => agent.recommend(ITEMS, { ties: [1] }), () => agent.recommend(ITEMS, { categories: [1] }),
    () => agent.recommend(ITEMS, { oracle: perCategory(2) }), () => agent.feedback(shown, {}), () => agent.feedback(shown), () => agent.feedback(null, { clicked: 0 }),
    () => agent.recommend(null), () => agent.recommend([null]), () => agent.feedback(shown, { clicked: "1" }), () => agent.feedback(shown, { clicked: 2 }),
    () => agent.feedback(shown, { clicked: true }), () => agent.feedback(shown, { clickedItem: 17 }), () => agent.feedback(shown, { clicked: 1, lookedUntil: 0 }),
    () => agent.feedback("nonsense", { clicked: 0 }), () => agent.feedback(shown, { clicked: 0, round: 0 })];
  for (const call of calls) await assert.rejects(async () => call(), (error) => error.constructor.name === "AgentError" && !error.message.includes("\n"), String(call));
  assert.equal(agent.buffered, 0);
  await agent.feedback(shown, { clicked: 1 });
});

test("other policies and betas are refused with the names of those that are known", async () => {
  await assert.rejects(makeAgent({}, { ...TERMS, policy: "constructor" }), /this agent knows the policies fedlinucb, .* and the server runs constructor/);
});

test("several clicks of a list are own data too", async () => {
  const agent = await makeAgent(), shown = agent.recommend(ITEMS, { k: 3 });
  await agent.feedback(shown, { clicked: [0, 1] });
  assert.deepEqual([agent.state.own.total.rounds, agent.state.own.total.clicks], [2, 2]);
});

test("an agent that looks for drift starts over when its user changes, and a crash forgets none of it", async (t) => {
  const drift = { drift: "restart", threshold: 2, limit: 2, drop: 0.15, caution: 0.45, block: 4 };
  const terms = { ...TERMS, constants: { ...TERMS.constants, ...drift, lambda_: 0.01 }, min_observations: 6 };
  const folder = mkdtempSync(join(tmpdir(), "fedcascade-agent-")), path = join(folder, "agent.json"), uploads = [];
  t.after(() => rmSync(folder, { recursive: true }));
  let store = new FileStore(path), state = beginSaved({ agent: 7, terms, credential: null }, begin(2));
  await store.update([], () => ({ puts: [["state", state]] }));
  for (let round = 0; round < 80; round++) {
    const agent = new SavedAgent(store, state, { minObservations: 0 }), shown = agent.recommend([[0.75, 0.5]], { k: 1 });
    if (round === 0) await assert.rejects(agent.feedback(agent.recommend(ITEMS), { clicked: [0, 1] }), /one click of a list/);
    uploads.push(await agent.feedback(shown, { clicked: round < 40 ? 0 : null }));
    await store.close();
    store = new FileStore(path);
    [state] = await store.update(["state"], (values) => ({ result: values }));
    assert.deepEqual([state.own, state.isChangePending], [agent.state.own, agent.state.isChangePending]);
  }
  await store.close();
  const [change, ...others] = uploads.filter((upload) => upload?.cause === "change");
  assert.deepEqual([change.statistics.clicks, change.statistics.count >= 6, others], [0, true, []]);
  assert.deepEqual([state.own.total.clicks, state.isChangePending], [0, false]);
});

test("own data survive a restart, in a file too", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "fedcascade-agent-")), store = new FileStore(join(folder, "agent.json"));
  t.after(() => rmSync(folder, { recursive: true }));
  const state = beginSaved({ agent: 7, terms: TERMS, credential: null }, begin(2));
  await store.update([], () => ({ puts: [["state", state]] }));
  const agent = new SavedAgent(store, state);
  for (const clicked of [0, null, 1, 0, 2]) await agent.feedback(agent.recommend(ITEMS), { clicked });
  await store.close();
  const again = new FileStore(join(folder, "agent.json")), [kept] = await again.update(["state"], (values) => ({ result: values }));
  assert.deepEqual(kept.own, agent.state.own);
  assert.deepEqual(new SavedAgent(again, kept).estimate, agent.estimate);
  await again.close();
});

test("features are scaled", () => {
  assert.deepEqual(normalise([[3, 4], [0, 0]]), [[0.599853515625, 0.7998046875], [0, 0]]);
});

/** A server that enrols everybody, and tells newcomers so much of theta; it keeps the addresses that it was asked at. */
function makeServer(gram, moment) {
  const addresses = [], told = { gram: Float64Array.from(gram), moment: Float64Array.from(moment) };
  const prior = { count: 0, clicks: 0, rounds: 0, system_rounds: 90, agents: 9, numbers: packNumbers(told) };
  const body = encode({ protocol: 2, agent: 7, terms: { ...TERMS, protocol: 2 }, credential: null, prior });
  const fetch = async (address) => {
    addresses.push(address);
    return new Response(body, { status: 201, headers: { "content-type": "application/msgpack" } });
  };
  return { addresses, options: { url: "http://server", token: "a-token-of-sixteen", fetch } };
}

test("a newcomer decides with what the server knows of anybody, also after a restart", async (t) => {
  const { addresses, options } = makeServer([12, 0, 0, 12], [0, 8]), store = new MemoryStore();
  const agent = await connect({ ...options, store }), weight = (1 + 0.25) / (5 + Math.exp(4)); // the prior mean
  const known = (weight * 8) / (weight * (12 + 4) + (1 - weight) * 0.5), estimate = [...agent.estimate];
  t.after(() => agent.close());
  assert.deepEqual(addresses, ["http://server/v1/agents?prior=1"]);
  assert.ok(estimate[0] === 0 && Math.abs(estimate[1] - known) < 1e-12, `${estimate}`);
  assert.deepEqual([agent.state.rounds, agent.state.agents], [90, 9]);
  assert.deepEqual(agent.recommend(ITEMS, { k: 1 }).items, [2]);
  assert.deepEqual(Object.keys(agent.state.enrolment), ["agent", "terms", "credential"]);
  const [state] = await store.update(["state"], (values) => ({ result: values }));
  assert.deepEqual([...new SavedAgent(store, state).estimate], estimate);
});

test("a newcomer does without what nobody can decide with", async (t) => {
  for (const gram of [[-9, 0, 0, 1], [NaN, 0, 0, 1], [1, 0, 0, 1, 0, 0, 0, 0, 0]]) {
    const agent = await connect({ ...makeServer(gram, gram.length === 4 ? [1, 1] : [1, 1, 1]).options, store: new MemoryStore() });
    t.after(() => agent.close());
    assert.deepEqual([...agent.estimate], [0, 0]);
  }
});
