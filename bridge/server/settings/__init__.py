"""The settings of a server: their types, their sections and their sources."""
