// AG-UI: runs of an A2AAgent in one thread.

import { coder, drive } from "./driver.mjs";

const agent = await coder();
await drive(async (content, signal) => {
  const shown = new Map(); // by message: the text of a status may continue an earlier message
  const onTextMessageContentEvent = ({ event: { messageId, delta } }) => {
    shown.set(messageId, (shown.get(messageId) ?? "") + delta);
  };
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  signal.addEventListener("abort", () => agent.abortRun());
  await agent.runAgent({}, { onTextMessageContentEvent });
  return [...shown.values()].join("\n");
});
