"""The bindings: how operations travel over HTTP. JSON-RPC now; REST, gRPC … take a file each."""
