"""The door: no call waits for a server that does not answer, and what goes wrong comes out as an error of ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from leasehold.core.decide import Settlement
from leasehold.core.errors import StoreError, StoreUnreachableError
from leasehold.core.job import Lease
from leasehold.core.outcome import Done, Outcome
from leasehold.store.contract import Answer, Store
from leasehold.store.postgres.door import Door, DoorSettings
from leasehold.store.postgres.store import PostgresStore
from tests.store.conformance.scenes import ask, fate, hold, new, running
from tests.store.postgres.proxies import Proxy

IMPATIENT = DoorSettings(call_s=0.4, connect_s=0.3)
IN_TIME_S = 3.0  # a call that hangs would wait for the kernel: minutes


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    async with Proxy(dsn).serving() as serving:
        yield serving


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(proxy.dsn, clock=time.monotonic, settings=IMPATIENT)
    yield made
    await made.close()


@pytest.fixture
async def door(dsn: str) -> AsyncIterator[Door]:
    made = Door(dsn)
    yield made
    await made.close()


CALLS: dict[str, Callable[[Store, Lease], Awaitable[object]]] = {
    "enqueue": lambda store, _: store.enqueue([new()]),
    "claim": lambda store, _: store.claim(ask(1)),
    "extend": lambda store, lease: store.extend([hold(lease)]),
    "settle": lambda store, lease: store.settle([fate(lease, Done())]),
    "settle_and_claim": lambda store, lease: store.settle_and_claim([fate(lease, Done())], ask(1)),
    "reap": lambda store, _: store.reap(10, fate),
    "bury": lambda store, _: store.bury("w1", {}, fate),
    "promote": lambda store, _: store.promote(10),
    "progress": lambda store, lease: store.progress(hold(lease), 10, None),
    "look": lambda store, _: store.look(),
    "get": lambda store, lease: store.get(lease.job_id),
    "timeline": lambda store, lease: store.timeline(lease.job_id),
    "counts": lambda store, _: store.counts(),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_to_a_silent_server_comes_back_in_time_and_the_next_one_works(
    proxy: Proxy, store: PostgresStore, name: str
) -> None:
    lease = await running(store)
    await store.enqueue([new()])
    proxy.answering.clear()
    started = time.monotonic()
    with pytest.raises(StoreUnreachableError):
        await asyncio.wait_for(CALLS[name](store, lease), IN_TIME_S)
    assert time.monotonic() - started < IN_TIME_S
    proxy.answering.set()
    await CALLS[name](store, lease)
    assert await store.get(lease.job_id)


@pytest.mark.parametrize("name", ["reap", "bury"])
async def test_a_server_that_falls_silent_in_the_middle_of_a_transaction_holds_nobody_up(
    dsn: str, proxy: Proxy, store: PostgresStore, name: str
) -> None:
    lease = await running(store, lease_s=0.001)

    def falls_silent(expired: Lease, outcome: Outcome) -> Settlement:
        proxy.answering.clear()
        return fate(expired, outcome)

    started = time.monotonic()
    with pytest.raises(StoreUnreachableError):
        await asyncio.wait_for(
            store.reap(1, falls_silent) if name == "reap" else store.bury("w1", {}, falls_silent), IN_TIME_S
        )
    assert time.monotonic() - started < IN_TIME_S
    proxy.answering.set()
    await until_nobody_is_in_a_transaction(dsn)
    assert [left.job_id for left, _ in await store.reap(1, fate)] == [lease.job_id]


async def until_nobody_is_in_a_transaction(dsn: str) -> None:
    """The server hears of the burnt socket and rolls back: then the table can be locked."""
    psql = await asyncpg.connect(dsn)
    await psql.execute(f"begin; set local lock_timeout = '{IN_TIME_S}s'; lock table leasehold.lease; commit")
    await psql.close()


async def test_a_server_that_is_silent_from_the_start_is_unreachable(proxy: Proxy, store: PostgresStore) -> None:
    proxy.answering.clear()
    with pytest.raises(StoreUnreachableError):
        await asyncio.wait_for(store.look(), IN_TIME_S)
    proxy.answering.set()
    await store.look()


async def test_a_settle_whose_reply_was_lost_is_answered_already_when_it_is_repeated(
    dsn: str, proxy: Proxy, store: PostgresStore
) -> None:
    lease = await running(store)
    done = fate(lease, Done())
    patient = PostgresStore(dsn, clock=time.monotonic)
    assert await patient.settle([done]) == (Answer.APPLIED,)  # as if through the connection that then fell silent
    await patient.close()
    proxy.answering.clear()
    with pytest.raises(StoreUnreachableError):
        await store.settle([done])
    proxy.answering.set()
    assert await store.settle([done]) == (Answer.ALREADY,)


async def test_nobody_there_is_unreachable() -> None:
    store = PostgresStore("postgresql://nobody@127.0.0.1:1/none", clock=time.monotonic, settings=IMPATIENT)
    with pytest.raises(StoreUnreachableError):
        await store.look()
    await store.close()


async def test_a_session_that_the_server_ended_is_opened_anew(dsn: str) -> None:
    store = PostgresStore(dsn, clock=time.monotonic)
    await store.look()
    psql = await asyncpg.connect(dsn)
    await psql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'leasehold' and datname = current_database()"
    )
    await psql.close()
    with contextlib.suppress(StoreUnreachableError):  # the first look meets the dead session, if the news was slower
        await store.look()
    await store.look()
    await store.close()


async def test_a_statement_that_fails_leaves_the_session_usable(door: Door) -> None:
    with pytest.raises(StoreError) as told:
        await door.rows("enqueue", "clip", "{torn", "default", 0, 0.0, 3, 30.0, None)
    assert not isinstance(told.value, StoreUnreachableError)
    assert "sqlstate='22P02'" in str(told.value)
    assert await door.rows("look")


async def test_what_cannot_be_sent_is_no_fault_of_the_server(dsn: str) -> None:
    store = PostgresStore(dsn, clock=time.monotonic)
    for unsendable in (new(payload='"\ud800"'), new(priority=1, max_attempts=10**6)):
        for jobs in ([unsendable], [unsendable, new()]):
            with pytest.raises(StoreError) as told:
                await store.enqueue(jobs)
            assert not isinstance(told.value, StoreUnreachableError)
    await store.enqueue([new()])
    await store.close()


async def test_what_broke_inside_a_transaction_wrote_nothing(door: Door) -> None:
    async def breaks() -> None:
        async with door.transaction() as transaction:
            await transaction.rows("enqueue", "clip", "{}", "default", 0, 0.0, 3, 30.0, None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await breaks()
    assert await door.rows("find", None, None, 10) == []


async def test_who_is_cancelled_leaves_no_transaction_behind(door: Door) -> None:
    began = asyncio.Event()

    async def wait_inside() -> None:
        async with door.transaction() as transaction:
            await transaction.rows("enqueue", "clip", "{}", "default", 0, 0.0, 3, 30.0, None)
            began.set()
            await transaction.value("select pg_sleep(60)")

    task = asyncio.create_task(wait_inside())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, IN_TIME_S)
    assert await door.rows("find", None, None, 10) == []


async def test_our_sessions_give_up_by_themselves(dsn: str) -> None:
    door = Door(dsn, DoorSettings(application_name="leasehold keeper", statement_s=7.0))
    async with door.transaction() as transaction:
        settings = [
            await transaction.value("select current_setting($1)", name)
            for name in ("application_name", "statement_timeout", "idle_in_transaction_session_timeout", "jit")
        ]
    assert settings == ["leasehold keeper", "7s", "10s", "off"]
    await door.close()
