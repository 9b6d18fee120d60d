"""Settings: every name works as written, wrong ones are refused together, and what has no effect yet is said here."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import leasehold
from leasehold.core.errors import WrongSettingError
from leasehold.core.policy import AFTER_FAILURE, AFTER_LOSS, Backoff
from leasehold.core.settings import Settings

# Read, checked and shown, but nothing listens to them yet.
WITHOUT_EFFECT = {
    "high_watermark",
    "keep_scratch_on_success",
    "load_threshold",
    "outbox_batch_size",
    "outbox_concurrency",
    "outbox_lease_duration_ms",
    "outbox_lease_heartbeat_ms",
    "outbox_max_attempts",
    "outbox_retry_base_ms",
    "outbox_retry_jitter_ms",
    "outbox_retry_max_ms",
    "pause_interval_sec",
    "pdf_render_concurrency",
    "stage_lease_sec",
    "stage_sla_factor",
    "stage_sla_factors",
    "stage_timeout_sec",
    "worker_api_base_url",
    "worker_api_service_token",
    "worker_busy_loop_delay_ms",
    "worker_idle_backoff_jitter_ms",
    "worker_idle_backoff_max_ms",
    "worker_idle_backoff_min_ms",
    "worker_tick_loop_error_backoff_ms",
    "worker_tick_loop_max_jitter_ms",
    "worker_tick_overall_max_ms",
    "worker_tick_runner_max_items",
    "worker_tick_runner_max_ms",
    "worker_tick_runners",
    "worker_tick_shard_count",
    "worker_tick_shard_index",
}


def test_what_has_no_effect_yet_is_listed_and_nothing_else() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(leasehold.__file__).parent.rglob("*.py"))
    source = source.replace(inspect.getsource(Settings.refuse_contradictions), "")
    settings = {setting.name for setting in fields(Settings) if "meaning" in setting.metadata}

    assert {name for name in settings if not re.search(rf"\.{name}\b", source)} == WITHOUT_EFFECT


def test_without_any_setting_everything_stands_at_its_default() -> None:
    settings = Settings.from_environment({})

    assert settings == Settings()
    assert (settings.lease_s, settings.attempts, settings.dsn) == (30.0, 3, None)
    assert settings.policy().failure == AFTER_FAILURE == Backoff("30s", "2m", "10m")
    assert settings.policy().loss == AFTER_LOSS == Backoff("1s", "30s", "2m", "10m")


def test_a_setting_is_taken_as_it_is_written() -> None:
    settings = Settings.from_environment(
        {
            "HEARTBEAT_INTERVAL_SEC": "2.5",
            "MAX_CONCURRENCY": " 7 ",
            "KEEP_SCRATCH_ON_SUCCESS": "1",
            "WORKER_TICK_RUNNERS": "outbox, invoiceReminders,,classesBilling",
            "STAGE_LEASE_SEC_CLIP": "45",
            "STAGE_TIMEOUT_SEC_BURN_IN": "600",
            "STAGE_SLA_FACTOR": "1.5",
            "STAGE_SLA_FACTOR_ASR": "2",
            "DATABASE_URL": "",
        }
    )

    assert (settings.heartbeat_interval_sec, settings.lease_s, settings.max_concurrency) == (2.5, 7.5, 7)
    assert settings.keep_scratch_on_success is True
    assert settings.worker_tick_runners == ("outbox", "invoiceReminders", "classesBilling")
    assert (settings.stage_lease_sec, settings.stage_timeout_sec) == ({"clip": 45.0}, {"burn_in": 600.0})
    assert (settings.stage_sla_factor, settings.stage_sla_factors) == (1.5, {"asr": 2.0})
    assert settings.dsn is None


@pytest.mark.parametrize(
    "environment, attempts",
    [
        ({}, 3),
        ({"QUEUE_MAX_ATTEMPTS": "4"}, 4),
        ({"QUEUE_MAX_ATTEMPTS": "4", "MAX_ATTEMPTS": "5"}, 5),
        ({"QUEUE_MAX_ATTEMPTS": "4", "MAX_ATTEMPTS": "5", "JOB_MAX_ATTEMPTS": "6"}, 6),
    ],
)
def test_attempts_are_taken_from_the_nearest_setting(environment: dict[str, str], attempts: int) -> None:
    assert Settings.from_environment(environment).attempts == attempts


def test_either_half_of_a_backoff_makes_it_exponential_and_the_jobs_own_wins() -> None:
    queue = Settings.from_environment({"QUEUE_RETRY_BACKOFF_MS_BASE": "5000", "QUEUE_RETRY_BACKOFF_MS_MAX": "12000"})
    both = Settings.from_environment({"QUEUE_RETRY_BACKOFF_MS_BASE": "5000", "JOB_RETRY_BACKOFF_MS_BASE": "1000"})

    assert [queue.policy().failure.delay_s(nth, 0.0) for nth in (1, 2, 3, 4)] == [5.0, 10.0, 12.0, 12.0]
    assert both.policy().failure.delay_s(2, 0.0) == 2.0
    assert both.policy(Backoff("7s")).failure.delay_s(2, 0.0) == 7.0


@pytest.mark.requirement("R9.2")
def test_wrong_values_are_refused_together_each_with_its_name_its_value_and_what_would_be_right() -> None:
    with pytest.raises(WrongSettingError) as caught:
        Settings.from_environment(
            {
                "HEARTBEAT_INTERVAL_SEC": "often",
                "MAX_CONCURRENCY": "0",
                "LOAD_THRESHOLD": "nan",
                "KEEP_SCRATCH_ON_SUCCESS": "perhaps",
                "STAGE_LEASE_SEC_CLIP": "-1",
                "MAX_ATTEMPTS": "2.5",
            }
        )

    said = str(caught.value)
    assert "HEARTBEAT_INTERVAL_SEC='often' is not a number" in said
    assert "MAX_CONCURRENCY='0' must be at least 1" in said
    assert "LOAD_THRESHOLD='nan' must be finite" in said
    assert "KEEP_SCRATCH_ON_SUCCESS='perhaps' is not a switch (1 or 0)" in said
    assert "STAGE_LEASE_SEC_CLIP='-1' must be above 0" in said
    assert "MAX_ATTEMPTS='2.5' is not a whole number" in said


@pytest.mark.requirement("R1.4")
def test_a_lease_lasts_three_heartbeats_unless_it_is_said_and_a_heartbeat_slower_than_half_of_it_is_refused() -> None:
    assert Settings.from_environment({"HEARTBEAT_INTERVAL_SEC": "4"}).lease_s == 12
    assert Settings.from_environment({"HEARTBEAT_INTERVAL_SEC": "4", "LEASE_TIMEOUT_SEC": "8"}).lease_s == 8
    assert Settings.from_environment({"LEASE_TIMEOUT_SEC": "1"}).lease_s == 1  # the default heartbeat gives way
    with pytest.raises(WrongSettingError, match=r"HEARTBEAT_INTERVAL_SEC=4 .* LEASE_TIMEOUT_SEC=7"):
        Settings.from_environment({"HEARTBEAT_INTERVAL_SEC": "4", "LEASE_TIMEOUT_SEC": "7"})


@pytest.mark.requirement("R9.2")
@pytest.mark.parametrize(
    "environment, said",
    [
        (
            {"HEARTBEAT_INTERVAL_SEC": "10", "LEASE_TIMEOUT_SEC": "19"},
            "HEARTBEAT_INTERVAL_SEC=10 is slower than half of LEASE_TIMEOUT_SEC=19",
        ),
        ({"WORKER_TICK_SHARD_INDEX": "1"}, "set both or none"),
        ({"WORKER_TICK_SHARD_INDEX": "2", "WORKER_TICK_SHARD_COUNT": "2"}, "must be below"),
        ({"WORKER_IDLE_BACKOFF_MIN_MS": "40000"}, "is above WORKER_IDLE_BACKOFF_MAX_MS=30000"),
        ({"OUTBOX_RETRY_BASE_MS": "200000"}, "is above OUTBOX_RETRY_MAX_MS=120000"),
        ({"OUTBOX_LEASE_HEARTBEAT_MS": "31000"}, "is slower than half of OUTBOX_LEASE_DURATION_MS=60000"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_both(environment: dict[str, str], said: str) -> None:
    with pytest.raises(WrongSettingError, match=re.escape(said)):
        Settings.from_environment(environment)


def test_a_secret_is_never_shown() -> None:
    told = Settings.from_environment({"LEASEHOLD_DSN": "postgresql://me:secret@db/shop"}).told()

    (dsn,) = [setting for setting in told if setting.name == "LEASEHOLD_DSN"]
    assert (dsn.value, dsn.source) == ("********", "environment")
    assert "secret" not in repr([setting.value for setting in told])
