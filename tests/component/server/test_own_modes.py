"""chmod(2) of an agent on the server's own files: Landlock does not prevent it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.errors import ConfigurationError
from bridge.files import own_modes
from bridge.process import spool
from bridge.sandbox.own_files import read_secret
from bridge.server.settings.load import load
from bridge.server.state_dir import is_made, open_state
from bridge.server.token_file import OperatorToken, open_token, read_again
from tests.support.unprivileged import NOBODY, unprivileged


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of an ordinary user, whom modes bind."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


CLOSED = ("", "tasks.db", "tasks.db-wal", "id", "audit.jsonl", "sessions", "homes/a", "scratch/a")


async def test_a_state_folder_whose_files_an_agent_has_closed_is_opened_again(place: Path) -> None:
    state = place / "state"
    with unprivileged():
        await (await open_state(state)).close()
        for name in ("sessions/s", "homes/a", "scratch/a"):
            (state / name).mkdir(parents=True, mode=0o700)
        (state / "sessions/s/out").write_text("kept")
        identity = (state / "id").read_text()
        for name in ("sessions/s/out", "sessions/s", *reversed(CLOSED)):
            if (state / name).exists():
                (state / name).chmod(0)
        again = await open_state(state)
        await again.close()
        assert (state / "id").read_text() == identity == again.markers.rstrip(".")
        assert (state / "sessions/s/out").read_text() == "kept"
    assert not [name for name in os.listdir(state) if "damaged" in name]


async def test_each_session_restores_them_while_the_server_runs(place: Path) -> None:
    state = place / "way" / "state"
    with unprivileged():
        opened = await open_state(state)
        (state / "sessions").mkdir(mode=0o755)  # of an earlier version
        for path, wrong in ((state / "sessions", 0), (state, 0o777), (state.parent, 0)):
            path.chmod(wrong)
        opened.restore_modes()
        assert [mode(one) for one in (state, state / "sessions")] == [0o710, 0o700]
        assert opened.store.problem is None
        state.parent.chmod(0)
        assert opened.store.problem is None, "it is not gone"
        await opened.close()


async def test_files_of_the_operator_that_the_server_reads_are_opened_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_REPO_PATH", "/usr/share")
    names = ("config.toml", "secret", "my.env", "audit.jsonl")
    with unprivileged():
        for name in names:
            (place / name).write_text("log_level = 'ERROR'\n" if name == "config.toml" else "x=1\n")
            (place / name).chmod(0)
        os.chmod(place, 0o600)
        assert (
            load({"config_file": str(place / "config.toml")}).settings.server.log_level == "ERROR"
        )
        assert read_secret("SECRET", str(place / "secret")) == "x=1"
        assert load({}, str(place / "my.env")).dotenv == {"x": "1"}
        await (await open_state(place / "state", place / "audit.jsonl")).close()


def test_folders_of_sessions_are_private(tmp_path: Path) -> None:
    with spool.prepare(tmp_path / "sessions" / "one"):
        assert mode(tmp_path / "sessions") == mode(tmp_path / "sessions/one") == 0o700


def test_a_link_in_the_state_folder_changes_nothing_outside(place: Path) -> None:
    outside = place / "outside"
    with unprivileged():
        outside.write_text("")
        outside.chmod(0o400)
        (place / "state").mkdir(mode=0o700)
        (place / "state/link").symlink_to(outside)
        own_modes.restore(place / "state", deep=True)
        assert mode(outside) == 0o400


async def test_a_state_folder_that_cannot_be_used_counts_as_made(place: Path) -> None:
    """So that the server ends, and does not run without its audit log."""
    state = place / "state"
    with unprivileged():
        assert not is_made(state) and not is_made(None)
        await (await open_state(state)).close()
        (state / "tasks.db").unlink()
        (state / "tasks.db").mkdir()
        with pytest.raises(ConfigurationError, match="cannot use"):
            await open_state(state)
        assert is_made(state)
        for wrong in (0, 0o700):
            os.chmod(place, wrong)
            assert is_made(state)


# --- the token -----------------------------------------------------------------------------------


@pytest.fixture
def token(tmp_path: Path) -> Iterator[OperatorToken]:
    found = open_token(tmp_path, tmp_path)
    yield found
    found.close()


def with_an_acl(path: Path) -> None:
    """As setfacl -m u:65534:r makes it: tag, permissions and id of each entry."""
    entries = ((1, 6, -1), (2, 4, 65534), (4, 0, -1), (16, 4, -1), (32, 0, -1))
    words = [
        tag.to_bytes(2, "little")
        + rights.to_bytes(2, "little")
        + (number & 2**32 - 1).to_bytes(4, "little")
        for tag, rights, number in entries
    ]
    value = (2).to_bytes(4, "little") + b"".join(words)
    try:
        os.setxattr(path, "system.posix_acl_access", value)
    except OSError as error:
        pytest.skip(f"no ACLs here: {error.strerror}")


def open_for_a_moment(path: Path) -> None:
    path.chmod(0o644)
    path.chmod(0o600)


OPENERS = {
    "mode": lambda path: path.chmod(0o604),
    "group": lambda path: path.chmod(0o640),
    "acl": with_an_acl,
    "for a moment": open_for_a_moment,
}


@pytest.mark.parametrize("how", OPENERS)
def test_a_token_that_others_could_read_is_exposed_and_renewed(
    token: OperatorToken, how: str
) -> None:
    assert not token.is_exposed
    OPENERS[how](token.path)
    assert token.is_exposed
    renewed = token.renew()
    assert renewed != token.value and token.path.read_text() == f"{renewed}\n"
    assert mode(token.path) == 0o600 and not token.is_exposed


def test_a_reload_notices_it_too_and_takes_a_token_that_the_operator_wrote(
    token: OperatorToken,
) -> None:
    open_for_a_moment(token.path)
    renewed = read_again(token)
    assert renewed.value != token.value
    chosen = "c" * 43
    token.path.write_text(f"{chosen}\n")
    assert token.renew() == chosen
    token.path.unlink()
    assert not token.is_exposed, "the next reload makes another one"
    assert read_again(token).value != chosen
