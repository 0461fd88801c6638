// What a program does with node-redis: `node-redis.mjs PORT`; ends with 0 or an error.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { WatchError, createClient } from "redis";

const NAME = "clients:node-redis";
const PATIENCE_MS = 60_000;
const RELEASE = 'if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0';

const port = Number(process.argv[2]);
const url = `redis://127.0.0.1:${port}`;
const [client, other] = [createClient({ url }), createClient({ url })];
for (const each of [client, other]) {
  // Without a listener a lost connection ends the program; the commands themselves tell of theirs.
  each.on("error", () => {});
  await each.connect();
}

async function pipeline() {
  const commands = client.multi();
  for (let i = 0; i < 1000; i++) commands.set(`${NAME}:p${i}`, `${i}`).get(`${NAME}:p${i}`);
  const expected = Array.from({ length: 1000 }, (_, i) => ["OK", `${i}`]).flat();
  assert.deepEqual(await commands.execAsPipeline(), expected);
}

async function transact() {
  const key = `${NAME}:t`;
  assert.deepEqual(await client.multi().set(key, "1").incr(key).exec(), ["OK", 2]);
  await client.watch(key);
  assert.deepEqual(await client.multi().incr(key).exec(), [3]);
  await client.watch(key);
  await other.set(key, "10");
  await assert.rejects(client.multi().set(key, "0").exec(), WatchError);
  assert.equal(await client.get(key), "10");
}

async function scan() {
  const found = new Set();
  for await (const keys of client.scanIterator({ MATCH: `${NAME}:p*`, COUNT: 10 })) {
    for (const key of keys) found.add(key);
  }
  assert.equal(found.size, 1000);
}

async function lock() {
  const key = `${NAME}:lock`;
  const options = { condition: "NX", expiration: { type: "PX", value: 30_000 } };
  assert.equal(await client.set(key, "mine", options), "OK");
  assert.equal(await other.set(key, "theirs", options), null);
  assert.equal(await other.eval(RELEASE, { keys: [key], arguments: ["theirs"] }), 0);
  assert.equal(await client.eval(RELEASE, { keys: [key], arguments: ["mine"] }), 1);
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
const { version } = JSON.parse(readFileSync(new URL("node_modules/redis/package.json", import.meta.url)));
console.log(`node-redis ${version}: pipeline, transactions, scan, lock, reconnect on port ${port}`);
for (const each of [client, other]) each.destroy();
