// Stores in Node: memory and file hold the contract; a file survives what happens to files.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { appendFileSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { FileStore } from "../src/file-store.js";
import { MemoryStore } from "../src/store.js";
import { checkStore } from "./store-contract.js";

const folder = mkdtempSync(join(tmpdir(), "fedcascade-agent-"));
process.on("exit", () => rmSync(folder, { recursive: true }));
const put = (store, value) => store.update([], () => ({ puts: [["value", value]] }));
const get = (store) => store.update(["value"], ([value]) => ({ result: value }));

test("memory holds the contract", async () => {
  const entries = new Map();
  assert.deepEqual(await checkStore(() => new MemoryStore(entries)), []);
});

test("a file holds the contract, and only its owner reads it", async () => {
  const path = join(folder, "contract.json");
  assert.deepEqual(await checkStore(() => new FileStore(path)), []);
  assert.equal(statSync(path).mode & 0o777, 0o600);
});

test("half a line of a crash is dropped, and a file of something else is refused", async () => {
  const path = join(folder, "torn.json"), store = new FileStore(path);
  await put(store, 1);
  await store.close();
  appendFileSync(path, '{"puts":[["value",2');
  const again = new FileStore(path);
  assert.equal(await get(again), 1);
  await again.close();
  writeFileSync(path, "dear diary\n");
  assert.throws(() => new FileStore(path), /line 1 of .* is not of an agent's store/);
});

test("an agent has one process at a time; the lock of a dead one is taken over", async () => {
  const path = join(folder, "locked.json"), store = new FileStore(path);
  assert.throws(() => new FileStore(path), /another process uses/);
  await store.close();
  const dead = spawnSync(process.execPath, ["-e", ""]).pid;
  writeFileSync(`${path}.lock`, String(dead));
  await new FileStore(path).close();
});

test("a long file is written anew", async () => {
  const path = join(folder, "long.json"), store = new FileStore(path);
  for (let turn = 0; turn < 40; turn++) await put(store, "x".repeat(50_000) + turn);
  assert.ok(readFileSync(path).length < 1_100_000);
  assert.ok((await get(store)).endsWith("39"));
  await store.close();
});
