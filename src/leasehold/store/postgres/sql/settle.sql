-- End leases, each with its token: the job is done, failed, cancelled, or goes back to wait.
-- in: $1 ids, $2 tokens, $3 bodies (one json object: id -> state, by, attempt, losses, rank, delay_s, code, reason, error, result, data, events)
-- out: job_id of each that was settled now
with x as (
  delete from leasehold.lease
  where job_id = any((select $1::bigint[])::bigint[])
    and ((job_id, token) in (select * from unnest($1::bigint[], $2::uuid[]))) is true
  returning job_id, queue, token, attempt, epoch, worker, started_at, progress),
v as materialized (
  select x.job_id, x.queue, x.token, x.attempt, x.epoch, x.worker, x.started_at, x.progress, b.body, (select leasehold.now()) as moment,
         b.body ->> 'state' as state, (b.body ->> 'attempt')::smallint as attempt_after, (b.body ->> 'losses')::smallint as losses,
         (b.body ->> 'rank')::smallint as rank, (b.body ->> 'delay_s')::float8 as delay_s,
         case when b.body ->> 'by' = 'worker' then x.token end as last_token,
         j.task, j.priority, j.max_attempts, j.lease_s, j.timeout_s, j.birth, j.created_at, j.payload
  from x
  cross join lateral (select (select $3::text::jsonb) -> x.job_id::text as body offset 0) b
  cross join lateral (
    select task, priority, max_attempts, lease_s, timeout_s, birth, created_at, payload from leasehold.job
    where id = x.job_id and queue = x.queue offset 0) j),
r as (
  insert into leasehold.ready (queue, rank, seq, job_id, task, attempt, epoch, losses, last_token)
  select queue, rank, nextval(pg_get_serial_sequence('leasehold.job', 'id')), job_id, task, attempt_after, epoch, losses, last_token
  from v where state = 'queued' and delay_s <= 0),
s as (
  insert into leasehold.scheduled (due_at, queue, rank, job_id, task, attempt, epoch, losses, last_token)
  select moment + make_interval(secs => delay_s), queue, rank, job_id, task, attempt_after, epoch, losses, last_token
  from v where state = 'queued' and delay_s > 0),
f as (
  insert into leasehold.finished (job_id, queue, status, attempt, epoch, losses, token, ended_by, worker, started_at, finished_at,
                                  progress, fail_code, fail_reason, error, result, data)
  select job_id, queue, state, attempt_after, epoch, losses, token, body ->> 'by', worker, started_at, moment, progress,
         body ->> 'code', body ->> 'reason', nullif(body -> 'error', 'null'), body -> 'result', nullif(body -> 'data', 'null')
  from v where state <> 'queued'),
a as (
  insert into leasehold.dead (job_id, queue, task, priority, max_attempts, lease_s, timeout_s, birth, created_at, payload,
                              attempts, epoch, failed_at, fail_code, fail_reason, error)
  select job_id, queue, task, priority, max_attempts, lease_s, timeout_s, birth, created_at, payload, attempt_after, epoch, moment,
         body ->> 'code', body ->> 'reason', nullif(body -> 'error', 'null')
  from v where state = 'failed'),
e as (
  insert into leasehold.job_event (job_id, at, kind, attempt, epoch, data)
  select job_id, started_at, 'processing', attempt, epoch, jsonb_build_object('worker', worker) from v where state = 'queued'
  union all
  select v.job_id, v.moment, t.told ->> 'kind', v.attempt, v.epoch, t.told -> 'data'
  from v cross join lateral jsonb_array_elements(v.body -> 'events') as t (told))
select job_id from x
