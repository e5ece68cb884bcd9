"""The closed list of events, in the code and in docs/observability.md."""

from __future__ import annotations

import re

from bridge.telemetry.log_events import EVENTS
from tests import CHECKOUT

IN_CODE = re.compile(r"""(?:"event": |event=)"([a-z_]+\.[a-z_]+)\"""")


def test_the_code_logs_all_listed_events_and_no_others() -> None:
    found = {
        (str(path.relative_to(CHECKOUT)), event)
        for folder in ("bridge", "adapters")
        for path in sorted((CHECKOUT / folder).rglob("*.py"))
        for event in IN_CODE.findall(path.read_text("utf-8"))
    }
    assert [one for one in sorted(found) if one[1] not in EVENTS] == []
    tasks = (CHECKOUT / "bridge/telemetry/task_log.py").read_text("utf-8")
    of_tasks = set(re.findall(r'"((?:task|question)\.[a-z]+)"', tasks))
    assert {event for _, event in found} | of_tasks == EVENTS


def test_the_document_lists_the_same_events() -> None:
    page = (CHECKOUT / "docs/observability.md").read_text("utf-8")
    table = page.partition("\n### Events\n")[2].partition("\n##")[0]
    assert set(re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE)) == EVENTS
