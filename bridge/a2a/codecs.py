"""The codecs of the supported versions: one file per version, over one common model."""

from bridge.a2a.codec import Codec
from bridge.a2a.v0_3 import V0_3
from bridge.a2a.v1_0 import V1_0

CODECS: list[Codec] = [V1_0(), V0_3()]
"""The newest version first; the last one is the version of a request without a version (§3.6)."""
EXTENDED: list[Codec] = [V1_0(extended=True), V0_3(extended=True)]
"""The same codecs for clients that activate EXTENSION."""
