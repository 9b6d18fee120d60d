"""The two tables that a worker and its keeper share in memory: what the worker holds, and what the keeper answers.

The worker alone writes the slot table, the keeper alone the reply table, and neither ever waits for the other. A
writer may be killed between any two instructions and its reader finds the old truth or the new one. Both are made anew
for each worker process. What the keeper does with what it reads, and who is told of a verdict, is left to others.

How a slot is published. It has two halves and one word, `lap << 2 | state`, stored by a single aligned 8-byte write. A
body goes into the half that the word does not point to (even laps the first, odd laps the second), with a checksum that
is seeded with its lap; then the word is stored. A reader takes the word, the half, and the word again, and looks once
more if the lap moved or the checksum is not that lap's. (A version number that is odd while writing does not do: a
writer killed in a busy loop leaves it odd almost every time. The checksum is needed too: the copy of a `pread` is not
ordered, nor is that of a mapping on ARM.)

    slot, 256 bytes                             answer, 128 bytes (after one such block whose first word is the beat)
      0    word: lap << 2 | SlotState             0   word: turn << 2 | Verdict
      32   half of even laps                      32  half of even turns
      144  half of odd laps                       64  half of odd turns
      half: 80 bytes of body, 8 of checksum       half: 16 bytes of body (lap, sent_ns), 8 of checksum

On Linux the memory is a sealed memfd, which nobody can shrink under a reader (a mapping cut short kills it by SIGBUS).
Elsewhere it is an unlinked file, read by `pread`, which merely comes back short.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import sys
import tempfile
import weakref
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, Literal, Protocol
from zlib import crc32

from leasehold.core.errors import LeaseholdError

SLOT_BYTES: Final = 256
ANSWER_BYTES: Final = 128
TOKEN_BYTES: Final = 16
READ_TRIES: Final = 1000
SEALABLE: Final = sys.platform == "linux"

_SLOT_HALVES: Final = (32, 144)
_ANSWER_HALVES: Final = (32, 64)
_WORD: Final = struct.Struct("@Q")
_BODY: Final = struct.Struct("@q16sQQQQQIIII")  # id, token, epoch, 4 times, queue, stage, attempt, group
_ANSWER: Final = struct.Struct("@QQ")  # lap, sent_ns
_WORD_BYTES: Final = _WORD.size
_BODY_BYTES: Final = _BODY.size
_SLOT_WORDS: Final = SLOT_BYTES // _WORD_BYTES
_pack_body: Final = _BODY.pack
_STATE_MASK: Final = 3  # the two low bits of a word; all of them zero means "nothing here"
_F_SEAL_FUTURE_WRITE: Final = 0x10  # not yet named by the standard library


class SlotState(IntEnum):
    """How far a worker is with the job in a slot. It decides what its death costs that job."""

    EMPTY = 0
    CLAIMED = 1
    RUNNING = 2
    ENDED = 3


class Verdict(IntEnum):
    """What the database said about a lease at its last beat."""

    NONE = 0
    KEPT = 1
    LOST = 2
    CANCEL = 3


class Unreadable(Enum):
    """A slot that no try could read: its lease must not be extended, and somebody must hear of it."""

    UNREADABLE = "unreadable"


UNREADABLE: Final = Unreadable.UNREADABLE


@dataclass(frozen=True, slots=True)
class Held:
    """One job that a worker says it holds. Times are `boottime`; `queue` and `stage` index lists sent by pipe."""

    lap: int
    state: SlotState
    job_id: int
    token: bytes
    epoch: int
    lease_ns: int
    sent_ns: int
    start_ns: int
    deadline_ns: int
    queue: int
    stage: int
    attempt: int
    group: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the keeper last said of a lap: the verdict, and when the last beat that was accepted had been sent."""

    verdict: Verdict
    sent_ns: int


class ForkedCopyError(LeaseholdError):
    """A forked copy of a worker process tried to say what the worker holds."""

    remedy = "A fork made inside a handler must end in os._exit or exec; only the worker itself settles its jobs."


class UnfitFieldError(LeaseholdError):
    """A value does not fit its field of a slot, so the slot was left as it was."""

    remedy = f"The id is a signed 64-bit number, the token {TOKEN_BYTES} bytes, all else unsigned, of 64 or 32 bits."


class EmptySlotError(LeaseholdError):
    """A slot that holds no job was given a state, which would have brought its last job back to life."""

    remedy = "Put a job into the slot before its state changes; this is a defect of the worker, please report it."


class ReplyWriterTakenError(LeaseholdError):
    """The reply table has its writer already and is closed to any other."""

    remedy = "Make a new pair of tables for a new keeper."


@dataclass(frozen=True, slots=True)
class SlotTable:
    """The memory of a worker's slots. A child inherits `fd` only where it is named in `pass_fds`."""

    fd: int
    slots: int

    @classmethod
    def create(cls, slots: int, *, sealed: bool = SEALABLE) -> SlotTable:
        """Make an empty table; `sealed=False` is the form for systems without memfd."""
        fd = _shared_memory("leasehold-slots", slots * SLOT_BYTES, sealed=sealed)
        if sys.platform == "linux" and sealed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        return cls(fd, slots)

    def close(self) -> None:
        """Let go of the descriptor; what is mapped stays mapped."""
        os.close(self.fd)


class SlotWriter:
    """The worker's hand on its slots. One thread per slot; refuses to write in a forked copy of the process."""

    def __init__(self, fd: int, slots: int) -> None:
        self._map = mmap.mmap(fd, slots * SLOT_BYTES)
        self._words = memoryview(self._map).cast("Q")
        _writers.add(self)

    def put(  # noqa: PLR0913 - the fields of a slot; a dataclass made per job would double the price of a put
        self,
        slot: int,
        *,
        job_id: int,
        token: bytes,
        epoch: int,
        lease_ns: int,
        sent_ns: int,
        start_ns: int,
        deadline_ns: int,
        queue: int,
        stage: int,
        attempt: int,
        group: int,
        state: SlotState = SlotState.CLAIMED,
    ) -> int:
        """Say that the slot holds this job; also for another stage, deadline or group of the job it holds.

        Every put begins a lap, which it returns, and answers to earlier laps are not answers to it.
        """
        if len(token) != TOKEN_BYTES:  # struct would cut or pad it, and the job would lose its fence
            raise UnfitFieldError(slot=slot, token_bytes=len(token))
        try:
            body = _pack_body(
                job_id, token, epoch, lease_ns, sent_ns, start_ns, deadline_ns, queue, stage, attempt, group
            )
        except struct.error as error:
            raise UnfitFieldError(str(error), slot=slot, job_id=job_id) from error
        words = self._words
        word_at = slot * _SLOT_WORDS
        try:
            # The lap lives in the word alone: an exception thrown in between (Ctrl-C) must not part it from a copy.
            lap = (words[word_at] >> 2) + 1
            at = slot * SLOT_BYTES + _SLOT_HALVES[lap & 1]
            end = at + _BODY_BYTES
            self._map[at:end] = body
            words[end // _WORD_BYTES] = crc32(body, lap)
            words[word_at] = lap << 2 | state
        except ValueError as error:  # released by _drop_writers
            raise ForkedCopyError(slot=slot, job_id=job_id) from error
        return lap

    def state(self, slot: int, state: SlotState) -> None:
        """Move the job in the slot on: begun, ended, or (once the store has answered) gone."""
        words = self._words
        word_at = slot * _SLOT_WORDS
        try:
            word = words[word_at]
            if state and not word & _STATE_MASK:
                raise EmptySlotError(slot=slot, state=state)
            words[word_at] = word & ~_STATE_MASK | state
        except ValueError as error:  # released by _drop_writers
            raise ForkedCopyError(slot=slot, state=state) from error

    def clear(self, slot: int) -> None:
        """Say that the slot holds nothing any more: the store has answered the settle."""
        self.state(slot, SlotState.EMPTY)

    def drop(self) -> None:
        """Let go of the memory for good; what was written stays for the reader."""
        self._words.release()
        self._map.close()


# A fork made by a handler runs the same code with the same memory, and would clear slots that the worker still holds.
# Not MADV_DONTFORK as well: a write would end in SIGSEGV instead of an error, and (tried) the munmap at the end of the
# copy's mapping hits whatever the copy has meanwhile mapped into the hole.
_writers: weakref.WeakSet[SlotWriter] = weakref.WeakSet()


def _drop_writers() -> None:
    for writer in list(_writers):
        writer.drop()


os.register_at_fork(after_in_child=_drop_writers)


class SlotReader:
    """The keeper's eye on a worker's slots. It believes nothing that the checksum does not confirm."""

    def __init__(self, fd: int, slots: int) -> None:
        self._slots = slots
        self._pages = _open_pages(fd, slots * SLOT_BYTES)

    def read(self, slot: int) -> Held | Unreadable | None:
        """Say what the slot holds; None if nothing."""
        found = _read_published(self._pages, slot * SLOT_BYTES, _SLOT_HALVES, _BODY)
        if found is None or found is UNREADABLE:
            return found
        lap, state, half = found
        return Held(lap, SlotState(state), *_BODY.unpack_from(half))

    def held(self) -> list[tuple[int, Held | Unreadable]]:
        """Every slot that is not empty, with its number."""
        readings = ((slot, self.read(slot)) for slot in range(self._slots))
        return [(slot, reading) for slot, reading in readings if reading is not None]


@dataclass(frozen=True, slots=True)
class ReplyTable:
    """The memory of a keeper's answers to one worker. Its writer closes it to every later writer."""

    fd: int
    slots: int

    @classmethod
    def create(cls, slots: int, *, sealed: bool = SEALABLE) -> ReplyTable:
        """Make a table without answers; `sealed=False` is the form for systems without memfd."""
        return cls(_shared_memory("leasehold-replies", (1 + slots) * ANSWER_BYTES, sealed=sealed), slots)

    def close(self) -> None:
        """Let go of the descriptor; what is mapped stays mapped."""
        os.close(self.fd)


class ReplyWriter:
    """The keeper's hand on its answers. Made before the descriptor goes to the worker, who then can only read it."""

    def __init__(self, fd: int, slots: int) -> None:
        try:
            self._map = mmap.mmap(fd, (1 + slots) * ANSWER_BYTES)
        except PermissionError as error:
            raise ReplyWriterTakenError from error
        self._words = memoryview(self._map).cast("Q")
        self._last = [(0, Verdict.NONE)] * slots
        _close_to_later_writers(fd)

    def beat(self, now_ns: int) -> None:
        """Say that the keeper lives. Every beat, also when the worker holds nothing."""
        self._words[0] = now_ns

    def answer(self, slot: int, lap: int, sent_ns: int, verdict: Verdict) -> None:
        """Tell what became of this lap's lease at a beat; `sent_ns` is when the last accepted one was sent.

        An answer that comes late, to a lap before the last one answered, is dropped, and so is one that contradicts a
        loss: a lost lease does not come back.
        """
        last_lap, last_verdict = self._last[slot]
        if lap < last_lap or (lap == last_lap and last_verdict is Verdict.LOST):
            return
        body = _ANSWER.pack(lap, sent_ns)
        base = (1 + slot) * ANSWER_BYTES
        turn = (self._words[base // _WORD_BYTES] >> 2) + 1
        at = base + _ANSWER_HALVES[turn & 1]
        self._map[at : at + _ANSWER.size] = body
        self._words[(at + _ANSWER.size) // _WORD_BYTES] = crc32(body, turn)
        self._words[base // _WORD_BYTES] = turn << 2 | verdict
        self._last[slot] = (lap, verdict)


class ReplyReader:
    """The worker's eye on the keeper's answers. What cannot be read was not said: then leases count as running out."""

    def __init__(self, fd: int, slots: int) -> None:
        self._pages = _open_pages(fd, (1 + slots) * ANSWER_BYTES)

    def beat_ns(self) -> int:
        """When the keeper last lived; 0 if it never did."""
        try:
            return self._pages.word(0)
        except struct.error:
            return 0

    def answer(self, slot: int, lap: int) -> Answer | None:
        """Find the last answer to this lap; None if there is none yet, or only one to another lap."""
        found = _read_published(self._pages, (1 + slot) * ANSWER_BYTES, _ANSWER_HALVES, _ANSWER)
        if found is None or found is UNREADABLE:
            return None
        _, verdict, half = found
        answered_lap, sent_ns = _ANSWER.unpack_from(half)
        return Answer(Verdict(verdict), sent_ns) if answered_lap == lap else None


def _read_published(
    pages: _Pages, base: int, halves: tuple[int, int], body: struct.Struct
) -> tuple[int, int, bytes] | Literal[Unreadable.UNREADABLE] | None:
    """Copy the lap, the state and the half that one word publishes, all of one moment."""
    size = body.size
    for _ in range(READ_TRIES):
        try:
            before = pages.word(base)
            if not before & _STATE_MASK:
                return None
            lap = before >> 2
            half = pages.copy(base + halves[lap & 1], size + _WORD_BYTES)
            after = pages.word(base)
            if after >> 2 == lap and _WORD.unpack_from(half, size)[0] == crc32(half[:size], lap):
                # The state is the later word's: it may have moved on, even to empty, while the half was copied.
                return (lap, after & _STATE_MASK, half) if after & _STATE_MASK else None
        except struct.error:  # cut short: somebody shrank the file
            return UNREADABLE
    return UNREADABLE


class _Pages(Protocol):
    """Shared memory as a reader sees it. Bytes that are not there are a `struct.error`."""

    def word(self, at: int) -> int: ...
    def copy(self, at: int, size: int) -> bytes: ...


class _MappedPages:
    def __init__(self, fd: int, size: int) -> None:
        self._map = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        self._words = memoryview(self._map).cast("Q")

    def word(self, at: int) -> int:
        return self._words[at // _WORD_BYTES]

    def copy(self, at: int, size: int) -> bytes:
        return self._map[at : at + size]


class _FilePages:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def word(self, at: int) -> int:
        word: int = _WORD.unpack(os.pread(self._fd, _WORD_BYTES, at))[0]
        return word

    def copy(self, at: int, size: int) -> bytes:
        return os.pread(self._fd, size, at)


def _open_pages(fd: int, size: int) -> _Pages:
    """Map the memory where the kernel promises that it cannot shrink; else read it like a file."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # EINVAL: no memfd, hence no seals
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                return _MappedPages(fd, size)
    return _FilePages(fd)


def _shared_memory(name: str, size: int, *, sealed: bool) -> int:
    if sys.platform == "linux" and sealed:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return fd
    with tempfile.TemporaryFile(prefix=name) as file:
        file.truncate(size)
        return os.dup(file.fileno())


def _close_to_later_writers(fd: int) -> None:
    """Seal what the one writer has mapped, so that user code in the worker cannot forge a verdict."""
    if sys.platform == "linux":
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file has no seals, and a kernel before 5.1 not this one
                raise
