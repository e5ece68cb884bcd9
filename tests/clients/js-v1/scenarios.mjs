/**
 * What the drivers of both JS SDKs play. Scenarios, keys and environment are those of the drivers
 * of the Python SDKs (sdk_v1.py says more), and A2A_TRANSPORT is what the client is to prefer:
 * "JSONRPC" (the default), "HTTP+JSON" or, with the driver of 1.x, "GRPC".
 *
 * A driver brings what is different between the releases:
 * client                    the SDK's module of that name
 * request(text, ids)        what a send takes, for a message with these ids
 * event(event), task(task)  as JSON, its members named as in protocol 1.0
 * errors                    the classes whose instances a report names
 * transports                further transports of the SDK; may be missing
 */

const ANSWER_ARTIFACT = "assistant-response";
const RUN_MS = 30_000;
const CANCELED_STREAM_MS = 10_000;

const {
  A2A_PROMPT: PROMPT = "hello",
  A2A_ANSWER: ANSWER = "allow",
  A2A_TRANSPORT: TRANSPORT = "JSONRPC",
  A2A_TOKEN: TOKEN,
} = process.env;

/** Members of a request that the typed messages of gRPC require. */
const REQUIRED = TRANSPORT === "GRPC" ? { tenant: "" } : {};

const plainFetch = globalThis.fetch; // which the SDK's transports use
globalThis.fetch = (url, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set("Authorization", `Bearer ${TOKEN}`);
  return plainFetch(url, { ...init, headers });
};

/** What the events of a stream said, in the order in which they came. */
class Transcript {
  kinds = [];
  text = "";

  constructor(sdk) {
    this.sdk = sdk;
  }

  /** The last state that was seen. */
  get state() {
    return plainName(this.status.state);
  }

  add(event) {
    const { task, statusUpdate, artifactUpdate } = this.sdk.event(event);
    if (task) {
      this.kinds.push("task");
      [this.taskId, this.contextId, this.status] = [task.id, task.contextId, task.status];
    } else if (statusUpdate) {
      this.status = statusUpdate.status;
      this.kinds.push(`status:${this.state}`);
    } else if (artifactUpdate) {
      this.kinds.push("artifact");
      this.text += answerText([artifactUpdate.artifact]);
    } else {
      this.kinds.push("message");
    }
  }

  /** Record the events that are left in a stream. */
  async read(events) {
    for await (const event of events) this.add(event);
  }
}

/** A state or a role as protocol 0.3 spells it, such as "input-required". */
function plainName(name) {
  return name.replace(/^(TASK_STATE|ROLE)_/, "").toLowerCase().replaceAll("_", "-");
}

/** The text parts, joined with nothing in between. */
function partsText(parts) {
  return parts.map((part) => part.text ?? "").join("");
}

/** The text of the answer's artifact. */
function answerText(artifacts = []) {
  const answers = artifacts.filter((artifact) => artifact.artifactId === ANSWER_ARTIFACT);
  return answers.map((artifact) => partsText(artifact.parts)).join("");
}

/** The names of the options that a question offers. */
function optionNames(message) {
  return message.metadata.bridge.options.map((option) => option.name);
}

/** What sends text, to a new task unless ids are given. */
function request(sdk, text, ids = {}) {
  return sdk.request(text, { messageId: crypto.randomUUID(), ...ids });
}

async function connect({ client: { ClientFactory, ClientFactoryOptions }, transports }, baseUrl) {
  const options = { ...ClientFactoryOptions.default, preferredTransports: [TRANSPORT] };
  options.transports = [...options.transports, ...(transports ?? [])];
  const client = await new ClientFactory(options).createFromUrl(baseUrl);
  const used = client.transport.protocolName ?? "JSONRPC"; // 0.3 does not say
  if (used !== TRANSPORT) throw new Error(`the client uses ${used}`);
  return client;
}

/** Send without streaming. Returns the task of the reply. */
async function sendBlocking(sdk, client, message) {
  const reply = await client.sendMessage(message);
  if (!reply.status) throw new Error(`the reply is not a task: ${JSON.stringify(reply)}`);
  return sdk.task(reply);
}

/** The name of the A2A error that the call ends with; null if it succeeds. */
async function errorName(sdk, call) {
  try {
    await call;
  } catch (error) {
    if (sdk.errors.some((known) => error instanceof known)) return error.name;
    throw error;
  }
  return null;
}

/** What a promise resolves to; null if that takes longer. */
async function within(milliseconds, promise) {
  let timer;
  const late = new Promise((resolve) => {
    timer = setTimeout(resolve, milliseconds, null);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

const SCENARIOS = {
  async send(sdk, client) {
    const task = await sendBlocking(sdk, client, request(sdk, PROMPT));
    return {
      state: plainName(task.status.state),
      text: answerText(task.artifacts),
      taskId: task.id,
      contextId: task.contextId,
    };
  },

  async stream(sdk, client) {
    const seen = new Transcript(sdk);
    await seen.read(client.sendMessageStream(request(sdk, PROMPT)));
    return { kinds: seen.kinds, text: seen.text, state: seen.state };
  },

  async get(sdk, client) {
    const { id } = await sendBlocking(sdk, client, request(sdk, PROMPT));
    const task = sdk.task(await client.getTask({ ...REQUIRED, id }));
    const bare = sdk.task(await client.getTask({ ...REQUIRED, id, historyLength: 0 }));
    return {
      state: plainName(task.status.state),
      text: answerText(task.artifacts),
      historyRoles: (task.history ?? []).map((message) => plainName(message.role)),
      historyLength0: (bare.history ?? []).length,
    };
  },

  async resubscribe(sdk, client) {
    const [dropped, resumed] = [new Transcript(sdk), new Transcript(sdk)];
    const connection = new AbortController();
    const { signal } = connection;
    for await (const event of client.sendMessageStream(request(sdk, PROMPT), { signal })) {
      dropped.add(event);
      if (dropped.kinds.at(-1) === "artifact") break;
    }
    if (dropped.kinds.at(-1) !== "artifact") throw new Error(`no artifact: ${dropped.kinds}`);
    connection.abort(); // 0.3 leaves it open otherwise
    const id = dropped.taskId;
    await resumed.read(client.resubscribeTask({ ...REQUIRED, id }));
    const task = sdk.task(await client.getTask({ ...REQUIRED, id }));
    return { firstKind: resumed.kinds[0], state: resumed.state, text: answerText(task.artifacts) };
  },

  async question(sdk, client) {
    const [asked, answered] = [new Transcript(sdk), new Transcript(sdk)];
    await asked.read(client.sendMessageStream(request(sdk, PROMPT)));
    if (asked.state !== "input-required") throw new Error(`no question: ${asked.kinds}`);
    const { taskId, contextId } = asked;
    const answer = request(sdk, ANSWER, { taskId, contextId });
    await answered.read(client.sendMessageStream(answer));
    const task = sdk.task(await client.getTask({ ...REQUIRED, id: taskId }));
    return {
      question: partsText(asked.status.message.parts),
      options: optionNames(asked.status.message),
      state: answered.state,
      text: answerText(task.artifacts),
    };
  },

  async cancel(sdk, client) {
    const seen = new Transcript(sdk);
    const events = client.sendMessageStream(request(sdk, PROMPT));
    seen.add((await events.next()).value);
    const id = seen.taskId;
    const canceled = sdk.task(await client.cancelTask({ ...REQUIRED, id }));
    const streamState = await within(CANCELED_STREAM_MS, seen.read(events).then(() => seen.state));
    const secondCancel = await errorName(sdk, client.cancelTask({ ...REQUIRED, id }));
    return { state: plainName(canceled.status.state), streamState, secondCancel };
  },

  async errors(sdk, client) {
    const unknownTask = await errorName(sdk, client.getTask({ ...REQUIRED, id: crypto.randomUUID() }));
    const { id } = await sendBlocking(sdk, client, request(sdk, PROMPT));
    const again = request(sdk, "again", { taskId: id });
    const finishedTask = await errorName(sdk, sendBlocking(sdk, client, again));
    return { unknownTask, finishedTask };
  },
};

/** Print the report of the scenario that the command line names, within the time of a run. */
export async function main(sdk) {
  const [baseUrl, name] = process.argv.slice(2);
  setTimeout(fail, RUN_MS, new Error("not done in time"));
  try {
    const report = await SCENARIOS[name](sdk, await connect(sdk, baseUrl));
    console.log(JSON.stringify(report));
    process.exit(0); // a stream that did not end would keep it
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  console.error(error);
  process.exit(1);
}
