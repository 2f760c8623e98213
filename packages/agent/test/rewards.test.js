// Rewards of clicks, at once and later: bad ones get one line, late ones count once, and a crash loses and doubles none.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { begin } from "../src/agent.js";
import { FileStore } from "../src/file-store.js";
import { beginSaved } from "../src/ledger.js";
import { SavedAgent } from "../src/saved-agent.js";
import { MemoryStore } from "../src/store.js";

const ITEMS = [[0.5, 0.5], [0.5, -0.5], [0.1, 0.9]];
const TERMS = { policy: "population", constants: { alpha_c: 5, lambda_: 4, beta: 1, confidence: "constant" }, dimension: 2, longest_list: 50,
  min_observations: 1, terms_id: "t" };

async function makeAgent(options = {}, store = new MemoryStore()) {
  const state = beginSaved({ agent: 7, terms: TERMS, credential: null }, begin(2));
  await store.update([], () => ({ puts: [["state", state]] }));
  return new SavedAgent(store, state, { minObservations: 1e6, ...options });
}

const sumRewards = ({ clicks, shortfall = 0 }) => clicks - shortfall;

test("a click has a value, shared by several clicks or one for each", async () => {
  const agent = await makeAgent(), give = (outcome) => agent.feedback(agent.recommend(ITEMS, { k: 3 }), outcome);
  await give({ clicked: 0, reward: 0.25 });
  await give({ clicked: [2, 0], reward: 0.5 });
  await give({ clicked: [2, 0], reward: [1, 0.25] });
  await give({ clicked: 1 });
  assert.deepEqual([agent.state.buffer.clicks, sumRewards(agent.state.buffer), sumRewards(agent.state.own.total)], [6, 3, 3]);
});

test("a late reward replaces the expected one, once", async () => {
  const agent = await makeAgent(), [first, second] = [agent.recommend(ITEMS), agent.recommend(ITEMS)];
  await agent.feedback(first, { clicked: 0, reward: "later" });
  assert.equal(sumRewards(agent.state.buffer), 0.5);
  assert.deepEqual((await agent.openLists()).map(({ impression }) => impression), [second.impression]);
  await agent.reward(first.impression, 0.875);
  assert.deepEqual([sumRewards(agent.state.buffer), sumRewards(agent.state.own.total), agent.state.buffer.rounds], [0.875, 0.875, 1]);
  for (const gone of [first, second, "9-x"]) await assert.rejects(agent.reward(gone, 0.5), /has no list without its reward/);
  await assert.rejects(agent.feedback(first, { clicked: 0 }), /has no open list/);
});

test("a reward expires with its list, and with its user", async () => {
  let time = 1e9;
  const agent = await makeAgent({ keepSeconds: 100, now: () => time }), [first, second] = [agent.recommend(ITEMS), agent.recommend(ITEMS)];
  await agent.feedback(first, { clicked: 0, reward: "later" });
  time += 101;
  await assert.rejects(agent.reward(first, 0.5), /expires after/);
  time -= 50;
  await agent.feedback(second, { clicked: 0, reward: "later" });
  await agent.restart();
  await assert.rejects(agent.reward(second, 0.5), /has no list without its reward/);
});

test("a wrong reward gets one line, and nothing is learned", async () => {
  const agent = await makeAgent(), shown = agent.recommend(ITEMS, { k: 2 });
  for (const wrong of [-0.1, 1.5, NaN, Infinity, "much", true, [0.1, 0.2], {}]) {
    await assert.rejects(agent.feedback(shown, { clicked: 0, reward: wrong }), (error) => /reward/.test(error.message) && !error.message.includes("\n"), String(wrong));
  }
  assert.equal(agent.buffered, 0);
  await agent.feedback(shown, { clicked: 0, reward: "later" });
  const { buffer } = agent.state;
  for (const wrong of [-0.1, 1.5, NaN, null, undefined, "much", [0.1, 0.2]]) {
    await assert.rejects(agent.reward(shown, wrong), (error) => /reward/.test(error.message) && !error.message.includes("\n"), String(wrong));
  }
  assert.equal(agent.state.buffer, buffer);
  await agent.reward(shown, 0.25);
});

const CHILD = `
import { FileStore } from "./src/file-store.js";
import { SavedAgent } from "./src/saved-agent.js";
const store = new FileStore(process.argv[1]), [state] = await store.update(["state"], (values) => ({ result: values }));
const agent = new SavedAgent(store, state, { minObservations: 1e6 }), waiting = [];
while (true) {
  const shown = agent.recommend([[0.5, 0.5]], { k: 1 });
  await agent.feedback(shown, { clicked: 0, reward: "later" });
  console.log("shown", shown.impression);
  waiting.push(shown.impression);
  if (waiting.length <= 3) continue;
  const name = waiting.shift();
  await agent.reward(name, 0.25);
  console.log("rewarded", name);
}`;

test("kill -9 loses and doubles no late reward", { timeout: 60_000 }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "fedcascade-agent-")), path = join(folder, "agent.json");
  t.after(() => rmSync(folder, { recursive: true }));
  const store = new FileStore(path), lists = new Set(), rewards = new Set();
  await makeAgent({}, store);
  await store.close();
  for (let kill = 0; kill < 5; kill++) {
    const child = spawn(process.execPath, ["--input-type=module", "-e", CHILD, path], { cwd: join(import.meta.dirname, ".."), stdio: ["ignore", "pipe", "inherit"] });
    let lines = 0;
    for await (const line of createInterface({ input: child.stdout })) {
      const [kind, name] = line.split(" ");
      (kind === "shown" ? lists : rewards).add(name);
      if (++lines === 60 + kill) child.kill("SIGKILL");
    }
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
  }
  const again = new FileStore(path), [state] = await again.update(["state"], (values) => ({ result: values }));
  const agent = new SavedAgent(again, state, { minObservations: 1e6 });
  let silent = 0; // rewards that were saved, and not printed before the kill
  for (const name of lists) {
    const isTaken = await agent.reward(name, 0.25).then(() => true, () => false);
    assert.ok(!(isTaken && rewards.has(name)), `${name} took its reward twice`);
    if (!isTaken && !rewards.has(name)) silent++;
  }
  const { clicks } = agent.state.buffer, unprinted = clicks - lists.size, left = sumRewards(agent.state.buffer) - 0.25 * lists.size;
  assert.ok(lists.size >= 150 && silent <= 5 && unprinted >= 0 && unprinted <= 5, `${lists.size} lists, ${silent} and ${unprinted} not printed`);
  assert.ok(left >= 0 && left <= 0.5 * unprinted, `${left} beyond the rewards of ${lists.size} lists`);
  await again.close();
});
