"""Every setting that the requirements name is defined in the one place for settings."""

from __future__ import annotations

import re
from dataclasses import fields

from leasehold.core.settings import STAGE_FAMILIES, Settings
from tests.house.tree import ROOT

NAME = re.compile(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?:/[A-Z]+)*)(_<STAGE>)?`")


def demanded(text: str) -> set[str]:
    """The names in R9.1: `A_BASE/MAX` are two, `STAGE_LEASE_SEC_<STAGE>` is a family known by what stands before."""
    names = set()
    for name, stage in NAME.findall(text):
        first, *others = name.split("/")
        names.add(first + ("_" if stage else ""))
        names.update(f"{first.rsplit('_', 1)[0]}_{other}" for other in others)
    return names


def settings_of_the_requirements() -> set[str]:
    text = (ROOT / "docs" / "requirements" / "REQUIREMENTS.md").read_text(encoding="utf-8")
    return demanded(text.split("\n- R9.1 ", 1)[1].split("\n- R9.2 ", 1)[0])


def test_every_setting_of_the_requirements_is_in_the_one_place() -> None:
    defined = {setting.name.upper() for setting in fields(Settings)} | {f"{family}_" for family in STAGE_FAMILIES}
    assert settings_of_the_requirements() - defined == set()


def test_the_names_are_read_in_all_their_forms() -> None:
    text = "`A_SEC` 10 · `S_LEASE_SEC_<STAGE>` · `J_MS_BASE/MAX` · with `X_*` overrides · `W_INDEX`, `W_COUNT` · `no`"
    assert demanded(text) == {"A_SEC", "S_LEASE_SEC_", "J_MS_BASE", "J_MS_MAX", "W_INDEX", "W_COUNT"}


def test_the_requirements_name_the_settings_we_know_they_name() -> None:
    names = settings_of_the_requirements()
    assert names >= {"HEARTBEAT_INTERVAL_SEC", "JOB_RETRY_BACKOFF_MS_MAX", "STAGE_SLA_FACTOR", "STAGE_SLA_FACTOR_"}
    assert len(names) > 40
