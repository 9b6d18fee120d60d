"""What a module's text may not contain: SQL outside the store, clocks and chance outside the places that own them.

Each rule takes a module's text and returns what is wrong with it, so that it can be shown a planted fault.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

SQL = re.compile(
    r"\b(select\b.+\bfrom\b|insert\s+into\b|delete\s+from\b|update\s+\S+\s+set\b)", re.IGNORECASE | re.DOTALL
)

CLOCKS_AND_CHANCE = re.compile(
    r"time\.(time|monotonic|perf_counter|clock_gettime)(_ns)?|time\.sleep|asyncio\.sleep"
    r"|datetime\.datetime\.(now|utcnow|today)|datetime\.date\.today"
    r"|(random|secrets)\.\w+|uuid\.uuid[14678]|os\.(urandom|getrandom)"
)


def foreign_hands_on_the_database(text: str) -> list[str]:
    """Find a driver's import and strings that are SQL; a docstring may speak of both."""
    tree = ast.parse(text)
    found = [f"line {line}: imports {name}" for line, name in imported(tree) if name.split(".")[0] == "asyncpg"]
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return found + [
        f"line {node.lineno}: SQL in a string: {' '.join(string.split())[:60]!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and id(node) not in prose and SQL.search(string := string_of(node))
    ]


def clocks_and_chance(text: str) -> set[str]:
    """Find what reads a clock, waits, or draws lots, under whatever name it was imported; passing it on counts too."""
    tree = ast.parse(text)
    names = dict(bound(tree))
    used = {name for _, name in imported(tree)}  # `from time import sleep`
    used |= {dotted(node, names) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {name for name in used if CLOCKS_AND_CHANCE.fullmatch(name)}


def string_of(node: ast.AST) -> str:
    """The text of a string or f-string, with a word for each value put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(string_of(part) or "value" for part in node.values)
    return ""


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every imported thing by its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def bound(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What the imported names of a module stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of `a.b.c`, or nothing when it does not begin with an imported name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value, names)):
        return f"{owner}.{node.attr}"
    return ""
