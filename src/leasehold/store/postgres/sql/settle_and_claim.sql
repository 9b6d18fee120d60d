-- Settle the jobs that are done and take the next due ones: one statement, one commit.
-- in: $1 .. $8 as claim, $9 ids, $10 tokens, $11 results (one json object: id -> result)
-- out: as claim, and one row with nothing but its job_id for each job that was settled
with x as (
  delete from leasehold.lease
  where job_id = any((select $9::bigint[])::bigint[])
    and ((job_id, token) in (select * from unnest($9::bigint[], $10::uuid[]))) is true
  returning job_id, queue, token, attempt, epoch, losses, worker, started_at, progress),
f as (
  insert into leasehold.finished (job_id, queue, status, attempt, epoch, losses, token, ended_by, worker, started_at, finished_at,
                                  progress, result)
  select job_id, queue, 'done', attempt, epoch, losses, token, 'worker', worker, started_at, (select leasehold.now()), progress,
         (select $11::text::jsonb) -> job_id::text
  from x),
pick as (
  select w.t from unnest($1::text[], $2::smallint[], $3::bigint[], $4::integer[]) with ordinality as p (queue, rank, hint, quota, o)
  cross join lateral (
    select ctid as t from leasehold.ready
    where queue = p.queue and rank = p.rank and seq >= p.hint and task = any((select $8::text[])::text[])
    order by seq limit p.quota for update skip locked) w
  limit $5::integer),
d as (
  delete from leasehold.ready where ctid = any(array(select t from pick))
  returning job_id, queue, rank, seq, task, attempt, epoch, losses, last_token),
c as (
  select d.job_id, d.queue, d.rank, d.seq, d.task, d.attempt + 1 as attempt, d.epoch + 1 as epoch, d.losses, d.last_token,
         j.priority, j.max_attempts, j.lease_s, j.timeout_s, j.created_at, j.payload,
         (select leasehold.now()) as moment
  from d
  cross join lateral (
    select priority, max_attempts, lease_s, timeout_s, created_at, payload from leasehold.job
    where id = d.job_id and queue = d.queue offset 0) j),
l as (
  insert into leasehold.lease (job_id, queue, token, attempt, epoch, losses, worker, lease_s, started_at, last_heartbeat_at,
                               lease_expires_at, deadline, last_token)
  select job_id, queue, $7::uuid, attempt, epoch, losses, $6::text, lease_s, moment, moment,
         moment + make_interval(secs => lease_s), moment + make_interval(secs => timeout_s), last_token
  from c)
select job_id, queue, task, payload::text as payload, priority, attempt, epoch, losses, max_attempts, lease_s, timeout_s,
       created_at, moment as started_at, rank, seq
from c
union all
select job_id, null, null, null, null, null, null, null, null, null, null, null, null, null, null from x
order by rank, seq
