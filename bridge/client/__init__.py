"""A client for A2A servers, of this bridge and of others."""
