"""Metrics in the text form of Prometheus. Only exposition.py imports the library."""
