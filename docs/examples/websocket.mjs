// Send a task over WebSocket with `ws` 8: URL TOKEN TEXT.

import { WebSocket } from "ws";

const [url, token, text] = process.argv.slice(2);
const message = { messageId: "m-3", role: "ROLE_USER", parts: [{ text }] };
const request = { jsonrpc: "2.0", id: 1, method: "SendStreamingMessage", params: { message } };
const headers = { Authorization: `Bearer ${token}`, "A2A-Version": "1.0" };
const socket = new WebSocket(`${url.replace("http", "ws")}/a2a/ws`, "a2a.v1", { headers });
socket.on("open", () => socket.send(JSON.stringify(request)));
socket.on("message", (frame) => {
  const answer = JSON.parse(frame);
  if (answer.streamEnd) socket.close();
  else console.log(JSON.stringify(answer.result ?? answer.error));
});
