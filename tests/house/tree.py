"""Where the house's files are; the rules that look at them are in the files beside this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "leasehold"
STATEMENTS = PACKAGE / "store" / "postgres" / "sql"
MIGRATIONS = PACKAGE / "store" / "postgres" / "migrations"

# What tools make beside the tracked files; no git needed, so that the rules also hold in a copy without history.
MADE = {".git", ".venv", ".leasehold", ".hypothesis", "__pycache__", "build", "dist", "node_modules"}


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def room(module: Path) -> str:
    """A module's name within the package: `store/postgres/door.py`."""
    return module.relative_to(PACKAGE).as_posix()


def text_files() -> Iterator[Path]:
    """Every file of the repository that a reader could open."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        made = MADE.intersection(parts) or any(part.endswith(("_cache", ".egg-info")) for part in parts)
        if path.is_file() and not made and b"\0" not in path.read_bytes():
            yield path
