"""The protocol versions that are spoken: one file each, over one version-free model."""

from bridge.a2a.codec import Codec, Operation
from bridge.a2a.v0_3 import V0_3
from bridge.a2a.v1_0 import V1_0

CODECS: tuple[Codec, ...] = (V1_0(), V0_3())

__all__ = ["CODECS", "Codec", "Operation"]
