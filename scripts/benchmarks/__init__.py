"""What the bridge costs, measured from outside: `scripts/bench`, docs/performance.md."""
