// Looks at the status page with a headless Chromium, over the pipe of its debugging protocol.
//
//   node page.mjs CHROMIUM URL DIRECTORY NAME WORDS [offline]
//
// In light and dark, 400 and 1280 px wide: waits until the page says each of WORDS (by `|`; those
// that begin with `top:` in its first sentence), takes
// a picture DIRECTORY/NAME-….png, and checks that no error was logged, no other host was asked,
// nothing is wider than the window, and a refresh keeps the elements. With
// `offline` the browser loses its network for a while: the page keeps its state, and says its age.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [chromium, url, directory, name, words, last] = process.argv.slice(2);
const PATIENCE_MS = 60_000;
const profile = mkdtempSync(join(tmpdir(), "gabion-page-"));
const child = spawn(chromium, [
  "--remote-debugging-pipe", `--user-data-dir=${profile}`, "--no-sandbox", "--disable-gpu",
  "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "about:blank",
], { stdio: ["ignore", "ignore", "pipe", "pipe", "pipe"] });
// Chromium complains of what a container does not have: that is told where it fails.
let complaints = "";
child.stderr.on("data", bytes => { complaints = (complaints + bytes).slice(-4_000); });
const ended = new Promise(take => child.on("exit", take));

const waiting = new Map();
const troubles = [];
let number = 0, input = "", isOffline = false, listener = () => {};
child.on("exit", code => {
  for (const { refuse } of waiting.values()) refuse(new Error(`Chromium ended: ${code}`));
});
child.stdio[4].on("data", bytes => {
  input += bytes;
  const messages = input.split("\0");
  input = messages.pop();
  for (const text of messages) {
    const message = JSON.parse(text);
    if (message.id === undefined) { listener(message); continue; }
    const { take, refuse } = waiting.get(message.id);
    waiting.delete(message.id);
    if (message.error) refuse(new Error(JSON.stringify(message.error)));
    else take(message.result);
  }
});
function call(method, params = {}, sessionId = undefined) {
  const id = ++number;
  child.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + "\0");
  return new Promise((take, refuse) => waiting.set(id, { take, refuse }));
}
function pause(ms) { return new Promise(take => setTimeout(take, ms)); }

const origin = new URL(url).origin;
listener = ({ method, params }) => {
  if (method === "Network.requestWillBeSent") {
    const asked = new URL(params.request.url);
    if (asked.protocol !== "data:" && asked.origin !== origin)
      troubles.push(`it asks another host: ${params.request.url}`);
  } else if (method === "Runtime.exceptionThrown") {
    troubles.push(`its script fails: ${JSON.stringify(params.exceptionDetails)}`);
  } else if (method === "Runtime.consoleAPICalled" && params.type === "error") {
    troubles.push(`its script says: ${JSON.stringify(params.args)}`);
  } else if (method === "Log.entryAdded" && params.entry.level === "error" && !isOffline) {
    troubles.push(`an error is logged: ${params.entry.text} ${params.entry.url ?? ""}`);
  }
};

async function look(scheme, width) {
  const { targetId } = await call("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await call("Target.attachToTarget", { targetId, flatten: true });
  const on = (method, params) => call(method, params, sessionId);
  for (const domain of ["Page", "Network", "Runtime", "Log"]) await on(`${domain}.enable`);
  await on("Emulation.setDeviceMetricsOverride",
    { width, height: 900, deviceScaleFactor: 1, mobile: width < 600 });
  const features = [{ name: "prefers-color-scheme", value: scheme }];
  await on("Emulation.setEmulatedMedia", { features });
  await on("Page.navigate", { url });
  const evaluate = async expression => {
    const told = await on("Runtime.evaluate", { expression, returnByValue: true });
    if (told.exceptionDetails) throw new Error(JSON.stringify(told.exceptionDetails));
    return told.result.value;
  };
  const text = () => evaluate("document.body ? document.body.innerText : ''");
  const until = async (what, isSo) => {
    for (const begun = Date.now(); !await isSo(await text()); await pause(50))
      if (Date.now() - begun > PATIENCE_MS)
        throw new Error(`${scheme}, ${width} px: not ${what}, but\n${await text()}`);
  };
  const top = () => evaluate("document.getElementById('sentence')?.innerText ?? ''");
  for (const word of words.split("|")) {
    if (!word.startsWith("top:")) await until(`'${word}'`, it => it.includes(word));
    else await until(`'${word}'`, async () => (await top()).includes(word.slice(4)));
  }
  const wide = await evaluate(`(() => {
    const wide = [...document.querySelectorAll("body *")].filter(it => {
      const box = it.getBoundingClientRect();
      return box.width > 0 && box.right > innerWidth + 0.5;
    });
    return [document.documentElement.scrollWidth > innerWidth ? "the page" : "",
      ...wide.map(it => it.tagName + "." + it.getAttribute("class"))].filter(it => it).join(", ");
  })()`);
  if (wide) troubles.push(`${scheme}, ${width} px: wider than the window: ${wide}`);
  // The refreshed page is the old one, changed where it has to be: no element goes and comes.
  const paper = await evaluate("getComputedStyle(document.body).backgroundColor");
  const light = paper.match(/\d+/g).slice(0, 3).every(part => Number(part) > 128);
  if (light !== (scheme === "light")) troubles.push(`${scheme}: the paper is ${paper}`);
  await evaluate("window.before = document.querySelector('table'); 0");
  await pause(2_500);
  const kept = await evaluate("window.before === null || window.before.isConnected");
  if (!kept) troubles.push(`${scheme}, ${width} px: a refresh makes the page anew`);
  const { contentSize } = await on("Page.getLayoutMetrics");
  const clip = { x: 0, y: 0, width, height: Math.ceil(contentSize.height), scale: 1 };
  const { data } = await on("Page.captureScreenshot", { captureBeyondViewport: true, clip });
  writeFileSync(join(directory, `${name}-${scheme}-${width}.png`), Buffer.from(data, "base64"));
  if (last === "offline") await loseNetwork(on, until, text);
  await call("Target.closeTarget", { targetId });
}

async function loseNetwork(on, until, text) {
  const conditions = offline => on("Network.emulateNetworkConditions",
    { offline, latency: 0, downloadThroughput: -1, uploadThroughput: -1 });
  const before = (await text()).includes("All is well.");
  isOffline = true;
  await conditions(true);
  await until("the age", it => it.includes("does not answer: shown is its state of"));
  const kept = await text();
  if (!before || !kept.includes("All is well.") || !kept.includes("Replica 3"))
    troubles.push(`without a controller the page keeps nothing:\n${kept}`);
  await conditions(false);
  await until("the time", it => it.includes("as of ") && !it.includes("does not answer"));
}

let failure = "";
try {
  const views = [["light", 1280], ["dark", 1280], ["light", 400], ["dark", 400]];
  await Promise.all(views.map(([scheme, width]) => look(scheme, width)));
} catch (error) {
  failure = error.message;
}
child.kill();
await ended;
rmSync(profile, { recursive: true, force: true });
if (failure) troubles.unshift(failure, complaints);
troubles.forEach(trouble => console.error(trouble));
console.log(`${name}: ${troubles.length === 0 ? "well" : "not well"}`);
process.exit(troubles.length === 0 ? 0 : 1);
