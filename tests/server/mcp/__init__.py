from pathlib import Path

SPECIFIED = Path(__file__).with_name("specified.json")
"""The tools as the specification of the MCP surface lists them."""
