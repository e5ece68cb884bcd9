// A server of the official JS SDK 1.x over JSON-RPC and HTTP+JSON, for tests of our client: see
// ../server_v1.py for its prompts.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { AGENT_CARD_PATH, TaskState } from "@a2a-js/sdk";
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import {
  UserBuilder, agentCardHandler, jsonRpcHandler, restHandler,
} from "@a2a-js/sdk/server/express";
import express from "express";

const part = (text) => ({
  content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "",
});

class Executor {
  #contexts = new Map();
  #waiting = new Map();

  async execute({ taskId, contextId, userMessage, task }, bus) {
    this.#contexts.set(taskId, contextId);
    bus.publish(AgentEvent.task(task ?? {
      id: taskId,
      contextId,
      status: { state: TaskState.TASK_STATE_SUBMITTED, message: undefined, timestamp: undefined },
      artifacts: [],
      history: [userMessage],
      metadata: {},
    }));
    const status = (state, text) => this.#status(bus, taskId, contextId, state, text);
    status(TaskState.TASK_STATE_WORKING);
    const prompt = userMessage.parts.map((one) => one.content.value).join("");
    const [word, rest] = prompt.split(" ", 2);
    if (word === "wait") {
      await new Promise((canceled) => this.#waiting.set(taskId, canceled));
      return;
    }
    if (word === "ask") {
      status(TaskState.TASK_STATE_INPUT_REQUIRED, "Which one?");
      bus.finished();
      return;
    }
    const pieces = word === "count" ? [...Array(Number(rest)).keys()].map((n) => `${n} `) : [prompt];
    for (const [number, piece] of pieces.entries()) {
      bus.publish(AgentEvent.artifactUpdate({
        taskId,
        contextId,
        artifact: {
          artifactId: "answer", name: "", description: "", parts: [part(piece)], metadata: {},
          extensions: [],
        },
        append: number > 0,
        lastChunk: false,
        metadata: {},
      }));
    }
    status(TaskState.TASK_STATE_COMPLETED);
    bus.finished();
  }

  async cancelTask(taskId, bus) {
    this.#status(bus, taskId, this.#contexts.get(taskId), TaskState.TASK_STATE_CANCELED);
    bus.finished();
    this.#waiting.get(taskId)?.();
  }

  #status(bus, taskId, contextId, state, text) {
    const message = text && {
      messageId: randomUUID(), taskId, contextId, role: 2, parts: [part(text)], metadata: {},
      extensions: [], referenceTaskIds: [],
    };
    const timestamp = new Date().toISOString();
    bus.publish(AgentEvent.statusUpdate({
      taskId, contextId, status: { state, message: message || undefined, timestamp }, metadata: {},
    }));
  }
}

const app = express();
const server = createServer(app);
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const url = `http://127.0.0.1:${server.address().port}`;
const bindings = { JSONRPC: `${url}/rpc`, "HTTP+JSON": `${url}/rest` };
const card = {
  name: "Peer",
  description: "Answers.",
  version: "1.0.0",
  supportedInterfaces: Object.entries(bindings).map(([protocolBinding, place]) => ({
    protocolBinding, url: place, tenant: "", protocolVersion: "1.0",
  })),
  capabilities: { streaming: true, pushNotifications: false, extensions: [] },
  securitySchemes: {},
  securityRequirements: [],
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [],
  signatures: [],
};
const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Executor());
const userBuilder = UserBuilder.noAuthentication;
app.use(`/${AGENT_CARD_PATH}`, agentCardHandler({ agentCardProvider: requestHandler }));
app.use("/rpc", jsonRpcHandler({ requestHandler, userBuilder }));
app.use("/rest", restHandler({ requestHandler, userBuilder }));
console.log(url);
process.stdin.on("end", () => process.exit(0)).resume();
