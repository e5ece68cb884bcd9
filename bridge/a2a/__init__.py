"""A2A: requests, answers and cards of the supported versions. This file loads no codec, so that
the client can begin without them."""

NEWEST, OLDEST = "1.0", "0.3"
VERSIONS = (NEWEST, OLDEST)
