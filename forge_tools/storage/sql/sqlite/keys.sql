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
