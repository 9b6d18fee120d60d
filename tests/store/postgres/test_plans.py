"""The plans hold: whatever the statistics say, no hot statement walks a table, and a heartbeat stays HOT."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from leasehold.store.postgres.statements import statement
from tests.store.postgres.sessions import Session

MANY = 20_000
BATCH = 100  # with fewer, even a plan that may walk does not
TOKEN = uuid4()


@pytest.fixture
async def session(dsn: str) -> AsyncIterator[Session]:
    connection = await asyncpg.connect(dsn, server_settings={"jit": "off"})
    await connection.execute("alter table leasehold.lease set (autovacuum_enabled = off)")
    await connection.execute("alter table leasehold.ready set (autovacuum_enabled = off)")
    yield connection
    await connection.close()


async def fill(session: Session) -> None:
    """20,000 jobs in flight and 20,000 that wait."""
    await session.execute(
        "insert into leasehold.job (queue, task, created_at, run_at, payload)"
        " select 'default', 'clip', now(), now(), '{}' from generate_series(1, $1::integer)",
        2 * MANY,
    )
    await session.execute(
        "insert into leasehold.lease (job_id, queue, token, attempt, epoch, losses, worker, lease_s, started_at,"
        " last_heartbeat_at, lease_expires_at)"
        " select id, queue, $2, 1, 1, 0, 'w', 30, now(), now(), now() + interval '30 s' from leasehold.job"
        " where id <= $1",
        MANY,
        TOKEN,
    )
    await session.execute(
        "insert into leasehold.ready (queue, rank, seq, job_id, task)"
        " select queue, 0, id, id, task from leasehold.job where id > $1",
        MANY,
    )


def batch() -> tuple[list[int], list[UUID]]:
    return list(range(1, BATCH + 1)), [TOKEN] * BATCH


CLAIM: tuple[Any, ...] = (["default"], [0], [0], [BATCH], BATCH, "w", uuid4(), ["clip"])
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "claim": CLAIM,
    "extend": batch(),
    "settle": (*batch(), "{" + ",".join(f'"{n}":{{"state":"done","by":"worker"}}' for n in batch()[0]) + "}"),
    "settle_and_claim": (*CLAIM, *batch(), "{}"),
    "settled": batch(),
    "progress": (1, TOKEN, 50, None),
    "lanes": (),
}


@pytest.mark.parametrize("statistics", ["never taken", "taken when empty", "taken when full"])
async def test_no_hot_statement_walks_the_leases_or_the_waiting(session: Session, statistics: str) -> None:
    if statistics == "taken when empty":
        await session.execute("analyze")
    await fill(session)
    if statistics == "taken when full":
        await session.execute("vacuum analyze")
    for mode in ("force_custom_plan", "force_generic_plan"):
        await session.execute(f"set plan_cache_mode = {mode}")
        for name, arguments in ARGUMENTS.items():
            plan = await explained(session, name, arguments)
            walked = [line for line in plan if re.search(r"Seq Scan on (leasehold\.)?(lease|ready)\b", line)]
            assert not walked, f"{name} ({mode})\n" + "\n".join(plan)


async def explained(session: Session, name: str, arguments: tuple[Any, ...]) -> list[str]:
    """The plan as it is made for a prepared statement, which is how it is run."""
    kinds = [kind.name for kind in (await session.prepare(statement(name))).get_parameters()]
    await session.execute(f"prepare plan {listed(kinds)} as {statement(name)}")
    values = [
        await session.fetchval(f"select quote_nullable($1::{kind}::text)", value)
        for kind, value in zip(kinds, arguments, strict=True)
    ]
    rows = await session.fetch(f"explain (verbose) execute plan {listed(values)}")
    await session.execute("deallocate plan")
    return [str(row[0]) for row in rows]


@pytest.mark.parametrize("name", ["settle", "settle_and_claim"])
async def test_what_a_batch_carries_is_read_once_and_not_once_per_job(session: Session, name: str) -> None:
    await session.execute("set plan_cache_mode = force_generic_plan")
    plan = await explained(session, name, ARGUMENTS[name])
    assert any("::jsonb" in line for line in plan)
    assert not [line for line in plan if "::jsonb ->" in line]


def listed(words: list[str]) -> str:
    return f"({', '.join(words)})" if words else ""


async def test_a_heartbeat_is_hot(session: Session) -> None:
    await fill(session)
    # One lease of each of a hundred pages: half a page is free by its fillfactor and takes five beats without clean-up.
    far_apart = list(range(1, MANY, MANY // BATCH))
    for _ in range(5):
        await session.fetch(statement("extend"), far_apart, [TOKEN] * BATCH)
    await session.execute("select pg_stat_force_next_flush()")
    (row,) = await session.fetch(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'leasehold.lease'::regclass"
    )
    assert (row["n_tup_upd"], row["n_tup_hot_upd"]) == (5 * BATCH, 5 * BATCH)
