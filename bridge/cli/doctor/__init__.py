"""`coding-agent-bridge doctor` and `adapters`: whether it would work, and what to do where not."""
