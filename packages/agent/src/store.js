// What an agent keeps on its own device. One small interface, behind which are memory, IndexedDB and, in file-store.js, a file.

/**
 * The key of an entry: a name, or arrival and tab of a list without feedback.
 * @typedef {string | [number, string]} EntryKey
 * @typedef {{puts?: [EntryKey, any][], deletes?: EntryKey[], forgetThrough?: number, result?: any}} Change
 */
/**
 * Keeps entries. A value is plain data with typed arrays, which nobody changes in place.
 * @typedef {object} Store
 * @property {boolean} holdsKeys whether an entry may be a CryptoKey; else it must be bytes
 * @property {string | null} trouble why this store keeps less than it should, if it does
 * @property {(keys: EntryKey[], change: (values: any[]) => Change) => Promise<any>} update read entries and change them,
 *   in one step that happens wholly or not at all, and alone; ``change`` is pure and may be called twice; lists of arrivals
 *   up to ``forgetThrough`` go. When the promise resolves, no crash of the page or process can undo the change.
 * @property {() => Promise<void>} sync wait until everything has reached the disk, so that not even a power cut can undo it
 * @property {<T>(name: string, signal: AbortSignal | undefined, work: () => Promise<T>) => Promise<T>} hold run work that
 *   nobody else on this store runs at the same time
 * @property {(note: any) => void} notify tell others on this store
 * @property {(listener: (note: any) => void) => void} listen
 * @property {() => Promise<void>} erase delete everything
 * @property {() => Promise<void>} close
 */

const ENTRIES = "entries";
const LAST_TAB = "\uffff";

/** Runs pieces of work one after another, by name. */
export class Queue {
  /** @type {Map<string, Promise<any>>} */
  #ends = new Map();

  /** @template T @param {string} name @param {() => Promise<T>} work @returns {Promise<T>} */
  run(name, work) {
    const turn = (this.#ends.get(name) ?? Promise.resolve()).then(work);
    this.#ends.set(name, turn.catch(() => {}));
    return turn;
  }
}

/** @implements {Store} */
export class MemoryStore {
  holdsKeys = true;
  /** @type {string | null} */
  trouble = null;
  /** @type {Map<string, any>} */
  #entries;
  #queue = new Queue();
  /** @type {((note: any) => void)[]} */
  #listeners = [];

  /** @param {Map<string, any>} [entries] values by key as JSON */
  constructor(entries = new Map()) {
    this.#entries = entries;
  }

  /** @param {EntryKey[]} keys @param {(values: any[]) => Change} change */
  async update(keys, change) {
    const changes = change(keys.map((key) => this.#entries.get(JSON.stringify(key))));
    applyChange(this.#entries, changes);
    return changes.result;
  }

  async sync() {}

  /** @template T @param {string} name @param {AbortSignal | undefined} signal @param {() => Promise<T>} work */
  hold(name, signal, work) {
    return this.#queue.run(name, () => (signal?.aborted ? Promise.reject(signal.reason) : work()));
  }

  /** @param {any} note */
  notify(note) {
    for (const listener of this.#listeners) listener(note);
  }

  /** @param {(note: any) => void} listener */
  listen(listener) {
    this.#listeners.push(listener);
  }

  async erase() {
    this.#entries.clear();
  }

  async close() {}
}

/**
 * Apply a change to entries in memory.
 * @param {Map<string, any>} entries
 * @param {Change} change
 */
export function applyChange(entries, { puts = [], deletes = [], forgetThrough }) {
  for (const [key, value] of puts) entries.set(JSON.stringify(key), value);
  for (const key of deletes) entries.delete(JSON.stringify(key));
  if (forgetThrough === undefined || forgetThrough < 1) return;
  for (const text of entries.keys()) if (text.startsWith("[") && JSON.parse(text)[0] <= forgetThrough) entries.delete(text);
}

/**
 * Keeps entries in the browser's IndexedDB, which all tabs of an origin share; its transactions take turns, so no two tabs
 * ever write at once. Where the browser refuses to store, it goes on in memory and says so in ``trouble``.
 * @implements {Store}
 */
export class IndexedDbStore {
  holdsKeys = true;
  /** @type {string | null} */
  trouble = null;
  /** @type {MemoryStore | null} */
  #memory = null;
  #queue = new Queue();
  #name;
  #database;
  /** @type {BroadcastChannel} */
  #channel;

  /** @param {string} name @param {IDBDatabase} database */
  constructor(name, database) {
    this.#name = name;
    this.#database = database;
    this.#channel = new BroadcastChannel(name);
    database.onversionchange = () => database.close();
  }

  /** @param {EntryKey[]} keys @param {(values: any[]) => Change} change */
  update(keys, change) {
    return this.#queue.run("update", async () => {
      if (this.#memory) return this.#memory.update(keys, change);
      /** @type {{error: unknown} | null} */
      let refusal = null;
      const guarded = (/** @type {any[]} */ values) => {
        try {
          return change(values);
        } catch (error) {
          refusal = { error };
          throw error;
        }
      };
      try {
        return await this.#transact("relaxed", keys, guarded);
      } catch (error) {
        if (refusal) throw /** @type {{error: unknown}} */ (refusal).error;
        await this.#goOnInMemory(error);
        return /** @type {any} */ (this.#memory).update(keys, change);
      }
    });
  }

  /** @param {IDBTransactionDurability} durability @param {EntryKey[]} keys @param {(values: any[]) => Change} change */
  #transact(durability, keys, change) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(ENTRIES, "readwrite", { durability });
      const entries = transaction.objectStore(ENTRIES);
      /** @type {any} */
      let result;
      const requests = keys.map((key) => entries.get(key));
      const finish = () => {
        try {
          const changes = change(requests.map((request) => request.result));
          for (const [key, value] of changes.puts ?? []) entries.put(value, key);
          for (const key of changes.deletes ?? []) entries.delete(key);
          const through = changes.forgetThrough ?? 0;
          if (through > 0) entries.delete(IDBKeyRange.bound([0, ""], [through, LAST_TAB]));
          result = changes.result;
          transaction.commit();
        } catch (error) {
          transaction.abort();
          reject(error);
        }
      };
      const last = requests.at(-1);
      if (last) last.onsuccess = finish; // requests of a transaction succeed in order
      else finish();
      transaction.oncomplete = () => resolve(result);
      transaction.onabort = () => reject(transaction.error ?? new Error("the browser gave up storing"));
    });
  }

  /** @param {unknown} cause */
  async #goOnInMemory(cause) {
    const reason = cause instanceof Error ? cause.message || cause.name : String(cause);
    this.trouble = `the browser does not store what this agent learns (${reason}): it keeps it in memory, until the page closes`;
    this.#memory = new MemoryStore(await this.#readAll().catch(() => new Map()));
  }

  /** @returns {Promise<Map<string, any>>} */
  #readAll() {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(ENTRIES, "readonly"), entries = transaction.objectStore(ENTRIES);
      const keys = entries.getAllKeys(), values = entries.getAll();
      transaction.oncomplete = () => resolve(new Map(keys.result.map((key, at) => [JSON.stringify(key), values.result[at]])));
      transaction.onabort = () => reject(transaction.error);
    });
  }

  sync() {
    return this.#queue.run("update", async () => {
      if (!this.#memory) await this.#transact("strict", [], () => ({ puts: [["synced", true]] })).catch(() => {});
    });
  }

  /** @template T @param {string} name @param {AbortSignal | undefined} signal @param {() => Promise<T>} work */
  hold(name, signal, work) {
    return /** @type {Promise<T>} */ (navigator.locks.request(`${this.#name} ${name}`, { signal }, work));
  }

  /** @param {any} note */
  notify(note) {
    this.#channel.postMessage(note);
  }

  /** @param {(note: any) => void} listener */
  listen(listener) {
    this.#channel.addEventListener("message", ({ data }) => listener(data));
  }

  async erase() {
    await this.#queue.run("update", () => new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(ENTRIES, "readwrite", { durability: "strict" });
      transaction.objectStore(ENTRIES).clear();
      transaction.oncomplete = () => resolve(undefined);
      transaction.onabort = () => reject(transaction.error);
    }));
    await this.#memory?.erase();
  }

  async close() {
    await this.#queue.run("update", async () => {});
    this.#channel.close();
    this.#database.close();
  }
}

/**
 * Open the store of that name in this browser; where there is none, as in some private windows, one in memory that says so.
 * @param {string} name
 * @returns {Promise<Store>}
 */
export async function openBrowserStore(name) {
  try {
    return new IndexedDbStore(name, await openDatabase(name));
  } catch (error) {
    const store = new MemoryStore();
    store.trouble = `this browser stores nothing (${error instanceof Error ? error.message : error}): this agent lives until the page closes`;
    return store;
  }
}

/** @param {string} name @returns {Promise<IDBDatabase>} */
function openDatabase(name) {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(ENTRIES);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
