-- What a client reads before it calls.

-- name: server
SELECT 'SQLite ' || sqlite_version()

-- name: revision
SELECT version_num FROM alembic_version

-- A heartbeat from the future is from before the clock was set back.
-- name: lives
  w.stopped_at IS NULL AND abs(julianday(:now) - julianday(w.last_seen_at)) * 86400.0 <= :within

-- name: directory
SELECT json_object(
  'tools', json((SELECT json_group_array(json_array(name, version, digest, enabled, demoted_at IS NOT NULL, spec)) FROM (
     SELECT * FROM tools WHERE is_default ORDER BY name))),
  'workspaces', json((SELECT json_group_array(json_array(name, hostname, shared)) FROM (
     SELECT p.name, p.hostname, p.shared FROM workspaces p LEFT JOIN workers w ON w.id = p.instance
     ORDER BY CASE WHEN {lives} THEN 0 ELSE 1 END, p.announced_at DESC, p.instance))),
  'has_sessions', EXISTS (SELECT 1 FROM session_workspaces),
  'key', json((SELECT json_array(id, public) FROM encryption_keys WHERE retired_at IS NULL ORDER BY created_at DESC, id LIMIT 1)),
  'workers', json((SELECT json_group_array(json_array(hostname, lane, queues, servers)) FROM (
     SELECT * FROM workers w WHERE {lives} ORDER BY w.id))))

-- name: workspace_of_session
SELECT workspace FROM session_workspaces WHERE session_id = :session_id
