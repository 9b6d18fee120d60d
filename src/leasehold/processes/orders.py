"""What a supervisor and its worker process say to each other: lines of JSON through two pipes.

The pipe of orders is also the lifeline: its end tells a worker that its supervisor is gone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import msgspec

LINE_MAX: Final = 1_000_000
EXIT_CONFIGURATION: Final = 78  # sysexits' EX_CONFIG: starting again would not help


class Orders(msgspec.Struct, frozen=True):
    """The first line to a worker process: what it is to be."""

    target: str
    name: str
    concurrency: int
    queues: tuple[str, ...] | None


class Hello(msgspec.Struct, frozen=True):
    """Its first answer: what it found in the user's program. `dsn` None: the private database in `home`."""

    dsn: str | None
    home: str
    shortest_lease_s: float


class Begin(msgspec.Struct, frozen=True):
    """The second line to it: the database stands, go to work. `home` is given where it is the private one."""

    dsn: str
    home: str | None


@dataclass(frozen=True, slots=True)
class Seat:
    """The descriptors that a worker process is born with."""

    orders: int
    answers: int
    slots: int
    replies: int

    def arguments(self) -> list[str]:
        """As command line arguments."""
        return [str(fd) for fd in (self.orders, self.answers, self.slots, self.replies)]

    @classmethod
    def from_arguments(cls, arguments: list[str]) -> Seat:
        """From command line arguments."""
        orders, answers, slots, replies = (int(argument) for argument in arguments)
        return cls(orders, answers, slots, replies)


def write_line(fd: int, message: msgspec.Struct) -> None:
    """Write one message."""
    line = msgspec.json.encode(message) + b"\n"
    while line:
        line = line[os.write(fd, line) :]


def read_line(fd: int) -> bytes | None:
    """Read one line, byte by byte so that nothing after it is swallowed; None at the end of the pipe."""
    line = bytearray()
    while (byte := os.read(fd, 1)) != b"\n":
        if not byte or len(line) > LINE_MAX:
            return None
        line += byte
    return bytes(line)
