"""What a statement file must say and may not say: its head, the fence, whole rows, the clock, forms that keep a plan.

Each rule takes a file's text and returns what is wrong with it, so that it can be shown a planted fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

WRITES = re.compile(
    r"(?<!for )(?<!do )(?<!key )\b(?P<verb>update|delete from|insert into|merge into)"
    r"(?: only)? (?:leasehold\.)?(?P<table>\w+)"
)
MARK = re.compile(r"-- (reaper|supervisor|operator)[ \t]*$", re.MULTILINE)
PAIR = re.compile(r"\((?=\((?:\w+\.)?job_id ?, ?(?:\w+\.)?token\) in \(select )")
EXPIRED = re.compile(r"lease_expires_at <=? \(select leasehold\.now\(\)\)")

OTHER_CLOCKS = re.compile(
    r"(?<![\w.])now\(|\b(?:clock|statement|transaction)_timestamp\(|\btimeofday\("
    r"|\b(?:current_(?:timestamp|date|time)|localtime(?:stamp)?)\b"
)
BARE_CLOCK = re.compile(
    r"(?<!\(select )(?<!function )(?<!default )leasehold\.now\(\)|(?<=\(select )leasehold\.now\(\)(?!\))"
)
CLOCK_DEFINITION = re.compile(r"create (?:or replace )?function leasehold\.now\(\).*?\$(\w*)\$.*?\$\1\$")


@dataclass(frozen=True)
class Write:
    """One insert, update or delete of a statement, with the text up to the end of its parenthesis."""

    verb: str
    table: str
    text: str


def faults_of_a_head(text: str) -> list[str]:
    """A file says what it does, what goes in and what comes out, and holds one statement."""
    head = [line for line in text.split("\n") if line.startswith("--")]
    starts = [line.removeprefix("-- ").split(" ")[0] for line in head]
    faults = []
    if not re.match(r"-- (?!in:|out:)\S", text):
        faults.append("the first line is not `-- <what it does>`")
    if "in:" not in starts or "out:" not in starts[starts.index("in:") :]:
        faults.append("there is no `-- in:` line with an `-- out:` line after it")
    if ";" in plain(text).rstrip("; "):
        faults.append("it holds more than one statement")
    return faults


def faults_of_a_fence(text: str) -> list[str]:
    """Whoever changes or ends a lease shows the token, or says that it is the reaper, the supervisor, the operator."""
    marks = set(MARK.findall(text))
    expired = EXPIRED.search(plain(text)) is not None
    faults = []
    if "reaper" in marks and not expired:
        faults.append("it says `-- reaper`, but does not ask whether the lease has run out")
    for write in writes(text):
        changes = write.table == "lease" and write.verb != "insert into"
        if changes and not marks and not compares_the_pair(write.text):
            faults.append(f"`{write.text[:60]} …` compares no (job_id, token) pair")
    return faults


def faults_of_a_move(text: str) -> list[str]:
    """A row of `ready` or `scheduled` is written and removed, never changed: a reader sees all of it or nothing."""
    return [
        f"`{write.text[:60]} …` changes a row of {write.table}"
        for write in writes(text)
        if write.table in {"ready", "scheduled"}
        and (write.verb in {"update", "merge into"} or "do update" in write.text)
    ]


def faults_of_a_clock(text: str) -> list[str]:
    """The time is `(select leasehold.now())`: asked once per statement, held by tests, the same for everybody."""
    rest = CLOCK_DEFINITION.sub("", plain(text))
    return [
        f"another clock, or the clock asked per row: `…{rest[max(0, found.start() - 20) : found.end() + 20]}…`"
        for pattern in (OTHER_CLOCKS, BARE_CLOCK)
        for found in pattern.finditer(rest)
    ]


def faults_of_a_form(text: str) -> list[str]:
    """Forms that the planner can flip, or that break when a table gets a column."""
    rest = plain(text)
    faults = []
    if re.search(r"= ?any ?\( ?\$", rest):
        faults.append("`= any($1)` lets stale statistics choose a scan: write `= any((select $1::bigint[])::bigint[])`")
    stars = re.sub(r"\( ?select \* from unnest\(", "(", rest)
    if re.search(r"\b(?:select|distinct|returning|all) \*|[a-z_]\w*\.\*|, ?\* ?(?:,|from\b|\)|$)", stars):
        faults.append("`*`: name the columns (only `(select * from unnest(…))` may)")
    return faults


def plain(text: str) -> str:
    """The statement in lower case on one line, without comments and literals."""
    without_comments = re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    without_literals = re.sub(r"'(?:[^']|'')*'", "''", without_comments).replace('"', "")
    return " ".join(without_literals.lower().split()).replace("( ", "(").replace(" )", ")")


def writes(text: str) -> Iterator[Write]:
    """Every write of a statement, also those inside a `with`."""
    statement = plain(text)
    for found in WRITES.finditer(statement):
        yield Write(found["verb"], found["table"], enclosed(statement[found.start() :]))


def enclosed(text: str) -> str:
    """The text up to the parenthesis that closes what it stands in, or to its end."""
    depth = 0
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0 or (character == ";" and depth == 0):
            return text[:at]
    return text


def compares_the_pair(write: str) -> bool:
    """`((job_id, token) in (select …)) is true`: the pair, and a NULL in it is a no."""
    return any(
        write[pair.end() + len(enclosed(write[pair.end() :])) :].startswith(") is true")
        for pair in PAIR.finditer(write)
    )
