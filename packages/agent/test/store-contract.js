// What every store must do. `open` opens the same store again and again; returns a line for each promise that is broken.

const TINY = 2 ** -24;
const settle = (promise) => promise.then((value) => ({ value }), (error) => ({ error }));

export async function checkStore(open) {
  const broken = [];
  const check = (condition, line) => condition || broken.push(line);
  const read = (store, ...keys) => store.update(keys, (values) => ({ result: values }));
  const list = (shownAt) => ({ items: [0], shownAt });
  const describeLists = async (store) => (await store.readLists()).map(([key, { shownAt }]) => `${key.join("-")} ${shownAt}`).join(", ");
  let store = await open();

  await store.update([], () => ({ puts: [["numbers", { f8: new Float64Array([0.1, -TINY]), f4: new Float32Array([0.5]), u1: new Uint8Array([7]) }]] }));
  await store.update([], () => ({ puts: [[[1, "a"], list(10)], [[2, "a"], list(20)], [[2, "b"], list(30)], ["plain", null]] }));
  const [numbers, plain, nothing] = await read(store, "numbers", "plain", "nothing");
  check(numbers.f8 instanceof Float64Array && numbers.f8[1] === -TINY && numbers.f4[0] === 0.5 && numbers.u1[0] === 7, "typed arrays come back as they were");
  check(plain === null && nothing === undefined, "null is a value, and what was never put is undefined");

  await store.update([], () => ({ deletes: [[1, "a"]], forget: { through: 1, before: 0 }, puts: [[[3, "a"], list(40)], [[4, "a"], list(50)]] }));
  const lists = await read(store, [1, "a"], [2, "a"], [2, "b"], [3, "a"]);
  check(lists.slice(1).map(({ shownAt }) => shownAt).join() === "20,30,40" && lists[0] === undefined, "only what was deleted is gone");
  await store.update([], () => ({ forget: { through: 2, before: 0 } }));
  check((await describeLists(store)) === "3-a 40, 4-a 50", "lists up to an arrival go, and no others");
  await store.update([], () => ({ forget: { through: 0, before: 50 } }));
  check((await describeLists(store)) === "4-a 50" && (await read(store, "plain"))[0] === null, "lists from before a time go, and nothing else");

  const refused = await settle(store.update(["plain"], () => { throw new Error("no"); }));
  check(refused.error?.message === "no", "what a change throws is what update throws");
  const increments = Array.from({ length: 20 }, () => store.update(["sum"], ([sum = 0]) => ({ puts: [["sum", sum + 1]] })));
  await Promise.all(increments);
  check((await read(store, "sum"))[0] === 20, "changes take turns");

  const order = [];
  const first = store.hold("turn", undefined, async () => {
    await new Promise((resolve) => setTimeout(resolve, 20));
    order.push(1);
  });
  await Promise.all([first, store.hold("turn", undefined, async () => order.push(2))]);
  check(order.join() === "1,2", "of two who hold the same name, one waits");

  await store.sync();
  await store.close();
  store = await open();
  check((await read(store, "sum"))[0] === 20 && (await read(store, "numbers"))[0].f8[0] === 0.1, "what was put is there after opening again");
  await store.erase();
  check((await read(store, "sum", [4, "a"])).every((value) => value === undefined), "nothing is left after erasing");
  await store.close();
  return broken;
}
