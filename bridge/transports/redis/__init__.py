"""Requests through Redis Streams. server/extras.py imports it when a setting asks for it."""
