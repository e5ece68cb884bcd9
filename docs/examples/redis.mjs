// Send a task through Redis Streams with ioredis: URL PRINCIPAL TEXT.

import { randomUUID } from "node:crypto";
import { Redis } from "ioredis";

const [url, name, text] = process.argv.slice(2);
const client = new Redis(url), requestId = randomUUID();
const message = { messageId: randomUUID(), role: "ROLE_USER", parts: [{ text }] };
const request = { jsonrpc: "2.0", id: 1, method: "SendStreamingMessage", params: { message } };
await client.xadd(`cab:requests:${name}`, "*", "id", requestId, "payload", JSON.stringify(request),
                  "parameters", '{"A2A-Version": "1.0"}');
const key = `cab:reply:${name}:${requestId}`;
let last = "0", ended = false;
while (!ended) {
  const found = await client.xread("BLOCK", 5000, "STREAMS", key, last);
  for (const [entry, pairs] of found?.[0][1] ?? []) {
    last = entry;
    ended = pairs.includes("end");
    const payload = pairs.indexOf("payload");
    if (payload >= 0) console.log(pairs[payload + 1]);
  }
}
client.disconnect();
