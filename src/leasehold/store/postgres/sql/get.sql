-- One job as it stands now.
-- in: $1 id
-- out: the columns of the view jobs
select id, queue, task, status, priority, payload::text as payload, attempt_count, max_attempts, created_at, started_at, finished_at,
       last_heartbeat_at, lease_expires_at, locked_by, next_earliest_run_at, progress, progress_note, fail_code, fail_reason,
       error::text as error, result::text as result
from leasehold.jobs where id = $1::bigint
