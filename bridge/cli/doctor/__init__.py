"""`coding-agent-bridge doctor` and `coding-agent-bridge adapters`."""
