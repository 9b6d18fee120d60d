"""What stands in the tables: for operators with psql, and for what must outlive its day."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from leasehold.core.errors import StoreError
from leasehold.core.outcome import Aborted, Done, Failed
from leasehold.store.postgres.store import PostgresStore
from tests.databases import DatabaseClock, Databases
from tests.store.conformance.scenes import again, always_sweeping, fate, ids, look_at, new, running
from tests.store.postgres.sessions import Session

FATAL = Failed("INPUT_TOO_LARGE", "5 GiB", retryable=False, error={"bytes": 5})


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    made = always_sweeping(dsn)
    yield made
    await made.close()


@pytest.fixture
async def psql(dsn: str) -> AsyncIterator[Session]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def row(psql: Session, query: str) -> dict[str, Any]:
    (only,) = await psql.fetch(query)
    return dict(only)


async def test_a_dead_letter_holds_all_that_was_asked_for(
    held_clock: DatabaseClock, store: PostgresStore, psql: Session
) -> None:
    wishes: dict[str, Any] = {"queue": "media", "priority": 3, "max_attempts": 4, "lease_s": 20.0, "timeout_s": 60.0}
    lease = await running(store, payload='{"file": "a.mp4"}', **wishes)
    created_at = held_clock.now
    asked = await row(psql, "select birth from leasehold.job")
    held_clock.step(5)
    await store.settle([fate(lease, FATAL)])
    dead = await row(psql, "select * from leasehold.dead")
    assert json.loads(dead.pop("payload")) == {"file": "a.mp4"}
    assert json.loads(dead.pop("error")) == {"code": "INPUT_TOO_LARGE", "reason": "5 GiB", "bytes": 5}
    assert dead == {
        "job_id": lease.job_id,
        "task": "clip",
        **wishes,
        **asked,
        "created_at": created_at,
        "attempts": 1,
        "epoch": 1,
        "failed_at": held_clock.now,
        "fail_code": "INPUT_TOO_LARGE",
        "fail_reason": "5 GiB",
    }


async def test_a_job_that_succeeded_is_no_dead_letter(store: PostgresStore, psql: Session) -> None:
    await store.settle([fate(await running(store), Done())])
    assert await psql.fetchval("select count(1) from leasehold.dead") == 0


async def test_a_settle_never_fails_for_want_of_a_day(held_clock: DatabaseClock, store: PostgresStore) -> None:
    held_clock.step(10 * 366 * 86400)  # no partition was made for this day
    lease = await running(store)
    await store.settle([fate(lease, Aborted())])
    await store.settle([fate(await again(store), Done())])
    assert (await look_at(store, lease.job_id)).finished_at == held_clock.now


async def test_a_job_whose_request_is_gone_is_dropped_and_blocks_nothing(store: PostgresStore, psql: Session) -> None:
    gone = await running(store)
    waits, other = await store.enqueue([new(), new()])
    await psql.execute("delete from leasehold.job where id = any($1)", [gone.job_id, waits])
    await store.settle([fate(gone, Done())])
    assert await ids(store, 10) == [other]
    assert await store.get(gone.job_id) is None
    assert await psql.fetchval("select count(1) from leasehold.lease") == 1


@pytest.mark.parametrize(
    "wrong",
    [{"queue": ""}, {"task": ""}, {"payload": '{"nul": "\\u0000"}'}, {"timeout_s": 0.0}],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_the_schema_refuses_what_could_not_work(store: PostgresStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        await store.enqueue([new(**{"task": "clip", **wrong})])
    with pytest.raises(StoreError):
        await store.enqueue([new(), new(**{"task": "clip", **wrong})])
    assert await store.find() == []


async def test_sql_alone_enqueues_a_job_that_a_worker_takes(store: PostgresStore, psql: Session) -> None:
    job_id = await psql.fetchval("select leasehold.enqueue('clip', '{\"a\": 1}', priority => 2)")
    lease = await again(store)
    assert (lease.job_id, json.loads(lease.payload), lease.priority, lease.max_attempts) == (job_id, {"a": 1}, 2, 3)


async def test_a_job_of_a_transaction_that_is_rolled_back_never_was(store: PostgresStore, psql: Session) -> None:
    await psql.execute("begin; select leasehold.enqueue('clip'); rollback")
    assert await store.find() == []


async def test_a_clock_is_held_in_its_own_database_only(databases: Databases, held_clock: DatabaseClock) -> None:
    with databases.fresh() as other:
        psql = await asyncpg.connect(other)
        try:
            held_clock.step(-1000)
            assert await psql.fetchval("select leasehold.now() - clock_timestamp() < interval '1 minute'")
        finally:
            await psql.close()
