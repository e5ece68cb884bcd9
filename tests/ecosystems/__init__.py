"""Drivers of the clients of other ecosystems, each run by the Python of its environment."""
