"""One function decides what becomes of a job: nobody else makes a settlement."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.tree import modules, room

FATE = "core/decide.py"


def made_here(text: str) -> list[int]:
    """The lines on which a settlement is made."""
    return [
        call.lineno
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and (
            (isinstance(call.func, ast.Name) and call.func.id in {"Settlement", "replace"})
            or (isinstance(call.func, ast.Attribute) and call.func.attr == "Settlement")
        )
    ]


@pytest.mark.requirement("R1.13")
@pytest.mark.parametrize("module", [module for module in modules() if room(module) != FATE], ids=room)
def test_only_the_fate_function_makes_settlements(module: Path) -> None:
    assert made_here(module.read_text(encoding="utf-8")) == []


def test_the_fate_function_makes_them() -> None:
    (fate,) = [module for module in modules() if room(module) == FATE]
    assert made_here(fate.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "planted", ["x = Settlement(job_id=1)", "y = decide.Settlement()", "z = replace(x, attempt=0)"]
)
def test_a_planted_settlement_is_found(planted: str) -> None:
    assert made_here(planted) == [1]
