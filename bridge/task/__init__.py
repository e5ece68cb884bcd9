"""Tasks: events, the state machine, and the text that people read. Pure."""
