-- Write many new jobs in one round trip.
-- in: $1 tasks, $2 payloads (json texts), $3 queues, $4 priorities, $5 delays_s, $6 max_attempts, $7 leases_s, $8 timeouts_s
-- out: id, in the order of the arrays
select u.id from leasehold.enqueue_many(
  $1::text[], $2::text[], $3::text[], $4::smallint[], $5::float8[], $6::smallint[], $7::float8[], $8::float8[]) as u (id)
