// Start a server on stdin and stdout, and send a task.

const { spawn } = require("node:child_process");
const { createInterface } = require("node:readline");

const command = ["coding-agent-bridge", "stdio", "--a2a-version", "1.0"];
const server = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
const parts = [{ text: "Describe this project." }];
const params = { message: { messageId: "2", role: "ROLE_USER", parts } };
const request = { jsonrpc: "2.0", id: 1, method: "SendStreamingMessage", params };
server.stdin.write(JSON.stringify(request) + "\n");
createInterface({ input: server.stdout }).on("line", (line) => {
  console.log(line);
  if (JSON.parse(line).streamEnd) server.stdin.end();
});
server.on("exit", (status) => process.exit(status));
