"""Leases: at no time two nodes may believe that they own a context, whatever their clocks, pauses
and lost reads are; and a database that was away makes no node lose its work."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bridge.store.postgres.liveness import INTERVAL, VALID, Beat, NodeLease, Observer

L = 10.0
TICK = 0.12  # seconds for the guard and for the freeze
NODES = ("a", "b", "c")


@dataclass
class Row:
    """The row of a node in the database."""

    epoch: int
    beat: int = 0
    fenced: bool = False


@dataclass
class Machine:
    """A node and its clock. `rate`: seconds of its clock in a second."""

    name: str
    rate: float
    epoch: int
    lease: NodeLease = field(default_factory=lambda: NodeLease(L))
    observer: Observer = field(default_factory=lambda: Observer(L))
    due: float = 0.0  # true time of its next beat

    def clock(self, time: float) -> float:
        return 1000 * len(self.name) + time * self.rate

    def runs(self, time: float) -> bool:
        """Whether its CLIs of shares may run: the guard reads the same clock, late by a tick."""
        return self.lease.is_valid(self.clock(time - TICK))


class Cluster(RuleBasedStateMachine):
    """Nodes with clocks of different rates beat, pause, lose answers, and fence each other."""

    @initialize(rates=st.tuples(*[st.floats(0.8, 1.2)] * 3))
    def start(self, rates: tuple[float, float, float]) -> None:
        self.time = 0.0
        self.rows = {name: Row(number) for number, name in enumerate(NODES, 1)}
        self.machines = {
            name: Machine(name, rate, row.epoch)
            for (name, row), rate in zip(self.rows.items(), rates, strict=True)
        }
        self.away = False
        for machine in self.machines.values():
            self.beat(machine, 0.0, 0.0, True)

    def beat(self, machine: Machine, sent: float, answered: float, arrives: bool) -> None:
        """A beat that is sent, reaches the database at once, and is answered later."""
        row = self.rows[machine.name]
        if row.fenced or row.epoch != machine.epoch:
            return
        row.beat += 1
        seen = [Beat(name, one.epoch, one.beat, one.fenced) for name, one in self.rows.items()]
        started, ended = machine.clock(sent), machine.clock(answered)
        if arrives:
            machine.lease.renewed(started)
            machine.observer.observed(started, ended, seen)
        else:
            machine.observer.failed()

    def fence(self, machine: Machine, now: float) -> None:
        if self.rows[machine.name].fenced:
            return
        for suspect in machine.observer.suspects(machine.clock(now)):
            row = self.rows[suspect.node]
            same = (row.epoch, row.beat, row.fenced) == (suspect.epoch, suspect.beat, False)
            if suspect.node != machine.name and same:
                victim = self.machines[suspect.node]
                assert not victim.runs(now), f"{victim.name} is fenced while it works"
                row.fenced = True

    @rule(
        seconds=st.floats(0.01, 3 * L),
        paused=st.sets(st.sampled_from(NODES)),
        late=st.floats(0, INTERVAL * L),
        lost=st.sets(st.sampled_from(NODES)),
    )
    def live(self, seconds: float, paused: set[str], late: float, lost: set[str]) -> None:
        """Time passes; `paused` nodes do nothing, and `lost` ones get no answer."""
        end = self.time + seconds
        while self.time < end:
            self.time = min(self.time + 0.37, end)
            for name, machine in self.machines.items():
                if name in paused or self.time < machine.due:
                    continue
                machine.due = self.time + INTERVAL * L / machine.rate
                if self.away:
                    machine.observer.failed()
                else:
                    self.beat(machine, self.time, self.time + late, name not in lost)
                    self.fence(machine, self.time + late)

    @rule(away=st.booleans())
    def database(self, away: bool) -> None:
        self.away = away

    @rule(name=st.sampled_from(NODES))
    def restart(self, name: str) -> None:
        """A new incarnation, also of a node that was fenced."""
        if self.away:
            return
        self.rows[name] = Row(max(abs(row.epoch) for row in self.rows.values()) + 1)
        before = self.machines[name]
        self.machines[name] = Machine(name, before.rate, self.rows[name].epoch)

    @invariant()
    def a_fenced_node_does_not_work(self) -> None:
        for name, row in getattr(self, "rows", {}).items():
            if row.fenced:
                assert not self.machines[name].runs(self.time)


Cluster.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestCluster = Cluster.TestCase


def test_a_node_that_does_not_count_is_fenced_after_a_lease() -> None:
    observer = Observer(L)
    for number in range(6):
        now = number * INTERVAL * L
        observer.observed(now, now, [Beat("a", 1, 7), Beat("b", 2, number)])
    assert observer.suspects(now) == [Beat("a", 1, 7)]
    assert observer.suspects(now - 0.1) == []


def test_after_an_outage_no_node_is_fenced() -> None:
    observer, beats = Observer(L), [Beat("a", 1, 7), Beat("b", 2, 1)]
    observer.observed(0, 0, beats)
    observer.failed()
    observer.observed(30, 30, beats)  # the database is back, and this node is the first one
    assert observer.suspects(30) == []
    observer.observed(30 + L / 5, 30 + L / 5, [Beat("a", 1, 8), Beat("b", 2, 1)])
    assert observer.suspects(30 + L) == [Beat("b", 2, 1)]


def test_a_pause_of_the_observer_begins_the_wait_again() -> None:
    observer, beats = Observer(L), [Beat("a", 1, 7)]
    observer.observed(0, 0, beats)
    observer.observed(50, 50, beats)
    assert observer.suspects(50 + L / 2) == []
    assert observer.age("a", 51) == 1 and observer.age("b", 51) is None


def test_a_node_that_returns_is_not_the_one_that_was_seen() -> None:
    observer = Observer(L)
    observer.observed(0, 0, [Beat("a", -1, 7, fenced=True)])
    observer.observed(20, 20, [Beat("a", -1, 7, fenced=True)])
    assert observer.fenced() == [Beat("a", -1, 7, fenced=True)] and observer.suspects(90) == []
    assert observer.age("a", 21) == 21  # the grace of its tasks, through gaps
    observer.observed(22, 22, [Beat("a", 5, 8)])
    assert observer.fenced() == [] and observer.age("a", 23) == 1


def test_a_lease_counts_from_the_start_of_its_beat() -> None:
    lease = NodeLease(L)
    assert not lease.is_valid(0)
    lease.renewed(100)
    lease.renewed(99)  # a late answer takes nothing back
    assert lease.is_valid(100 + VALID * L - 0.01) and not lease.is_valid(100 + VALID * L)
