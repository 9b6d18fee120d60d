"""A session of somebody else's: the driver's own connection, named once (it is generic for type checkers only)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import asyncpg

if TYPE_CHECKING:
    Session: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Session = asyncpg.Connection
