-- Store how far a held job is and write it to its timeline.
-- in: $1 job id, $2 token, $3 percent, $4 note
-- out: job_id if the lease is held
with k as (
  update leasehold.lease set progress = $3::smallint, progress_note = $4::text
  where job_id = any((select array[$1::bigint])::bigint[])
    and ((job_id, token) in (select * from unnest(array[$1::bigint], array[$2::uuid]))) is true
  returning job_id, attempt, epoch),
e as (
  insert into leasehold.job_event (job_id, at, kind, attempt, epoch, data)
  select job_id, (select leasehold.now()), 'progress', attempt, epoch, jsonb_build_object('pct', $3::smallint, 'note', $4::text)
  from k)
select job_id from k
