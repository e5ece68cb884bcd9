"""The listener: its limits of connections, its check of Host and Origin, the Unix socket."""
