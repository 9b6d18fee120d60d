"""The schema's versions: laid once, whoever comes at once; refused in one line where code and schema do not fit."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from leasehold.core.errors import SchemaError
from leasehold.store.postgres.migrate import check, migrate, migrations, newest, version
from leasehold.store.postgres.store import PostgresStore
from tests.store.conformance.scenes import always_sweeping, ask, new


async def set_version(dsn: str, number: int) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("insert into leasehold.migration values ($1, 'of later code', now())", number)
    await connection.close()


async def test_an_empty_database_is_refused_and_the_remedy_named(empty_dsn: str) -> None:
    assert await version(empty_dsn) == 0
    with pytest.raises(SchemaError, match="leasehold migrate"):
        await check(empty_dsn)


async def test_no_operation_works_on_an_empty_database_and_each_says_why(empty_dsn: str) -> None:
    store: PostgresStore = always_sweeping(empty_dsn)
    for call in (store.enqueue([new()]), store.claim(ask(1)), store.look(), store.find()):
        with pytest.raises(SchemaError, match="leasehold migrate"):
            await call
    await store.close()


async def test_a_database_is_migrated_to_the_newest_schema(empty_dsn: str) -> None:
    assert await migrate(empty_dsn) == list(migrations())
    assert await check(empty_dsn) == newest() == len(migrations())


async def test_migrating_again_takes_no_step_and_loses_nothing(dsn: str) -> None:
    store = always_sweeping(dsn)
    job_ids = await store.enqueue([new(), new()])
    assert await migrate(dsn) == []
    assert [lease.job_id for lease in await store.claim(ask(2))] == job_ids
    await store.close()


async def test_eight_who_migrate_at_once_take_each_step_once(empty_dsn: str) -> None:
    taken = await asyncio.gather(*(migrate(empty_dsn) for _ in range(8)))
    assert sorted(step.version for steps in taken for step in steps) == [step.version for step in migrations()]
    assert await check(empty_dsn) == newest()


async def test_the_next_schema_is_served_so_that_it_can_be_laid_under_running_workers(dsn: str) -> None:
    await set_version(dsn, newest() + 1)
    assert await check(dsn) == newest() + 1


async def test_a_schema_that_is_too_new_is_refused(dsn: str) -> None:
    await set_version(dsn, newest() + 2)
    with pytest.raises(SchemaError, match=str(newest() + 2)):
        await check(dsn)


async def test_a_migration_that_breaks_leaves_nothing_behind(empty_dsn: str) -> None:
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute("create schema leasehold; create table leasehold.job_event (theirs integer)")
    with pytest.raises(Exception, match="job_event"):
        await migrate(empty_dsn)
    tables = await connection.fetch("select tablename from pg_tables where schemaname = 'leasehold'")
    await connection.close()
    assert [table["tablename"] for table in tables] == ["job_event"]
