-- Move jobs that have become due to where they are claimed, whole rows, the longest due first; of one instant, the oldest.
-- in: $1 limit
-- out: queue, rank
with p as (
  delete from leasehold.scheduled where ctid = any(array(
    select ctid from leasehold.scheduled where due_at <= (select leasehold.now()) order by due_at limit $1::integer
    for update skip locked))
  returning due_at, queue, rank, job_id, task, attempt, epoch, losses, last_token)
insert into leasehold.ready (queue, rank, seq, job_id, task, attempt, epoch, losses, last_token)
select queue, rank, nextval(pg_get_serial_sequence('leasehold.job', 'id')), job_id, task, attempt, epoch, losses, last_token
from p order by due_at, job_id
returning queue, rank
