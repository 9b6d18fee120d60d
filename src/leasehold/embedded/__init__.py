"""The private PostgreSQL of a project: one call starts it or joins it, and it stops after its last user.

Knows nobody in the house but `leasehold.core.errors`; what is done with the database is for others. POSIX only.
"""

from leasehold.embedded.errors import (
    DiskFullError,
    EmbeddedError,
    HomeNotWritableError,
    InitdbFailedError,
    MinderFailedError,
    MovedHomeError,
    NoAccountError,
    NoBinariesError,
    NoSocketFolderError,
    NotADataFolderError,
    NotYoursError,
    ServerFailedError,
    StartTimeoutError,
    StopTimeoutError,
    UnreachableDataError,
    WrongMajorError,
)
from leasehold.embedded.server import Server, ServerInfo, running, start, stop

__all__ = [
    "DiskFullError",
    "EmbeddedError",
    "HomeNotWritableError",
    "InitdbFailedError",
    "MinderFailedError",
    "MovedHomeError",
    "NoAccountError",
    "NoBinariesError",
    "NoSocketFolderError",
    "NotADataFolderError",
    "NotYoursError",
    "Server",
    "ServerFailedError",
    "ServerInfo",
    "StartTimeoutError",
    "StopTimeoutError",
    "UnreachableDataError",
    "WrongMajorError",
    "running",
    "start",
    "stop",
]
