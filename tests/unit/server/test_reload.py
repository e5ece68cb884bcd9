"""The comparison of two settings, and the settings that a reload applies."""

from __future__ import annotations

from bridge.auth.principal import Token
from bridge.server.operate.reload import HOT, Changes, applied, compare
from bridge.server.settings.root import NAMES, Settings
from tests.support.cases import each

HASH = "sha256:" + "0" * 64


def test_tables_are_named_by_their_entries_and_values_are_not_named() -> None:
    one = Token(hash=HASH)
    old = Settings().updated({"tokens": {"a": one, "b": one}, "bridge_token": "x" * 16})
    changed = Token(hash=HASH, tasks=1)
    new = Settings().updated({"tokens": {"b": changed, "c": one}, "bridge_token": "y" * 16})
    assert compare(old, new) == Changes(
        added=("tokens.c",), removed=("tokens.a",), changed=("BRIDGE_TOKEN", "tokens.b")
    )
    assert not compare(old, old)


COLD = {"port": 1, "bridge_max_sessions": 3, "bridge_store": "memory", "bridge_auth": "none"}


@each("setting", sorted(COLD))
def test_a_setting_that_needs_a_restart_keeps_its_value(setting: str) -> None:
    old = Settings()
    new = old.updated({setting: COLD[setting], "log_level": "DEBUG"})
    assert compare(old, new) == Changes(changed=("LOG_LEVEL",), needs_restart=(setting.upper(),))
    kept = applied(old, new)
    assert kept == old.updated({"log_level": "DEBUG"})


def test_the_token_of_another_file_needs_a_restart() -> None:
    """The sandboxes of running agents do not hide the other file."""
    old = Settings().updated({"bridge_token_file": "/a", "bridge_token": "x" * 16})
    new = Settings().updated({"bridge_token_file": "/b", "bridge_token": "y" * 16})
    assert applied(old, new) == old


def test_the_settings_of_a_reload_exist() -> None:
    assert set(NAMES) >= HOT
