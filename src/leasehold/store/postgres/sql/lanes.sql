-- Which lanes have waiting jobs? Skips from lane to lane through the index, so a long lane costs no more than a short one.
-- in: nothing
-- out: queue, rank
with recursive lane (queue, rank) as (
  (select queue, rank from leasehold.ready order by queue, rank limit 1)
  union all
  select n.queue, n.rank
  from lane
  cross join lateral (
    select queue, rank from leasehold.ready where (queue, rank) > (lane.queue, lane.rank) order by queue, rank limit 1) n)
select queue, rank from lane
