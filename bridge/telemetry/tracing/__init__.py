"""Traces: spans of requests, and of turns from their events, for a collector of OpenTelemetry."""
