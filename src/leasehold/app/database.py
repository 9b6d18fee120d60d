"""Which database: the one that the program or the environment names, else a private one in `./.leasehold`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasehold import embedded
from leasehold.core.errors import StoreError
from leasehold.core.settings import Settings
from leasehold.store.postgres.migrate import (
    Migration,
    check,
    migrate,
    migrations,
    newest,
    server_version,
    version,
)

HOME: Final = ".leasehold"

__all__ = ["Address", "Database", "Migration", "fit", "running_version", "schema_plan", "stand", "take_migrations"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where the database is. `dsn` None: the private one in `home`."""

    dsn: str | None
    home: Path

    @classmethod
    def find(cls, given: str | None, settings: Settings) -> Address:
        """What the program says, else what the environment says, else the private one of the working directory."""
        return cls(given or settings.dsn, Path.cwd() / HOME)


@dataclass(slots=True)
class Database:
    """An open database. `server` is this process's share in the private one."""

    dsn: str
    server: embedded.Server | None = None

    def close(self) -> None:
        """Give the share back; the private server stops after its last user."""
        if self.server is not None:
            self.server.close()


def stand(address: Address) -> Database:
    """Have the database stand: start or join the private one. Blocks."""
    if address.dsn is not None:
        return Database(address.dsn)
    server = embedded.start(address.home)
    return Database(server.dsn(), server)


async def fit(database: Database) -> None:
    """The private database migrates itself; one of the user's is only changed by `leasehold migrate`."""
    if database.server is not None:
        await migrate(database.dsn)
    else:
        await check(database.dsn)


# --- the schema, for the command line ---------------------------------------------------------------------------------


async def running_version(settings: Settings) -> tuple[int, str | None]:
    """The schema that this code was written for, and the server it would use, where one runs."""
    address = Address.find(None, settings)
    info = embedded.running(address.home) if address.dsn is None else None
    dsn = address.dsn or (info.dsn() if info is not None else None)
    if dsn is None:
        return newest(), None
    try:
        return newest(), await server_version(dsn)
    except StoreError as error:
        return newest(), f"not reachable ({error.detail})"


async def schema_plan(settings: Settings) -> tuple[int, list[Migration]]:
    """The schema that the database has, and the steps that it lacks."""
    database = await asyncio.to_thread(stand, Address.find(None, settings))
    try:
        found = await version(database.dsn)
    finally:
        database.close()
    return found, [migration for migration in migrations() if migration.version > found]


async def take_migrations(settings: Settings) -> list[Migration]:
    """Bring the database to the newest schema; the steps that were taken."""
    database = await asyncio.to_thread(stand, Address.find(None, settings))
    try:
        return await migrate(database.dsn)
    finally:
        database.close()
