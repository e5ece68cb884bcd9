// Drive an A2A server with the official JS SDK 1.x: `node driver.mjs BASE_URL SCENARIO`.

import { SendMessageRequest, StreamResponse, Task } from "@a2a-js/sdk";
import * as client from "@a2a-js/sdk/client";
import { A2AError } from "@a2a-js/sdk/errors";
import { main } from "./scenarios.mjs";

/** The transports that the SDK does not have by default: gRPC, with the token as metadata. */
async function moreTransports() {
  if (process.env.A2A_TRANSPORT !== "GRPC") return [];
  const { InterceptingCall } = await import("@grpc/grpc-js");
  const { GrpcTransportFactory } = await import("@a2a-js/sdk/client/grpc");
  const authorized = (options, next) =>
    new InterceptingCall(next(options), {
      start(metadata, listener, start) {
        metadata.set("authorization", `Bearer ${process.env.A2A_TOKEN}`);
        start(metadata, listener);
      },
    });
  return [new GrpcTransportFactory({ grpcCallOptions: { interceptors: [authorized] } })];
}

await main({
  client,
  transports: await moreTransports(),
  request: (text, ids) =>
    SendMessageRequest.fromJSON({ message: { role: "ROLE_USER", parts: [{ text }], ...ids } }),
  event: (event) => StreamResponse.toJSON(event),
  task: (task) => Task.toJSON(task),
  errors: [A2AError],
});
