"""The command `mcp`: clients of the Model Context Protocol on stdin and stdout."""
