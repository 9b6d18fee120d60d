"""Scenes of a worker's death, played by a supervisor of their own: a child subreaper, which the tests' process is not.

`python tree_scenes.py <scene> <what>` plays one and writes what it saw as JSON; the judging is the tests'.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence

from leasehold.processes import tree

PATIENCE_S = 20.0
started: list[int] = []  # cleared away at the end of a scene, also where the sweep under test has failed
SLEEPER = "sh -c 'echo $$; exec sleep 300'"
OWN_GROUP = f"""{sys.executable} -S -c 'import os; os.setpgid(0, 0); os.write(1, b"%d\\n" % os.getpid())
os.execvp("sleep", ["sleep", "300"])'"""

# What a handler may start, and by what alone it can still be found once the worker is dead.
ESCAPES = {
    "child": f"{SLEEPER} &",
    "own_group": f"{OWN_GROUP} &",
    "own_group_without_mark": f"env -u {tree.MARK} {OWN_GROUP} &",
    "own_session": f"setsid {SLEEPER} &",
    "double_fork": f"(setsid {SLEEPER} &)",
    "double_fork_without_mark": f"(env -i {SLEEPER} &)",
    "own_session_without_mark": f"setsid env -i {SLEEPER} &",
    "double_fork_own_session_without_mark": f"(setsid env -i {SLEEPER} &)",
    "family_without_mark": """setsid env -i sh -c 'for _ in 1 2; do sh -c "echo \\$\\$; exec sleep 300" & done
wait' &""",
    "stopped": "sh -c 'echo $$; kill -STOP $$; exec sleep 300' &",
}


def until(truth: Callable[[], object], what: str) -> None:
    """Wait for a condition, or say which one did not come."""
    end = time.monotonic() + PATIENCE_S
    while not truth():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.001)


def lives(pid: int) -> bool:
    process = tree._process(pid)
    return process is not None and process.lives


def start(shell: str, *, tells: int, mark: str | None, own_session: bool = True) -> tuple[int, list[int]]:
    """Start a shell that goes on forever, as a worker if it has a mark; return its pid and those that it told."""
    environment = {name: value for name, value in os.environ.items() if name != tree.MARK}
    if mark:
        environment[tree.MARK] = mark
    read, write = os.pipe()
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"{shell}\nexec sleep 300"],
        stdout=write,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=own_session,
    )
    started.append(process.pid)
    process.returncode = 0  # its status is not Popen's to take
    os.close(write)
    told: list[int] = []
    with os.fdopen(read) as lines:
        while len(told) < tells:
            told.append(int(lines.readline()))
            started.append(told[-1])
    return process.pid, told


class House:
    """A supervisor with three that must survive whatever happens to the worker under test, each for its own reason."""

    def __init__(self) -> None:
        tree.become_subreaper()
        neighbour, neighbours = start(
            f"{ESCAPES['double_fork']}\n{ESCAPES['double_fork_without_mark']}", tells=2, mark=str(uuid.uuid4())
        )
        server, servants = start(ESCAPES["child"], tells=1, mark=None)
        relative, _ = start("", tells=0, mark=None, own_session=False)
        self.known = {neighbour, server}
        self.bystanders = [neighbour, *neighbours, server, *servants, relative]

    def harmed(self) -> list[int]:
        return [pid for pid in self.bystanders if not lives(pid)]


def death(escapes: Sequence[str]) -> dict[str, object]:
    """A worker is killed by SIGKILL and leaves behind what its handler had started."""
    house = House()
    mark = str(uuid.uuid4())
    worker, left_behind = start(
        "\n".join(ESCAPES[escape] for escape in escapes),
        tells=sum(2 if escape == "family_without_mark" else 1 for escape in escapes),
        mark=mark,
    )
    if "stopped" in escapes:
        until(lambda: any(map(tree.stopped, left_behind)), "it stops itself")
    known = house.known | {worker}
    os.kill(worker, signal.SIGKILL)
    until(lambda: tree.peek_dead(known), "the worker's death")
    began = time.perf_counter()
    killed = tree.kill_tree(worker, mark, known=known)
    took_s = time.perf_counter() - began
    return {
        "survivors": [pid for pid in left_behind if lives(pid)],
        "missing": sorted(set(left_behind) - set(killed.pids)),
        "harmed": house.harmed(),
        "left": list(killed.left),
        "peeked": [(death.pid == worker, death.signal) for death in tree.peek_dead(known)],
        "ms": round(1000 * took_s, 1),
        "rounds": killed.rounds,
        "idle_sweep": tree.kill_tree(worker, mark, known=known).pids,
        "reaped": tree.reap(worker),
    }


def unsupervised(_: Sequence[str]) -> dict[str, object]:
    """The same sweep by a process that adopts nobody: children that it started itself are no orphans."""
    server, _told = start("", tells=0, mark=None)
    mark = str(uuid.uuid4())
    worker, children = start(ESCAPES["child"], tells=1, mark=mark)
    killed = tree.kill_tree(worker, mark)
    return {
        "adopts": tree.adopts_orphans(),
        "tree_gone": not any(map(lives, children)),
        "server": lives(server),
        "killed_the_worker": worker in killed.pids,
    }


def orphans(_: Sequence[str]) -> dict[str, object]:
    """Two workers are dead and not reaped; behind them die the orphans of a third, which lives."""
    tree.become_subreaper()
    dead = {start("", tells=0, mark="one")[0], start("", tells=0, mark="two")[0]}
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(tree.peek_dead(dead)) == 2, "both deaths")
    living, children = start(f"{ESCAPES['double_fork']}\n{ESCAPES['double_fork']}", tells=2, mark="three")
    known = dead | {living}
    until(lambda: all(parent(pid) == os.getpid() for pid in children), "the orphans come to us")
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(lives, children)), "the orphans' death")
    seen: dict[str, object] = {"reaped_all_orphans": sorted(tree.reap_adopted(known)) == sorted(children)}
    seen["workers_still_seen_dead"] = sorted(death.pid for death in tree.peek_dead(known)) == sorted(dead)
    seen["reaped_again"] = tree.reap_adopted(known)
    for pid in dead:
        seen["reaped_workers"] = tree.reap(pid)
    # Without a dead worker in front, orphans are found without a look at every process there is.
    orphan = start_orphan()
    os.kill(orphan, signal.SIGKILL)
    until(lambda: not lives(orphan), "the last orphan's death")
    seen["reaped_last"] = tree.reap_adopted({living}) == [orphan]
    return seen


def start_orphan() -> int:
    middle, (orphan,) = start(f"{ESCAPES['own_session']} \nexit 0", tells=1, mark=None)
    until(lambda: tree.peek_dead({middle}), "the orphan's parent to end")
    tree.reap(middle)
    return orphan


def parent(pid: int) -> int | None:
    process = tree._process(pid)
    return process.parent if process else None


SCENES: dict[str, Callable[[Sequence[str]], dict[str, object]]] = {
    "death": death,
    "unsupervised": unsupervised,
    "orphans": orphans,
}

if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(SCENES[sys.argv[1]](sys.argv[2:])))
    finally:
        for pid in filter(lives, started):
            os.kill(pid, signal.SIGKILL)
