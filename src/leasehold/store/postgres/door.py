"""The door: one connection, opened when it is first needed, with a deadline on every call.

A call that does not come back in time burns its socket rather than wait: a half-open connection would hold its caller
for as long as the kernel likes. The next call opens a new one. What goes wrong leaves here as one of our own errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from leasehold.core.errors import SchemaError, StoreError, StoreUnreachableError, WrongDsnError
from leasehold.store.postgres.statements import statement

_NO_SCHEMA = ("3F000", "42P01", "42883", "42703")
_GONE = ("08", "57", "53")


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """How a connection behaves. `statement_s` is the server's own limit, `call_s` ours, a little longer."""

    application_name: str = "leasehold"
    statement_s: float = 30.0
    call_s: float = 35.0
    connect_s: float = 10.0


class Door:
    """One connection to the database, shared by turns."""

    def __init__(self, dsn: str, settings: DoorSettings | None = None) -> None:
        self._dsn = dsn
        self._settings = settings or DoorSettings()
        self._turn = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def rows(self, name: str, *args: object, call_s: float | None = None) -> list[asyncpg.Record]:
        """Run one statement by its name."""
        async with self._held(call_s) as connection:
            return await connection.fetch(statement(name), *args)

    @asynccontextmanager
    async def transaction(self, call_s: float | None = None) -> AsyncIterator[Transaction]:
        """Several statements, all or none."""
        async with self._held(call_s) as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield Transaction(connection)
            except asyncio.CancelledError:
                # Too late, or no longer wanted: `_held` burns the socket, and the server rolls back. To ask for that
                # would be one more call to a server that may not answer, and this one without a deadline.
                raise
            except BaseException:
                await transaction.rollback()
                raise
            await transaction.commit()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        async with self._turn:
            connection, self._connection = self._connection, None
            if connection is not None and not connection.is_closed():
                try:
                    await connection.close(timeout=1)
                except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    connection.terminate()

    @asynccontextmanager
    async def _held(self, call_s: float | None) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        async with self._turn:
            try:
                async with asyncio.timeout(call_s or self._settings.call_s):
                    yield await self._open()
            except TimeoutError as error:
                self._burn()
                raise StoreUnreachableError("A call did not come back in time; its connection was closed.") from error
            except asyncio.CancelledError:
                self._burn()
                raise
            except asyncpg.PostgresError as error:
                raise self._translated(error) from error
            except asyncpg.ClientConfigurationError as error:
                raise WrongDsnError(str(error)) from error
            except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                self._burn()
                raise StoreUnreachableError(f"{type(error).__name__}: {error}") from error

    async def _open(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._opened()
        return self._connection

    async def _opened(self) -> asyncpg.Connection[asyncpg.Record]:
        settings = self._settings
        connection = await asyncpg.connect(
            self._dsn,
            timeout=settings.connect_s,
            server_settings={"application_name": settings.application_name},
        )
        try:
            # Set after connecting: behind a pooler only `application_name` may be a start-up parameter.
            await connection.execute(
                "select set_config(name, value, false) from unnest($1::text[], $2::text[]) as s (name, value)",
                ["jit", "statement_timeout", "idle_in_transaction_session_timeout", "tcp_keepalives_idle"],
                ["off", f"{int(settings.statement_s * 1000)}", "10000", "10"],
            )
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _translated(self, error: asyncpg.PostgresError) -> StoreError:
        state = error.sqlstate or ""
        if state in _NO_SCHEMA:
            return SchemaError(str(error), sqlstate=state)
        if state[:2] in _GONE:
            self._burn()
            return StoreUnreachableError(str(error), sqlstate=state)
        return StoreError(str(error), sqlstate=state)

    def _burn(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements inside one transaction."""

    _connection: asyncpg.Connection[asyncpg.Record]

    async def rows(self, name: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement by its name."""
        return await self._connection.fetch(statement(name), *args)

    async def script(self, text: str) -> None:
        """Run a migration's text."""
        await self._connection.execute(text)

    async def value(self, query: str, *args: object) -> Any:  # noqa: ANN401 - whatever the database answers
        """One value of a query of the store's own."""
        return await self._connection.fetchval(query, *args)
