"""One adapter and one real child. The child is mostly `cat`, so that the CLI prints the prompt."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from bridge.adapter import AgentConfig, Prompt, SessionStart, unasked
from bridge.errors import LaunchError
from bridge.process.process_tree import reap_orphans
from bridge.process.procfs import MARKER
from bridge.session.between import Unasked
from bridge.session.redaction import Secrets
from bridge.session.session import Session
from bridge.session.turn import TurnLimits
from bridge.task.events import (
    AgentEvent,
    Answer,
    Done,
    Failed,
    Question,
    Status,
    Text,
    Thought,
    TimedOut,
)
from bridge.task.message import Message, Role, TextPart
from tests.support.children import children
from tests.support.echo import WITHIN, Echo, Sessions

Events = list[AgentEvent | TimedOut]


async def unfit(session: Session) -> None:
    """Until its process has ended, which no event reports without a turn."""
    async with asyncio.timeout(WITHIN):
        while session.healthy:  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.fixture
async def start() -> AsyncIterator[Sessions]:
    """Opens sessions; afterwards none of their processes is left."""
    reap_orphans()  # of servers that other tests ended by force
    sessions = Sessions()
    yield sessions
    for session in sessions.all:
        async with asyncio.timeout(WITHIN):
            await session.stop()
    assert children() == []


@dataclass
class Turn:
    """A turn that is being run."""

    running: asyncio.Task[None]
    batches: list[Events] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def events(self) -> Events:
        return [event for batch in self.batches for event in batch]

    async def ended(self) -> Events:
        async with asyncio.timeout(WITHIN):
            await self.running
        return self.events

    async def until(self, kind: type) -> Any:
        """The first event of this kind."""
        async with asyncio.timeout(WITHIN):
            while True:
                self.heard.clear()
                for event in self.events:
                    if isinstance(event, kind):
                        return event
                await self.heard.wait()


Opener = Callable[..., Any]


def run(session: Session, text: str) -> Turn:
    def sink(events: Events) -> None:
        turn.batches.append(events)
        turn.heard.set()

    prompt = Prompt("task-1", "context-1", Message("m-1", Role.USER, (TextPart(text),)))
    turn = Turn(asyncio.create_task(session.run(lambda: session.prompt(prompt), sink)))
    return turn


def adapter_of(session: Session) -> Echo:
    assert isinstance(session.adapter, Echo)
    return session.adapter


def pids() -> list[int]:
    return [process.pid for process in children()]


# --- turns -------------------------------------------------------------------------------------


async def test_a_turn_is_its_events_up_to_the_one_that_ends_it(start: Sessions) -> None:
    session = await start()
    events = await run(session, "status a\ntext b\nthought c\ndone d\ntext e\ndone f").ended()
    assert events == [Status("a"), Text("b"), Thought("c"), Done("d")]
    assert session.healthy


async def test_the_next_turn_is_run_by_the_same_process(start: Sessions) -> None:
    session = await start()
    await run(session, "done one").ended()
    before = pids()
    assert await run(session, "done two").ended() == [Done("two")]
    assert pids() == before


async def test_output_between_turns_belongs_to_no_turn(start: Sessions) -> None:
    program = "read a; echo done 1; echo text late; echo done late; read b; echo done 2"
    session = await start("/bin/sh", "-c", program)
    assert await run(session, "one").ended() == [Done("1")]
    async with asyncio.timeout(WITHIN):
        await adapter_of(session).late.wait()
    assert await run(session, "two").ended() == [Done("2")]


async def test_held_text_is_released_at_each_kind_of_end(
    start: Sessions,
) -> None:
    secrets = Secrets(["late-for-supper"])
    between = r"done 1\ntext late\ndone late\ntext late\n"  # at once: all of it is there
    program = f"read a; printf '{between}'; read b; echo done 2"
    session = await start("/bin/sh", "-c", program, secrets=secrets)
    await run(session, "one").ended()
    async with asyncio.timeout(WITHIN):
        await adapter_of(session).late.wait()
    assert await run(session, "two").ended() == [Done("2")]  # nothing of before
    session = await start(limits=TurnLimits(turn=0.5), secrets=secrets)
    events = await run(session, "text it is late").ended()
    assert events[:-1] == [Text("it is "), Text("late")] and isinstance(events[-1], TimedOut)


async def test_an_exit_before_the_end_of_the_turn_is_its_failure(start: Sessions) -> None:
    session = await start("/bin/sh", "-c", "read a; echo text so far; echo why >&2; exit 3")
    events = await run(session, "go").ended()
    assert events[0] == Text("so far")
    failed = events[-1]
    assert isinstance(failed, Failed) and failed.reason == "exit"
    text = "Echo ended before it had answered (exit status 3). Its last words: why"
    assert failed.text == text
    assert failed.details == {"exitCode": 3, "stderr": "why"}
    assert not session.healthy


async def test_a_process_that_ends_after_its_turn_makes_the_session_unfit(start: Sessions) -> None:
    session = await start("/bin/sh", "-c", "read a; echo done")
    assert await run(session, "go").ended() == [Done(None)]
    await unfit(session)
    async with asyncio.timeout(WITHIN):  # its streams may end before it
        while "exited 0" not in repr(session):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_prompt_to_a_process_that_has_ended_fails_at_once(start: Sessions) -> None:
    session = await start("/bin/true")
    await unfit(session)
    events = await run(session, "go").ended()
    assert [type(event) for event in events] == [Failed]


async def test_a_program_that_cannot_be_started_is_a_launch_error(start: Sessions) -> None:
    with pytest.raises(LaunchError, match="cannot start /nowhere"):
        await start("/nowhere")


async def test_the_child_gets_the_environment_of_the_session(start: Sessions) -> None:
    session = await start("/bin/sh", "-c", 'read a; env | sed "s/^/text /"; echo done')
    events = await run(session, "go").ended()
    said = "".join(event.text for event in events if isinstance(event, Text))
    assert f"PATH={os.environ['PATH']}" in said and MARKER in said and "HOME=" not in said


async def test_a_line_over_the_limit_is_reported_and_does_not_end_the_turn(start: Sessions) -> None:
    program = "read a; head -c 5000 /dev/zero | tr '\\0' x; echo; echo done"
    session = await start("/bin/sh", "-c", program, limits=TurnLimits(line=1024))
    cut, done = await run(session, "go").ended()
    assert isinstance(cut, Status) and cut.data
    assert cut.text == "A line of 5000 bytes was cut: the limit is 1024 bytes."
    assert (cut.data["bytes"], cut.data["head"]) == (5000, "x" * 1024)
    assert done == Done(None)


async def test_neighbouring_pieces_of_text_may_come_as_one(start: Sessions) -> None:
    session = await start()
    events = await run(session, "text a\ntext b\ntext c\ndone").ended()
    assert "".join(event.text for event in events if isinstance(event, Text)) == "abc"


# --- limits ------------------------------------------------------------------------------------


async def test_a_turn_over_its_time_is_ended_and_says_which_setting_did_it(
    start: Sessions,
) -> None:
    program = "read a; while :; do echo status tick; sleep 0.02; done"
    session = await start("/bin/sh", "-c", program, limits=TurnLimits(turn=0.3, term_grace=0.2))
    events = await run(session, "go").ended()
    late = events[-1]
    assert isinstance(late, TimedOut)
    assert (
        late.text.startswith("The turn took longer than 0.3 s") and "AGENT_TIMEOUT_MS" in late.text
    )
    assert len(events) > 1
    assert not session.healthy


async def test_silence_ends_a_turn_and_says_which_setting_did_it(start: Sessions) -> None:
    session = await start(limits=TurnLimits(silence=0.2))
    events = await run(session, "text a").ended()
    late = events[-1]
    assert isinstance(late, TimedOut) and "AGENT_IDLE_EXIT_MS" in late.text
    assert events[:-1] == [Text("a")]


async def test_output_that_means_nothing_breaks_the_silence(start: Sessions) -> None:
    program = "read a; for i in 1 2 3 4 5 6 7 8; do echo; sleep 0.1; done; echo done"
    session = await start("/bin/sh", "-c", program, limits=TurnLimits(silence=0.6))
    assert await run(session, "go").ended() == [Done(None)]


@pytest.mark.parametrize("limits", [TurnLimits(turn=0.2), TurnLimits(silence=0.2)])
async def test_while_a_question_is_open_no_clock_runs(start: Sessions, limits: TurnLimits) -> None:
    session = await start(limits=limits)
    turn = run(session, "ask q-1")
    question = await turn.until(Question)
    session.waiting(True)
    _, pending = await asyncio.wait([turn.running], timeout=0.5)
    assert pending
    session.waiting(False)
    session.answer(question, Answer("q-1", "done well"))
    assert (await turn.ended())[-1] == Done("well")


@pytest.mark.parametrize("limits", [TurnLimits(turn=0.3), TurnLimits(silence=0.3)])
async def test_after_the_answer_the_clocks_run_again(start: Sessions, limits: TurnLimits) -> None:
    session = await start(limits=limits)
    turn = run(session, "ask q-1")
    question = await turn.until(Question)
    session.waiting(True)
    session.waiting(True)
    session.waiting(False)
    session.answer(question, Answer("q-1", "text more"))
    assert isinstance((await turn.ended())[-1], TimedOut)


async def test_the_time_before_a_question_counts(start: Sessions) -> None:
    """Takes two seconds: the start of a program on a loaded machine must not exceed the limit."""
    program = "read a; sleep 1.2; echo ask q-1; read b; sleep 1.2; echo done"
    session = await start("/bin/sh", "-c", program, limits=TurnLimits(turn=2.0))
    turn = run(session, "go")
    question = await turn.until(Question)
    session.waiting(True)
    session.waiting(False)
    session.answer(question, Answer("q-1", "yes"))
    assert isinstance((await turn.ended())[-1], TimedOut)


async def test_the_time_that_a_client_took_to_answer_is_not_the_silence_of_the_agent(
    start: Sessions,
) -> None:
    """The clocks look once more while it waits, and then only after the answer."""
    program = "read a; echo ask q-1; read b; sleep 0.25; echo done"
    session = await start("/bin/sh", "-c", program, limits=TurnLimits(silence=0.5))
    turn = run(session, "go")
    question = await turn.until(Question)
    session.waiting(True)
    await asyncio.wait([turn.running], timeout=1.35)
    session.waiting(False)
    session.answer(question, Answer("q-1", "yes"))
    assert (await turn.ended())[-1] == Done(None)


async def test_a_cli_that_closes_its_output_but_lives_on_fails_its_turn(
    start: Sessions,
) -> None:
    program = "read a; echo text b; exec >&-; sleep 1000"
    session = await start("/bin/sh", "-c", program, limits=TurnLimits(exit_grace=0.2))
    events = await run(session, "go").ended()
    failed = events[-1]
    assert isinstance(failed, Failed) and failed.reason == "output-closed"
    assert "closed its output" in failed.text
    assert events[:-1] == [Text("b")]
    assert not session.healthy


async def test_a_cli_that_closed_its_output_before_the_prompt_fails_its_turn(
    start: Sessions,
) -> None:
    program = "exec >&-; sleep 1000"
    session = await start("/bin/sh", "-c", program, limits=TurnLimits(exit_grace=0.2))
    await unfit(session)
    (failed,) = await run(session, "go").ended()
    assert isinstance(failed, Failed) and failed.reason == "output-closed"


# --- broken adapters ---------------------------------------------------------------------------


@pytest.mark.parametrize("bug", ["prompt", "receive_line", "receive_exit", "data_to_send"])
async def test_an_exception_of_the_adapter_fails_its_turn(start: Sessions, bug: str) -> None:
    program = "read a; exit 0" if bug == "receive_exit" else "read a; echo text; read b"
    session = await start("/bin/sh", "-c", program, bug=bug)
    events = await run(session, "go").ended()
    failed = events[-1]
    assert isinstance(failed, Failed) and failed.reason == "adapter-error"
    assert re.search(r"echo failed in _bug\(\) at echo\.py:\d+: KeyError: 'a bug", failed.text)
    assert "log" in failed.text
    assert not session.healthy


@pytest.mark.parametrize("method", ["receive_line", "receive_exit"])
@pytest.mark.parametrize("result", [None, ["a text"], [Text("kept"), Text], [None]])
async def test_a_result_that_is_no_event_fails_its_turn(
    start: Sessions, method: str, result: Any
) -> None:
    program = "read a; exit 0" if method == "receive_exit" else "read a; echo text; read b"
    session = await start("/bin/sh", "-c", program, bug=method, result=[result])
    failed = (await run(session, "go").ended())[-1]
    assert isinstance(failed, Failed) and failed.reason == "adapter-error"
    assert re.search(rf"echo failed in {method}\(\) at echo\.py:\d+: TypeError: ", failed.text)


async def test_an_exception_after_a_line_fails_the_turn(start: Sessions) -> None:
    """Its handshake seems to go on; the property fails with the first line."""
    session = await start(bug="handshaking")
    failed = (await run(session, "text a").ended())[-1]
    assert isinstance(failed, Failed) and failed.reason == "adapter-error"
    assert "at echo.py:" in failed.text


async def test_an_exception_at_the_end_of_a_turn_ends_the_session(start: Sessions) -> None:
    session = await start(bug="spent")
    assert (await run(session, "done").ended())[-1] == Done()
    assert not session.healthy


async def test_an_exception_on_an_answer_fails_the_turn(start: Sessions) -> None:
    session = await start(bug="answer")
    turn = run(session, "ask q-1")
    question = await turn.until(Question)
    session.answer(question, Answer("q-1", "yes"))
    failed = (await turn.ended())[-1]
    assert isinstance(failed, Failed) and failed.reason == "adapter-error"


async def test_an_exception_on_an_interrupt_does_not_stop_the_stop(start: Sessions) -> None:
    session = await start(bug="interrupt")
    turn = run(session, "ask q-1")
    await turn.until(Question)
    session.begin_stop(interrupt=True)
    assert isinstance((await turn.ended())[-1], Failed)


async def test_events_before_the_line_that_broke_the_adapter_are_kept(start: Sessions) -> None:
    session = await start()
    turn = run(session, "text a\ntext b")
    await turn.until(Text)
    adapter_of(session).bug = "receive_line"
    session.answer(Question("q-1", "text", "?"), Answer("q-1", "text c"))
    events = await turn.ended()
    assert "".join(e.text for e in events if isinstance(e, Text)) == "ab"
    assert isinstance(events[-1], Failed)


async def test_an_exception_of_the_receiver_ends_the_turn_with_it(start: Sessions) -> None:
    session = await start()

    def sink(events: Events) -> None:
        raise ZeroDivisionError("a bug behind the session")

    prompt = Prompt("task-1", "context-1", Message("m-1", Role.USER, (TextPart("text a"),)))
    async with asyncio.timeout(WITHIN):
        with pytest.raises(ZeroDivisionError):
            await session.run(lambda: session.prompt(prompt), sink)
    assert not session.healthy


# --- the end -----------------------------------------------------------------------------------


async def test_an_interrupt_lets_the_cli_end_its_turn_itself(start: Sessions) -> None:
    session = await start()
    adapter_of(session).interruptible = True
    turn = run(session, "text a")
    await turn.until(Text)
    session.begin_stop(interrupt=True)
    failed = (await turn.ended())[-1]
    assert isinstance(failed, Failed) and failed.reason == "interrupted"
    assert not session.healthy
    await session.stop()
    assert pids() == []


async def test_a_cli_that_does_not_obey_the_interrupt_is_terminated_after_its_grace(
    start: Sessions,
) -> None:
    program = "echo text a; exec sleep 1000"
    session = await start("/bin/sh", "-c", program, limits=TurnLimits(interrupt_grace=0.2))
    adapter_of(session).interruptible = True
    turn = run(session, "go")
    await turn.until(Text)
    before = asyncio.get_running_loop().time()
    session.begin_stop(interrupt=True)
    failed = (await turn.ended())[-1]
    assert asyncio.get_running_loop().time() - before >= 0.2
    assert isinstance(failed, Failed) and "signal 15" in failed.text


async def test_without_a_word_for_it_the_cli_is_terminated_at_once(start: Sessions) -> None:
    limits = TurnLimits(interrupt_grace=1000.0)
    session = await start("/bin/sh", "-c", "echo text a; exec sleep 1000", limits=limits)
    turn = run(session, "go")
    await turn.until(Text)
    session.begin_stop(interrupt=True)
    async with asyncio.timeout(60):
        await turn.ended()


async def test_a_stop_that_is_cancelled_again_and_again_still_leaves_nothing(
    start: Sessions,
) -> None:
    program = "trap '' TERM; setsid sleep 1000 & echo text a; while :; do sleep 1000; done"
    session = await start("/bin/sh", "-c", program, limits=TurnLimits(term_grace=0.3))
    turn = run(session, "go")
    await turn.until(Text)
    stopping = asyncio.create_task(session.stop())
    for _ in range(3):
        await asyncio.sleep(0)
        stopping.cancel()
    async with asyncio.timeout(WITHIN):
        with pytest.raises(asyncio.CancelledError):
            await stopping
    assert children() == []
    await turn.ended()


async def test_stopping_a_new_or_a_stopped_session_has_no_effect(
    start: Sessions,
) -> None:
    never = Session(Echo(AgentConfig("/bin/cat"), SessionStart("/", "s")), {}, TurnLimits(), "m")
    assert not never.healthy and "not started" in repr(never)
    never.kill()
    await never.stop()
    session = await start()
    await asyncio.gather(session.stop(), session.stop())
    await session.stop()
    session.kill()


# --- silence, and events between two turns -------------------------------------------------------


async def test_a_long_silence_is_told_again_after_twice_the_time(start: Sessions) -> None:
    session = await start(limits=TurnLimits(quiet=0.05))
    heard: list[float] = []
    told = asyncio.Event()

    def quiet(seconds: float) -> None:
        heard.append(seconds)
        if len(heard) == 3 or not seconds:
            told.set()

    prompt = Prompt("task-1", "context-1", Message("m-1", Role.USER, (TextPart("ask q"),)))
    turn = asyncio.create_task(
        session.run(lambda: session.prompt(prompt), lambda events: None, quiet=quiet)
    )
    async with asyncio.timeout(WITHIN):
        await told.wait()
        assert [round(one // 0.05) >= times for one, times in zip(heard, (1, 2, 4), strict=True)]
        told.clear()
        session.adapter.send(b"text again\n")
        session.streams.flush()
        await told.wait()
        session.adapter.send(b"done\n")
        session.streams.flush()
        await turn
    assert heard[-1] == 0


async def test_no_silence_is_told_while_a_question_is_open(start: Sessions) -> None:
    session = await start(limits=TurnLimits(quiet=0.1))
    heard: list[float] = []
    prompt = Prompt("task-1", "context-1", Message("m-1", Role.USER, (TextPart("ask q"),)))

    def sink(events: Events) -> None:
        session.waiting(any(isinstance(event, Question) for event in events))

    turn = asyncio.create_task(
        session.run(lambda: session.prompt(prompt), sink, quiet=heard.append)
    )
    _, pending = await asyncio.wait([turn], timeout=0.5)
    assert pending and heard == []
    session.waiting(False)
    session.adapter.send(b"done\n")
    session.streams.flush()
    await asyncio.wait_for(turn, WITHIN)


async def test_events_after_the_end_of_a_turn_are_reported(start: Sessions) -> None:
    """Also those of the same read."""
    session = await start()
    reports: list[Unasked] = []
    session.streams.between.report = reports.append
    turn = run(session, "text a\ndone\nask late\ntext b")
    assert await turn.ended() == [Text("a"), Done(None)]
    async with asyncio.timeout(WITHIN):
        while len(reports) < 2:  # noqa: ASYNC110 - no event reports them
            await asyncio.sleep(0.01)
    assert [(one.name, one.act) for one in reports[:2]] == [
        ("text", "refused"),
        ("text", "stopped"),
    ]


async def test_a_session_is_unfit_while_the_cli_works_by_itself(start: Sessions) -> None:
    session = await start(limits=TurnLimits(interrupt_grace=60))
    await run(session, "done").ended()
    assert session.healthy
    session.streams.between.receive([unasked("turn", "goal")])
    assert not session.healthy
