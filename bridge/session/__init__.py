"""One adapter with one process, and the slots for sessions."""
