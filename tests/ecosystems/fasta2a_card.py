"""fasta2a: its client reads the card of an agent, and shows what it does not accept.

python fasta2a_card.py URL
"""

from __future__ import annotations

import json
import sys

from fasta2a.client import A2AClient
from pydantic import ValidationError

try:
    card = A2AClient(sys.argv[1], fetch_card=True).agent_card
    print(json.dumps({"skills": [skill["id"] for skill in card["skills"]], "refused": []}))
except ValidationError as error:
    refused = [".".join(map(str, problem["loc"])) for problem in error.errors()]
    print(json.dumps({"skills": [], "refused": refused}))
