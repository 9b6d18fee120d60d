-- Everything that happened to a job, as it happened; the caller orders what shares an instant.
-- in: $1 job id
-- out: job_id, at, kind, attempt, epoch, id, data
select job_id, at, kind, attempt, epoch, id, data::text as data from leasehold.job_events where job_id = $1::bigint order by at, id
