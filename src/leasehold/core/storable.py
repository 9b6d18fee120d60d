"""Makes what a handler gave or raised storable before it is settled: a failure can always be recorded.

PostgreSQL's jsonb refuses NUL and lone surrogates; an error text may be of any size, and its `__str__` may itself
raise.
"""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

from leasehold.core.errors import LeaseholdError

TEXT_MAX: Final = 8_192
TRACE_MAX: Final = 65_536
_MARK: Final = " … [{} characters cut]"
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class UnstorableResultError(LeaseholdError):
    """The handler's result cannot be stored as JSON."""

    remedy = (
        "Return JSON values, a dataclass or a msgspec.Struct; store large or binary data elsewhere and return where."
    )


def text(value: str, most: int = TEXT_MAX) -> str:
    """The text without what cannot be stored, and no longer than `most` characters."""
    clean = _UNSTORABLE.sub(_REPLACED, value[:most])
    return clean if len(value) <= most else clean + _MARK.format(len(value) - most)


def said(error: BaseException) -> str:
    """What an exception says of itself, whatever its `__str__` does."""
    try:
        return text(str(error))
    except Exception as broken:  # noqa: BLE001 - a handler's __str__ may raise anything
        return f"<its text cannot be read: {type(broken).__name__}>"


def result(value: object) -> str | None:
    """The result as JSON text that the database takes; None for None."""
    if value is None:
        return None
    try:
        encoded = msgspec.json.encode(value, enc_hook=_refuse).decode()
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise UnstorableResultError(said(error), type=type(value).__name__) from error
    if "\\u0000" in encoded:
        # A NUL inside a text that was hours of work must not cost the work: it is replaced, and the rest is kept.
        encoded = json.dumps(_without_nul(json.loads(encoded)), ensure_ascii=False)
    return encoded


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _without_nul(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\x00", _REPLACED)
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {_without_nul(name): _without_nul(item) for name, item in value.items()}
    return value
