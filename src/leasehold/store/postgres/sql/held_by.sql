-- Lock the leases of a worker that is dead, to be settled in the same transaction. -- supervisor
-- in: $1 worker
-- out: the leases
select l.job_id, l.queue, j.task, j.payload::text as payload, j.priority, l.token, l.attempt, l.epoch, l.losses, j.max_attempts, l.lease_s,
       j.timeout_s, l.worker, j.created_at, l.started_at, l.lease_expires_at, l.last_heartbeat_at
from leasehold.lease l
cross join lateral (
  select task, payload, priority, max_attempts, timeout_s, created_at from leasehold.job
  where id = l.job_id and queue = l.queue offset 0) j
where l.worker = $1::text
for update of l
