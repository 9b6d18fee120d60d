-- When is there something to do next? The seconds until the next due job and until the earliest lease end of anybody.
-- in: nothing
-- out: due_in_s, expiry_in_s (null: nothing is awaited)
select extract(epoch from (select min(due_at) from leasehold.scheduled) - (select leasehold.now()))::float8 as due_in_s,
       extract(epoch from (select min(lease_expires_at) from leasehold.lease) - (select leasehold.now()))::float8 as expiry_in_s
