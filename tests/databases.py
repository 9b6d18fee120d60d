"""Databases for tests: one private server per run, a fresh database per test, and a clock that stands until stepped.

All workers of a run share the server; a migrated template is made once, and a test's database is its clone (20 to
50 ms). `LEASEHOLD_TEST_PG_BIN` names the PostgreSQL to run, `LEASEHOLD_TEST_DSN` a server that is already there: its
user must be a superuser, and databases named `leasehold_...` come and go in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import asyncpg
import pytest

from leasehold import embedded
from leasehold.store.postgres.migrate import migrate, migrations

T = TypeVar("T")

NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOME: Final = "LEASEHOLD_TEST_HOME"
GIVEN_DSN: Final = "LEASEHOLD_TEST_DSN"
GIVEN_BIN: Final = "LEASEHOLD_TEST_PG_BIN"
ANSWER_S: Final = 30.0


# --- the server -------------------------------------------------------------------------------------------------------


class Server(Protocol):
    """A PostgreSQL on which tests may make databases."""

    def dsn(self, database: str) -> str: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GivenServer:
    """A server that somebody else runs."""

    address: str

    def dsn(self, database: str) -> str:
        return re.sub(r"^(\w+://[^/?]*)(/[^?]*)?", lambda found: f"{found[1]}/{database}", self.address)

    def close(self) -> None:
        """It goes on: it is not ours."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose the home of the server; xdist's workers inherit it."""
    if not hasattr(config, "workerinput"):
        os.environ[HOME] = str(Path(tempfile.gettempdir()) / f"leasehold-tests-{uuid.uuid4().hex[:12]}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Whoever chose the home removes it, when all workers are gone."""
    if not hasattr(config, "workerinput"):
        home = Path(os.environ.pop(HOME))
        if home.exists():
            embedded.stop(home)
            shutil.rmtree(home)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The run's server."""
    given, bin_dir = os.environ.get(GIVEN_DSN), os.environ.get(GIVEN_BIN)
    running: Server
    if given:
        running = GivenServer(given)
    else:
        running = embedded.start(Path(os.environ[HOME]), bin_dir=Path(bin_dir) if bin_dir else None)
    yield running
    running.close()


# --- databases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Databases:
    """Makes and drops databases on the run's server."""

    server: Server
    admin: Sql
    template: str

    @contextmanager
    def fresh(self, *, migrated: bool = True) -> Iterator[str]:
        """The DSN of a new database; afterwards it is dropped, whoever is still connected."""
        name = f"leasehold_test_{uuid.uuid4().hex}"
        self.admin.run(f"create database {name} template {self.template if migrated else 'template0'}")
        try:
            yield self.server.dsn(name)
        finally:
            self.admin.run(f"drop database {name} with (force)")


@pytest.fixture(scope="session")
def databases(server: Server) -> Iterator[Databases]:
    """Fresh databases for who needs more than `dsn`: another scope, or several at once."""
    admin = Sql(server.dsn("postgres"))
    try:
        yield Databases(server, admin, _template(server, admin))
    finally:
        admin.close()


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    """A fresh database with the newest schema."""
    with databases.fresh() as fresh:
        yield fresh


@pytest.fixture
def empty_dsn(databases: Databases) -> Iterator[str]:
    """A fresh database without any schema of ours."""
    with databases.fresh(migrated=False) as fresh:
        yield fresh


def _template(server: Server, admin: Sql) -> str:
    """The migrated template: named by the schema's text, made by the first worker, named so only when it is whole."""
    schema = hashlib.sha256("".join(migration.text for migration in migrations()).encode()).hexdigest()
    name = f"leasehold_template_{schema[:16]}"
    admin.run("select pg_advisory_lock(1279608915, 2)")
    if not admin.value("select count(1) from pg_database where datname = $1", name):
        admin.run(f"drop database if exists {name}_half with (force)")
        admin.run(f"create database {name}_half template template0")
        admin.wait(migrate(server.dsn(f"{name}_half")))
        admin.run(f"alter database {name}_half rename to {name}")
    admin.run("select pg_advisory_unlock(1279608915, 2)")
    return name


# --- the clock --------------------------------------------------------------------------------------------------------


class HeldClock:
    """Time that stands until it is stepped."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def step(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class DatabaseClock(HeldClock):
    """Holds the clock of one database: `leasehold.now()` reads a table there, STABLE like the original."""

    def __init__(self, dsn: str, now: datetime = NOON) -> None:
        super().__init__(now)
        self.dsn = dsn
        self._sql = Sql(dsn)
        self._sql.run("create table leasehold.held_clock (at timestamptz not null)")
        self._sql.run("insert into leasehold.held_clock values ($1)", now)
        self._sql.run(
            "create or replace function leasehold.now() returns timestamptz language sql stable parallel safe"
            " as $f$ select at from leasehold.held_clock $f$"
        )

    def step(self, seconds: float) -> None:
        super().step(seconds)
        self._sql.run("update leasehold.held_clock set at = $1", self.now)

    def close(self) -> None:
        self._sql.close()

    def rewind(self) -> None:
        """Empty the database and stand at noon again, as new: ten times cheaper than another clone."""
        tables = self._sql.value(
            "select array_agg(oid::regclass::text) from pg_class where relnamespace = 'leasehold'::regnamespace"
            " and relkind in ('r', 'p') and not relispartition and relname not in ('migration', 'held_clock')"
        )
        self._sql.run("; ".join(f"delete from {table}" for table in tables))
        self._sql.run("select setval(pg_get_serial_sequence('leasehold.job', 'id'), 1, false)")
        self.step((NOON - self.now).total_seconds())


@pytest.fixture
def held_clock(dsn: str) -> Iterator[DatabaseClock]:
    """The clock of `dsn`, held."""
    clock = DatabaseClock(dsn)
    yield clock
    clock.close()


# --- SQL without a loop of one's own ----------------------------------------------------------------------------------


class Sql:
    """One connection for fixtures and clocks, which are called inside of loops and outside: a thread runs it."""

    def __init__(self, dsn: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tests-sql", daemon=True)
        self._thread.start()
        self._connection: asyncpg.Connection[asyncpg.Record] = self.wait(asyncpg.connect(dsn))

    def run(self, query: str, *args: object) -> None:
        self.wait(self._connection.execute(query, *args))

    def value(self, query: str, *args: object) -> Any:
        return self.wait(self._connection.fetchval(query, *args))

    def close(self) -> None:
        self.wait(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)
        self._loop.close()

    def wait(self, call: Awaitable[T]) -> T:
        async def called() -> T:
            return await call

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(ANSWER_S)
