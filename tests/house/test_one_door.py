"""One door to the database: only the store speaks SQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.python_rules import foreign_hands_on_the_database
from tests.house.tree import modules, room

OUTSIDE = [module for module in modules() if not room(module).startswith("store/")]


@pytest.mark.parametrize("module", OUTSIDE, ids=room)
def test_only_the_store_speaks_sql(module: Path) -> None:
    assert foreign_hands_on_the_database(module.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import asyncpg",
        "from asyncpg.pool import Pool",
        "def f():\n    import asyncpg as a",
        "QUERY = 'select id from leasehold.job'",
        "QUERY = '''\nSELECT id\nFROM leasehold.job'''",
        "async def f(c, table):\n    await c.fetch(f'select id from {table}')",
        "run('INSERT  INTO leasehold.job values (1)')",
        "run('delete from leasehold.job')",
        "run('update leasehold.lease set token = null')",
        "def f(table):\n    run(f'update {table} set token = null')",
    ],
)
def test_a_hand_past_the_door_is_seen(planted: str) -> None:
    assert foreign_hands_on_the_database(planted) != []


@pytest.mark.parametrize(
    "harmless",
    [
        "'''Explains that `select id from leasehold.job` is slow.'''",
        "print('select a job, then update its page')",
        "from leasehold.store.contract import Store",
    ],
)
def test_talking_about_the_database_is_not_touching_it(harmless: str) -> None:
    assert foreign_hands_on_the_database(harmless) == []
