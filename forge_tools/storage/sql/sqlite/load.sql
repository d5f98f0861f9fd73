-- SQLite groups by sorting, which takes most of a second for some hundred thousand calls. But nearly all of them only wait,
-- and those the index by which due ones are found has in order. The others are grouped by themselves.

-- name: first_due
  execution_queue AS q INDEXED BY execution_queue_due
  WHERE q.lane = g.lane AND q.tool_key = g.tool_key AND q.queue = g.queue AND {is_due}
  ORDER BY q.not_before LIMIT 1

-- name: load_of_others
WITH others AS MATERIALIZED (
  SELECT queue, lane, tool_key, status, owner, not_before FROM execution_queue NOT INDEXED WHERE NOT ({is_waiting}))
SELECT queue, lane, tool_key, status, owner, count(*) AS calls, count(CASE WHEN not_before <= :now THEN 1 END) AS due,
  min(CASE WHEN not_before <= :now THEN not_before END) AS first, count(CASE WHEN not_before <= :since THEN 1 END) AS stale
FROM others GROUP BY queue, lane, tool_key, status, owner

-- name: load_of_places
SELECT g.*, (SELECT q.not_before FROM {first_due}) AS first, (SELECT q.id FROM {first_due}) AS example
FROM (
  SELECT queue, lane, tool_key, count(*) AS calls, count(CASE WHEN not_before <= :now THEN 1 END) AS due,
    count(CASE WHEN not_before <= :since THEN 1 END) AS stale
  FROM execution_queue INDEXED BY execution_queue_due GROUP BY lane, tool_key, queue) AS g
