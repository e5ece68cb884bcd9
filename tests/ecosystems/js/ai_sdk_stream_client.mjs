// The AI SDK: streamed texts of one conversation.

import { streamText } from "ai";
import { coder, drive } from "./driver.mjs";

const remote = await coder();
await drive(async (prompt, abortSignal) => {
  let shown = "";
  for await (const text of streamText({ ...remote, prompt, abortSignal }).textStream) shown += text;
  return shown;
});
