// Drive /mcp with the official TypeScript client: `node driver.mjs URL REVISION SCENARIO [WORD]`.
// Prints one JSON object: what the program saw.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient } from "@modelcontextprotocol/ext-tasks/client";

const [url, revision, scenario, word] = process.argv.slice(2);
const MODERN = "2026-07-28";
const INFO = { name: "typescript", version: "1" };
const PERMIT = "permit q May I?\ntext  ended";
const forms = [];

function fillIn(params) {
  forms.push(params);
  return { action: "accept", content: { decision: "Go on" } };
}

async function connect(capabilities) {
  const modern = revision === MODERN;
  const client = new Client(INFO, {
    capabilities,
    ...(modern
      ? { versionNegotiation: { mode: { pin: MODERN } } }
      : { supportedProtocolVersions: [revision] }),
  });
  if (capabilities.elicitation) {
    client.setRequestHandler("elicitation/create", (request) => fillIn(request.params));
  }
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return client;
}

// The client checks each structured result against the output schema of the list.
async function tools() {
  const client = await connect({});
  const listed = (await client.listTools()).tools.map((tool) => tool.name);
  const call = async (name, args = {}) =>
    (await client.callTool({ name, arguments: args })).structuredContent;
  const agents = (await call("list_agents")).agents.map((agent) => agent.id);
  const asked = await call("delegate", { prompt: "ask q Which?\ntext  ended" });
  const named = { task_id: asked.task_id };
  await call("answer", { ...named, question_id: `${asked.task_id.slice(0, 8)}-1`, text: "this" });
  const waited = await call("wait", { ...named, after: 100, wait_seconds: 5 });
  const read = await call("result", { ...named, part: "text" });
  const tasks = (await call("list_tasks")).tasks.map((task) => task.task_id);
  const canceled = await call("cancel", named);
  const refused = await client.callTool({ name: "delegate", arguments: { prompt: 1 } });
  const [resource] = (await client.listResources()).resources;
  const [content] = (await client.readResource({ uri: resource.uri })).contents;
  const era = client.getProtocolEra();
  await client.close();
  return {
    era,
    listed,
    agents,
    states: [asked.state, waited.state, canceled.state],
    read: read.content,
    own: tasks.length === 1 && tasks[0] === asked.task_id,
    refused: refused.isError,
    resource: content.text,
  };
}

// A form on the stream of the call (older revisions), or a call that is sent again.
async function form() {
  const client = await connect({ elicitation: {} });
  const done = await client.callTool({ name: "delegate", arguments: { prompt: PERMIT } });
  await client.close();
  return { forms, done: done.structuredContent };
}

// The extension needs a way of its own to the server, since it adds results that the client does
// not know.
let ids = 0;
async function dispatch(request, { signal, context } = {}) {
  const { method, params } = request;
  const response = await fetch(url, {
    method: "POST",
    signal,
    headers: {
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": MODERN,
      "Mcp-Method": method,
      "Mcp-Name": params.taskId ?? params.name,
      ...context?.headers,
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: ++ids, ...request }),
  });
  const body = await response.text();
  const data = body.startsWith("{") ? body : body.split("data: ").at(-1);
  const { result, error } = JSON.parse(data);
  return error ? { kind: "error", error } : { kind: "result", result };
}

async function session() {
  const capabilities = { elicitation: {} };
  const client = await connect(capabilities);
  return createTaskSessionFromClient(client, {
    endpointId: "bridge",
    rawDispatch: dispatch,
    v2RequestFraming: { protocolVersion: MODERN, clientInfo: INFO, clientCapabilities: capabilities },
    onInputRequest: async (request) => fillIn(request.params),
  });
}

const seen = ({ outcome }) => ({
  status: outcome.status,
  forms: forms.length,
  done: outcome.result?.structuredContent,
});

async function task() {
  const tasks = await session();
  const execution = await tasks.callTool("delegate", { prompt: PERMIT });
  return { kind: execution.kind, ...seen(await execution.settle()) };
}

// A client that ends while its task works, and the next process of it.
async function leave() {
  const tasks = await session();
  const execution = await tasks.callTool("delegate", { prompt: word });
  const reference = execution.serializeReference();
  await execution.detach();
  return { reference };
}

async function resume() {
  const tasks = await session();
  const execution = await tasks.resumeTask(JSON.parse(word));
  return seen(await execution.settle());
}

async function cancel() {
  const tasks = await session();
  const execution = await tasks.resumeTask(JSON.parse(word));
  await execution.cancel();
  return seen(await execution.settle());
}

const scenarios = { tools, form, task, leave, resume, cancel };
const deadline = setTimeout(() => process.exit(3), 30_000);
console.log(JSON.stringify(await scenarios[scenario]()));
clearTimeout(deadline);
process.exit(0);
