// What a program does with ioredis's cluster client: `ioredis-cluster.mjs PORT`; ends with 0 or an
// error. PORT is one of a group's doors.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Cluster } from "ioredis";

const NAME = "clients:ioredis-cluster";
const KEYS = 4000;
const ADD = 'return redis.call("INCRBY", KEYS[1], ARGV[1])';

const cluster = new Cluster([{ host: "127.0.0.1", port: Number(process.argv[2]) }]);

async function keys() {
  const all = Array.from({ length: KEYS }, (_, i) => i);
  const set = await Promise.all(all.map((i) => cluster.set(`${NAME}:${i}`, i)));
  assert.deepEqual(set, all.map(() => "OK"));
  assert.deepEqual(await Promise.all(all.map((i) => cluster.get(`${NAME}:${i}`))), all.map(String));
}

async function oneSlot() {
  for (let i = 0; i < 50; i++) {
    const tag = `${NAME}:{${i}}`;
    assert.equal(await cluster.mset(`${tag}:a`, 1, `${tag}:b`, 2), "OK");
    assert.deepEqual(await cluster.mget(`${tag}:a`, `${tag}:b`), ["1", "2"]);
    // Its pipelines are of the keys of one node.
    const pipe = cluster.pipeline();
    for (let n = 0; n < 20; n++) pipe.set(`${tag}:p`, n).get(`${tag}:p`);
    const expected = Array.from({ length: 20 }, (_, n) => [[null, "OK"], [null, `${n}`]]).flat();
    assert.deepEqual(await pipe.exec(), expected);
    const replies = await cluster.multi().incr(`${tag}:a`).incr(`${tag}:b`).exec();
    assert.deepEqual(replies, [[null, 2], [null, 3]]);
    assert.equal(await cluster.eval(ADD, 1, `${tag}:a`, 5), 7);
  }
}

async function severalSlots() {
  await assert.rejects(cluster.mget(`${NAME}:1`, `${NAME}:2`), /slot/);
}

async function allKeys() {
  const found = new Set();
  const masters = cluster.nodes("master");
  assert.ok(masters.length > 1, `${masters.length} masters`);
  for (const node of masters) {
    for await (const some of node.scanStream({ match: `${NAME}:*`, count: 100 })) {
      for (const key of some) found.add(key);
    }
  }
  assert.equal(found.size, KEYS + 150);
}

await keys();
await oneSlot();
await severalSlots();
await allKeys();
const description = new URL("node_modules/ioredis/package.json", import.meta.url);
const { version } = JSON.parse(readFileSync(description));
console.log(`ioredis ${version}, cluster: ${KEYS} keys, pipelines, transactions, scan`);
cluster.disconnect();
