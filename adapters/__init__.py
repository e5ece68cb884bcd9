"""One file per CLI. They are loaded as bridge.adapters (see bridge/server/registry.py), because
another distribution owns the import name `adapters`: never `import adapters`."""
