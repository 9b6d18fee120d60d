-- The layout: hot and cold apart. `job` is written once, `finished` and `job_event` are appended and dropped by the day, and what
-- churns (`ready`, `scheduled`, `lease`) is narrow and small. Queue stands in every key, but not first: settling a batch of many
-- queues needs only ids, and a distributed PostgreSQL still finds its distribution column in every key.

create schema if not exists leasehold;

create table leasehold.migration (
  version    integer primary key,
  name       text not null,
  applied_at timestamptz not null
);

-- The clock. STABLE, always written `(select leasehold.now())`, so that a statement asks once and indexes serve it. Tests replace
-- it in their own database; this one has no switch.
create function leasehold.now() returns timestamptz language sql stable parallel safe as $f$ select clock_timestamp() $f$;

create sequence leasehold.job_event_id;

create table leasehold.job (
  id           bigint generated always as identity,
  queue        text not null check (length(queue) between 1 and 200),
  task         text not null check (length(task) between 1 and 200),
  priority     smallint not null default 0 check (priority between -100 and 100),
  max_attempts smallint not null default 3 check (max_attempts >= 1),
  lease_s      double precision not null default 30 check (lease_s > 0),
  timeout_s    double precision default 3600 check (timeout_s > 0),
  -- Tells two jobs apart that got one id: an asynchronous failover can roll the sequence back.
  birth        bigint not null default (random() * 9223372036854774784)::bigint,
  created_at   timestamptz not null,
  run_at       timestamptz not null,
  payload      jsonb not null,
  primary key (id, queue)
) with (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_insert_scale_factor = 0.5);

-- One row per job that is due; inserted by enqueue, promote and settle, deleted by claim, never updated: its ctid is safe to use.
create table leasehold.ready (
  queue      text not null,
  rank       smallint not null,
  seq        bigint not null,  -- the job's id at enqueue, a fresh number of the same sequence later: grows with readiness
  job_id     bigint not null,
  task       text not null,
  attempt    smallint not null default 0 check (attempt >= 0),
  epoch      integer not null default 0 check (epoch >= 0),
  losses     smallint not null default 0 check (losses >= 0),
  last_token uuid
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index ready_lane on leasehold.ready (queue, rank, seq);
-- Fresh jobs are found by their lane and id; only those that came back pay for an index of their own.
create index ready_returned on leasehold.ready (job_id) where epoch > 0;

create table leasehold.scheduled (
  due_at     timestamptz not null,
  queue      text not null,
  rank       smallint not null,
  job_id     bigint not null,
  task       text not null,
  attempt    smallint not null default 0 check (attempt >= 0),
  epoch      integer not null default 0 check (epoch >= 0),
  losses     smallint not null default 0 check (losses >= 0),
  last_token uuid
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index scheduled_due on leasehold.scheduled (due_at);
create index scheduled_job on leasehold.scheduled (job_id);

-- One narrow row per job in flight. No index on the heartbeat's columns: a beat stays HOT.
create table leasehold.lease (
  job_id            bigint not null,
  queue             text not null,
  token             uuid not null,
  attempt           smallint not null check (attempt >= 1),
  epoch             integer not null check (epoch >= attempt),
  losses            smallint not null,
  worker            text not null,
  lease_s           double precision not null,
  started_at        timestamptz not null,
  last_heartbeat_at timestamptz not null,
  lease_expires_at  timestamptz not null,
  deadline          timestamptz,
  progress          smallint check (progress between 0 and 100),
  progress_note     text,
  cancel_requested  boolean not null default false,
  last_token        uuid,
  primary key (job_id, queue)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- How a job ended. One row per job, without a unique key: only who deleted the job's live row inserts here.
create table leasehold.finished (
  job_id      bigint not null,
  queue       text not null,
  status      text not null check (status in ('done', 'failed', 'cancelled')),
  attempt     smallint not null,
  epoch       integer not null,
  losses      smallint not null,
  token       uuid,
  ended_by    text not null check (ended_by in ('worker', 'supervisor', 'reaper', 'operator')),
  worker      text,
  started_at  timestamptz,
  finished_at timestamptz not null,
  progress    smallint,
  fail_code   text check ((fail_code is not null) = (status = 'failed')),
  fail_reason text,
  error       jsonb,
  result      jsonb,
  data        jsonb
) partition by range (finished_at);
create index finished_job on leasehold.finished (job_id);

-- A dead letter: the request copied in, so that it outlives the days.
create table leasehold.dead (
  job_id       bigint not null,
  queue        text not null,
  task         text not null,
  priority     smallint not null,
  max_attempts smallint not null,
  lease_s      double precision not null,
  timeout_s    double precision,
  birth        bigint not null,
  created_at   timestamptz not null,
  payload      jsonb not null,
  attempts     smallint not null,
  epoch        integer not null,
  failed_at    timestamptz not null,
  fail_code    text not null,
  fail_reason  text,
  error        jsonb,
  primary key (job_id, queue)
);

-- What cannot be derived from the rows above.
create table leasehold.job_event (
  id      bigint not null default nextval('leasehold.job_event_id'),
  job_id  bigint not null,
  at      timestamptz not null,
  kind    text not null,
  attempt smallint not null,
  epoch   integer not null,
  data    jsonb
) partition by range (at);
create index job_event_job on leasehold.job_event (job_id);

-- The safety net: a settle never fails for want of a day.
create table leasehold.finished_rest partition of leasehold.finished default;
create table leasehold.job_event_rest partition of leasehold.job_event default;

-- Make the days from today to today + ahead. CREATE and ATTACH instead of PARTITION OF: the parent stays open for settles.
create function leasehold.ensure_days(ahead integer) returns integer language plpgsql as $f$
declare
  parent text;
  day    date;
  part   text;
  made   integer := 0;
begin
  perform pg_advisory_xact_lock(1279608915, 1);
  foreach parent in array array['finished', 'job_event'] loop
    for i in 0..ahead loop
      day := ((select leasehold.now()) at time zone 'utc')::date + i;
      part := parent || '_' || to_char(day, 'YYYYMMDD');
      if to_regclass('leasehold.' || part) is null then
        execute format('create table leasehold.%I (like leasehold.%I including defaults including constraints)', part, parent);
        execute format('alter table leasehold.%I attach partition leasehold.%I for values from (%L) to (%L)',
                       parent, part, day::text || ' 00:00+00', (day + 1)::text || ' 00:00+00');
        made := made + 1;
      end if;
    end loop;
  end loop;
  return made;
end $f$;

-- Enqueue one job. `payload` holds the task's arguments by name.
create function leasehold.enqueue(
  task text, payload jsonb default '{}', queue text default 'default', priority integer default 0, delay_s double precision default 0,
  max_attempts integer default 3, lease_s double precision default 30, timeout_s double precision default 3600
) returns bigint language plpgsql as $f$
#variable_conflict use_variable
declare
  job_id bigint;
  moment timestamptz := (select leasehold.now());
  due_at timestamptz := moment + make_interval(secs => delay_s);
begin
  insert into leasehold.job as j (queue, task, priority, max_attempts, lease_s, timeout_s, created_at, run_at, payload)
  values (queue, task, priority, max_attempts, lease_s, timeout_s, moment, due_at, payload)
  returning j.id into job_id;
  if delay_s <= 0 then
    insert into leasehold.ready (queue, rank, seq, job_id, task) values (queue, -3 * priority, job_id, job_id, task);
  else
    insert into leasehold.scheduled (due_at, queue, rank, job_id, task) values (due_at, queue, -3 * priority, job_id, task);
  end if;
  return job_id;
end $f$;

-- Enqueue thousands in one round trip; the ids come back in the order of the arrays.
create function leasehold.enqueue_many(
  tasks text[], payloads text[], queues text[], priorities smallint[], delays_s double precision[],
  max_attempts smallint[], leases_s double precision[], timeouts_s double precision[]
) returns setof bigint language plpgsql as $f$
declare
  moment timestamptz := (select leasehold.now());
begin
  return query
  with j as (
    insert into leasehold.job (queue, task, priority, max_attempts, lease_s, timeout_s, created_at, run_at, payload)
    select q, t, p, a, l, x, moment, moment + make_interval(secs => d), b::jsonb
    from unnest(queues, tasks, priorities, enqueue_many.max_attempts, leases_s, timeouts_s, delays_s, payloads)
         with ordinality as u (q, t, p, a, l, x, d, b, o)
    order by o
    returning job.id, job.queue, job.task, job.priority, job.run_at),
  r as (
    insert into leasehold.ready (queue, rank, seq, job_id, task)
    select j.queue, -3 * j.priority, j.id, j.id, j.task from j where j.run_at <= moment),
  s as (
    insert into leasehold.scheduled (due_at, queue, rank, job_id, task)
    select j.run_at, j.queue, -3 * j.priority, j.id, j.task from j where j.run_at > moment)
  select j.id from j;
end $f$;

-- The operator's face.
create view leasehold.jobs as
select j.id, j.queue, j.task, j.priority, j.payload, j.created_at, j.max_attempts,
       coalesce(f.status, case when l.job_id is not null then 'processing' else 'queued' end) as status,
       coalesce(f.attempt, l.attempt, s.attempt, r.attempt, 0::smallint) as attempt_count,
       coalesce(f.epoch, l.epoch, s.epoch, r.epoch, 0) as epoch,
       coalesce(f.losses, l.losses, s.losses, r.losses, 0::smallint) as losses,
       l.worker as locked_by, l.last_heartbeat_at, l.lease_expires_at,
       coalesce(l.progress, f.progress) as progress, l.progress_note,
       case when f.job_id is null and l.job_id is null then coalesce(s.due_at, j.run_at) end as next_earliest_run_at,
       coalesce(f.started_at, l.started_at) as started_at, f.finished_at,
       f.fail_code, f.fail_reason, f.error, f.result
from leasehold.job j
left join leasehold.finished  f on f.job_id = j.id
left join leasehold.lease     l on l.job_id = j.id
left join leasehold.scheduled s on s.job_id = j.id
left join lateral (
  select w.attempt, w.epoch, w.losses from leasehold.ready w where w.job_id = j.id and w.epoch > 0
  limit 1) r on true;

create view leasehold.job_events as
select id as job_id, created_at as at, 'created' as kind, 0::smallint as attempt, 0 as epoch, 0::bigint as id,
       jsonb_build_object('queue', queue, 'task', task) as data
from leasehold.job
union all
select job_id, started_at, 'processing', attempt, epoch, 0, jsonb_build_object('worker', worker) from leasehold.lease
union all
select job_id, started_at, 'processing', attempt, epoch, 0, jsonb_build_object('worker', worker) from leasehold.finished
where started_at is not null
union all
select job_id, finished_at, status, attempt, epoch, 0,
       jsonb_strip_nulls(jsonb_build_object('code', fail_code, 'reason', fail_reason, 'by', ended_by))
       || case when error is null then '{}' else jsonb_build_object('error', error) end || coalesce(data, '{}')
from leasehold.finished
union all
select job_id, at, kind, attempt, epoch, id, coalesce(data, '{}') from leasehold.job_event;

select leasehold.ensure_days(7);
