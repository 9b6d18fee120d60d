"""The slot table and the reply table keep their promises, also when a process dies in the middle of a write."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import timeit
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.processes import boottime, slot_table
from leasehold.processes.slot_table import (
    SEALABLE,
    UNREADABLE,
    Answer,
    EmptySlotError,
    Held,
    ReplyReader,
    ReplyTable,
    ReplyWriter,
    ReplyWriterTakenError,
    SlotReader,
    SlotState,
    SlotTable,
    SlotWriter,
    UnfitFieldError,
    Verdict,
)

SCENES = Path(__file__).with_name("slot_scenes.py")
FORMS = ["sealed", "file"] if SEALABLE else ["file"]
SLOTS = 3

BODY: dict[str, Any] = {
    "job_id": 42,
    "token": bytes(range(16)),
    "epoch": 7,
    "lease_ns": 30_000_000_000,
    "sent_ns": 5,
    "start_ns": 6,
    "deadline_ns": 9,
    "queue": 1,
    "stage": 2,
    "attempt": 3,
    "group": 4,
}

signed_64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([-(1 << 63), (1 << 63) - 1])
unsigned_64 = st.integers(0, (1 << 64) - 1) | st.just((1 << 64) - 1)
unsigned_32 = st.integers(0, (1 << 32) - 1) | st.just((1 << 32) - 1)
bodies = st.fixed_dictionaries(
    {"job_id": signed_64, "token": st.binary(min_size=16, max_size=16)}
    | dict.fromkeys(["epoch", "lease_ns", "sent_ns", "start_ns", "deadline_ns"], unsigned_64)
    | dict.fromkeys(["queue", "stage", "attempt", "group"], unsigned_32)
)
taken_states = st.sampled_from([SlotState.CLAIMED, SlotState.RUNNING, SlotState.ENDED])


@contextmanager
def slots(form: str = FORMS[0]) -> Iterator[tuple[SlotWriter, SlotReader, SlotTable]]:
    table = SlotTable.create(SLOTS, sealed=form == "sealed")
    writer = SlotWriter(table.fd, SLOTS)
    yield writer, SlotReader(table.fd, SLOTS), table
    writer.drop()
    table.close()


@contextmanager
def replies(form: str = FORMS[0]) -> Iterator[tuple[ReplyWriter, ReplyReader, ReplyTable]]:
    table = ReplyTable.create(SLOTS, sealed=form == "sealed")
    yield ReplyWriter(table.fd, SLOTS), ReplyReader(table.fd, SLOTS), table
    table.close()


def play(scene: str, form: str) -> dict[str, Any]:
    command = [sys.executable, str(SCENES), scene, form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{scene} ended with {done.returncode}: {done.stderr}"
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


# ---- the slot table: what is put is read ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@given(puts=st.lists(st.tuples(st.integers(0, SLOTS - 1), bodies, taken_states), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60)
def test_what_is_put_is_read(form: str, puts: list[tuple[int, dict[str, Any], SlotState]]) -> None:
    expected: dict[int, Held] = {}
    with slots(form) as (writer, reader, _):
        for slot, body, state in puts:
            lap = expected[slot].lap + 1 if slot in expected else 1
            expected[slot] = Held(lap=lap, state=state, **body)
            assert writer.put(slot, **body, state=state) == lap
            assert reader.read(slot) == expected[slot]
        assert reader.held() == sorted(expected.items())


@pytest.mark.parametrize("form", FORMS)
def test_a_job_moves_through_its_states_and_leaves_nothing(form: str) -> None:
    with slots(form) as (writer, reader, _):
        assert reader.held() == []
        writer.put(1, **BODY)
        assert reader.read(1) == Held(lap=1, state=SlotState.CLAIMED, **BODY)
        for state in (SlotState.RUNNING, SlotState.ENDED):
            writer.state(1, state)
            assert reader.held() == [(1, Held(lap=1, state=state, **BODY))]
        writer.clear(1)
        assert reader.read(1) is None
        writer.clear(1)  # saying it twice does no harm
        writer.put(1, **BODY)
        assert reader.read(1) == Held(lap=2, state=SlotState.CLAIMED, **BODY)


def test_the_bytes_lie_where_the_protocol_says() -> None:
    with slots() as (writer, _, table):
        writer.put(1, **BODY)
        writer.put(1, **BODY, state=SlotState.RUNNING)
        slot = os.pread(table.fd, 256, 256)
    body = struct.pack("@q16sQQQQQIIII", *BODY.values())
    assert len(body) == 80
    assert struct.unpack_from("@Q", slot, 0) == (2 << 2 | 2,)
    for lap, half in ((2, 32), (1, 144)):
        assert slot[half : half + 88] == body + struct.pack("@Q", zlib.crc32(body, lap))


@given(at=st.integers(0, 87), flip=st.integers(1, 255))
@settings(deadline=None)
def test_a_body_that_was_damaged_is_unreadable_and_not_believed(at: int, flip: int) -> None:
    with slots() as (writer, reader, table):
        writer.put(0, **BODY)
        writer.put(1, **BODY)
        (byte,) = os.pread(table.fd, 1, 144 + at)
        os.pwrite(table.fd, bytes([byte ^ flip]), 144 + at)
        assert [reading is UNREADABLE for _, reading in reader.held()] == [True, False]


def test_a_body_of_another_lap_is_not_believed() -> None:
    with slots() as (writer, reader, table):
        for _ in range(2):
            writer.put(0, **BODY)
        os.pwrite(table.fd, struct.pack("@Q", 4 << 2 | SlotState.RUNNING), 0)  # lap 4 would lie where lap 2 does
        assert reader.read(0) is UNREADABLE


@pytest.mark.parametrize(
    "wrong",
    [{"token": b"short"}, {"token": bytes(17)}, {"job_id": 1 << 63}, {"epoch": -1}, {"group": 1 << 32}],
    ids=str,
)
def test_a_put_that_does_not_fit_changes_nothing(wrong: dict[str, Any]) -> None:
    with slots() as (writer, reader, _):
        writer.put(0, **BODY, state=SlotState.RUNNING)
        with pytest.raises(UnfitFieldError):
            writer.put(0, **(BODY | wrong))
        assert reader.read(0) == Held(lap=1, state=SlotState.RUNNING, **BODY)


def test_an_empty_slot_cannot_be_brought_back_to_life() -> None:
    with slots() as (writer, reader, _):
        with pytest.raises(EmptySlotError):
            writer.state(0, SlotState.RUNNING)
        writer.put(0, **BODY)
        writer.clear(0)
        with pytest.raises(EmptySlotError):
            writer.state(0, SlotState.ENDED)
        assert reader.held() == []


# ---- both tables: kills, forks, cuts -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scene", ["storm_of_slots", "storm_of_replies"])
def test_a_killed_writer_leaves_the_old_or_the_new_truth(scene: str, form: str) -> None:
    seen = play(scene, form)
    assert seen["bad"] == 0, seen["problems"]
    assert seen["kills"] >= 20  # some hundreds on a quiet machine
    assert seen["reads"] > 0


@pytest.mark.parametrize("form", FORMS)
def test_a_fork_made_by_a_handler_cannot_touch_the_slots(form: str) -> None:
    assert play("fork", form) == {"refused": 2, "unchanged": True, "held_after": 1}


@pytest.mark.skipif(not SEALABLE, reason="seals are Linux's")
def test_nobody_can_cut_the_sealed_table_under_its_reader() -> None:
    assert play("cut", "sealed") == {"refused": True, "reading": "read"}


def test_a_table_without_seals_that_was_cut_is_unreadable_and_not_empty() -> None:
    assert play("cut", "file") == {"refused": False, "reading": "unreadable"}


@pytest.mark.parametrize("form", FORMS)
def test_a_child_inherits_the_tables_only_where_it_is_told_to(form: str) -> None:
    with slots(form) as (_, _, table), replies(form) as (_, _, reply_table):
        for fd in (table.fd, reply_table.fd):
            stat = [sys.executable, "-S", "-c", f"import os; os.fstat({fd})"]
            assert subprocess.run(stat, close_fds=False, stderr=subprocess.DEVNULL, check=False).returncode != 0
            assert subprocess.run(stat, pass_fds=[fd], check=False).returncode == 0


# ---- the reply table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_the_worker_reads_the_beat_and_the_verdict(form: str) -> None:
    with replies(form) as (writer, reader, _):
        assert reader.beat_ns() == 0
        assert reader.answer(0, 1) is None
        writer.beat(123)
        writer.answer(0, 1, 77, Verdict.KEPT)
        writer.answer(2, 9, 78, Verdict.CANCEL)
        assert reader.beat_ns() == 123
        assert reader.answer(0, 1) == Answer(Verdict.KEPT, 77)
        assert reader.answer(1, 1) is None
        assert reader.answer(2, 9) == Answer(Verdict.CANCEL, 78)


@given(lap=st.integers(1, (1 << 62) - 1), sent_ns=unsigned_64, verdict=st.sampled_from(list(Verdict)[1:]))
@settings(deadline=None)
def test_an_answer_is_read_as_it_was_given(lap: int, sent_ns: int, verdict: Verdict) -> None:
    with replies() as (writer, reader, _):
        writer.answer(1, lap, sent_ns, verdict)
        assert reader.answer(1, lap) == Answer(verdict, sent_ns)


def test_a_verdict_on_an_old_lap_is_not_seen_by_the_new_one() -> None:
    with replies() as (writer, reader, _):
        writer.answer(0, 4, 1, Verdict.LOST)
        assert reader.answer(0, 5) is None
        assert reader.answer(0, 4) == Answer(Verdict.LOST, 1)


def test_a_late_answer_to_an_old_lap_does_not_hide_the_new_one() -> None:
    with replies() as (writer, reader, _):
        writer.answer(0, 5, 2, Verdict.KEPT)
        writer.answer(0, 4, 1, Verdict.LOST)
        assert reader.answer(0, 5) == Answer(Verdict.KEPT, 2)


def test_a_lost_lease_is_lost_for_its_lap_and_for_no_other() -> None:
    with replies() as (writer, reader, _):
        writer.answer(0, 4, 1, Verdict.LOST)
        writer.answer(0, 4, 2, Verdict.KEPT)
        assert reader.answer(0, 4) == Answer(Verdict.LOST, 1)
        writer.answer(0, 5, 3, Verdict.KEPT)
        assert reader.answer(0, 5) == Answer(Verdict.KEPT, 3)


@pytest.mark.skipif(not SEALABLE, reason="seals are Linux's")
def test_the_worker_cannot_write_itself_an_answer() -> None:
    with replies() as (writer, reader, table):
        with pytest.raises(PermissionError):
            os.pwrite(table.fd, bytes(8), 0)
        with pytest.raises(ReplyWriterTakenError):
            ReplyWriter(table.fd, SLOTS)
        with pytest.raises(PermissionError):
            os.ftruncate(table.fd, 0)
        writer.beat(5)  # and the keeper still can
        assert reader.beat_ns() == 5


@pytest.mark.skipif(not SEALABLE, reason="seals are Linux's")
def test_a_kernel_without_the_newest_seal_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_table, "_F_SEAL_FUTURE_WRITE", 0x4000)
    with replies() as (writer, reader, _):
        writer.answer(0, 1, 2, Verdict.KEPT)
        assert reader.answer(0, 1) == Answer(Verdict.KEPT, 2)


def test_answers_that_were_cut_off_count_as_not_said() -> None:
    with replies("file") as (writer, reader, table):
        writer.beat(5)
        writer.answer(0, 1, 2, Verdict.KEPT)
        os.ftruncate(table.fd, 0)
        assert reader.beat_ns() == 0
        assert reader.answer(0, 1) is None


# ---- the clock, and the price --------------------------------------------------------------------------------------


def test_the_clock_of_leases_is_one_for_all_processes_and_never_goes_back() -> None:
    before = boottime.now_ns()
    code = "from leasehold.processes import boottime; print(boottime.now_ns())"
    between = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert before < between < boottime.now_ns()


@pytest.mark.skipif(sys.platform != "linux", reason="BOOTTIME is Linux's")
def test_the_clock_of_leases_counts_sleep() -> None:
    uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])  # BOOTTIME, says proc(5)
    assert abs(boottime.now_ns() / 1e9 - uptime_s) < 5


def test_the_price_of_a_job_in_the_table_is_told(record_property: Callable[[str, object], None]) -> None:
    token = bytes(16)
    with slots() as (writer, reader, _):

        def job() -> None:  # keywords written out, as a worker does: a dict of them costs another third
            writer.put(
                1,
                job_id=42,
                token=token,
                epoch=7,
                lease_ns=30_000_000_000,
                sent_ns=5_000_000_000_000,
                start_ns=6_000_000_000_000,
                deadline_ns=9_000_000_000_000,
                queue=1,
                stage=2,
                attempt=3,
                group=4,
            )
            writer.state(1, SlotState.RUNNING)
            writer.state(1, SlotState.ENDED)
            writer.clear(1)

        job_ns = min(timeit.repeat(job, number=5_000, repeat=5)) / 5_000 * 1e9
        writer.put(1, **BODY)
        read_ns = min(timeit.repeat(lambda: reader.read(1), number=5_000, repeat=5)) / 5_000 * 1e9
    record_property("job_ns", round(job_ns))
    record_property("read_ns", round(read_ns))
    sys.stdout.write(f"\nput + running + ended + clear: {job_ns:.0f} ns; read of a held slot: {read_ns:.0f} ns\n")
