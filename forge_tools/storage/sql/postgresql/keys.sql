-- Calls with an idempotency key, and replays. The key's own order keeps two batches from waiting for each other. Whoever finds
-- a key taken waits until that transaction is over, and inserts nothing if it was committed: who holds it then, only the next
-- statement can see. `(id IN (SELECT ...)) IS TRUE` is answered from a hash: a join of two parts of a statement has no index on
-- these connections.
-- name: submit_linked
WITH new AS (
    SELECT * FROM unnest({asked_arrays}, :sealed::text[], :issued_at::float8[], :scope::text[], :key::text[],
                         :fingerprint::text[], :ttl::float8[], :replay_of::uuid[], :actor::text[], :as_replay::text[],
                         :as_replayed::text[])
      WITH ORDINALITY AS n({asked}, sealed, issued_at, scope, key, fingerprint, ttl, replay_of, actor, as_replay,
                           as_replayed, ord)),
{clocked},
{refused},
{fresh},
  claimed AS (
    INSERT INTO idempotency_keys (scope, key, execution_id, fingerprint, ttl, claimed_at, expires_at)
    SELECT f.scope, f.key, f.id, f.fingerprint::json, f.ttl, now(), now() + make_interval(secs => f.ttl) FROM fresh f
    WHERE f.key IS NOT NULL ORDER BY f.scope, f.key, f.id ON CONFLICT DO NOTHING RETURNING execution_id),
  inserted AS (
    INSERT INTO executions ({asked}, idempotency_key, replay_of, queued_at)
    SELECT {asked_values}, key, replay_of, now() FROM fresh
    WHERE key IS NULL OR id IN (SELECT execution_id FROM claimed)
    ON CONFLICT (id) DO NOTHING RETURNING *),
{enqueued},
  noted AS (
    INSERT INTO execution_events (execution_id, at, kind, actor, detail, token)
    SELECT n.execution_id, now(), n.kind, f.actor, n.detail::json, f.id FROM fresh f
    CROSS JOIN LATERAL (VALUES (f.id, 'replay', f.as_replay), (f.replay_of, 'replayed', f.as_replayed))
      AS n(execution_id, kind, detail)
    WHERE f.replay_of IS NOT NULL AND (f.id IN (SELECT id FROM inserted)) IS TRUE ON CONFLICT DO NOTHING)
{refusals}
UNION ALL
SELECT f.ord, NULL, NULL, NULL, NULL, NULL, NULL FROM fresh f WHERE (f.id IN (SELECT id FROM inserted)) IS TRUE

-- name: holders
SELECT a.ord, k.execution_id::text, k.fingerprint::text,
       k.expires_at <= now() OR NOT EXISTS (SELECT FROM executions e WHERE e.id = k.execution_id)
FROM unnest(:scope::text[], :key::text[]) WITH ORDINALITY AS a(scope, key, ord)
JOIN idempotency_keys k ON k.scope = a.scope AND k.key = a.key

-- In a statement of its own, which sees all of the transaction that made the key: it is there, or never was.
-- name: free
DELETE FROM idempotency_keys k USING unnest(:scope::text[], :key::text[]) AS a(scope, key)
WHERE k.scope = a.scope AND k.key = a.key
  AND NOT EXISTS (SELECT FROM execution_queue q WHERE q.id = k.execution_id)
  AND (k.expires_at <= now() OR NOT EXISTS (SELECT FROM executions e WHERE e.id = k.execution_id))
  AND NOT EXISTS (SELECT FROM execution_attempts t WHERE t.execution_id = k.execution_id AND t.final
                  AND t.completed_at > now() - make_interval(secs => k.ttl))
