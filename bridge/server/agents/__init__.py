"""The agents of a server before they run: their CLIs, sandboxes and cards."""
