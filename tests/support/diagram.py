"""The task's states as a Mermaid diagram, printed from the table: `python -m
tests.support.diagram`."""

from __future__ import annotations

from bridge.task.transitions import TRANSITIONS, TaskState

# The table has one state for each event. A question may be of the kind `auth`, and when one is
# settled, the next that waits may be of the other kind.
_INPUT, _AUTH = TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED
Edges = dict[tuple[TaskState, TaskState], set[str]]


def edges() -> Edges:
    """Which events lead from one state to another one."""
    found: Edges = {}
    for state, exits in TRANSITIONS.items():
        for event, targets in exits.items():
            for target in targets:
                found.setdefault((state, target), set()).add(event.__name__)
    return {pair: names for pair, names in found.items() if pair[0] is not pair[1]}


def mermaid() -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {_name(TaskState.SUBMITTED)}"]
    order = list(TaskState)
    for (source, target), names in sorted(
        edges().items(), key=lambda edge: (order.index(edge[0][0]), order.index(edge[0][1]))
    ):
        label = ", ".join(sorted(names))
        lines.append(f"    {_name(source)} --> {_name(target)}: {label}")
    lines += [f"    {_name(state)} --> [*]" for state in TaskState if state.terminal]
    return "\n".join([*lines, "```"])


def _name(state: TaskState) -> str:
    return str(state.value).replace("-", "_")


if __name__ == "__main__":
    print(mermaid())
