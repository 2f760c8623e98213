// Plays simulated users with agents in Node: reads a request per line from stdin, writes a reply per line to stdout.
// node_agents.py starts it.

import { createInterface } from "node:readline";
import { FileStore } from "../../packages/agent/src/file-store.js";
import { MemoryStore, connect } from "../../packages/agent/src/index.js";
import { packNumbers } from "../../packages/agent/src/statistics.js";

/** @import { RemoteAgent } from "../../packages/agent/src/index.js" */

/** @type {RemoteAgent[]} */
let agents = [];

/** @param {string} text */
const readBytes = (text) => Uint8Array.from(Buffer.from(text, "base64")).buffer;

/** @type {Record<string, (request: any) => Promise<any>>} */
const ANSWERS = {
  async connect({ url, tokens, folder, minObservations, problem }) {
    agents = await Promise.all(tokens.map((/** @type {string} */ token, /** @type {number} */ user) => {
      const store = folder === null ? new MemoryStore() : new FileStore(`${folder}/agent-${user}.json`);
      return connect({ url, token, store, minObservations, problem });
    }));
    const hasPrior = agents.map((agent) => agent.hasPrior);
    return { agents: agents.map(({ id }) => id), hasPrior };
  },
  async recommend({ agent, items, k, ties }) {
    const shown = agents[agent].recommend(new Float32Array(readBytes(items)), { k, ties: new Uint32Array(readBytes(ties)) });
    return { impression: shown.impression, items: shown.items };
  },
  async feedback({ agent, impression, clicked, round, draw }) {
    const upload = await agents[agent].feedback(impression, { clicked, round, draw });
    if (!upload) return { upload };
    const { count, clicks, rounds } = upload.statistics, numbers = Buffer.from(packNumbers(upload.statistics)).toString("base64");
    return { upload: { sequence: upload.sequence, cause: upload.cause, count, clicks, rounds, numbers } };
  },
  flush: async ({ agent, seconds }) => ({ done: await agents[agent].flush(seconds), trouble: agents[agent].trouble }),
  close: () => Promise.all(agents.map((agent) => agent.close())).then(() => ({})),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...request } = JSON.parse(line);
  const reply = await ANSWERS[name](request).catch((error) => ({ error: error.message }));
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
