"""Directories of agents, attachments, and project configuration."""
