// The stores of an agent's state: in memory, in IndexedDB and, in file-store.js, in a file.

/**
 * The key of an entry: a name, or arrival and tab of a list without feedback.
 * @typedef {string | [number, string]} EntryKey
 * @typedef {{through: number, before: number}} Expiry drop lists of arrivals up to ``through``, and those shown before a time
 * @typedef {{puts?: [EntryKey, any][], deletes?: EntryKey[], forget?: Expiry, result?: any}} Change
 */
/**
 * A store of entries. Values are plain data with typed arrays, which never change in place.
 * @typedef {object} Store
 * @property {boolean} holdsKeys whether an entry may be a CryptoKey; else it must be bytes
 * @property {string | null} trouble why this store keeps nothing on disk; null if it does
 * @property {(keys: EntryKey[], change: (values: any[]) => Change) => Promise<any>} update read and change entries in
 *   one transaction; ``change`` is pure and may be called twice. When the promise resolves, a crash of the page or process
 *   cannot undo the change.
 * @property {() => Promise<[EntryKey, any][]>} readLists the lists without feedback, oldest first
 * @property {() => Promise<void>} sync wait until a power cut cannot undo earlier changes
 * @property {<T>(name: string, signal: AbortSignal | undefined, work: () => Promise<T>) => Promise<T>} hold run work
 *   under an exclusive lock of this store
 * @property {(note: any) => void} notify send a note to the other tabs on this store
 * @property {(listener: (note: any) => void) => void} listen
 * @property {() => Promise<void>} erase delete everything
 * @property {() => Promise<void>} close
 */

const ENTRIES = "entries";

/** Queues of work by name. */
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

  async readLists() {
    const lists = [...this.#entries].filter(([text]) => text.startsWith("["));
    return lists.map(([text, value]) => /** @type {[EntryKey, any]} */ ([JSON.parse(text), value]));
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

/** @param {any} key @param {any} list @param {Expiry} expiry */
const isExpired = ([arrival], { shownAt }, { through, before }) => arrival <= through || shownAt < before;

/**
 * Apply a change to entries in memory, where lists have the order of arrivals.
 * @param {Map<string, any>} entries @param {Change} change
 */
export function applyChange(entries, { puts = [], deletes = [], forget }) {
  for (const [key, value] of puts) entries.set(JSON.stringify(key), value);
  for (const key of deletes) entries.delete(JSON.stringify(key));
  if (!forget) return;
  for (const [text, list] of entries) {
    if (!text.startsWith("[")) continue;
    if (!isExpired(JSON.parse(text), list, forget)) return;
    entries.delete(text);
  }
}

/**
 * A store in the browser's IndexedDB, which all tabs of an origin share; its transactions are serial. If the browser stops
 * storing, it continues in memory and sets ``trouble``.
 * @implements {Store}
 */
class IndexedDbStore {
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
  #isClosed = false;

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
      const { result, refusal } = await this.#tryUpdate(keys, change).catch(async (error) => {
        const memory = await this.#goOnInMemory(error);
        return { result: await memory.update(keys, change), refusal: undefined };
      });
      if (refusal) throw refusal;
      return result;
    });
  }

  /**
   * Return the result of a change, or its exception, after which nothing is written; reject if the browser does not store.
   * @param {EntryKey[]} keys @param {(values: any[]) => Change} change @returns {Promise<{result?: any, refusal?: unknown}>}
   */
  async #tryUpdate(keys, change) {
    /** @type {Change & {refusal?: unknown}} */
    let changes = {};
    await this.#transact("readwrite", "relaxed", (entries) => {
      const requests = keys.map((key) => entries.get(key)), last = requests.at(-1);
      const finish = () => {
        try {
          changes = change(requests.map(({ result }) => result));
        } catch (error) {
          changes = { refusal: error };
        }
        for (const [key, value] of changes.puts ?? []) entries.put(value, key);
        for (const key of changes.deletes ?? []) entries.delete(key);
        if (changes.forget) forgetLists(entries, changes.forget);
      };
      if (last) last.onsuccess = finish; // requests of a transaction succeed in order
      else finish();
    });
    return changes;
  }

  /**
   * Run requests in a transaction, and wait for its end.
   * @param {IDBTransactionMode} mode @param {IDBTransactionDurability} durability @param {(entries: IDBObjectStore) => void} work
   */
  #transact(mode, durability, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(ENTRIES, mode, { durability });
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new Error("the transaction was aborted"));
      work(transaction.objectStore(ENTRIES));
    });
  }

  /** @param {unknown} cause */
  async #goOnInMemory(cause) {
    const reason = cause instanceof Error ? cause.message || cause.name : String(cause);
    this.trouble = `the browser cannot store this agent (${reason}): it stays in memory until the page closes`;
    const pairs = await this.#readPairs().catch(() => []);
    return (this.#memory = new MemoryStore(new Map(pairs.map(([key, value]) => [JSON.stringify(key), value]))));
  }

  /** @param {IDBKeyRange} [range] @returns {Promise<[EntryKey, any][]>} */
  async #readPairs(range) {
    /** @type {[EntryKey, any][]} */
    let pairs = [];
    await this.#transact("readonly", "default", (entries) => {
      const keys = entries.getAllKeys(range), values = entries.getAll(range);
      values.onsuccess = () => { pairs = keys.result.map((key, at) => [/** @type {EntryKey} */ (key), values.result[at]]); };
    });
    return pairs;
  }

  readLists() {
    return this.#queue.run("update", async () => this.#memory?.readLists() ?? this.#readPairs(getListRange()));
  }

  sync() {
    return this.#queue.run("update", async () => {
      if (!this.#memory) await this.#transact("readwrite", "strict", (entries) => entries.put(true, "synced")).catch((error) => this.#goOnInMemory(error));
    });
  }

  /** @template T @param {string} name @param {AbortSignal | undefined} signal @param {() => Promise<T>} work */
  hold(name, signal, work) {
    return /** @type {Promise<T>} */ (navigator.locks.request(`${this.#name} ${name}`, { signal }, work));
  }

  /** @param {any} note */
  notify(note) {
    if (!this.#isClosed) this.#channel.postMessage(note);
  }

  /** @param {(note: any) => void} listener */
  listen(listener) {
    this.#channel.addEventListener("message", ({ data }) => listener(data));
  }

  async erase() {
    await this.#queue.run("update", () => this.#transact("readwrite", "strict", (entries) => entries.clear()));
    await this.#memory?.erase();
  }

  async close() {
    await this.#queue.run("update", async () => {});
    this.#isClosed = true;
    this.#channel.close();
    this.#database.close();
  }
}

/** Return the range of all lists: their keys are arrays, which sort after strings. */
const getListRange = () => IDBKeyRange.lowerBound([]);

/** @param {IDBObjectStore} entries @param {Expiry} expiry */
function forgetLists(entries, expiry) {
  const request = entries.openCursor(getListRange());
  request.onsuccess = () => {
    const cursor = request.result;
    if (!cursor || !isExpired(cursor.key, cursor.value, expiry)) return;
    cursor.delete();
    cursor.continue();
  };
}

/**
 * Open a store of this browser by name; without IndexedDB, as in some private windows, one in memory with ``trouble``.
 * @param {string} name @returns {Promise<Store>}
 */
export async function openBrowserStore(name) {
  try {
    return new IndexedDbStore(name, await openDatabase(name));
  } catch (error) {
    const store = new MemoryStore();
    store.trouble = `the browser cannot store this agent (${error instanceof Error ? error.message : error}): it stays in memory until the page closes`;
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
