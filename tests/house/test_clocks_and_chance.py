"""Time and chance are arguments: only the places named here read a clock, wait, or draw lots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.python_rules import clocks_and_chance
from tests.house.tree import modules, room

# A module, or a room when it ends in a slash: what it may use, and why. `core/` may never.
OWNERS = {
    "embedded/": ("time.monotonic time.sleep", "starts and watches a server; no job's fate hangs on its deadlines"),
    "processes/boottime.py": ("time.clock_gettime_ns", "the clock of leases, the same for every process of a machine"),
    "processes/keeper.py": (
        "asyncio.sleep",
        "beats for real processes; whether a lease still holds is boottime's to say",
    ),
    "processes/tree.py": (
        "time.monotonic time.sleep",
        "waits until a killed tree is gone: the kernel tells nobody when",
    ),
    "processes/undertaker.py": ("asyncio.sleep", "waits before it asks a database again that did not answer"),
    "runtime/clock.py": (
        "time.monotonic asyncio.sleep uuid.uuid4 random.random",
        "the Clock and the Chance that everybody else is given",
    ),
}


def owner_of(module: Path) -> str | None:
    return next((owner for owner in OWNERS if room(module) == owner or room(module).startswith(owner)), None)


def used_by(module: Path) -> set[str]:
    return clocks_and_chance(module.read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", modules(), ids=room)
def test_time_and_chance_are_arguments(module: Path) -> None:
    owner = owner_of(module)
    assert used_by(module) - set(OWNERS[owner][0].split() if owner else []) == set()


def test_core_owns_no_clock_and_no_chance() -> None:
    assert [owner for owner in OWNERS if owner.startswith("core")] == []


def test_every_permission_is_needed() -> None:
    used = {(owner_of(module), name) for module in modules() for name in used_by(module)}
    given = {(owner, name) for owner, (names, _) in OWNERS.items() for name in names.split()}
    assert given - used == set()


@pytest.mark.parametrize(
    "planted",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic_ns()",
        "from time import sleep",
        "import time\ndef f(clock=time.monotonic): ...",
        "import time\ntime.clock_gettime(time.CLOCK_BOOTTIME)",
        "from datetime import datetime\ndatetime.now()",
        "import datetime as dt\ndt.datetime.utcnow()",
        "import random\nrandom.random()",
        "from random import uniform as u",
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid4",
        "import secrets\nsecrets.token_hex()",
        "import os\nos.urandom(16)",
        "import asyncio\nasync def f():\n    await asyncio.sleep(1)",
    ],
)
def test_a_hidden_clock_or_die_is_seen(planted: str) -> None:
    assert clocks_and_chance(planted) != set()


@pytest.mark.parametrize(
    "harmless",
    [
        "def f(clock, rand):\n    return clock.monotonic() + rand.uniform(0, 1)",
        "from uuid import UUID\nUUID(int=1)",
        "from datetime import datetime, timedelta\ntimedelta(seconds=1)",
        "import time\nCLOCK = time.CLOCK_MONOTONIC",
    ],
)
def test_being_given_a_clock_is_fine(harmless: str) -> None:
    assert clocks_and_chance(harmless) == set()
