"""Both stores under one clock: every test that asks for `store` runs on memory and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from leasehold.store.contract import Store
from leasehold.store.memory import MemoryStore
from tests.databases import DatabaseClock, Databases, HeldClock
from tests.store.conformance.scenes import always_sweeping


@pytest.fixture(scope="session")
def conformance_clock(databases: Databases) -> Iterator[DatabaseClock]:
    """The clock of one database for all tests of the contract, which is emptied between them."""
    with databases.fresh() as dsn:
        clock = DatabaseClock(dsn)
        yield clock
        clock.close()


@pytest.fixture
def database_clock(conformance_clock: DatabaseClock) -> DatabaseClock:
    """The same, with the database emptied."""
    conformance_clock.rewind()
    return conformance_clock


@pytest.fixture(params=["memory", "postgres"])
def clock(request: pytest.FixtureRequest) -> HeldClock:
    held: HeldClock = HeldClock() if request.param == "memory" else request.getfixturevalue("database_clock")
    return held


@pytest.fixture
async def store(clock: HeldClock) -> AsyncIterator[Store]:
    made: Store = always_sweeping(clock.dsn) if isinstance(clock, DatabaseClock) else MemoryStore(clock)
    yield made
    await made.close()
