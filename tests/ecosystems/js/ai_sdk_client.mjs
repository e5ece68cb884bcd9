// The AI SDK: generated texts of one conversation.

import { generateText } from "ai";
import { coder, drive } from "./driver.mjs";

const remote = await coder();
await drive(async (prompt, abortSignal) => {
  const { text } = await generateText({ ...remote, prompt, abortSignal });
  return text;
});
