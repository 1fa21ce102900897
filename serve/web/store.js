// Records in this browser's IndexedDB. If the browser stores nothing, reading finds nothing and writing has no effect.

const DATABASE = "idc";
const STORES = ["answers", "pairs"]; // each record has an `id`

let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => STORES.forEach((name) => request.result.createObjectStore(name, { keyPath: "id" }));
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => reject(request.error);
  });
  return opened;
}

/** The result of the request `act(store)` after its transaction is complete. */
async function within(name, mode, act) {
  const transaction = (await open()).transaction(name, mode);
  const request = act(transaction.objectStore(name));
  await new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
  return request.result;
}

/** The records, newest first by their `time`. */
export async function newest(name) {
  const records = await within(name, "readonly", (store) => store.getAll()).catch(() => []);
  return records.sort((a, b) => b.time - a.time);
}

let last = Promise.resolve();

/** Runs writes one after the other, in the order of the calls. */
function inTurn(write) {
  last = last.then(write);
  return last;
}

/**
 * Stores a record, {id, time, bytes, ...}, and removes older ones beyond `most` records or `mostBytes` in total, and as
 * many as the browser needs for space. A record that does not fit even alone is not stored.
 */
export const keep = (name, record, most, mostBytes) => inTurn(() => keepNow(name, record, most, mostBytes));

async function keepNow(name, record, most, mostBytes) {
  if (record.bytes > mostBytes) return remove(name, record.id);
  const others = (await newest(name)).filter(({ id }) => id !== record.id);
  const kept = [];
  let bytes = record.bytes;
  for (const other of others) {
    bytes += other.bytes;
    if (kept.length + 1 >= most || bytes > mostBytes) await remove(name, other.id);
    else kept.push(other);
  }
  while (!(await within(name, "readwrite", (store) => store.put(record)).then(() => true, () => false)) && kept.length) {
    await remove(name, kept.pop().id);
  }
}

async function remove(name, id) {
  await within(name, "readwrite", (store) => store.delete(id)).catch(() => null);
}

export const clear = (name) => inTurn(() => within(name, "readwrite", (store) => store.clear()).catch(() => null));
