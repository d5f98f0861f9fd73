-- One autocommit statement per flush, taking arrays. JSON is passed as text and cast on insertion. Where a statement
-- writes an equality as `id = ANY (ARRAY[...])`, the planner has no use for the order of the index: see PINNED in
-- connection/pool.py. `(id IN (SELECT ...)) IS TRUE` is answered from a hash: a join of two parts of a statement has no
-- index, and these connections may not use a hash join.

-- name: clocked
  clocked AS (
    SELECT n.*, n.issued_at - extract(epoch FROM now())::float8 AS skew FROM new n)

-- A row is refused if its id is off the clock, or if its tool is disabled or has another definition than the one that
-- checked the call; but not if it was stored before: this may be a late repetition.
-- name: refused
  refused AS MATERIALIZED (
    SELECT c.ord, c.skew, t.name, t.spec, t.digest, t.enabled, t.demoted_at IS NOT NULL OR t.moved AS is_moved
    FROM clocked c LEFT JOIN tools t ON t.name = ANY (ARRAY[c.tool]) AND t.is_default
    WHERE (abs(c.skew) > {max_skew} OR NOT t.enabled OR t.digest <> c.tool_digest)
      AND NOT EXISTS (SELECT FROM executions e WHERE e.id = c.id))

-- An execution that is over when it is inserted needs no tool.
-- name: refused_by_clock
  refused AS MATERIALIZED (
    SELECT c.ord, c.skew, NULL AS name, NULL AS spec, NULL AS digest, NULL::bool AS enabled, NULL::bool AS is_moved FROM clocked c
    WHERE abs(c.skew) > {max_skew} AND NOT EXISTS (SELECT FROM executions e WHERE e.id = c.id))

-- An id that occurs twice in a batch is inserted once.
-- name: fresh
  fresh AS (
    SELECT DISTINCT ON (c.id) c.* FROM clocked c
    WHERE abs(c.skew) <= {max_skew} AND c.ord NOT IN (SELECT ord FROM refused) ORDER BY c.id)

-- name: refusals
SELECT ord, skew, name, spec::text, digest, enabled, is_moved FROM refused

-- name: inserted
  inserted AS (
    INSERT INTO executions ({asked}, queued_at) SELECT {asked_values}, now() FROM fresh
    ON CONFLICT (id) DO NOTHING RETURNING *)

-- Encrypted values are looked up only for rows that have any: joining all rows would cost as much as the rest.
-- name: enqueued
  enqueued AS (
    INSERT INTO execution_queue ({queued}, status, attempt, not_before, expires_at, encrypted, reply_key)
    SELECT {queued}, 'queued', 0, now() + make_interval(secs => delay), now() + make_interval(secs => expires_in),
           CASE WHEN i.encrypted_names IS NOT NULL THEN (SELECT f.encrypted FROM fresh f WHERE f.id = i.id) END, :reply_key::text
    FROM inserted i)

-- name: submit
WITH new AS (
    SELECT * FROM unnest({asked_arrays}, :encrypted::text[], :issued_at::float8[])
      WITH ORDINALITY AS n({asked}, encrypted, issued_at, ord)),
{clocked},
{refused},
{fresh},
{inserted},
{enqueued}
{refusals}

-- name: record
WITH new AS (
    SELECT * FROM unnest({asked_arrays}, :issued_at::float8[], {outcome_arrays})
      WITH ORDINALITY AS n({asked}, issued_at, {outcome}, ord)),
{clocked},
{refused_by_clock},
{fresh},
{inserted},
  ended AS (
    INSERT INTO execution_attempts (execution_id, attempt, final, completed_at, {outcome})
    SELECT id, 0, true, now(), {outcome_values} FROM fresh
    WHERE (id IN (SELECT id FROM inserted)) IS TRUE)
{refusals}

-- What can be claimed now, by anybody.
-- IS TRUE: a plan by the index of expiry, which the planner likes where all that waits is alike, would read all that waits.
-- name: is_due
  q.status = 'queued' AND q.not_before <= now() AND (q.expires_at > now()) IS TRUE AND q.cancel_requested_at IS NULL AND q.attempt < q.max_attempts

-- A token that is already there is this very claim: the reply to its commit was lost. The repetition waits for locks
-- instead of skipping them, because the first try may still be committing.
-- name: claimable
WITH asked AS (
    SELECT * FROM unnest(:id::uuid[], :attempt::int4[], :token::uuid[]) WITH ORDINALITY AS a(id, attempt, token, ord)),
  locked AS MATERIALIZED (
    SELECT q.id, a.attempt, a.token, a.ord FROM asked a JOIN execution_queue q ON q.id = ANY (ARRAY[a.id])
    WHERE q.status = 'running' AND q.token = a.token
       OR q.attempt = a.attempt AND {is_due}
          AND q.lane = :lane AND q.queue = ANY(:queues::text[]) AND q.tool_key = ANY(:keys::text[])
    ORDER BY a.id FOR UPDATE OF q

-- name: claimed
),
  claimed AS (
    UPDATE execution_queue q SET status = 'running', attempt = l.attempt + 1, token = l.token,
      owner = :instance, hostname = :hostname, pid = :pid::int4,
      started_at = CASE q.status WHEN 'running' THEN q.started_at ELSE clock_timestamp() END
    FROM locked l WHERE q.id = ANY (ARRAY[l.id]) RETURNING q.id, l.ord, q.started_at, q.encrypted, q.reply_key)
SELECT c.ord, {claim_columns}, c.encrypted, c.reply_key, extract(epoch FROM c.started_at)::float8
FROM claimed c JOIN executions e ON e.id = ANY (ARRAY[c.id])

-- name: claim
{claimable} SKIP LOCKED {claimed}

-- name: claim_again
{claimable} {claimed}

-- A call that waits again may expire no sooner than a new one would: it gets the whole `expires_in` once more.
-- name: finish
WITH locked AS MATERIALIZED (
    SELECT o.*, q.owner, q.hostname, q.pid, q.started_at, q.expires_in,
           o.give_back OR (o.retry_in IS NOT NULL AND q.attempt < q.max_attempts
                           AND q.cancel_requested_at IS NULL) AS again
    FROM unnest(:id::uuid[], :attempt::int4[], :token::uuid[], :retry_in::float8[], :give_back::bool[], {outcome_arrays})
      WITH ORDINALITY AS o(id, attempt, token, retry_in, give_back, {outcome}, ord)
    JOIN execution_queue q ON q.id = ANY (ARRAY[o.id])
    WHERE q.attempt = o.attempt AND q.token = o.token AND q.status = 'running'
    ORDER BY o.id FOR UPDATE OF q),
  requeued AS (
    UPDATE execution_queue q SET status = 'queued', attempt = q.attempt - l.give_back::int, {nobody},
      not_before = now() + make_interval(secs => COALESCE(l.retry_in, 0)),
      expires_at = GREATEST(q.expires_at, now() + make_interval(secs => COALESCE(l.retry_in, 0) + l.expires_in))
    FROM locked l WHERE q.id = ANY (ARRAY[l.id]) AND l.again),
  ended AS (
    DELETE FROM execution_queue q USING locked l WHERE q.id = ANY (ARRAY[l.id]) AND NOT l.again),
  attempted AS (
    INSERT INTO execution_attempts (execution_id, attempt, final, token, worker_id, hostname, pid, started_at,
                                    completed_at, {outcome})
    SELECT id, attempt, NOT again, token, owner, hostname, pid, started_at, now(), {outcome_values}
    FROM locked WHERE NOT give_back),
  noted AS (
    INSERT INTO execution_events (execution_id, at, kind, actor, detail, token)
    SELECT id, now(), 'given_back', owner, json_build_object('attempt', attempt), token FROM locked WHERE give_back)
SELECT ord FROM locked

-- Runs after a finish that found no row of its own, with a snapshot that sees what its first try committed.
-- name: settle_late
WITH outcome AS (
    SELECT * FROM unnest(:id::uuid[], :attempt::int4[], :token::uuid[], :status::text[], :detail::text[])
      WITH ORDINALITY AS o(id, attempt, token, status, detail, ord)),
  mine AS (
    SELECT o.ord FROM outcome o
    WHERE EXISTS (SELECT FROM execution_attempts a WHERE a.execution_id = o.id AND a.attempt = o.attempt
                  AND a.token = o.token AND a.status = o.status)
       OR EXISTS (SELECT FROM execution_events v WHERE v.execution_id = o.id AND v.kind = 'given_back'
                  AND v.token = o.token)),
  noted AS (
    INSERT INTO execution_events (execution_id, at, kind, actor, detail, token)
    SELECT o.id, now(), 'late', 'worker', o.detail::json, o.token FROM outcome o JOIN executions e ON e.id = o.id
    WHERE o.ord NOT IN (SELECT ord FROM mine) ORDER BY o.id ON CONFLICT DO NOTHING)
SELECT ord FROM mine

-- name: results
SELECT asked.ord, {result_columns} FROM unnest(:ids::uuid[]) WITH ORDINALITY AS asked(id, ord)
JOIN execution_attempts a ON a.execution_id = ANY (ARRAY[asked.id]) AND a.final

-- The statements above for a single row, the usual case, at two thirds of the cost. They handle only the regular case:
-- if a submit or finish finds no row, the statement for many runs again, and says why.

-- name: submit_one
WITH inserted AS (
    INSERT INTO executions ({asked}, queued_at) SELECT {asked_parameters}, now()
    WHERE abs(:issued_at::float8 - extract(epoch FROM now())::float8) <= {max_skew}
      AND NOT EXISTS (SELECT FROM tools t WHERE t.name = :tool AND t.is_default AND NOT (t.enabled AND t.digest = :tool_digest))
    ON CONFLICT (id) DO NOTHING RETURNING id),
  enqueued AS (
    INSERT INTO execution_queue ({queued}, status, attempt, not_before, expires_at, encrypted, reply_key)
    SELECT {queued_parameters}, 'queued', 0, now() + make_interval(secs => :delay), now() + make_interval(secs => :expires_in),
           :encrypted::text, :reply_key::text FROM inserted)
SELECT 1 FROM inserted

-- name: claim_one
WITH claimed AS (
    UPDATE execution_queue q SET status = 'running', attempt = q.attempt + 1, token = :token::uuid, owner = :instance,
      hostname = :hostname, pid = :pid::int4, started_at = clock_timestamp()
    WHERE q.id = (
      SELECT q.id FROM execution_queue q
      WHERE q.id = :id::uuid AND q.attempt = :attempt::int4 AND {is_due}
        AND q.lane = :lane AND q.queue = ANY(:queues::text[]) AND q.tool_key = ANY(:keys::text[])
      FOR UPDATE SKIP LOCKED)
    RETURNING q.id, q.started_at, q.encrypted, q.reply_key)
SELECT {claim_columns}, c.encrypted, c.reply_key, extract(epoch FROM c.started_at)::float8
FROM claimed c JOIN executions e ON e.id = c.id

-- name: finish_one
WITH ended AS (
    DELETE FROM execution_queue q
    WHERE q.id = :id::uuid AND q.attempt = :attempt::int4 AND q.token = :token::uuid AND q.status = 'running'
    RETURNING q.owner, q.hostname, q.pid, q.started_at)
INSERT INTO execution_attempts (execution_id, attempt, final, token, worker_id, hostname, pid, started_at, completed_at, {outcome})
SELECT :id::uuid, :attempt::int4, true, :token::uuid, owner, hostname, pid, started_at, now(), {outcome_parameters} FROM ended
RETURNING attempt

-- Calls with an idempotency key, and replays. Inserting in the order of keys keeps two batches from a deadlock. An
-- insert that finds a key taken waits until that transaction ends, and does nothing if it was committed; only the next
-- statement can see who holds the key.
-- name: submit_linked
WITH new AS (
    SELECT * FROM unnest({asked_arrays}, :encrypted::text[], :issued_at::float8[], :scope::text[], :key::text[],
                         :fingerprint::text[], :ttl::float8[], :replay_of::uuid[], :actor::text[], :as_replay::text[],
                         :as_replayed::text[])
      WITH ORDINALITY AS n({asked}, encrypted, issued_at, scope, key, fingerprint, ttl, replay_of, actor, as_replay,
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

-- A separate statement, which sees the whole transaction that made the key: its execution is there, or never was.
-- name: free
DELETE FROM idempotency_keys k USING unnest(:scope::text[], :key::text[]) AS a(scope, key)
WHERE k.scope = a.scope AND k.key = a.key
  AND NOT EXISTS (SELECT FROM execution_queue q WHERE q.id = k.execution_id)
  AND (k.expires_at <= now() OR NOT EXISTS (SELECT FROM executions e WHERE e.id = k.execution_id))
  AND NOT EXISTS (SELECT FROM execution_attempts t WHERE t.execution_id = k.execution_id AND t.final
                  AND t.completed_at > now() - make_interval(secs => k.ttl))

-- Everything is found through indexes that no claim has to change. On these connections plans are pinned: a table that
-- was empty when analysed and has filled up since is not scanned. Each question is answered under its name. LEAST, since
-- the clock may have been set back behind the end of the chain.
-- name: heartbeat
WITH beaten AS (
    UPDATE workers w SET beat = w.beat + 1, last_seen_at = now(), stopped_at = NULL, dropped_messages = :dropped::int8,
      answering = :answering::int4
    WHERE w.id = :instance RETURNING w.id)
SELECT json_build_object(
  'now', extract(epoch FROM now())::float8,
  'cancels',
    (SELECT coalesce(json_agg(json_build_array(q.id, q.attempt) ORDER BY q.id), '[]') FROM execution_queue q
     WHERE q.cancel_requested_at IS NOT NULL AND q.owner = :instance AND q.status = 'running'),
  'beats', (SELECT coalesce(json_object_agg(w.id, w.beat), '{}') FROM workers w WHERE w.stopped_at IS NULL),
  'due', :asks_due AND EXISTS (
    SELECT FROM execution_queue q
    WHERE q.lane = :lane AND q.tool_key = ANY(:keys::text[]) AND q.queue = ANY(:queues::text[]) AND {is_due}),
  'over',
    EXISTS (SELECT FROM execution_queue q WHERE q.expires_at <= now() AND q.status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT FROM execution_queue q
               WHERE q.cancel_requested_at IS NOT NULL AND q.status IN ('queued', 'awaiting_approval')),
  'demoted', (SELECT coalesce(json_agg(json_build_array(t.name, t.digest)), '[]') FROM tools t WHERE t.demoted_at IS NOT NULL),
  'disabled', (SELECT coalesce(json_agg(t.name), '[]') FROM tools t WHERE t.enabled = false),
  'misplaced', EXISTS (
    SELECT FROM execution_queue q WHERE q.lane = 'async' AND q.tool_key = ANY(:banned::text[]) AND q.status = 'queued'),
  'pinned', (SELECT coalesce(json_agg(json_build_array(t.name, t.digest)), '[]') FROM tools t WHERE t.pinned_at IS NOT NULL),
  'unchained', :asks_unchained AND (
    EXISTS (SELECT FROM execution_attempts a
            WHERE a.final AND a.completed_at >= LEAST(:chained_end, now()) - :overlap::interval
              AND NOT EXISTS (SELECT FROM audit_executions s WHERE s.execution_id = a.execution_id))
    OR EXISTS (SELECT FROM execution_events e
               WHERE e.id > :chained_event AND NOT EXISTS (SELECT FROM audit_events s WHERE s.event_id = e.id)))
)::text
FROM beaten

-- One index range per queue and tool, each read no further than the limit. In order of id, in which claims lock.
-- name: due
SELECT d.id::text, d.attempt FROM (
    SELECT q.id, q.attempt FROM unnest(:queues::text[]) AS s(queue) CROSS JOIN unnest(:keys::text[]) AS k(tool_key)
    CROSS JOIN LATERAL (
        SELECT q.id, q.attempt, q.not_before FROM execution_queue q
        WHERE q.lane = :lane AND q.tool_key = k.tool_key AND q.queue = s.queue AND {is_due}
        ORDER BY q.not_before LIMIT :limit) q
    ORDER BY q.not_before, q.id LIMIT :limit) d
ORDER BY d.id

-- What a client reads before it makes calls.

-- name: server
SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1)

-- name: revision
SELECT version_num FROM alembic_version

-- A heartbeat in the future is from before the clock was set back.
-- name: lives
  w.stopped_at IS NULL AND abs(extract(epoch FROM now() - w.last_seen_at)) <= :within::float8

-- name: directory
SELECT json_build_object(
  'tools', (SELECT json_agg(json_build_array(name, version, digest, enabled, demoted_at IS NOT NULL OR moved, spec::text, walls)
                            ORDER BY name) FROM tools WHERE is_default),
  'workspaces', (SELECT json_agg(json_build_array(p.name, p.hostname, p.shared)
                                 ORDER BY CASE WHEN {lives} THEN 0 ELSE 1 END, p.announced_at DESC, p.instance)
                 FROM workspaces p LEFT JOIN workers w ON w.id = p.instance),
  'has_sessions', EXISTS (SELECT FROM session_workspaces),
  'key', (SELECT json_build_array(id, public) FROM encryption_keys WHERE retired_at IS NULL ORDER BY created_at DESC, id LIMIT 1),
  'workers', (SELECT json_agg(json_build_array(w.hostname, w.lane, w.queues::text, w.servers::text, w.walls::text, w.tools::text)
                               ORDER BY w.id)
              FROM workers w WHERE {lives}))::text

-- name: workspace_of_session
SELECT workspace FROM session_workspaces WHERE session_id = :session_id

-- The first statements of transactions that need them here, but not on SQLite, with its one writer and reads as of one
-- moment.

-- name: still
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- A generic plan would assume a cursor in the middle of history, and values of average frequency.
-- name: page
{still};
SET LOCAL plan_cache_mode = force_custom_plan

-- 64 MB are enough to sort the calls of a day in memory. The planner estimates a range of ids as one row, and would
-- compare each call of an hour with each of its attempts.
-- name: figures_of_all
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
SET LOCAL work_mem = '64MB';
SET LOCAL enable_nestloop = off

-- name: figures_of_some
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
SET LOCAL work_mem = '64MB';
SET LOCAL enable_nestloop = on

-- Keep what follows from scanning a table, whatever its statistics, and from using more than one core.
-- name: by_index
SET LOCAL enable_seqscan = off;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
SET LOCAL max_parallel_workers_per_gather = 0

-- Exclude other writers: a switch must see the definition that is published meanwhile, or be seen by it.
-- name: catalogue_in_turn
LOCK TABLE tools IN SHARE ROW EXCLUSIVE MODE

-- Otherwise two hosts could each find that the other has nothing.
-- name: workspaces_in_turn
LOCK TABLE workspaces IN SHARE ROW EXCLUSIVE MODE

-- Advisory locks of the server, named by a number.
-- name: first_batch
SELECT pg_advisory_xact_lock(302517479269)

-- One process at a time migrates: this says whether the asker is the one, until its connection ends.
-- name: migrate
SELECT pg_try_advisory_lock(439956432741)

-- The server lists such a lock by the two halves of its number; `objsubid` 1 tells it from locks with two numbers.
-- name: who_migrates
SELECT a.pid, a.usename, host(a.client_addr), extract(epoch FROM clock_timestamp() - a.backend_start)::float8
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = 439956432741 >> 32
  AND l.objid = 439956432741 & 4294967295 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())

-- Works for an unprivileged role, reading only what it may see.
-- name: connections
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true), '0')::int,
       (SELECT sum(numbackends) FROM pg_stat_database)::int,
       (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forge-tools')::int,
       (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout')
