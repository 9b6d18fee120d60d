"""Whatever a handler does becomes an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from leasehold import App, Cancel, Fatal, Job, Retry, Snooze
from leasehold.core.outcome import Aborted, Cancelled, Done, Failed, Outcome, Snoozed, TimedOut
from leasehold.core.settings import Settings
from leasehold.core.storable import TEXT_MAX
from leasehold.runtime.execute import Attempt, Interruption, decoded
from tests.runtime.scenes import a_lease, spec_of


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class EndlessError(BaseException):
    pass


def attempt_of(fn: Callable[..., Any], arguments: dict[str, Any] | None = None, **options: Any) -> Attempt:
    spec = spec_of(fn, **options)
    job = Job(a_lease(), arguments or {}, report=lambda *_: None, monotonic=lambda: 0.0)
    return Attempt(spec, job, ThreadPoolExecutor(1))


async def outcome_of(fn: Callable[..., Any], **options: Any) -> Outcome | None:
    return await attempt_of(fn, **options).run()


RAISED = [
    (Fatal("INPUT_TOO_LARGE", "3 GB"), "INPUT_TOO_LARGE", False),
    (Retry("not yet"), "RETRY", True),
    (ValueError("no such colour"), "ValueError", False),
    (ConnectionResetError("gone"), "ConnectionResetError", True),
    (KeyError("unknown to every rule"), "KeyError", True),
    (SystemExit(3), "SystemExit", True),
    (KeyboardInterrupt(), "KeyboardInterrupt", True),
    (GeneratorExit(), "GeneratorExit", True),
    (EndlessError("a BaseException of their own"), "EndlessError", True),
    (UnspeakableError(), "UnspeakableError", True),
    (asyncio.CancelledError(), "CancelledError", True),
]


@pytest.mark.parametrize("error, code, retryable", RAISED, ids=lambda value: str(type(value).__name__))
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_every_exception_becomes_a_failure_and_none_escapes(
    error: BaseException,
    code: str,
    retryable: bool,  # noqa: FBT001 - a column of the table above
    kind: str,
) -> None:
    async def on_the_loop() -> None:
        raise error

    def in_a_thread() -> None:
        raise error

    outcome = await outcome_of(on_the_loop if kind == "async" else in_a_thread)

    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.retryable) == (code, retryable)
    assert outcome.reason


async def test_what_a_handler_says_of_its_job_is_done() -> None:
    async def snooze() -> None:
        raise Snooze("5m")

    async def cancel() -> None:
        raise Cancel("no longer wanted")

    async def after() -> None:
        raise Retry(after="90s")

    assert await outcome_of(snooze) == Snoozed(300.0)
    assert await outcome_of(cancel) == Cancelled("no longer wanted")
    failed = await outcome_of(after)
    assert isinstance(failed, Failed)
    assert failed.retry_after_s == 90.0


async def test_a_result_is_stored_as_json_and_none_as_nothing() -> None:
    async def give(value: Any) -> Any:
        return value

    assert await attempt_of(give, {"value": {"a": [1, "ü"]}}).run() == Done('{"a":[1,"ü"]}')
    assert await attempt_of(give, {"value": None}).run() == Done(None)
    assert await attempt_of(give, {"value": "nul\x00"}).run() == Done('"nul\N{REPLACEMENT CHARACTER}"')


@pytest.mark.parametrize("value", [object(), "\ud800", {1: object()}], ids=["object", "surrogate", "inside"])
async def test_a_result_that_is_no_json_fails_for_good_with_the_reason(value: object) -> None:
    async def give() -> object:
        return value

    outcome = await outcome_of(give)

    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.retryable) == ("result_unstorable", False)


async def test_a_message_of_any_size_and_any_characters_is_made_storable() -> None:
    async def shout() -> None:
        raise ConnectionError("\x00\ud800" + "x" * 1_000_000)

    outcome = await outcome_of(shout)

    assert isinstance(outcome, Failed)
    assert len(outcome.reason) < TEXT_MAX + 100
    assert "\x00" not in outcome.reason
    outcome.reason.encode()
    outcome.error["trace"].encode()


@pytest.mark.parametrize(
    "why, outcome",
    [
        (Interruption.SHUTDOWN, Aborted()),
        (Interruption.CANCELLED, Cancelled("cancelled while it ran")),
        (Interruption.LOST, None),
        (Interruption.TIMED_OUT, TimedOut(3600.0)),
    ],
    ids=str,
)
async def test_an_interrupted_handler_ends_for_the_reason_of_the_interruption(
    why: Interruption, outcome: Outcome | None
) -> None:
    begun = asyncio.Event()

    async def sleep() -> None:
        begun.set()
        await asyncio.sleep(60)

    attempt = attempt_of(sleep)
    running = asyncio.create_task(attempt.run())
    await begun.wait()
    attempt.interrupt(why)

    assert await running == outcome
    assert bool(attempt.job.lost) is (why is Interruption.LOST)


async def test_a_handler_that_finishes_in_spite_of_its_interruption_keeps_its_result() -> None:
    begun = asyncio.Event()

    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved"
        return "slept"

    attempt = attempt_of(stubborn)
    running = asyncio.create_task(attempt.run())
    await begun.wait()
    attempt.interrupt(Interruption.SHUTDOWN)

    assert await running == Done('"saved"')


async def test_a_handler_that_runs_too_long_is_timed_out() -> None:
    async def sleep() -> None:
        await asyncio.sleep(60)

    assert await outcome_of(sleep, timeout="20ms") == TimedOut(0.02)


def test_a_payload_that_does_not_fit_is_undecodable_and_fails_for_good() -> None:
    def greet(name: str, times: int = 1) -> None: ...

    spec = spec_of(greet)

    assert decoded(spec, '{"name": "Ada"}') == {"name": "Ada"}
    assert decoded(spec, '{"name": "Ada", "times": 2}') == {"name": "Ada", "times": 2}
    for payload in ('{"nom": "Ada"}', "{}", "[1]", "nonsense", '{"name": ' + "[" * 5000 + "]" * 5000 + "}"):
        failed = decoded(spec, payload)
        assert isinstance(failed, Failed)
        assert (failed.code, failed.retryable) == ("payload_undecodable", False)


def test_a_task_that_takes_any_name_gets_them_all() -> None:
    def greet(**names: str) -> None: ...

    assert decoded(spec_of(greet), '{"names": "Ada", "b": "Bea"}') == {"names": "Ada", "b": "Bea"}


def test_the_app_of_these_tests_opens_nothing() -> None:
    assert App(settings=Settings()).registry.names() == ()
