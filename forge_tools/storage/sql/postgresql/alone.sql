-- What comes alone, as most calls do: the statements of queue.sql for one row, at two thirds of their cost. They take what is as
-- it should be. Whatever finds no row is asked again by the statement for many, which says why.

-- name: submit_one
WITH inserted AS (
    INSERT INTO executions ({asked}, queued_at) SELECT {asked_parameters}, now()
    WHERE abs(:issued_at::float8 - extract(epoch FROM now())::float8) <= {max_skew}
      AND NOT EXISTS (SELECT FROM tools t WHERE t.name = :tool AND t.is_default AND NOT (t.enabled AND t.digest = :tool_digest))
    ON CONFLICT (id) DO NOTHING RETURNING id),
  enqueued AS (
    INSERT INTO execution_queue ({queued}, status, attempt, not_before, expires_at, sealed, reply_key)
    SELECT {queued_parameters}, 'queued', 0, now() + make_interval(secs => :delay), now() + make_interval(secs => :expires_in),
           :sealed::text, :reply_key::text FROM inserted)
SELECT 1 FROM inserted

-- name: claim_one
WITH claimed AS (
    UPDATE execution_queue q SET status = 'running', attempt = q.attempt + 1, token = :token::uuid, owner = :boot,
      hostname = :hostname, pid = :pid, started_at = clock_timestamp()
    WHERE q.id = (
      SELECT q.id FROM execution_queue q
      WHERE q.id = :id::uuid AND q.status = 'queued' AND q.attempt = :attempt::int4 AND q.not_before <= now()
        AND q.expires_at > now() AND q.cancel_requested_at IS NULL AND q.attempt < q.max_attempts
        AND q.lane = :lane AND q.queue = ANY(:queues::text[]) AND q.tool_key = ANY(:keys::text[])
      FOR UPDATE SKIP LOCKED)
    RETURNING q.id, q.started_at, q.sealed, q.reply_key)
SELECT {claim_columns}, c.sealed, c.reply_key, extract(epoch FROM c.started_at)::float8
FROM claimed c JOIN executions e ON e.id = c.id

-- name: finish_one
WITH ended AS (
    DELETE FROM execution_queue q
    WHERE q.id = :id::uuid AND q.attempt = :attempt::int4 AND q.token = :token::uuid AND q.status = 'running'
    RETURNING q.owner, q.hostname, q.pid, q.started_at)
INSERT INTO execution_attempts (execution_id, attempt, final, token, worker_id, hostname, pid, started_at, completed_at, {outcome})
SELECT :id::uuid, :attempt::int4, true, :token::uuid, owner, hostname, pid, started_at, now(), {outcome_parameters} FROM ended
RETURNING attempt
