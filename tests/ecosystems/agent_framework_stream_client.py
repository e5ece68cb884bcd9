"""Microsoft Agent Framework: streamed runs of an A2AAgent in one session."""

from __future__ import annotations

from agent_framework_client import Conversation
from driver import drive

drive(Conversation().stream)
