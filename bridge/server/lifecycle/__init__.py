"""The life of one server, from its start to its end."""
