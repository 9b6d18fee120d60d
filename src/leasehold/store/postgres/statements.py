"""Reads the statements: one file each, named as the operation."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def statement(name: str) -> str:
    """The text of `sql/<name>.sql`."""
    return files("leasehold.store.postgres").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
