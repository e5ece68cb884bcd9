// Ask an agent through Redis Streams with ioredis: `node redis.mjs SOCKET USER PASSWORD NAME TEXT`.
// Prints each item of the answer as a line of JSON, also of the answer to a question of the agent.

import { randomUUID } from "node:crypto";
import { Redis } from "ioredis";

const [path, username, password, name, text] = process.argv.slice(2);
const redis = new Redis({ path, username, password });

async function* ask(method, params) {
  const id = randomUUID();
  const payload = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const parameters = JSON.stringify({ "A2A-Version": "1.0" });
  await redis.xadd(
    `cab:requests:${name}`, "*", "id", id, "payload", payload, "parameters", parameters,
  );
  for (let last = "0"; ; ) {
    const found = await redis.xread("BLOCK", 5000, "STREAMS", `cab:reply:${name}:${id}`, last);
    for (const [entry, pairs] of found?.[0][1] ?? []) {
      last = entry;
      const fields = {};
      for (let at = 0; at < pairs.length; at += 2) fields[pairs[at]] = pairs[at + 1];
      if (fields.payload) yield JSON.parse(fields.payload);
      if (fields.end) return;
    }
  }
}

const said = (text, more) => ({
  message: { messageId: randomUUID(), role: "ROLE_USER", parts: [{ text }], ...more },
});
let task;
for await (const item of ask("SendStreamingMessage", said(text))) {
  task ??= item.result.task;
  console.log(JSON.stringify(item));
}
for await (const item of ask("SendMessage", said("yes", { taskId: task.id }))) {
  console.log(JSON.stringify(item));
}
redis.disconnect();
