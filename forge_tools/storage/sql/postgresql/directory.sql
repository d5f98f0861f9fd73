-- What a client reads before it calls.

-- name: server
SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1)

-- name: revision
SELECT version_num FROM alembic_version

-- A heartbeat from the future is from before the clock was set back.
-- name: lives
  w.stopped_at IS NULL AND abs(extract(epoch FROM now() - w.last_seen_at)) <= :within::float8

-- name: directory
SELECT json_build_object(
  'tools', (SELECT json_agg(json_build_array(name, version, digest, enabled, demoted_at IS NOT NULL, spec::text) ORDER BY name)
            FROM tools WHERE is_default),
  'workspaces', (SELECT json_agg(json_build_array(p.name, p.hostname, p.shared)
                                 ORDER BY CASE WHEN {lives} THEN 0 ELSE 1 END, p.announced_at DESC, p.instance)
                 FROM workspaces p LEFT JOIN workers w ON w.id = p.instance),
  'has_sessions', EXISTS (SELECT FROM session_workspaces),
  'key', (SELECT json_build_array(id, public) FROM encryption_keys WHERE retired_at IS NULL ORDER BY created_at DESC, id LIMIT 1),
  'workers', (SELECT json_agg(json_build_array(w.hostname, w.lane, w.queues::text, w.servers::text) ORDER BY w.id)
              FROM workers w WHERE {lives}))::text

-- name: workspace_of_session
SELECT workspace FROM session_workspaces WHERE session_id = :session_id
