// The other end of the input of ../driver.py, for clients that are npm packages:
//
//     node NAME_client.mjs SNIPPET URL TOKEN

import { symlink, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";

const [snippet, url, token] = process.argv.slice(2);
for (const name of ["debug", "info", "log"]) {
  console[name] = console.error; // what the libraries print is not an answer
}

/** What the snippet calls `coder`, in a module of the current folder. */
export async function coder() {
  await symlink(fileURLToPath(new URL("node_modules", import.meta.url)), "node_modules");
  const module = `${snippet.replace("http://127.0.0.1:41242", url)}\nexport { coder };\n`;
  await writeFile("snippet.mjs", `const token = ${JSON.stringify(token)};\n${module}`);
  return (await import(pathToFileURL("snippet.mjs").href)).coder;
}

/** Obey the input until its end. What `say(prompt, signal)` throws is what the user is shown. */
export async function drive(say) {
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  let line = lines.next();
  for (;;) {
    const { value, done } = await line;
    if (done) break;
    line = lines.next();
    const stop = new AbortController();
    const saying = say(JSON.parse(value), stop.signal).catch(String);
    const stopped = line.then(() => null);
    const shown = await Promise.race([saying, stopped]);
    if (shown === null) {
      stop.abort(); // some clients go on regardless: nothing is awaited
      line = lines.next();
    }
    process.stdout.write(`${JSON.stringify(shown)}\n`);
  }
  process.exit();
}
