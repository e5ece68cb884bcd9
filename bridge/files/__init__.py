"""Folders of the server and of CLIs, opened by descriptors that no agent can redirect."""
