"""The units of systemd, written with the path of the program. systemd checks them in
tests/system/test_units.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.support.service_units import install_service, installed

DEPLOY = CHECKOUT / "deploy/systemd"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return installed(tmp_path / "bin")


def test_the_unit_of_a_user_has_the_path_of_the_program(program: Path, tmp_path: Path) -> None:
    done = install_service(program, "--user", HOME=str(tmp_path))
    unit = tmp_path / ".config/systemd/user/coding-agent-bridge.service"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == str(unit)
    lines = unit.read_text().splitlines()
    assert f"ExecReload={program} reload" in lines
    assert "/opt/" not in unit.read_text()


def test_the_system_does_not_get_a_program_that_it_hides(program: Path, tmp_path: Path) -> None:
    """pytest's folder is below /tmp, which PrivateTmp= hides."""
    done = install_service(program, "--to", str(tmp_path / "units"))
    if str(program).startswith("/tmp/"):
        assert done.returncode == 2
        assert "PrivateTmp" in done.stderr
        assert not (tmp_path / "units").exists()


@pytest.mark.parametrize("options", [("--user", "--keep"), ("--user", "--to", "/proc/x")])
def test_what_cannot_be_written_is_an_error(program: Path, options: tuple[str, ...]) -> None:
    done = install_service(program, *options, HOME="/proc")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_path_with_a_meaning_in_units_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "100% mine"
    folder.mkdir()
    (folder / "coding-agent-bridge").symlink_to(sys.executable)
    code = (
        "import sys; sys.argv[0] = sys.argv.pop(1); sys.path.insert(0, sys.argv.pop(1))\n"
        "from bridge.cli.main import main; sys.exit(main())"
    )
    argv = [sys.executable, "-c", code, str(folder / "coding-agent-bridge"), str(CHECKOUT)]
    done = subprocess.run(
        [*argv, "install-service", "--user", "--to", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "characters with a meaning in units" in done.stderr


def test_agents_keep_their_sandbox_and_groups() -> None:
    """systemd 252 would refuse the calls of Landlock without their names, and a read-only tree of
    control groups or a refused executable memory would break the server or a CLI."""
    text = (DEPLOY / "coding-agent-bridge@.service").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    calls = next(line for line in lines if line.startswith("SystemCallFilter=")).split()
    needed = {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"}
    assert needed <= set(calls)
    assert {"Delegate=yes", "Type=notify", "Environment=BRIDGE_SANDBOX=landlock"} <= set(lines)
    assert not any(line.startswith(("ProtectControl", "MemoryDenyWrite")) for line in lines)
