"""One file per CLI. They are loaded as bridge.adapters (see bridge/server/registry.py), because the
import name `adapters` belongs to somebody else's distribution: never `import adapters`."""
