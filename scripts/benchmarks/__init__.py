"""Measures the cost of the bridge from outside: `scripts/bench`, docs/performance.md."""
