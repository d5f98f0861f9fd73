-- Everything is found through indexes that no claim has to change. On these connections plans are pinned: an empty table
-- that filled up since it was analysed is not scanned. Each question is answered under its name.
-- name: heartbeat
WITH beaten AS (
    UPDATE workers w SET beat = w.beat + 1, last_seen_at = now(), stopped_at = NULL, dropped_messages = :dropped,
      answering = :answering
    WHERE w.id = :instance RETURNING w.id)
SELECT json_build_object(
  'now', extract(epoch FROM now())::float8,
  'cancels',
    (SELECT json_agg(json_build_array(q.id, q.attempt) ORDER BY q.id) FROM execution_queue q
     WHERE q.cancel_requested_at IS NOT NULL AND q.owner = :instance AND q.status = 'running'),
  'beats', (SELECT json_object_agg(w.id, w.beat) FROM workers w WHERE w.stopped_at IS NULL),
  'due', :asks_due AND EXISTS (
    SELECT FROM execution_queue q
    WHERE q.lane = :lane AND q.tool_key = ANY(:keys::text[]) AND q.queue = ANY(:queues::text[]) AND {is_due}),
  'over',
    EXISTS (SELECT FROM execution_queue q WHERE q.expires_at <= now() AND q.status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT FROM execution_queue q
               WHERE q.cancel_requested_at IS NOT NULL AND q.status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT FROM execution_queue q WHERE q.max_attempts < 1 AND q.status = 'queued'),
  'demoted', (SELECT json_agg(json_build_array(t.name, t.digest)) FROM tools t WHERE t.demoted_at IS NOT NULL),
  'disabled', (SELECT json_agg(t.name) FROM tools t WHERE t.enabled = false),
  'misplaced', EXISTS (
    SELECT FROM execution_queue q WHERE q.lane = 'async' AND q.tool_key = ANY(:banned::text[]) AND q.status = 'queued'),
  'pinned', (SELECT json_agg(json_build_array(t.name, t.digest)) FROM tools t WHERE t.pinned_at IS NOT NULL),
  'spent_keys', EXISTS (SELECT FROM idempotency_keys k WHERE k.expires_at <= now()),
  'unchained', :asks_unchained AND (
    EXISTS (SELECT FROM execution_attempts a
            WHERE a.final AND a.completed_at >= LEAST(:chained_end, now()) - :overlap::interval
              AND NOT EXISTS (SELECT FROM audit_executions s WHERE s.execution_id = a.execution_id))
    OR EXISTS (SELECT FROM execution_events e
               WHERE e.id > :chained_event AND NOT EXISTS (SELECT FROM audit_events s WHERE s.event_id = e.id)))
)::text
FROM beaten

-- name: due
SELECT d.id::text, d.attempt FROM (
    SELECT q.id, q.attempt FROM unnest(:queues::text[]) AS s(queue) CROSS JOIN unnest(:keys::text[]) AS k(tool_key)
    CROSS JOIN LATERAL (
        SELECT q.id, q.attempt, q.not_before FROM execution_queue q
        WHERE q.lane = :lane AND q.tool_key = k.tool_key AND q.queue = s.queue AND {is_due}
        ORDER BY q.not_before LIMIT :limit) q
    ORDER BY q.not_before, q.id LIMIT :limit) d
ORDER BY d.id
