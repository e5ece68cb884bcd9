"""The durable truth about tasks, and the event log in memory."""
