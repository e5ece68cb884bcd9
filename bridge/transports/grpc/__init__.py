"""The gRPC binding of A2A 1.0 (§10). It needs the extra `grpc`; server/extras.py imports it."""
