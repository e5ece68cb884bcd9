"""The audit log, the watchdog, and the garbage collector."""
