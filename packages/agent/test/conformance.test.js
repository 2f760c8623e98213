// All cases of `make vectors`, in Node.

import assert from "node:assert/strict";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { CHECKS, checkFile } from "./conformance.js";

const FOLDER = process.env.FEDCASCADE_VECTORS ?? join(import.meta.dirname, "..", "vectors");
const files = existsSync(FOLDER) ? readdirSync(FOLDER).filter((name) => name.endsWith(".json")) : [];

test("there are cases of every kind", () => {
  assert.deepEqual(files.toSorted(), Object.keys(CHECKS).map((kind) => `${kind}.json`).toSorted(), "run: make vectors");
});

for (const name of files) {
  test(name, async () => {
    const { cases, differences } = await checkFile(JSON.parse(readFileSync(join(FOLDER, name), "utf8")));
    console.log(`# ${name}: ${cases} cases`);
    assert.deepEqual(differences, []);
  });
}
