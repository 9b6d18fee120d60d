"""The schema's versions: numbered plain SQL files, applied in order, each in a transaction of its own.

Code of version N runs on the schemas N and N + 1, so that a new schema can be laid under running workers before their
code is replaced; it refuses every other in one line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from leasehold.core.errors import SchemaError
from leasehold.store.postgres.door import Door, Transaction

_LOCK = "select pg_advisory_xact_lock(1279608915, 0)"
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    text: str

    @property
    def script(self) -> str:
        """The step as it is taken: by us, or by hand through `leasehold migrate --sql`."""
        row = f"values ({self.version}, '{self.name}', (select leasehold.now()))"
        return f"{self.text}\ninsert into leasehold.migration (version, name, applied_at) {row};\n"


@cache
def migrations() -> tuple[Migration, ...]:
    """All steps, in order, without a gap."""
    found = [
        Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8"))
        for entry in files("leasehold.store.postgres").joinpath("migrations").iterdir()
        if (match := _NAME.fullmatch(entry.name))
    ]
    found.sort(key=lambda migration: migration.version)
    assert [migration.version for migration in found] == list(range(1, len(found) + 1)), "a migration is missing"
    return tuple(found)


def newest() -> int:
    """The schema that this code was written for."""
    return migrations()[-1].version


async def version(dsn: str) -> int:
    """The schema that the database has; 0: none."""
    door = Door(dsn)
    try:
        async with door.transaction() as transaction:
            return await _version(transaction)
    finally:
        await door.close()


async def server_version(dsn: str) -> str:
    """What the server says it is."""
    door = Door(dsn)
    try:
        async with door.transaction() as transaction:
            return f"PostgreSQL {await transaction.value('show server_version')}"
    finally:
        await door.close()


async def migrate(dsn: str) -> list[Migration]:
    """Bring the database to the newest schema; says which steps were taken. Any number may do so at once."""
    door = Door(dsn)
    taken: list[Migration] = []
    try:
        for migration in migrations():
            async with door.transaction() as transaction:
                await transaction.value(_LOCK)
                if await _version(transaction) < migration.version:
                    await transaction.script(migration.script)
                    taken.append(migration)
    finally:
        await door.close()
    return taken


async def check(dsn: str) -> int:
    """The database's schema if this code can run on it; refused otherwise, before any job is touched."""
    found = await version(dsn)
    if found == 0:
        raise SchemaError("There is no schema yet.")
    if found not in (newest(), newest() + 1):
        raise SchemaError(f"The database has schema {found}, this code runs on {newest()} and {newest() + 1}.")
    return found


async def _version(transaction: Transaction) -> int:
    if not await transaction.value("select to_regclass('leasehold.migration') is not null"):
        return 0
    return int(await transaction.value("select coalesce(max(version), 0) from leasehold.migration"))
