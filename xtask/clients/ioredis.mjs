// What a program does with ioredis: `ioredis.mjs PORT`; ends with 0 or an error.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";

const NAME = "clients:ioredis";
const PATIENCE_MS = 60_000;
const RELEASE = 'if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0';

const port = Number(process.argv[2]);
const [client, other] = [new Redis(port), new Redis(port)];
// Without a listener each lost connection is printed; the commands themselves tell of theirs.
for (const each of [client, other]) each.on("error", () => {});

async function pipeline() {
  const pipe = client.pipeline();
  for (let i = 0; i < 1000; i++) pipe.set(`${NAME}:p${i}`, i).get(`${NAME}:p${i}`);
  const expected = Array.from({ length: 1000 }, (_, i) => [[null, "OK"], [null, `${i}`]]).flat();
  assert.deepEqual(await pipe.exec(), expected);
}

async function transact() {
  const key = `${NAME}:t`;
  assert.deepEqual(await client.multi().set(key, 1).incr(key).exec(), [[null, "OK"], [null, 2]]);
  await client.watch(key);
  assert.deepEqual(await client.multi().incr(key).exec(), [[null, 3]]);
  await client.watch(key);
  await other.set(key, 10);
  assert.equal(await client.multi().set(key, 0).exec(), null, "EXEC after a watched key changed");
  assert.equal(await client.get(key), "10");
}

async function scan() {
  const found = new Set();
  for await (const keys of client.scanStream({ match: `${NAME}:p*`, count: 10 })) {
    for (const key of keys) found.add(key);
  }
  assert.equal(found.size, 1000);
}

async function lock() {
  const key = `${NAME}:lock`;
  assert.equal(await client.set(key, "mine", "PX", 30_000, "NX"), "OK");
  assert.equal(await other.set(key, "theirs", "PX", 30_000, "NX"), null);
  other.defineCommand("release", { numberOfKeys: 1, lua: RELEASE });
  assert.equal(await other.release(key, "theirs"), 0);
  assert.equal(await client.eval(RELEASE, 1, key, "mine"), 1);
}

async function reconnect() {
  const key = `${NAME}:n`;
  let acknowledged = 0;
  for (; acknowledged < 100; acknowledged++) await client.incr(key);
  const [, pid] = (await client.info("server")).match(/process_id:(\d+)/);
  process.kill(Number(pid), "SIGKILL");
  const until = Date.now() + PATIENCE_MS;
  while (acknowledged < 110) {
    try {
      await client.incr(key);
      acknowledged++;
    } catch (error) {
      if (Date.now() > until) throw error;
      await sleep(50);
    }
  }
  const found = Number(await client.get(key));
  assert.ok(found >= acknowledged, `${found} increments after ${acknowledged} were acknowledged`);
  assert.equal(await client.get(`${NAME}:p999`), "999");
}

await pipeline();
await transact();
await scan();
await lock();
await reconnect();
const { version } = JSON.parse(readFileSync(new URL("node_modules/ioredis/package.json", import.meta.url)));
console.log(`ioredis ${version}: pipeline, transactions, scan, lock, reconnect on port ${port}`);
for (const each of [client, other]) each.disconnect();
