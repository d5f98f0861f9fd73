-- Each flush is one transaction of the writer thread, with one or a few statements per row.

-- name: is_moved
  (demoted_at IS NOT NULL OR moved)

-- Nothing has changed for a call that was stored before: this may be a late repetition.
-- name: changed
SELECT name, spec, digest, enabled, {is_moved} FROM tools
WHERE name = :tool AND is_default AND NOT (enabled AND digest = :tool_digest)
  AND NOT EXISTS (SELECT 1 FROM executions WHERE id = :id)

-- name: known
SELECT 1 FROM executions WHERE id = :id

-- name: insert
INSERT INTO executions ({asked}, queued_at) VALUES ({asked_values}, :now) ON CONFLICT (id) DO NOTHING

-- name: enqueue
INSERT INTO execution_queue ({queued}, status, attempt, not_before, expires_at, encrypted, reply_key)
SELECT {queued}, 'queued', 0, :not_before, :expires_at, :encrypted, :reply_key FROM executions WHERE id = :id

-- What can be claimed now, by anybody.
-- name: is_due
not_before <= :now AND status = 'queued' AND expires_at > :now AND cancel_requested_at IS NULL AND attempt < max_attempts

-- A token that is already there is this very claim: the reply to its commit may have been lost.
-- name: claim
UPDATE execution_queue SET status = 'running', attempt = :attempt + 1, token = :token, owner = :instance,
  hostname = :hostname, pid = :pid, started_at = CASE status WHEN 'running' THEN started_at ELSE :now END
WHERE id = :id AND (status = 'running' AND token = :token
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

-- name: claimable
  lane = :lane AND tool_key = k.value AND queue = s.value AND {is_due}

-- A single statement is its own transaction. What it returns about the row that it writes is undefined, and not used.
-- Each question is answered under its name. CASE: where AND is a value, SQLite runs its second side even if the first is false.
-- INDEXED BY: once somebody has run ANALYZE on rows that are all alike, SQLite would read the whole queue instead.
-- name: heartbeat
UPDATE workers SET beat = beat + 1, last_seen_at = :now, stopped_at = NULL, dropped_messages = :dropped, answering = :answering
WHERE id = :instance RETURNING json_object(
  'now', :unix,
  'cancels', json((SELECT json_group_array(json_array(id, attempt)) FROM (
     SELECT id, attempt FROM execution_queue INDEXED BY execution_queue_cancels
     WHERE cancel_requested_at IS NOT NULL AND owner = :instance AND status = 'running' ORDER BY id))),
  'beats', json((SELECT json_group_object(id, beat) FROM workers WHERE stopped_at IS NULL)),
  'due', CASE WHEN :asks_due THEN EXISTS (
    SELECT 1 FROM json_each(:queues) AS s CROSS JOIN json_each(:keys) AS k
    CROSS JOIN execution_queue INDEXED BY execution_queue_due WHERE {claimable}) END,
  'over', EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_expiry
          WHERE expires_at <= :now AND status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_cancels
               WHERE cancel_requested_at IS NOT NULL AND status IN ('queued', 'awaiting_approval')),
  'demoted', json((SELECT json_group_array(json_array(name, digest)) FROM tools WHERE demoted_at IS NOT NULL)),
  'disabled', json((SELECT json_group_array(name) FROM tools WHERE enabled = false)),
  'misplaced', EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_due
          WHERE lane = 'async' AND tool_key IN (SELECT value FROM json_each(:banned)) AND status = 'queued'),
  'pinned', json((SELECT json_group_array(json_array(name, digest)) FROM tools WHERE pinned_at IS NOT NULL)),
  'unchained', CASE WHEN :asks_unchained THEN
    EXISTS (SELECT 1 FROM execution_attempts AS a INDEXED BY execution_attempts_completed
            WHERE a.final AND a.completed_at >= :chained_since
              AND NOT EXISTS (SELECT 1 FROM audit_executions AS s WHERE s.execution_id = a.execution_id))
    OR EXISTS (SELECT 1 FROM execution_events AS e
               WHERE e.id > :chained_event AND NOT EXISTS (SELECT 1 FROM audit_events AS s WHERE s.event_id = e.id)) END)

-- One index range per queue and tool, each read no further than the limit. In order of id, as on PostgreSQL.
-- name: due
SELECT id, attempt FROM (
    SELECT q.id, q.attempt FROM json_each(:queues) AS s CROSS JOIN json_each(:keys) AS k CROSS JOIN execution_queue AS q
    WHERE q.id IN (SELECT id FROM execution_queue INDEXED BY execution_queue_due WHERE {claimable}
                   ORDER BY not_before LIMIT :limit)
    ORDER BY q.not_before, q.id LIMIT :limit)
ORDER BY id

-- What a client reads before it makes calls.

-- name: server
SELECT 'SQLite ' || sqlite_version()

-- name: revision
SELECT version_num FROM alembic_version

-- A heartbeat in the future is from before the clock was set back.
-- name: lives
  w.stopped_at IS NULL AND abs(julianday(:now) - julianday(w.last_seen_at)) * 86400.0 <= :within

-- name: directory
SELECT json_object(
  'tools', json((SELECT json_group_array(json_array(name, version, digest, enabled, {is_moved}, spec, walls)) FROM (
     SELECT * FROM tools WHERE is_default ORDER BY name))),
  'workspaces', json((SELECT json_group_array(json_array(name, hostname, shared)) FROM (
     SELECT p.name, p.hostname, p.shared FROM workspaces p LEFT JOIN workers w ON w.id = p.instance
     ORDER BY CASE WHEN {lives} THEN 0 ELSE 1 END, p.announced_at DESC, p.instance))),
  'has_sessions', EXISTS (SELECT 1 FROM session_workspaces),
  'key', json((SELECT json_array(id, public) FROM encryption_keys WHERE retired_at IS NULL ORDER BY created_at DESC, id LIMIT 1)),
  'workers', json((SELECT json_group_array(json_array(hostname, lane, queues, servers, walls, tools)) FROM (
     SELECT * FROM workers w WHERE {lives} ORDER BY w.id))))

-- name: workspace_of_session
SELECT workspace FROM session_workspaces WHERE session_id = :session_id
