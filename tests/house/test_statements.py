"""The statements of the store: each says what it does, shows the token, moves whole rows, and keeps its plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.sql_rules import (
    faults_of_a_clock,
    faults_of_a_fence,
    faults_of_a_form,
    faults_of_a_head,
    faults_of_a_move,
    writes,
)
from tests.house.tree import MIGRATIONS, STATEMENTS

STATEMENT_FILES = sorted(STATEMENTS.glob("*.sql"))
MIGRATION_FILES = sorted(MIGRATIONS.glob("*.sql"))

statement_files = pytest.mark.parametrize("file", STATEMENT_FILES, ids=lambda file: file.name)
sql_files = pytest.mark.parametrize("file", STATEMENT_FILES + MIGRATION_FILES, ids=lambda file: file.name)

CLOCK = "create function leasehold.now() returns timestamptz language sql as $f$ select clock_timestamp() $f$"
OTHER = "((job_id, attempt) in (select * from unnest($1::bigint[], $2::int[]))) is true"
HELD = "((job_id, token) in (select * from unnest($1::bigint[], $2::uuid[]))) is true"


def test_the_rules_see_the_statements_that_end_a_lease() -> None:
    enders = {
        file.stem
        for file in STATEMENT_FILES
        for write in writes(file.read_text(encoding="utf-8"))
        if write.table == "lease" and write.verb == "delete from"
    }
    assert enders >= {"settle", "settle_and_claim"}


def test_the_claim_inside_settle_and_claim_is_the_claim() -> None:
    claim, both = ((STATEMENTS / f"{name}.sql").read_text(encoding="utf-8") for name in ("claim", "settle_and_claim"))
    body = claim.partition("\nwith\n")[2].partition("\norder by")[0]
    assert body
    assert body in both


@statement_files
def test_a_statement_says_what_it_does_what_goes_in_and_what_comes_out(file: Path) -> None:
    assert faults_of_a_head(file.read_text(encoding="utf-8")) == []


@sql_files
def test_whoever_changes_a_lease_shows_the_token(file: Path) -> None:
    assert faults_of_a_fence(file.read_text(encoding="utf-8")) == []


@sql_files
def test_waiting_jobs_are_moved_as_whole_rows(file: Path) -> None:
    assert faults_of_a_move(file.read_text(encoding="utf-8")) == []


@sql_files
def test_the_clock_is_asked_once_and_by_its_name(file: Path) -> None:
    assert faults_of_a_clock(file.read_text(encoding="utf-8")) == []


@statement_files
def test_a_statement_keeps_its_plan_and_names_its_columns(file: Path) -> None:
    assert faults_of_a_form(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "planted",
    [
        "select 1",
        "-- in: nothing\n-- out: one\nselect 1",
        "-- Count.\nselect 1",
        "-- Count.\n-- in: nothing\nselect 1",
        "-- Count.\n-- out: one\n-- in: nothing\nselect 1",
        "-- Count.\n-- in: nothing\n-- out: one\nselect 1; select 2",
    ],
)
def test_a_poor_head_is_seen(planted: str) -> None:
    assert faults_of_a_head(planted) != []


@pytest.mark.parametrize(
    "planted",
    [
        "delete from leasehold.lease where job_id = $1",
        "DELETE FROM ONLY leasehold.lease l WHERE l.job_id = $1",
        'update "leasehold"."lease" set token = null',
        "update lease set progress = 1 where token = $2",
        f"with x as (delete from leasehold.lease where job_id = $1 returning job_id) select job_id from x where {HELD}",
        f"with x as (delete from leasehold.lease where {HELD}) update leasehold.lease set progress = 1",
        "delete from leasehold.lease where (job_id, token) in (select * from unnest($1::bigint[], $2::uuid[]))",
        f"delete from leasehold.lease where {OTHER}",
        f"delete from leasehold.lease where job_id = $1 -- and {HELD}",
        "merge into leasehold.lease using x on true when matched then delete",
        "-- Recover. -- reaper\ndelete from leasehold.lease where job_id = $1",
        "-- Lock. -- reaper\nselect job_id from leasehold.lease for update skip locked",
        "-- Ends the supervisor's lease.\ndelete from leasehold.lease where job_id = $1",
    ],
)
def test_a_write_without_the_token_is_seen(planted: str) -> None:
    assert faults_of_a_fence(planted) != []


@pytest.mark.parametrize(
    "fenced",
    [
        f"delete from leasehold.lease where {HELD}",
        f"with x as (\n delete from leasehold.lease\n where job_id = 1\n and {HELD}\n returning 1) select 1 from x",
        "update leasehold.lease l set note = '' where ((l.job_id, l.token) in (select job_id, token from k)) is true",
        "-- Recover. -- reaper\ndelete from leasehold.lease where lease_expires_at <= (select leasehold.now())",
        "-- Bury. -- supervisor\ndelete from leasehold.lease where worker = $1",
        "-- Free. -- operator\ndelete from leasehold.lease where job_id = $1",
        "select job_id from leasehold.lease for update of lease skip locked",
        "insert into leasehold.lease (job_id, token) values ($1, $2)",
        "update leasehold.lease_note set text = $1",
    ],
)
def test_a_write_with_the_token_passes(fenced: str) -> None:
    assert faults_of_a_fence(fenced) == []


@pytest.mark.parametrize(
    "planted",
    [
        "update leasehold.ready set rank = 1",
        "with x as (update leasehold.scheduled set due_at = due_at) select 1",
        "insert into leasehold.ready (job_id) values (1) on conflict (job_id) do update set rank = 2",
    ],
)
def test_a_changed_row_of_a_waiting_job_is_seen(planted: str) -> None:
    assert faults_of_a_move(planted) != []


@pytest.mark.parametrize(
    "planted",
    [
        "select now()",
        "select pg_catalog.clock_timestamp()",
        "select current_timestamp",
        "select 1 where due_at < leasehold.now()",
        "select (select leasehold.now() - interval '1 s')",
        "create table t (at timestamptz default now())",
        f"{CLOCK}; create function leasehold.later() returns date language sql as $f$ select clock_timestamp() $f$",
    ],
)
def test_another_clock_is_seen(planted: str) -> None:
    assert faults_of_a_clock(planted) != []


@pytest.mark.parametrize(
    "right",
    [
        "select 1 where due_at <= (\n  select leasehold.now())",
        "select 'now() is only a word here' -- and now() here",
        "create table t (at timestamptz default leasehold.now())",
        CLOCK,
        "grant execute on function leasehold.now() to public",
    ],
)
def test_the_houses_clock_passes(right: str) -> None:
    assert faults_of_a_clock(right) == []


@pytest.mark.parametrize(
    "planted",
    [
        "select id from leasehold.job where id = any($1)",
        "select id from leasehold.job where id = any ( $1::bigint[] )",
        "select * from leasehold.job",
        "select j.* from leasehold.job j",
        "select id, * from leasehold.job",
        "delete from leasehold.ready returning *",
        "select 1 where exists (select * from leasehold.job)",
    ],
)
def test_a_form_that_loses_its_plan_is_seen(planted: str) -> None:
    assert faults_of_a_form(planted) != []


@pytest.mark.parametrize(
    "right",
    [
        "select id from leasehold.job where id = any((select $1::bigint[])::bigint[])",
        "select count(*) from leasehold.job",
        f"select id, 2 * rank from leasehold.lease where {HELD}",
    ],
)
def test_a_form_that_holds_passes(right: str) -> None:
    assert faults_of_a_form(right) == []
