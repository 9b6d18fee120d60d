"""A worker's process tree: how its death is seen, and how everything it started is found and killed.

The order is the caller's: peek at the dead worker, kill its tree, read its slots, settle, and only then reap it. While
the zombie stays, its pid, which is also the number of its session, belongs to nobody else. Who is a worker, what its
jobs are charged, and when the next one starts is left to others.

A process can leave its parent, its group and its session, and drop its environment. So it is looked for by all of them:
the worker's session, the mark in its environment, the groups that handlers recorded, and, because the supervisor is a
child subreaper, among the orphans it was given that carry no mark of any worker. Linux only; elsewhere the worker's
group and the recorded groups are killed, and nobody is counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.errors import LeaseholdError

MARK: Final = "LEASEHOLD_WORKER"  # in the environment of every worker; its value is the worker's uuid
KILL_CAP_S: Final = 2.0

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
_QUIET_LOOKS: Final = 2
_PAUSE_MIN_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Death:
    """How a child ended: by a signal or with an exit code. Neither, if somebody else took its status."""

    pid: int
    signal: int | None
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Killed:
    """What a sweep did: whom it killed, in how many rounds, and who is left (stuck in the kernel, another user's)."""

    pids: tuple[int, ...]
    rounds: int
    left: tuple[int, ...]


class NotAWorkerError(LeaseholdError):
    """The process whose tree was to be killed cannot be a worker, so nothing was killed."""

    remedy = "Name the pid of a worker process that was started in a session of its own and is not reaped yet."


# ---- seeing deaths -------------------------------------------------------------------------------------------------


def become_subreaper() -> None:
    """Have orphans of our descendants given to this process, so that none escapes. Nothing to do outside of Linux."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def adopts_orphans() -> bool:
    """Whether orphans of our descendants come to this process."""
    if sys.platform != "linux":
        return False
    flag = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag))
    return bool(flag.value) or os.getpid() == 1


def peek_dead(known: Collection[int]) -> list[Death]:
    """Tell which of these children are dead, without reaping any: each keeps its pid until `reap`.

    Each is asked for by itself. Asked for "any child", the kernel would name the same dead one again and again, and the
    others would stay unseen behind it.
    """
    return [death for pid in sorted(known) if (death := _peek(pid))]


def reap(pid: int) -> bool:
    """Give up a dead child's pid. False if it still lives."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def reap_adopted(known: Collection[int]) -> list[int]:
    """Reap the dead orphans that were given to us. `known` is every child that this process started itself."""
    reaped: list[int] = []
    if sys.platform == "linux":
        with contextlib.suppress(ChildProcessError):  # no children at all
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if dead.si_pid in known:
                    # It hides whoever died after it, and must stay: only /proc shows the others.
                    hidden = [process.pid for process in _processes() if _is_dead_orphan(process, known)]
                    return reaped + [pid for pid in hidden if reap(pid)]
                reap(dead.si_pid)
                reaped.append(dead.si_pid)
    return reaped


def stopped(pid: int) -> bool:
    """Whether the process is stopped (SIGSTOP, a debugger): it cannot work on what it holds."""
    process = _process(pid)
    return process is not None and process.state in {"T", "t"}


# ---- killing -------------------------------------------------------------------------------------------------------


def kill_tree(  # noqa: PLR0913 - what a process is told by, and what bounds the sweep
    session_pid: int,
    mark: str,
    groups: Collection[int] = (),
    *,
    known: Collection[int] = (),
    adopted_by: int | None = None,
    cap_s: float = KILL_CAP_S,
) -> Killed:
    """Kill a worker, dead or alive, with everything it started, until two looks in a row find nobody, or the cap is up.

    `session_pid` is the worker; it must not be reaped yet. `known` is every process that is to live although it is our
    child: the other workers, and whatever else this process started, such as a database's server. Never killed are
    these, their sessions, this process and its session. `adopted_by` is the subreaper whose orphans are looked at: this
    process, if it is one. Takes milliseconds as a rule and sleeps between its looks, so it wants a thread of its own.
    """
    if session_pid <= 1 or session_pid in {os.getpid(), os.getsid(0)}:
        raise NotAWorkerError(session_pid=session_pid)
    if sys.platform != "linux":
        return _kill_groups(session_pid, groups)
    if adopted_by is None and adopts_orphans():
        adopted_by = os.getpid()
    spared = (frozenset(known) - {session_pid}) | {os.getpid(), os.getsid(0)}
    tree = Tree(session_pid, mark, frozenset(groups), adopted_by, spared)

    deadline = time.monotonic() + cap_s
    killed: set[int] = set()
    refused: set[Process] = set()
    suspected: set[Process] = set()
    rounds = quiet = 0
    pause_s = _PAUSE_MIN_S
    while True:
        ours, strays = tree.members({process.pid: process for process in _processes() if process.lives}, mark_of)
        # A stray must look like one twice: a child of ours between fork and exec has no mark of its own yet.
        doomed = (ours | (strays & suspected)) - refused
        suspected = strays
        now_killed, now_refused = _kill_all(doomed)
        killed |= now_killed
        refused |= now_refused
        rounds += bool(doomed)
        # Quiet twice: a process that forks and ends between being listed and being read hides itself and its child.
        quiet = 0 if (ours | strays) - refused else quiet + 1
        if quiet == _QUIET_LOOKS or time.monotonic() >= deadline:
            return Killed(tuple(sorted(killed)), rounds, tuple(sorted(process.pid for process in ours | strays)))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the system's process table. It is the same process if pid and start agree, whatever else changed."""

    pid: int
    started: int
    state: str = field(compare=False)
    parent: int = field(compare=False)
    group: int = field(compare=False)
    session: int = field(compare=False)
    threads: int = field(compare=False)

    @property
    def lives(self) -> bool:
        """False for a zombie; not for one whose first thread has ended while others run."""
        return self.state not in {"Z", "X"} or self.threads > 1


@dataclass(frozen=True, slots=True)
class Tree:
    """By what the processes of one worker are told from all others."""

    session: int
    mark: str
    groups: frozenset[int]
    adopter: int | None
    spared: frozenset[int]

    def members(
        self, processes: Mapping[int, Process], mark_of: Callable[[int], str | None]
    ) -> tuple[set[Process], set[Process]]:
        """Those that are surely the worker's, and the orphans that are no worker's."""
        ours, strays = set[Process](), set[Process]()
        for process in processes.values():
            if process.pid in self.spared or process.session in self.spared:
                continue
            if not process.session:  # the kernel's own threads, and who came from outside of our container
                continue
            mark = None if process.session == self.session else mark_of(process.pid)
            if process.session == self.session or mark == self.mark:
                ours.add(process)
            elif mark is not None:  # another worker's
                continue
            elif process.group in self.groups and self._descends(process, processes):
                ours.add(process)
            elif process.parent == self.adopter:
                strays.add(process)
        return ours, strays

    def _descends(self, process: Process, processes: Mapping[int, Process]) -> bool:
        """Whether it comes from the worker, or from us: the number of a recorded group may be a stranger's by now."""
        ancestor: Process | None = process
        for _ in processes:  # no line of ancestors is longer
            if ancestor is None:
                return False
            if ancestor.parent in {self.session, self.adopter}:
                return True
            ancestor = processes.get(ancestor.parent)
        return False


def mark_of(pid: int) -> str | None:
    """The worker that a process says it belongs to; None if it says nothing, or may not be asked."""
    try:
        environ = b"\0" + _read(f"/proc/{pid}/environ")
    except OSError:
        return None
    _, found, rest = environ.partition(f"\0{MARK}=".encode())
    return rest.partition(b"\0")[0].decode(errors="replace") if found else None


def _kill_all(doomed: Collection[Process]) -> tuple[set[int], set[Process]]:
    """Kill each; return the pids of those that got the signal, and those that we may not kill."""
    killed, refused = set[int](), set[Process]()
    for process in doomed:
        try:
            _kill(process)
            killed.add(process.pid)
        except ProcessLookupError:
            continue
        except PermissionError:  # it runs as another user
            refused.add(process)
    return killed, refused


def _kill(process: Process) -> None:
    """Kill this very process. Its pid may be a stranger's by now: take hold of it, look again, then send."""
    if sys.platform != "linux":
        return  # there nobody is listed, see _kill_groups
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        pidfd = None  # an old or emulated kernel: look again and send, as near to each other as one can get
    try:
        if _process(process.pid) != process:
            raise ProcessLookupError
        if pidfd is None:
            os.kill(process.pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _kill_groups(session_pid: int, groups: Collection[int]) -> Killed:
    """Kill what can be named without /proc. A recorded group must still be led by a process of the worker's session."""
    for group in {session_pid, *groups}:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or only its zombie is left
            if group == session_pid or (group > 1 and os.getsid(group) == session_pid):
                os.killpg(group, signal.SIGKILL)
    return Killed((), 1, ())


# ---- asking the system ---------------------------------------------------------------------------------------------


def _processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - a look reads hundreds of files and a dead worker's jobs wait for it
        if name.isdecimal() and (process := _process(int(name))):
            yield process


def _process(pid: int) -> Process | None:
    try:
        stat = _read(f"/proc/{pid}/stat")
    except OSError:  # gone, or no /proc
        return None
    # The name in parentheses is the process's own choice and may hold parentheses too: read on from the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        started=int(fields[19]),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        threads=int(fields[17]),
    )


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    finally:
        os.close(fd)


def _is_dead_orphan(process: Process, known: Collection[int]) -> bool:
    return process.parent == os.getpid() and not process.lives and process.pid not in known


def _peek(pid: int) -> Death | None:
    try:
        if sys.platform == "linux":
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            by_signal = ended.si_code != os.CLD_EXITED
            return Death(pid, ended.si_status if by_signal else None, None if by_signal else ended.si_status)
        # macOS: Python offers no peek there, so this reaps; its pid may be reused before the groups are killed.
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else reaped it: it is dead all the same, and its jobs must be settled
        return Death(pid, None, None)
    if not reaped:
        return None
    by_signal = os.WIFSIGNALED(status)
    return Death(pid, os.WTERMSIG(status) if by_signal else None, None if by_signal else os.WEXITSTATUS(status))


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
