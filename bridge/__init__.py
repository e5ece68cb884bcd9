"""coding-agent-bridge: coding-agent CLIs behind the Agent2Agent protocol."""

__version__ = "0.1.0"
