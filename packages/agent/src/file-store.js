// An agent's store in one file, for Node: a line of JSON for each change, so a crash of the process loses none.

import { closeSync, fsyncSync, ftruncateSync, openSync, readFileSync, renameSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { AgentError } from "./checks.js";
import { MemoryStore, applyChange } from "./store.js";

/** @import { Change, EntryKey } from "./store.js" */
/** @typedef {import("./store.js").Store} Store */

const KINDS = { f8: Float64Array, f4: Float32Array, u1: Uint8Array };
const MOST_BYTES = 1 << 20; // rewrite a longer file without replaced entries

/** @param {string} _ @param {any} value */
function pack(_, value) {
  for (const [name, kind] of Object.entries(KINDS)) {
    if (value instanceof kind) return { [`$${name}`]: Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString("base64") };
  }
  return value;
}

/** @param {string} _ @param {any} value */
function unpack(_, value) {
  for (const [name, kind] of Object.entries(KINDS)) {
    const text = value?.[`$${name}`];
    if (typeof text === "string") return new kind(Uint8Array.from(Buffer.from(text, "base64")).buffer);
  }
  return value;
}

/** @implements {Store} */
export class FileStore extends MemoryStore {
  holdsKeys = false;
  #path;
  #entries;
  #file;
  #size = 0;

  /** @param {string} path */
  constructor(path) {
    const entries = new Map();
    super(entries);
    this.#entries = entries;
    this.#path = path;
    lock(`${path}.lock`, path);
    try {
      this.#replay();
      this.#file = this.#rewrite();
    } catch (error) {
      rmSync(`${path}.lock`, { force: true });
      throw error;
    }
  }

  #replay() {
    /** @type {string} */
    let text;
    try {
      text = readFileSync(this.#path, "utf8");
    } catch (error) {
      if (/** @type {any} */ (error).code === "ENOENT") return;
      throw new AgentError(`cannot open the agent's store '${this.#path}': ${/** @type {any} */ (error).code}`);
    }
    const lines = text.split("\n").slice(0, -1); // a crash may leave an incomplete last line
    lines.forEach((line, at) => {
      try {
        applyChange(this.#entries, JSON.parse(line, unpack));
      } catch {
        throw new AgentError(`line ${at + 1} of '${this.#path}' is not of an agent's store: restore a copy, or begin anew elsewhere`);
      }
    });
  }

  /** Replace the file by one with the current entries; return its descriptor. */
  #rewrite() {
    const next = `${this.#path}.new`, puts = [...this.#entries].map(([key, value]) => [JSON.parse(key), value]);
    writeFileSync(next, `${JSON.stringify({ puts }, pack)}\n`, { mode: 0o600, flush: true });
    renameSync(next, this.#path);
    const file = openSync(this.#path, "r+");
    this.#size = readFileSync(file).length;
    return file;
  }

  /** @override @param {EntryKey[]} keys @param {(values: any[]) => Change} change */
  async update(keys, change) {
    const { puts = [], deletes = [], forget, result } = change(keys.map((key) => this.#entries.get(JSON.stringify(key))));
    this.#append(Buffer.from(`${JSON.stringify({ puts, deletes, forget }, pack)}\n`));
    applyChange(this.#entries, { puts, deletes, forget });
    if (this.#size > MOST_BYTES) {
      closeSync(this.#file);
      this.#file = this.#rewrite();
    }
    return result;
  }

  /** @param {Buffer} line */
  #append(line) {
    try {
      if (writeSync(this.#file, line, 0, line.length, this.#size) < line.length) throw new AgentError("the disk is full");
      this.#size += line.length;
    } catch (error) {
      ftruncateSync(this.#file, this.#size); // remove an incomplete line
      throw new AgentError(`cannot write the agent's store '${this.#path}': ${/** @type {Error} */ (error).message}`);
    }
  }

  /** @override */
  async sync() {
    fsyncSync(this.#file);
  }

  /** @override */
  async erase() {
    await super.erase();
    closeSync(this.#file);
    this.#file = this.#rewrite();
  }

  /** @override */
  async close() {
    closeSync(this.#file);
    rmSync(`${this.#path}.lock`, { force: true });
  }
}

/** Lock a store; take over the lock of a dead process. @param {string} lockPath @param {string} path */
function lock(lockPath, path) {
  for (let attempt = 0; attempt < 2; attempt++) {
    try {
      writeFileSync(lockPath, String(process.pid), { flag: "wx", mode: 0o600 });
      return;
    } catch (error) {
      if (/** @type {any} */ (error).code !== "EEXIST") throw new AgentError(`cannot open the agent's store '${path}': ${/** @type {any} */ (error).code}`);
      if (isAlive(Number(readFileSync(lockPath, "utf8")))) break;
      rmSync(lockPath, { force: true });
    }
  }
  throw new AgentError(`another process uses '${path}': an agent has one process at a time`);
}

/** @param {number} pid */
function isAlive(pid) {
  try {
    return pid > 0 && process.kill(pid, 0);
  } catch (error) {
    return /** @type {any} */ (error).code === "EPERM";
  }
}
