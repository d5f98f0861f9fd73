-- name: claimable
  lane = :lane AND tool_key = k.value AND queue = s.value AND {is_due}

-- One statement is its own transaction. What it says of the very row that it writes is not defined, and not read.
-- Each question is answered under its name.
-- name: heartbeat
UPDATE workers SET beat = beat + 1, last_seen_at = :now, stopped_at = NULL, dropped_messages = :dropped, answering = :answering
WHERE id = :instance RETURNING json_object(
  'now', :unix,
  'cancels', json((SELECT json_group_array(json_array(id, attempt)) FROM (
     SELECT id, attempt FROM execution_queue INDEXED BY execution_queue_cancels
     WHERE cancel_requested_at IS NOT NULL AND owner = :instance AND status = 'running' ORDER BY id))),
  'beats', json((SELECT json_group_object(id, beat) FROM workers WHERE stopped_at IS NULL)),
  'due', :asks_due AND EXISTS (
    SELECT 1 FROM json_each(:queues) AS s CROSS JOIN json_each(:keys) AS k
    CROSS JOIN execution_queue INDEXED BY execution_queue_due WHERE {claimable}),
  'over', EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_expiry
          WHERE expires_at <= :now AND status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_cancels
               WHERE cancel_requested_at IS NOT NULL AND status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_hopeless
               WHERE max_attempts < 1 AND status = 'queued'),
  'demoted', json((SELECT json_group_array(json_array(name, digest)) FROM tools WHERE demoted_at IS NOT NULL)),
  'disabled', json((SELECT json_group_array(name) FROM tools WHERE enabled = false)),
  'misplaced', EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_due
          WHERE lane = 'async' AND tool_key IN (SELECT value FROM json_each(:banned)) AND status = 'queued'),
  'pinned', json((SELECT json_group_array(json_array(name, digest)) FROM tools WHERE pinned_at IS NOT NULL)),
  'spent_keys', EXISTS (SELECT 1 FROM idempotency_keys INDEXED BY idempotency_keys_expiry WHERE expires_at <= :now),
  'unchained', :asks_unchained AND (
    EXISTS (SELECT 1 FROM execution_attempts AS a INDEXED BY execution_attempts_completed
            WHERE a.final AND a.completed_at >= :chained_since
              AND NOT EXISTS (SELECT 1 FROM audit_executions AS s WHERE s.execution_id = a.execution_id))
    OR EXISTS (SELECT 1 FROM execution_events AS e
               WHERE e.id > :chained_event AND NOT EXISTS (SELECT 1 FROM audit_events AS s WHERE s.event_id = e.id))))

-- name: due
SELECT id, attempt FROM (
    SELECT q.id, q.attempt FROM json_each(:queues) AS s CROSS JOIN json_each(:keys) AS k CROSS JOIN execution_queue AS q
    WHERE q.id IN (SELECT id FROM execution_queue INDEXED BY execution_queue_due WHERE {claimable}
                   ORDER BY not_before LIMIT :limit)
    ORDER BY q.not_before, q.id LIMIT :limit)
ORDER BY id
