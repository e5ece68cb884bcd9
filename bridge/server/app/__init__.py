"""The application of a server: its agents, their routes, and what happens to every request."""
