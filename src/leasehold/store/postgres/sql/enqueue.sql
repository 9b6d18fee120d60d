-- Write one new job.
-- in: $1 task, $2 payload (json text), $3 queue, $4 priority, $5 delay_s, $6 max_attempts, $7 lease_s, $8 timeout_s
-- out: id
select leasehold.enqueue($1::text, $2::text::jsonb, $3::text, $4::integer, $5::float8, $6::integer, $7::float8, $8::float8) as id
