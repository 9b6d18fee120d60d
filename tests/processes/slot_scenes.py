"""Scenes of the two tables that need processes of their own: a writer that is killed, a fork, a child that cuts them.

`python slot_scenes.py <scene> <sealed|file>` plays one and writes what it saw as JSON; the judging is the tests'.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leasehold.processes.slot_table import (
    UNREADABLE,
    ForkedCopyError,
    Held,
    ReplyReader,
    ReplyTable,
    ReplyWriter,
    SlotReader,
    SlotState,
    SlotTable,
    SlotWriter,
    Unreadable,
    Verdict,
)

STORM_S = 1.2
LAP = 7  # the lap that a storm of answers answers to
# What the slot goes through, again and again: (a put or not, the state). Two of the puts are over a job that is held.
CYCLE = (
    (True, SlotState.CLAIMED),
    (False, SlotState.RUNNING),
    (True, SlotState.RUNNING),
    (True, SlotState.RUNNING),
    (False, SlotState.ENDED),
    (False, SlotState.EMPTY),
)
PUTS = sum(puts for puts, _ in CYCLE)


def body(n: int) -> dict[str, Any]:
    """A body in which every field tells the same number, so that a mixture of two shows."""
    return {
        "job_id": n,
        "token": n.to_bytes(8, "little") * 2,
        "epoch": n,
        "lease_ns": n << 20,
        "sent_ns": ~n & (1 << 64) - 1,
        "start_ns": n << 1,
        "deadline_ns": n << 30,
        "queue": n & 0xFFFF,
        "stage": n & 0xFFFF,
        "attempt": n & 0xFFFF,
        "group": ~n & 0xFFFF,
    }


def held(step: int) -> Held | None:
    """What the slot holds after so many steps; each lap's body tells the lap."""
    cycles, step = divmod(step, len(CYCLE))
    lap = PUTS * cycles + sum(puts for puts, _ in CYCLE[:step])
    state = CYCLE[step - 1][1]
    return Held(lap=lap, state=state, **body(lap)) if state else None


def slot_steps(fd: int, progress: memoryview) -> None:
    """Step on and on; `progress` tells the last step begun and the last one done."""
    writer = SlotWriter(fd, 1)
    step = lap = 0
    while True:
        for puts, state in CYCLE:
            lap += puts
            fields = body(lap)
            step += 1
            progress[0] = step
            if puts:
                writer.put(0, **fields, state=state)
            else:
                writer.state(0, state)
            progress[1] = step


def slot_problem(reader: SlotReader, steps: set[int] | None) -> str | None:
    """What is wrong with what the reader sees: any moment's truth if no steps are given, else one of theirs."""
    reading: Held | Unreadable | None = reader.read(0)
    if reading is UNREADABLE:
        return "unreadable"
    if steps is None:
        whole = reading is None or (reading.state and reading == replace(reading, **body(reading.lap)))
        return None if whole else f"torn: {reading}"
    return None if reading in [held(step) for step in steps] else f"not the truth of {steps}: {reading}"


def reply_steps(writer: ReplyWriter, progress: memoryview) -> None:
    for step in itertools.count(1):
        progress[0] = step
        writer.answer(0, LAP, step, Verdict.KEPT if step % 2 else Verdict.CANCEL)
        progress[1] = step


def reply_problem(reader: ReplyReader, steps: set[int] | None) -> str | None:
    answer = reader.answer(0, LAP)
    if answer is None:
        return None if steps is None or 0 in steps else f"no answer after {steps}"
    if answer.verdict != (Verdict.KEPT if answer.sent_ns % 2 else Verdict.CANCEL):
        return f"torn: {answer}"
    return None if steps is None or answer.sent_ns in steps else f"not the truth of {steps}: {answer}"


def storm(*, slots: bool, sealed: bool) -> dict[str, object]:
    """Kill writers at full speed at random moments; read all the while, and compare what each one leaves."""
    rand = random.Random(11)
    kills = reads = steps = 0
    problems: list[str] = []
    end = time.monotonic() + STORM_S
    while time.monotonic() < end:
        progress = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        table = SlotTable.create(1, sealed=sealed) if slots else ReplyTable.create(1, sealed=sealed)
        # The keeper's own mapping is the only one that may write, so there it is inherited by the fork.
        answers = None if slots else ReplyWriter(table.fd, 1)
        pid = os.fork()
        if not pid:
            reply_steps(answers, progress) if answers else slot_steps(table.fd, progress)
        look = looker(table)
        while not progress[1]:
            time.sleep(0)
        moment = time.monotonic() + rand.random() * 0.003
        while time.monotonic() < moment:
            reads += 1
            problems += filter(None, [look(None)])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1
        steps += progress[1]
        problems += filter(None, [look({progress[0], progress[1]})])
        table.close()
    return {"kills": kills, "reads": reads, "steps": steps, "problems": problems[:5], "bad": len(problems)}


def looker(table: SlotTable | ReplyTable) -> Callable[[set[int] | None], str | None]:
    if isinstance(table, SlotTable):
        slot_reader = SlotReader(table.fd, 1)
        return lambda steps: slot_problem(slot_reader, steps)
    reply_reader = ReplyReader(table.fd, 1)
    return lambda steps: reply_problem(reply_reader, steps)


def fork(*, sealed: bool) -> dict[str, object]:
    """A handler forks, and its copy runs on into the code that clears slots."""
    table = SlotTable.create(2, sealed=sealed)
    writer = SlotWriter(table.fd, 2)
    reader = SlotReader(table.fd, 2)
    for slot in (0, 1):
        writer.put(slot, **body(1), state=SlotState.RUNNING)
    before = reader.held()
    pid = os.fork()
    if not pid:
        refused = 2
        with contextlib.suppress(ForkedCopyError):
            writer.clear(0)
            refused -= 1
        with contextlib.suppress(ForkedCopyError):
            writer.put(1, **body(2))
            refused -= 1
        os._exit(refused)
    copy = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    unchanged = reader.held() == before
    writer.clear(0)  # and the worker itself still can
    return {"refused": copy, "unchanged": unchanged, "held_after": len(reader.held())}


def cut(*, sealed: bool) -> dict[str, object]:
    """A child of the worker cuts the memory short while it is being read. Unsealed and mapped, that is a SIGBUS."""
    table = SlotTable.create(1, sealed=sealed)
    SlotWriter(table.fd, 1).put(0, **body(1))
    reader = SlotReader(table.fd, 1)
    pid = os.fork()
    if not pid:
        try:
            os.ftruncate(table.fd, 0)
        except PermissionError:
            os._exit(1)
        os._exit(0)
    refused = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"refused": bool(refused), "reading": "unreadable" if reader.read(0) is UNREADABLE else "read"}


SCENES: dict[str, Callable[..., dict[str, object]]] = {
    "storm_of_slots": lambda sealed: storm(slots=True, sealed=sealed),
    "storm_of_replies": lambda sealed: storm(slots=False, sealed=sealed),
    "fork": fork,
    "cut": cut,
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(SCENES[sys.argv[1]](sealed=sys.argv[2] == "sealed")))
