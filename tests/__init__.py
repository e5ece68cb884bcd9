"""The tests, and what measures, records and documents the project by the same means."""

import os
from pathlib import Path

# The Node.js that scripts/install pins comes before the machine's, which may be too old.
_NODE = Path(__file__).parent.parent / ".venvs/node/bin"
if _NODE.is_dir():
    os.environ["PATH"] = f"{_NODE}{os.pathsep}{os.environ['PATH']}"
