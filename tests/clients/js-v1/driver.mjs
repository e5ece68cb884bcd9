// Drive an A2A server with the official JS SDK 1.x: `node driver.mjs BASE_URL SCENARIO`.

import { SendMessageRequest, StreamResponse, Task } from "@a2a-js/sdk";
import * as client from "@a2a-js/sdk/client";
import { A2AError } from "@a2a-js/sdk/errors";
import { main } from "./scenarios.mjs";

await main({
  client,
  request: (text, ids) =>
    SendMessageRequest.fromJSON({ message: { role: "ROLE_USER", parts: [{ text }], ...ids } }),
  event: (event) => StreamResponse.toJSON(event),
  task: (task) => Task.toJSON(task),
  errors: [A2AError],
});
