"""The application of a server: its agents, their routes, and the steps of every request."""
