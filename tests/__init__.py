"""The tests, and what measures, records and documents the project by the same means."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
# The Node.js that scripts/install pins comes before the machine's, which may be too old.
NODE = CHECKOUT / ".venvs/node/bin"
if NODE.is_dir():
    os.environ["PATH"] = f"{NODE}{os.pathsep}{os.environ['PATH']}"
