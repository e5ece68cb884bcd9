"""The commands of operators for a running server."""
