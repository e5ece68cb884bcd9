"""The commands of the operator: they keep a server and its state."""
