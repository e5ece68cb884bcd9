// Drive an A2A server with the official JS SDK 0.3: `node driver.mjs BASE_URL SCENARIO`.

import * as client from "@a2a-js/sdk/client";
import { main } from "../js-v1/scenarios.mjs";

const NAMES = { "status-update": "statusUpdate", "artifact-update": "artifactUpdate" };

await main({
  client,
  request: (text, ids) => ({
    message: { kind: "message", role: "user", parts: [{ kind: "text", text }], ...ids },
  }),
  event: (event) => ({ [NAMES[event.kind] ?? event.kind]: event }),
  task: (task) => task,
  errors: [
    client.TaskNotCancelableError,
    client.TaskNotFoundError,
    client.UnsupportedOperationError,
  ],
});
