// Writes numbered values with ioredis's cluster client and logs what is acknowledged: `walk.mjs
// OPTIONS`, a file of JSON. Ends when its input does, and says the longest time between answers.
import { appendFileSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Cluster } from "ioredis";

const CLIENT = "ioredis";
// A command that is not answered is given up, and sent again on another connection.
const TIMEOUT_MS = 500;
const PAUSE_MS = 50;

const options = JSON.parse(readFileSync(process.argv[2]));
const doors = options.doors.map((door) => {
  const colon = door.lastIndexOf(":");
  return { host: door.slice(0, colon), port: Number(door.slice(colon + 1)) };
});
const cluster = new Cluster(doors, {
  // Certificates name addresses, which are used as they are.
  dnsLookup: (address, callback) => callback(null, address),
  clusterRetryStrategy: () => PAUSE_MS,
  retryDelayOnFailover: PAUSE_MS,
  retryDelayOnClusterDown: PAUSE_MS,
  slotsRefreshTimeout: TIMEOUT_MS,
  slotsRefreshInterval: 1_000,
  redisOptions: {
    tls: { ca: readFileSync(options.ca) },
    username: options.user,
    password: options.password,
    connectTimeout: TIMEOUT_MS,
    commandTimeout: TIMEOUT_MS,
  },
});
cluster.on("error", (error) => console.log(Date.now(), `${error}`));

let isOver = false;
process.stdin.on("end", () => (isOver = true)).resume();

async function write(tag) {
  let [number, last, longest] = [0, performance.now(), 0];
  while (!isOver) {
    try {
      await cluster.set(`${options.prefix}{${tag}}:${CLIENT}:${number}`, number);
    } catch (error) {
      console.log(Date.now(), tag, number, `${error}`);
      await sleep(PAUSE_MS);
      continue;
    }
    const now = performance.now();
    appendFileSync(options.log, `${Date.now()} ${tag} ${number}\n`);
    longest = Math.max(longest, now - last);
    number++;
    last = now;
    await sleep(options.pause_ms);
  }
  console.log(tag, `${longest.toFixed(0)} ms`);
}

await Promise.all(options.tags.map(write));
cluster.disconnect();
