"""`python -m bridge`, and the console script."""

import os
import sys

if __name__ == "__main__":
    # -m lets Python import from the start directory, which may be a repository of others.
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path and sys.path[0] in ("", os.getcwd()) and not os.path.samefile(here, os.getcwd()):
        del sys.path[0]

from bridge.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
