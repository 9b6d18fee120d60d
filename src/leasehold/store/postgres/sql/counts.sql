-- How many jobs wait, wait for later, run and lie dead, queue by queue.
-- in: nothing
-- out: queue, ready, scheduled, processing, dead
select queue,
       sum(ready)::bigint as ready, sum(scheduled)::bigint as scheduled, sum(processing)::bigint as processing, sum(dead)::bigint as dead
from (
  select queue, count(1) as ready, 0 as scheduled, 0 as processing, 0 as dead from leasehold.ready group by queue
  union all select queue, 0, count(1), 0, 0 from leasehold.scheduled group by queue
  union all select queue, 0, 0, count(1), 0 from leasehold.lease group by queue
  union all select queue, 0, 0, 0, count(1) from leasehold.dead group by queue) c
group by queue
order by queue
