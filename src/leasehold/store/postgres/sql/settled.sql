-- Which of these leases were ended by their own worker before? Asked only for those that `settle` did not find.
-- in: $1 ids, $2 tokens
-- out: job_id of each that was already settled with this token; the others are lost
select u.job_id
from unnest($1::bigint[], $2::uuid[]) as u (job_id, token)
cross join lateral (
  select 1 from leasehold.finished where job_id = u.job_id and token = u.token and ended_by = 'worker'
  union all select 1 from leasehold.scheduled where job_id = u.job_id and last_token = u.token
  union all select 1 from leasehold.ready where job_id = u.job_id and epoch > 0 and last_token = u.token
  union all select 1 from leasehold.lease where job_id = u.job_id and last_token = u.token
  limit 1 offset 0) b
