// A server of the official JS SDK 0.3 over JSON-RPC, for tests of our client: see ../server_v1.py
// for its prompts.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { AGENT_CARD_PATH } from "@a2a-js/sdk";
import { DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { UserBuilder, agentCardHandler, jsonRpcHandler } from "@a2a-js/sdk/server/express";
import express from "express";

class Executor {
  #contexts = new Map();
  #waiting = new Map();

  async execute({ taskId, contextId, userMessage, task }, bus) {
    this.#contexts.set(taskId, contextId);
    bus.publish(task ?? {
      kind: "task", id: taskId, contextId, status: { state: "submitted" }, history: [userMessage],
    });
    const status = (state, final, text) => this.#status(bus, { taskId, contextId, state, final, text });
    status("working", false);
    const prompt = userMessage.parts.map((one) => one.text).join("");
    const [word, rest] = prompt.split(" ", 2);
    if (word === "wait") {
      await new Promise((canceled) => this.#waiting.set(taskId, canceled));
      return;
    }
    if (word === "ask") {
      status("input-required", true, "Which one?");
      bus.finished();
      return;
    }
    const pieces = word === "count" ? [...Array(Number(rest)).keys()].map((n) => `${n} `) : [prompt];
    for (const [number, piece] of pieces.entries()) {
      const artifact = { artifactId: "answer", parts: [{ kind: "text", text: piece }] };
      bus.publish({ kind: "artifact-update", taskId, contextId, artifact, append: number > 0 });
    }
    status("completed", true);
    bus.finished();
  }

  async cancelTask(taskId, bus) {
    const contextId = this.#contexts.get(taskId);
    this.#status(bus, { taskId, contextId, state: "canceled", final: true });
    bus.finished();
    this.#waiting.get(taskId)?.();
  }

  #status(bus, { taskId, contextId, state, final, text }) {
    const message = text && {
      kind: "message", messageId: randomUUID(), role: "agent", parts: [{ kind: "text", text }],
      taskId, contextId,
    };
    const status = { state, timestamp: new Date().toISOString(), ...(message ? { message } : {}) };
    bus.publish({ kind: "status-update", taskId, contextId, status, final });
  }
}

const app = express();
const server = createServer(app);
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const url = `http://127.0.0.1:${server.address().port}`;
const card = {
  name: "Peer",
  description: "Answers.",
  version: "1.0.0",
  protocolVersion: "0.3.0",
  url: `${url}/rpc`,
  preferredTransport: "JSONRPC",
  capabilities: { streaming: true, pushNotifications: false },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [],
};
const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Executor());
app.use(`/${AGENT_CARD_PATH}`, agentCardHandler({ agentCardProvider: requestHandler }));
app.use("/rpc", jsonRpcHandler({ requestHandler, userBuilder: UserBuilder.noAuthentication }));
console.log(url);
process.stdin.on("end", () => process.exit(0)).resume();
