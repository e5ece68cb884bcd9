"""The settings, the assembly, the application and the life of one server."""
