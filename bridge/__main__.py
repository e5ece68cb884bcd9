"""`python -m bridge`, and the console script."""

from bridge.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
