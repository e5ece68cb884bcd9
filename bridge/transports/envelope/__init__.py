"""Bindings with JSON-RPC objects on a connection that stays open: WebSocket and stdio."""
