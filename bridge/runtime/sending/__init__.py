"""The way of a message from the request to its task."""
