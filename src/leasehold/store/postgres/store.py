"""The store on PostgreSQL. Every operation is a statement of `sql/`; this file carries values in and out.

Two connections at most: `hot` claims and settles, `side` does everything else, so that a long look never holds up a
settle. Both are opened when they are first needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from leasehold.core.decide import Settlement
from leasehold.core.events import Event, rank_of
from leasehold.core.fairness import Lane
from leasehold.core.job import Job, Lease, NewJob, State
from leasehold.core.outcome import Expired, Outcome
from leasehold.store.contract import NEVER_BEGUN, Answer, Ask, Cycle, Decide, Hold, Look, QueueCounts, Verdict
from leasehold.store.postgres.door import Door, DoorSettings, Transaction
from leasehold.store.postgres.lanes import Lanes

if TYPE_CHECKING:
    import asyncpg


class PostgresStore:
    """Keeps the contract on PostgreSQL 15 and later."""

    def __init__(self, dsn: str, *, clock: Callable[[], float], settings: DoorSettings | None = None) -> None:
        self._hot = Door(dsn, settings)
        self._side = Door(dsn, settings)
        self._lanes = Lanes(clock)

    # --- enqueue ------------------------------------------------------------------------------------------------------

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        """Write new jobs, all or none."""
        if len(jobs) == 1:
            job = jobs[0]
            rows = await self._side.rows(
                "enqueue",
                job.task,
                job.payload,
                job.queue,
                job.priority,
                job.delay_s,
                job.max_attempts,
                job.lease_s,
                job.timeout_s,
            )
        else:
            rows = await self._side.rows(
                "enqueue_many",
                [job.task for job in jobs],
                [job.payload for job in jobs],
                [job.queue for job in jobs],
                [job.priority for job in jobs],
                [job.delay_s for job in jobs],
                [job.max_attempts for job in jobs],
                [job.lease_s for job in jobs],
                [job.timeout_s for job in jobs],
            )
        return [row["id"] for row in rows]

    # --- claim and settle ---------------------------------------------------------------------------------------------

    async def claim(self, ask: Ask) -> tuple[Lease, ...]:
        """Take due jobs, lane by lane."""
        return await self._claim(await self._lanes_for(ask), ask)

    async def settle(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        """End attempts, each with its token."""
        answers: list[Answer] = []
        for batch in _without_twins(settlements):
            async with self._hot.transaction() as transaction:
                applied = await self._settle(transaction, batch)
                missing = [settlement for settlement in batch if settlement.job_id not in applied]
                repeated = await transaction.rows("settled", *_pairs(missing)) if missing else []
            answers += _answers(batch, applied, repeated)
        return tuple(answers)

    async def settle_and_claim(self, settlements: Sequence[Settlement], ask: Ask) -> Cycle:
        """Both; in one statement where the settlements are plain successes."""
        if not all(settlement.state is State.DONE for settlement in settlements) or _has_twins(settlements):
            return Cycle(await self.settle(settlements), await self.claim(ask))
        lanes = await self._lanes_for(ask)
        if lanes is None or not settlements:
            return Cycle(await self.settle(settlements), await self._claim(lanes, ask))
        results = ",".join(f'"{done.job_id}":{done.result}' for done in settlements if done.result is not None)
        rows = await self._hot.rows("settle_and_claim", *lanes, *_pairs(settlements), f"{{{results}}}")
        applied = {row["job_id"] for row in rows if row["task"] is None}
        missing = [settlement for settlement in settlements if settlement.job_id not in applied]
        repeated = await self._hot.rows("settled", *_pairs(missing)) if missing else []
        leases = self._leases([row for row in rows if row["task"] is not None], ask)
        return Cycle(tuple(_answers(settlements, applied, repeated)), leases)

    async def _settle(self, transaction: Transaction, settlements: Sequence[Settlement]) -> set[int]:
        bodies = ",".join(f'"{settlement.job_id}":{_body(settlement)}' for settlement in settlements)
        rows = await transaction.rows("settle", *_pairs(settlements), f"{{{bodies}}}")
        self._lanes.filled(
            Lane(settlement.rank, settlement.queue)
            for settlement in settlements
            if settlement.state is State.QUEUED and settlement.delay_s <= 0
        )
        return {row["job_id"] for row in rows}

    async def _settle_locked(self, transaction: Transaction, settlements: Sequence[Settlement]) -> None:
        if settlements:
            applied = await self._settle(transaction, settlements)
            assert len(applied) == len(settlements), "rows that we hold locked cannot be settled by anybody else"

    async def _lanes_for(self, ask: Ask) -> tuple[object, ...] | None:
        """The claim's arguments, or None where nobody waits."""
        assert ask.slots > 0, "who has no free slot does not ask"
        if self._lanes.stale():
            rows = await self._side.rows("lanes")
            self._lanes.discovered(Lane(row["rank"], row["queue"]) for row in rows)
        shares = self._lanes.shares(ask.slots, ask.queues)
        if not shares:
            return None
        return (
            [share.lane.queue for share, _ in shares],
            [share.lane.rank for share, _ in shares],
            [hint for _, hint in shares],
            [share.quota for share, _ in shares],
            ask.slots,
            ask.worker,
            ask.token,
            list(ask.tasks),
        )

    async def _claim(self, lanes: tuple[object, ...] | None, ask: Ask) -> tuple[Lease, ...]:
        return self._leases(await self._hot.rows("claim", *lanes), ask) if lanes is not None else ()

    def _leases(self, rows: Sequence[asyncpg.Record], ask: Ask) -> tuple[Lease, ...]:
        self._lanes.claimed((Lane(row["rank"], row["queue"]), row["seq"]) for row in rows)
        return tuple(_lease(row, ask.worker, ask.token) for row in rows)

    # --- keeping and recovering ---------------------------------------------------------------------------------------

    async def extend(self, holds: Sequence[Hold]) -> dict[Hold, Verdict]:
        """Extend the leases that are still held."""
        if not holds:
            return {}
        rows = await self._side.rows("extend", [hold.job_id for hold in holds], [hold.token for hold in holds])
        verdicts = {
            (row["job_id"], row["token"]): Verdict.CANCEL if row["cancel_requested"] else Verdict(row["verdict"])
            for row in rows
        }
        return {hold: verdicts[hold.job_id, hold.token] for hold in holds}

    async def reap(self, limit: int, decide: Decide) -> list[tuple[Lease, Settlement]]:
        """Settle leases that have run out."""
        async with self._side.transaction() as transaction:
            rows = await transaction.rows("expired", limit)
            reaped = [(lease, decide(lease, Expired(_evidence(row)))) for row in rows for lease in (_held(row),)]
            await self._settle_locked(transaction, [settlement for _, settlement in reaped])
        return reaped

    async def bury(
        self, worker: str, fates: Mapping[Hold, Outcome], decide: Decide
    ) -> list[tuple[Lease, Outcome, Settlement]]:
        """Settle everything that a dead worker still holds."""
        async with self._side.transaction() as transaction:
            buried: list[tuple[Lease, Outcome, Settlement]] = []
            for row in await transaction.rows("held_by", worker):
                lease = _held(row)
                outcome = fates.get(Hold(lease.job_id, lease.token), NEVER_BEGUN)
                buried.append((lease, outcome, decide(lease, outcome)))
            await self._settle_locked(transaction, [settlement for _, _, settlement in buried])
        return buried

    async def promote(self, limit: int) -> int:
        """Move due jobs to where they are claimed."""
        rows = await self._side.rows("promote", limit)
        if rows:
            self._lanes.forget()
        return len(rows)

    async def look(self) -> Look:
        """When there is something to do next."""
        self._lanes.forget()
        (row,) = await self._side.rows("look")
        return Look(row["due_in_s"], row["expiry_in_s"])

    async def progress(self, hold: Hold, pct: int, note: str | None) -> bool:
        """Store the progress of a held job."""
        return bool(await self._side.rows("progress", hold.job_id, hold.token, pct, note))

    # --- seeing -------------------------------------------------------------------------------------------------------

    async def get(self, job_id: int) -> Job | None:
        """A job as it stands now."""
        rows = await self._side.rows("get", job_id)
        return _job(rows[0]) if rows else None

    async def find(self, *, status: State | None = None, queue: str | None = None, limit: int = 20) -> list[Job]:
        """The newest jobs first."""
        return [_job(row) for row in await self._side.rows("find", status, queue, limit)]

    async def timeline(self, job_id: int) -> list[Event]:
        """Everything that happened to a job, in order."""
        rows = await self._side.rows("timeline", job_id)
        rows.sort(key=lambda row: (row["at"], row["epoch"], rank_of(row["kind"]), row["id"]))
        return [
            Event(row["job_id"], row["at"], row["kind"], row["attempt"], row["epoch"], json.loads(row["data"]))
            for row in rows
        ]

    async def counts(self) -> list[QueueCounts]:
        """How many jobs wait, wait for later, run and lie dead."""
        return [
            QueueCounts(row["queue"], row["ready"], row["scheduled"], row["processing"], row["dead"])
            for row in await self._side.rows("counts")
        ]

    async def close(self) -> None:
        """Give back both connections."""
        await self._hot.close()
        await self._side.close()


def _has_twins(settlements: Sequence[Settlement]) -> bool:
    return len({settlement.job_id for settlement in settlements}) < len(settlements)


def _without_twins(settlements: Sequence[Settlement]) -> Iterator[Sequence[Settlement]]:
    """Batches in which no job stands twice: a statement names its bodies by job, and one may be stale."""
    if _has_twins(settlements):
        yield from ((settlement,) for settlement in settlements)
    elif settlements:
        yield settlements


def _body(settlement: Settlement) -> str:
    body = json.dumps(
        {
            "state": settlement.state,
            "by": settlement.by,
            "attempt": settlement.attempt,
            "losses": settlement.losses,
            "rank": settlement.rank,
            "delay_s": settlement.delay_s,
            "code": settlement.code,
            "reason": settlement.reason,
            "error": settlement.error,
            "data": settlement.data,
            "events": [{"kind": event.kind, "data": event.data} for event in settlement.events],
        }
    )
    return body if settlement.result is None else f'{body[:-1]},"result":{settlement.result}}}'


def _pairs(settlements: Iterable[Settlement]) -> tuple[list[int], list[UUID]]:
    pairs = [(settlement.job_id, settlement.token) for settlement in settlements]
    return [job_id for job_id, _ in pairs], [token for _, token in pairs]


def _answers(
    settlements: Sequence[Settlement], applied: set[int], repeated: Sequence[asyncpg.Record]
) -> Iterator[Answer]:
    again = {row["job_id"] for row in repeated}
    for settlement in settlements:
        if settlement.job_id in applied:
            yield Answer.APPLIED
        else:
            yield Answer.ALREADY if settlement.job_id in again else Answer.LOST


def _evidence(row: asyncpg.Record) -> dict[str, Any]:
    return {
        "lease_expires_at": row["lease_expires_at"].isoformat(),
        "last_heartbeat_at": row["last_heartbeat_at"].isoformat(),
    }


def _held(row: asyncpg.Record) -> Lease:
    return _lease(row, row["worker"], row["token"])


def _lease(row: asyncpg.Record, worker: str, token: UUID) -> Lease:
    return Lease(
        job_id=row["job_id"],
        queue=row["queue"],
        task=row["task"],
        payload=row["payload"],
        priority=row["priority"],
        token=UUID(bytes=token.bytes),
        attempt=row["attempt"],
        epoch=row["epoch"],
        losses=row["losses"],
        max_attempts=row["max_attempts"],
        lease_s=row["lease_s"],
        timeout_s=row["timeout_s"],
        worker=worker,
        created_at=row["created_at"],
        started_at=row["started_at"],
    )


def _job(row: asyncpg.Record) -> Job:
    values = dict(row.items())
    values["status"] = State(values["status"])
    for name in ("error", "result"):
        values[name] = json.loads(values[name]) if values[name] is not None else None
    return Job(**values)
