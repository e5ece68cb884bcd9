"""A backup of a state folder and its way back, without a server: which files are in it, the errors
for wrong folders, and processes that are killed at any step."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigurationError
from bridge.server.operate.backup import back_up_stopped, check_place
from bridge.server.operate.backup_folder import (
    LAST,
    MANIFEST,
    Draft,
    last_backup,
    note_backup,
    read_manifest,
)
from bridge.server.operate.restore import restore
from bridge.server.operate.upgrade import return_to_kept, try_migration
from bridge.store.sqlite.database import open_database
from bridge.store.sqlite.schema import MIGRATIONS
from tests.support.kept_state import (
    FIRST,
    IDENTITY,
    add_task,
    grow,
    schema_of,
    state_folder,
    tasks_of,
)
from tests.support.killed_keeper import Keeper, keeping

NOTE = "files/agent/context/task/0-note.txt"
Json = dict[str, Any]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return state_folder(tmp_path / "state")


@pytest.fixture
def saved(state: Path, tmp_path: Path) -> Path:
    """A backup of the state folder."""
    target = tmp_path / "backup"
    back_up_stopped(state, target)
    return target


def content(folder: Path) -> dict[str, bytes]:
    """The files below the folder, by their paths."""
    found = (one for one in folder.rglob("*") if one.is_file())
    return {str(one.relative_to(folder)): one.read_bytes() for one in found}


def change(folder: Path, **members: Any) -> None:
    manifest: Json = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **members}))


def test_the_state_folder_has_the_time_of_its_last_backup(state: Path, tmp_path: Path) -> None:
    before = time.time()
    assert last_backup(state) == 0
    back_up_stopped(state, tmp_path / "backup")
    noted = last_backup(state)
    assert before <= noted <= time.time()
    with pytest.raises(ConfigurationError, match="exists already"):
        back_up_stopped(state, tmp_path / "backup")
    assert last_backup(state) == noted
    restore(tmp_path / "backup", tmp_path / "new")
    assert last_backup(tmp_path / "new") == 0
    path = state / LAST
    for wrong in ("", "x", "nan", "inf", "-1", str(time.time() + 3600)):
        path.write_text(wrong)
        assert last_backup(state) == 0, wrong
    path.rename(tmp_path / "other")
    (tmp_path / "other").write_text(str(noted))
    path.symlink_to(tmp_path / "other")
    assert last_backup(state) == 0
    path.unlink()
    os.mkfifo(path)  # the reader does not wait
    assert last_backup(state) == 0
    note_backup(state)
    assert last_backup(state) > noted
    note_backup(tmp_path / "missing")  # a line of the log


def test_a_backup_has_all_but_the_parts_that_it_names(state: Path, saved: Path) -> None:
    found = content(saved)
    assert set(found) == {"tasks.db", "id", "audit.jsonl", NOTE, MANIFEST}
    assert found[NOTE] == (state / NOTE).read_bytes()
    assert tasks_of(saved / "tasks.db") == tasks_of(state / "tasks.db")
    manifest = json.loads(found.pop(MANIFEST))
    facts = {one["path"]: (one["bytes"], one["sha256"]) for one in manifest["files"]}
    assert facts == {
        name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in found.items()
    }
    assert (manifest["id"], manifest["schema"], manifest["store"]) == (IDENTITY, 5, "sqlite")
    assert {"sessions", "token", "CLI logins"} <= manifest["left_out"].keys()
    assert not {"id", "tasks.db", "files"} & manifest["left_out"].keys()
    modes = {path.stat().st_mode & 0o777 for path in (saved, *saved.rglob("*"))}
    assert modes == {0o600, 0o700}


def test_commits_that_are_in_the_wal_alone_are_in_the_backup(state: Path, tmp_path: Path) -> None:
    """The files of a server that was killed."""
    database = open_database(state / "tasks.db", MIGRATIONS)
    database.execute("UPDATE task SET owner = 'newest'")
    crashed = Path(shutil.copytree(state, tmp_path / "crashed"))
    database.close()
    assert (crashed / "tasks.db-wal").stat().st_size > 0
    back_up_stopped(crashed, tmp_path / "backup")
    owners = {facts[-1] for facts, _ in tasks_of(tmp_path / "backup" / "tasks.db").values()}
    assert owners == {"newest"}


def test_what_agents_put_among_the_files_is_not_followed(state: Path, tmp_path: Path) -> None:
    folder, secret = state / "files/agent/context/task", tmp_path / "secret"
    secret.write_text("of another user")
    (folder / "link").symlink_to(secret)
    (folder / "hard").hardlink_to(secret)
    (folder / "folder").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(folder / "pipe")
    deep = folder
    for _ in range(500):
        deep = deep / "d"
        deep.mkdir()
        (deep / "file").touch()
    (state / "audit.jsonl").unlink()
    (state / "audit.jsonl").symlink_to(secret)
    with pytest.raises(ConfigurationError, match="cannot write"):
        back_up_stopped(state, tmp_path / "refused")
    (state / "audit.jsonl").unlink()
    done = back_up_stopped(state, tmp_path / "backup")
    assert done.files == 3
    assert set(content(tmp_path / "backup")) == {"tasks.db", "id", NOTE, MANIFEST}


def test_the_store_of_a_server_on_postgresql_is_left_to_its_tools(
    state: Path, tmp_path: Path
) -> None:
    (state / "tasks.db").unlink()
    done = back_up_stopped(state, tmp_path / "backup", database=False)
    assert (done.store, done.schema) == ("postgresql", None)
    assert "pg_dump" in done.note
    assert set(content(tmp_path / "backup")) == {"id", "audit.jsonl", NOTE, MANIFEST}
    with pytest.raises(ConfigurationError, match="by its own tools"):
        restore(tmp_path / "backup", tmp_path / "new")


def test_a_folder_that_cannot_hold_a_backup_is_refused(state: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    wrong = {
        "missing/backup": "missing is not a folder",
        "full": "exists already",
        "file": "exists already",
        "link": "exists already",
        "state/backup": "inside of the state folder",
    }
    for name, text in wrong.items():
        with pytest.raises(ConfigurationError, match=text):
            back_up_stopped(state, tmp_path / name)
    with pytest.raises(ConfigurationError, match="can be changed by agents"):
        check_place(tmp_path / "work/backup", state, {str(tmp_path / "work"): "AGENT_REPO_PATH"})
    (tmp_path / "empty").mkdir()
    back_up_stopped(state, tmp_path / "empty")
    assert (tmp_path / "empty" / MANIFEST).exists()
    assert not list(tmp_path.glob("*.tmp"))


def test_a_folder_that_is_no_state_folder_is_refused(state: Path, tmp_path: Path) -> None:
    for name in ("tasks.db", "id"):
        (state / name).unlink()
        with pytest.raises(ConfigurationError, match="is not the state folder of a server"):
            back_up_stopped(state, tmp_path / "backup")
        assert not (state / "tasks.db").exists()
    with pytest.raises(ConfigurationError, match="is not the state folder of a server"):
        return_to_kept(state)


def test_a_state_folder_in_use_is_refused(state: Path, tmp_path: Path) -> None:
    with contextlib.closing(open_database(state / "tasks.db", MIGRATIONS)):
        with pytest.raises(ConfigurationError, match="uses the state folder"):
            back_up_stopped(state, tmp_path / "backup")
        with pytest.raises(ConfigurationError, match="uses the state folder"):
            return_to_kept(state)
    assert not (tmp_path / "backup.tmp").exists()


def test_two_writers_do_not_share_a_draft(state: Path, tmp_path: Path) -> None:
    draft = tmp_path / "backup.tmp"
    draft.mkdir()
    (draft / "tasks.db").touch()
    fd = os.open(draft, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(ConfigurationError, match="another process writes"):
        back_up_stopped(state, tmp_path / "backup")
    assert (draft / "tasks.db").exists()
    os.close(fd)
    (draft / "thesis").touch()
    with pytest.raises(ConfigurationError, match="other files: thesis"):
        back_up_stopped(state, tmp_path / "backup")
    (draft / "thesis").unlink()
    back_up_stopped(state, tmp_path / "backup")
    assert not draft.exists()


def test_a_draft_needs_room(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no room in .* for a backup"):
        Draft(tmp_path / "backup", 2**60, "a backup")
    assert os.listdir(tmp_path) == []


# --- restore -------------------------------------------------------------------------------------


def test_a_restored_folder_has_the_same_tasks_and_a_new_id(saved: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    done = restore(saved, new)
    assert (done.tasks, done.schema, done.push, done.same_id) == (5, 5, 1, False)
    assert tasks_of(new / "tasks.db") == tasks_of(saved / "tasks.db")
    assert set(content(new)) == {"tasks.db", "id", "audit.jsonl", NOTE}
    identity = (new / "id").read_text()
    assert len(identity) == 16 and identity != IDENTITY
    again = restore(saved, tmp_path / "again", same_id=True)
    assert (again.push, (tmp_path / "again" / "id").read_text()) == (0, IDENTITY)
    modes = {path.stat().st_mode & 0o777 for path in (new, *new.rglob("*"))}
    assert modes == {0o600, 0o700}


def test_a_damaged_backup_is_not_restored(saved: Path, tmp_path: Path) -> None:
    """Each byte counts: the first one, the last one, one in the middle; and a file that is longer
    or shorter than it was."""
    for name in content(saved).keys() - {MANIFEST}:
        path = saved / name
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(ConfigurationError, match=f"{name} is not as it was written"):
                restore(saved, tmp_path / "new")
        for other in (whole[:-1], whole + b"\0"):
            path.write_bytes(other)
            with pytest.raises(ConfigurationError, match=f"{name} is not as it was written"):
                restore(saved, tmp_path / "new")
        path.unlink()
        with pytest.raises(ConfigurationError, match=r"incomplete: .* is missing"):
            restore(saved, tmp_path / "new")
        path.write_bytes(whole)
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.tmp").exists()
    restore(saved, tmp_path / "new")


def test_a_database_that_was_damaged_before_its_backup_is_found(
    saved: Path, tmp_path: Path
) -> None:
    """Its checksum is right."""
    path = saved / "tasks.db"
    data = bytearray(path.read_bytes())
    data[4096:8192] = b"\xa5" * 4096
    path.write_bytes(data)
    files = [
        {**one, "sha256": hashlib.sha256(data).hexdigest()} if one["path"] == "tasks.db" else one
        for one in json.loads((saved / MANIFEST).read_text())["files"]
    ]
    change(saved, files=files)
    with pytest.raises(ConfigurationError, match=r"damaged|malformed"):
        restore(saved, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_other_folders_are_no_backups(saved: Path, tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path / "state"):
        with pytest.raises(ConfigurationError, match="is not a backup"):
            restore(folder, tmp_path / "new")
    evil = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}
    for name in ("../id", "/etc/passwd", "files/../../id", "token", MANIFEST, "files/\0", ""):
        change(saved, files=[{"path": name, **evil}])
        with pytest.raises(ConfigurationError):
            read_manifest(saved)
    change(saved, format=2)
    with pytest.raises(ConfigurationError, match="another format"):
        restore(saved, tmp_path / "new")
    for text in ("[]", "{}", "{", '{"format": 1, "files": [1]}', '{"format": 1, "files": []}'):
        (saved / MANIFEST).write_text(text)
        with pytest.raises(ConfigurationError, match="is damaged"):
            restore(saved, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_backup_of_a_newer_version_is_refused(saved: Path, tmp_path: Path) -> None:
    change(saved, schema=6, version="9.9")
    with pytest.raises(ConfigurationError, match=r"newer version 9.9: it has schema 6"):
        restore(saved, tmp_path / "new")


def test_a_folder_in_the_way_of_a_restore_is_kept(saved: Path, tmp_path: Path) -> None:
    before = content(tmp_path / "state")
    for target in (tmp_path / "state", saved):
        with pytest.raises(ConfigurationError, match="exists already"):
            restore(saved, target)
    assert content(tmp_path / "state") == before


async def test_a_dry_run_migrates_a_copy(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state", FIRST)
    back_up_stopped(state, tmp_path / "backup")
    before = (state / "tasks.db").read_bytes()
    done = await try_migration(tmp_path / "backup" / "tasks.db")
    assert (done.before, done.after, done.tasks) == (2, len(MIGRATIONS), 9)
    assert schema_of(tmp_path / "backup" / "tasks.db") == len(MIGRATIONS)
    assert (state / "tasks.db").read_bytes() == before
    with contextlib.closing(sqlite3.connect(tmp_path / "backup" / "tasks.db")) as database:
        database.executescript("PRAGMA journal_mode = DELETE; PRAGMA user_version = 9")
    with pytest.raises(ConfigurationError, match="it has schema 9"):
        await try_migration(tmp_path / "backup" / "tasks.db")


async def test_a_migration_that_fails_is_reported(tmp_path: Path) -> None:
    state = state_folder(tmp_path / "state", FIRST)
    with contextlib.closing(sqlite3.connect(state / "tasks.db")) as database:
        database.execute("CREATE TABLE push (mine)")  # the migration creates one
        database.commit()
    with pytest.raises(ConfigurationError, match="already exists"):
        await try_migration(state / "tasks.db")
    assert schema_of(state / "tasks.db") == 2


# --- killed at any step --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keeper() -> Iterator[Keeper]:
    """It imports the bridge, which takes a second."""
    with keeping() as found:
        yield found


ROUNDS = [
    pytest.param(2, id="few"),
    pytest.param(50, id="many", marks=pytest.mark.soak),
]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_backup_is_complete_or_not_there(
    state: Path, tmp_path: Path, keeper: Keeper, rounds: int
) -> None:
    before = tasks_of(state / "tasks.db")
    whole_run = keeper.run("backup", state, tmp_path / "whole")
    for number, at in enumerate(whole_run.points(rounds, seed=3)):
        target = tmp_path / f"backup-{number}"
        assert keeper.run("backup", state, target, at=at).code == -9
        assert tasks_of(state / "tasks.db") == before
        if not target.exists():
            assert keeper.run("backup", state, target).code == 0
        assert not target.with_name(f"{target.name}.tmp").exists()
        restore(target, tmp_path / f"new-{number}")
        assert tasks_of(tmp_path / f"new-{number}" / "tasks.db") == before


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_restore_is_complete_or_not_there(
    saved: Path, tmp_path: Path, keeper: Keeper, rounds: int
) -> None:
    before, files = tasks_of(saved / "tasks.db"), content(saved)
    whole_run = keeper.run("restore", saved, tmp_path / "whole")
    for number, at in enumerate(whole_run.points(rounds, seed=4)):
        target = tmp_path / f"new-{number}"
        assert keeper.run("restore", saved, target, at=at).code == -9
        assert content(saved) == files
        if not target.exists():
            assert keeper.run("restore", saved, target).code == 0
        assert not target.with_name(f"{target.name}.tmp").exists()
        assert tasks_of(target / "tasks.db") == before
        assert (target / "id").read_text() != IDENTITY
        assert (target / NOTE).read_bytes() == files[NOTE]


@pytest.mark.soak
@pytest.mark.timeout(400)  # it writes 50 copies of 20 MB
@pytest.mark.parametrize("what", ["backup", "restore", "migrate", "rollback"])
def test_kills_at_random_times_leave_all_tasks(tmp_path: Path, keeper: Keeper, what: str) -> None:
    """With 20 MB of tasks, 50 times each: also within one call of SQLite."""
    source = state_folder(tmp_path / "source", FIRST)
    grow(source / "tasks.db", 20)
    before = tasks_of(source / "tasks.db")
    if what == "restore":
        back_up_stopped(source, tmp_path / "saved")
        source = tmp_path / "saved"
    elif what == "rollback":
        assert keeper.run("migrate", source / "tasks.db").code == 0
        add_task(source / "tasks.db", "later")
    chance, killed, whole = random.Random(5), 0, 0.0
    for number in range(51):
        folder = Path(shutil.copytree(source, tmp_path / "folder"))
        target = tmp_path / "target"
        paths = (folder, target) if what in ("backup", "restore") else (folder / "tasks.db",)
        began = time.monotonic()  # the first run is not killed; complete runs give the time
        after = chance.uniform(0.001, whole) if whole else 0.0
        code, taken = keeper.run(what, *paths, known=2, after=after).code, time.monotonic() - began
        killed += code == -9
        if code == 0:
            whole = min(whole or taken, taken)
        if what in ("backup", "restore"):
            assert target.exists() or keeper.run(what, *paths).code == 0
            assert tasks_of(target / "tasks.db") == before
        else:
            if what == "migrate" or schema_of(folder / "tasks.db") != 2:
                assert keeper.run(what, *paths, known=2).code == 0, number
            assert tasks_of(folder / "tasks.db") == before
        shutil.rmtree(folder)
        shutil.rmtree(target, ignore_errors=True)
    print(f"{what}: {killed} of 50 were killed, within {whole:.3f} s")
    assert killed >= 20
