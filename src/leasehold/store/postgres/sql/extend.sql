-- Extend leases, each with its token, never past its deadline. Waits for nobody: a row in somebody's open transaction is left for
-- the next beat and is not lost.
-- in: $1 ids, $2 tokens
-- out: job_id, token, verdict (kept, busy, lost), cancel_requested
with free as materialized (
  select job_id from leasehold.lease
  where job_id = any((select $1::bigint[])::bigint[])
    and ((job_id, token) in (select * from unnest($1::bigint[], $2::uuid[]))) is true
  for update skip locked),
kept as (
  update leasehold.lease
  set last_heartbeat_at = (select leasehold.now()),
      lease_expires_at = greatest(lease_expires_at, least(deadline, (select leasehold.now()) + make_interval(secs => lease_s)))
  where job_id = any(array(select job_id from free))
    and ((job_id, token) in (select * from unnest($1::bigint[], $2::uuid[]))) is true
  returning job_id, token, cancel_requested)
select job_id, token, 'kept' as verdict, cancel_requested from kept
union all
select u.job_id, u.token, case when h.job_id is null then 'lost' else 'busy' end, false
from unnest($1::bigint[], $2::uuid[]) as u (job_id, token)
left join lateral (
  select job_id from leasehold.lease where job_id = u.job_id and token = u.token limit 1 offset 0) h on true
where ((u.job_id, u.token) in (select job_id, token from kept)) is not true
