-- The newest jobs, optionally of one status or one queue.
-- in: $1 status or null, $2 queue or null, $3 limit
-- out: the columns of the view jobs
select id, queue, task, status, priority, payload::text as payload, attempt_count, max_attempts, created_at, started_at, finished_at,
       last_heartbeat_at, lease_expires_at, locked_by, next_earliest_run_at, progress, progress_note, fail_code, fail_reason,
       error::text as error, result::text as result
from leasehold.jobs
where ($1::text is null or status = $1::text) and ($2::text is null or queue = $2::text)
order by id desc
limit $3::integer
