-- Each flush is one transaction of the writer's thread, a statement or a few for each row.

-- name: changed
SELECT name, spec, digest, enabled, demoted_at IS NOT NULL FROM tools
WHERE name = :tool AND is_default AND NOT (enabled AND digest = :tool_digest)
  AND NOT EXISTS (SELECT 1 FROM executions WHERE id = :id)

-- name: known
SELECT 1 FROM executions WHERE id = :id

-- name: insert
INSERT INTO executions ({asked}, queued_at) VALUES ({asked_values}, :now) ON CONFLICT (id) DO NOTHING

-- name: enqueue
INSERT INTO execution_queue ({queued}, status, attempt, not_before, expires_at, encrypted, reply_key)
SELECT {queued}, 'queued', 0, :not_before, :expires_at, :encrypted, :reply_key FROM executions WHERE id = :id

-- What waits for a claim that may still come; and what can be claimed now, whoever asks.
-- name: is_waiting
status = 'queued' AND expires_at > :now AND cancel_requested_at IS NULL AND attempt < max_attempts

-- name: is_due
not_before <= :now AND {is_waiting}

-- A token that is there already is this very claim: the reply to its commit may have been lost.
-- name: claim
UPDATE execution_queue SET status = 'running', attempt = :attempt + 1, token = :token, owner = :instance,
  hostname = :hostname, pid = :pid, started_at = CASE status WHEN 'running' THEN started_at ELSE :now END
WHERE id = :id AND (status = 'running' AND token = :token AND attempt <= max_attempts
  OR attempt = :attempt AND {is_due} AND lane = :lane
     AND queue IN (SELECT value FROM json_each(:queues)) AND tool_key IN (SELECT value FROM json_each(:keys)))

-- name: claimed
SELECT {claim_columns}, q.encrypted, q.reply_key, q.started_at FROM executions e JOIN execution_queue q ON q.id = e.id WHERE e.id = :id

-- name: owned
SELECT owner, hostname, pid, started_at, attempt < max_attempts AND cancel_requested_at IS NULL, expires_in
FROM execution_queue WHERE id = :id AND attempt = :attempt AND token = :token AND status = 'running'

-- name: requeue
UPDATE execution_queue SET status = 'queued', attempt = :left, {nobody},
  not_before = :not_before, expires_at = MAX(expires_at, :expires_at) WHERE id = :id

-- name: leave
DELETE FROM execution_queue WHERE id = :id

-- name: insert_attempt
INSERT INTO execution_attempts (execution_id, attempt, final, token, worker_id, hostname, pid, started_at, completed_at,
                                {outcome})
VALUES (:id, :attempt, :final, :token, :owner, :hostname, :pid, :started_at, :now, {outcome_values})

-- name: insert_event
INSERT INTO execution_events (execution_id, at, kind, actor, detail, token)
SELECT id, :now, :kind, :actor, :detail, :token FROM executions WHERE id = :id ON CONFLICT DO NOTHING

-- name: is_mine
SELECT EXISTS (SELECT 1 FROM execution_attempts
               WHERE execution_id = :id AND attempt = :attempt AND token = :token AND status = :status)
    OR EXISTS (SELECT 1 FROM execution_events WHERE execution_id = :id AND kind = 'given_back' AND token = :token)

-- name: results
SELECT a.execution_id, {result_columns} FROM execution_attempts a
WHERE a.final AND a.execution_id IN (SELECT value FROM json_each(:ids))

-- Idempotency keys, and replays.

-- name: holder
SELECT execution_id, fingerprint FROM idempotency_keys WHERE scope = :scope AND key = :key

-- name: free
DELETE FROM idempotency_keys AS k WHERE k.scope = :scope AND k.key = :key
  AND NOT EXISTS (SELECT 1 FROM execution_queue q WHERE q.id = k.execution_id)
  AND (k.expires_at <= :now OR NOT EXISTS (SELECT 1 FROM executions e WHERE e.id = k.execution_id))
  AND NOT EXISTS (SELECT 1 FROM execution_attempts t WHERE t.execution_id = k.execution_id AND t.final
                  AND (julianday(:now) - julianday(t.completed_at)) * 86400.0 < k.ttl)

-- name: take_key
INSERT INTO idempotency_keys (scope, key, execution_id, fingerprint, ttl, claimed_at, expires_at)
VALUES (:scope, :key, :id, :fingerprint, :ttl, :now, :expires_at) ON CONFLICT DO NOTHING

-- name: link
UPDATE executions SET idempotency_key = :key, replay_of = :replay_of WHERE id = :id

-- name: note
INSERT INTO execution_events (execution_id, at, kind, actor, detail, token)
VALUES (:execution_id, :now, :kind, :actor, :detail, :id) ON CONFLICT DO NOTHING
