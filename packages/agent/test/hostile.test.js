// Whatever a server answers once, its agent goes on: it keeps the last good answer, and recovers when the server does.

import assert from "node:assert/strict";
import { test } from "node:test";
import { connect } from "../src/index.js";
import { MemoryStore } from "../src/store.js";
import { decode } from "../src/wire.js";

const D = 2, SIZE = 5; // numbers of an upload
const TERMS = { protocol: 2, policy: "population", constants: { alpha_c: 0.5, lambda_: 0.01, beta: 1.5, confidence: "constant", every: 4 }, dimension: D,
  protocols: [2], longest_list: 50, min_observations: 1, rounds_burst: 1e6, rounds_per_hour: 60, terms_id: "t", epoch: "1-a" };
const CREDENTIAL = { agent: 7, enrolled: 1.5, epoch: "1-a", proof: new Uint8Array(16) };
const VALUES = [0, -1, 1, 2 ** 31, 2 ** 53 - 1, 1e300, -0.5, NaN, Infinity, "", "x", null, true, [], {}, new Uint8Array(0), new Uint8Array(8 * SIZE).fill(255)];

/** MessagePack of any value; numbers that are no whole ones are float64. */
function encode(value) {
  const float = (tag, number) => [tag, ...new Uint8Array(new Float64Array([number]).buffer).reverse()];
  const size = (tag, length) => [tag, (length >>> 24) & 255, (length >>> 16) & 255, (length >>> 8) & 255, length & 255];
  const bytes = (tag, body) => [...size(tag, body.length), ...body];
  const write = (item) => {
    if (item === null || typeof item === "boolean") return [item === null ? 0xc0 : item ? 0xc3 : 0xc2];
    if (typeof item === "string") return bytes(0xdb, new TextEncoder().encode(item));
    if (item instanceof Uint8Array) return bytes(0xc6, item);
    if (Array.isArray(item)) return [...size(0xdd, item.length), ...item.flatMap(write)];
    if (typeof item === "object") return [...size(0xdf, Object.keys(item).length), ...Object.entries(item).flatMap(([key, each]) => [...write(key), ...write(each)])];
    if (!Number.isSafeInteger(item)) return float(0xcb, item);
    if (item < 0) return [0xd2, ...size(0, item >>> 0).slice(1)];
    return [...size(0xcf, Math.floor(item / 2 ** 32)), ...size(0, item % 2 ** 32).slice(1)];
  };
  return new Uint8Array(write(value));
}

/** A server that sums the uploads of one agent and answers with them; ``hostile`` changes a field of one kind of reply. */
function makeServer(hostile) {
  const sums = { count: 0, clicks: 0, rounds: 0, numbers: new Float64Array(SIZE), last: 0 };
  const getNumbers = () => new Uint8Array(sums.numbers.slice().buffer);
  const counts = () => ({ count: sums.count, clicks: sums.clicks, rounds: sums.rounds });
  const replies = {
    enrolment: () => ({ protocol: 2, agent: 7, terms: TERMS, credential: CREDENTIAL }),
    terms: () => TERMS,
    standing: () => ({ protocol: 2, agent: 7, uploads: 1, ...counts(), numbers: getNumbers(), last_sequence: sums.last, last_change: 0, epoch: "1-a", revoked: false, credential: CREDENTIAL }),
    answer: ({ sequence, numbers, ...upload }) => {
      if (sequence > sums.last) {
        const added = new Float64Array(numbers.slice().buffer);
        for (const name of ["count", "clicks", "rounds"]) sums[name] += upload[name];
        sums.numbers = sums.numbers.map((value, place) => value + added[place]);
        sums.last = sequence;
      }
      const forced = hostile.isOn && { standing: { held_count: 10 ** 6 }, terms: { terms_id: "x" } }[hostile.kind];
      return { protocol: 2, sequence, ...counts(), system_rounds: 9, agents: 2, group_agents: 2, held_count: sums.count, held_rounds: sums.rounds, terms_id: "t",
        receipt: { epoch: "1-a", position: sums.last, proof: new Uint8Array(16) }, numbers: getNumbers(), ...forced };
    },
  };
  const fetch = async (address, { body }) => {
    const path = address.replace("http://server", "");
    const kind = path.startsWith("/v1/agents?") ? "enrolment" : path === "/v1/terms" ? "terms" : path.startsWith("/v1/agents/") ? "standing" : "answer";
    const message = structuredClone(replies[kind](kind === "answer" ? decode(new Uint8Array(body)) : {}));
    if (hostile.isOn && hostile.kind === kind) {
      const names = hostile.field.split("."), last = names.pop();
      names.reduce((target, name) => target?.[name], message)[last] = hostile.value;
    }
    return new Response(encode(message), { status: 200, headers: { "content-type": "application/msgpack" } });
  };
  return { url: "http://server", fetch, pauses: [0.001, 0.01] };
}

async function play(agent, rounds) {
  for (let round = 0; round < rounds; round += 1) {
    const items = Array.from({ length: 5 }, () => Array.from({ length: D }, () => (Math.random() - 0.5) / 2));
    await agent.feedback(agent.recommend(items, { k: 2 }), { clicked: round % 2 ? 0 : null });
  }
}

const FIELDS = {
  enrolment: ["agent", "terms", "credential", "terms.dimension", "terms.policy", "terms.constants", "terms.longest_list", "terms.min_observations", "terms.features", "terms.constants.lambda_",
    "terms.constants.alpha_c", "terms.constants.every", "terms.constants.beta", "terms.constants.confidence"],
  answer: ["sequence", "count", "clicks", "rounds", "system_rounds", "agents", "group_agents", "held_count", "held_rounds", "terms_id", "receipt", "numbers", "receipt.epoch"],
  terms: ["policy", "constants", "dimension", "longest_list", "min_observations", "features", "terms_id", "constants.lambda_", "constants.alpha_c", "constants.beta", "constants.every"],
  standing: ["count", "clicks", "rounds", "numbers", "last_sequence", "last_change", "credential", "epoch"],
};

for (const [kind, fields] of Object.entries(FIELDS)) {
  test(`no ${kind} of a server stops an agent for good`, async () => {
    for (const field of fields) {
      for (const value of VALUES) {
        if (value === 1 && /dimension|longest_list/.test(field)) continue; // a server may want that
        const what = `${kind}.${field} = ${String(value)}`, hostile = { kind, field, value, isOn: true }, store = new MemoryStore();
        const options = { ...makeServer(hostile), store, token: "a-token-of-sixteen", minObservations: 0 };
        const first = await connect(options).catch((error) => assert.ok(!error.message.includes("\n"), what));
        if (first) {
          await play(first, 6).catch((error) => assert.fail(`${what}: ${error.message}`));
          await first.flush(0.005);
          assert.ok(first.estimate.every(Number.isFinite), what);
          await first.close();
        }
        hostile.isOn = false;
        const agent = await connect(options).catch((error) => assert.fail(`${what}: ${error.message}`));
        await play(agent, 20).catch((error) => assert.fail(`${what}: ${error.message}`));
        assert.ok(await agent.flush(5), `${what}: ${agent.trouble}`);
        assert.ok(agent.estimate.every(Number.isFinite), what);
        await agent.close();
      }
    }
  });
}
