-- Roles for PostgreSQL 15 or later: clients, workers, keepers, auditors. Run it as the owner of the tables, who needs
-- CREATEROLE, after each `forge-tools db upgrade`; running it again is harmless:
--
--     psql "$OWNER_URL" -v ON_ERROR_STOP=1 -f deploy/postgres/roles.sql
--
-- Then create a login for each client, worker and person. A client's identity is the role that it logs in with:
--
--     CREATE ROLE agent_7 LOGIN PASSWORD '...' IN ROLE forge_client;
--     CREATE ROLE worker_1 LOGIN PASSWORD '...' IN ROLE forge_worker;
--     CREATE ROLE alice LOGIN PASSWORD '...' IN ROLE forge_auditor;

BEGIN;

DO $$
DECLARE wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY['forge_client', 'forge_worker', 'forge_keeper', 'forge_auditor'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
    END IF;
  END LOOP;
END $$;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, forge_client, forge_worker, forge_keeper, forge_auditor;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, forge_client, forge_worker, forge_keeper, forge_auditor;
GRANT USAGE ON SCHEMA public TO forge_client, forge_worker, forge_keeper, forge_auditor;
GRANT SELECT ON alembic_version TO forge_client, forge_worker, forge_keeper, forge_auditor;

-- The database records who submitted a call, never the client. SET ROLE cannot change `session_user`.
ALTER TABLE executions ALTER COLUMN submitted_by SET DEFAULT session_user;
CREATE INDEX IF NOT EXISTS executions_by_submitter ON executions (submitted_by, id);

-- So is who uploaded an artifact.
ALTER TABLE artifacts ALTER COLUMN uploaded_by SET DEFAULT session_user;

-- By default a view reads with the rights of its owner, and would show everything to everybody.
ALTER VIEW tool_executions SET (security_invoker = true);

-- All columns are granted except those that are withheld, so a new one needs no line here.
CREATE OR REPLACE FUNCTION pg_temp.forge_grant(verb text, relation text, withheld text[], roles text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('GRANT %s (%s) ON %I TO %s', verb, (
    SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
    WHERE attrelid = relation::regclass AND attnum > 0 AND NOT attisdropped AND attname <> ALL (withheld)), relation, roles);
END $$;

-- What a client may do. It can set neither who it is, nor who runs a call, where and since when.

DO $$
DECLARE ours text[] := ARRAY['token', 'owner', 'worker_id', 'hostname', 'pid', 'started_at', 'cancel_requested_at'];
BEGIN
  PERFORM pg_temp.forge_grant('SELECT', 'execution_queue', ARRAY['token', 'encrypted', 'reply_key'], 'forge_client, forge_auditor');
  PERFORM pg_temp.forge_grant('INSERT', 'executions', ARRAY['submitted_by'], 'forge_client');
  PERFORM pg_temp.forge_grant('INSERT', 'execution_queue', ours, 'forge_client');
  PERFORM pg_temp.forge_grant('INSERT', 'execution_attempts', ours, 'forge_client');
  PERFORM pg_temp.forge_grant('INSERT', 'artifacts', ARRAY['uploaded_by'], 'forge_client');
END $$;

GRANT SELECT ON executions, execution_attempts, execution_events, execution_reports, tool_executions,
  tools, workers, workspaces, session_workspaces, encryption_keys, shells, artifacts, artifact_parts, artifact_owners,
  idempotency_keys TO forge_client;
GRANT INSERT (execution_id, at, kind, actor, detail, token) ON execution_events TO forge_client;
GRANT INSERT, DELETE ON idempotency_keys TO forge_client;
GRANT UPDATE (is_whole, size, expires_at) ON artifacts TO forge_client;
GRANT INSERT, UPDATE (data, breaks) ON artifact_parts TO forge_client;
GRANT INSERT, UPDATE (execution_id, kept_at) ON artifact_owners TO forge_client;

-- What a worker may do: it can only add to history.

GRANT SELECT ON ALL TABLES IN SCHEMA public TO forge_worker;
GRANT INSERT ON executions, execution_attempts, execution_events TO forge_worker;
GRANT INSERT, UPDATE, DELETE ON execution_queue, execution_reports, tools, workers, leases, shells, workspaces,
  session_workspaces, encryption_keys, artifacts, artifact_parts, artifact_owners, idempotency_keys, rollup_hours,
  rollup_figures TO forge_worker;
GRANT INSERT, DELETE ON documents TO forge_worker;
GRANT INSERT ON audit_batches, audit_executions, audit_events TO forge_worker;

-- What a keeper may do: prune. Give it to the people who run `forge-tools prune`, and to workers with FORGE_RETENTION.

GRANT SELECT ON ALL TABLES IN SCHEMA public TO forge_keeper;
GRANT DELETE ON executions, execution_attempts, execution_events, execution_reports, idempotency_keys, artifact_owners,
  audit_executions, audit_events TO forge_keeper;
GRANT INSERT ON execution_events, audit_batches, audit_executions, audit_events TO forge_keeper;
GRANT UPDATE (pruned_by) ON audit_executions, audit_events TO forge_keeper;
GRANT UPDATE (expires_at) ON artifacts TO forge_keeper;
GRANT INSERT, UPDATE ON leases, rollup_hours TO forge_keeper;

-- What an auditor may do: read, but not what is encrypted for workers.

GRANT SELECT ON executions, execution_attempts, execution_events, execution_reports, tool_executions, tools, workers,
  workspaces, session_workspaces, encryption_keys, shells, documents, artifacts, artifact_owners, idempotency_keys, leases,
  audit_batches, audit_executions, audit_events, rollup_hours, rollup_figures TO forge_auditor;

DO $$
DECLARE sequence_name text := pg_get_serial_sequence('execution_events', 'id');
BEGIN
  EXECUTE format('GRANT USAGE ON SEQUENCE %s TO forge_client, forge_worker, forge_keeper', sequence_name);
END $$;

-- A client sees only its own calls. These functions see rows that the same statement has inserted; a plain subquery does not.

CREATE OR REPLACE FUNCTION forge_may_enqueue(
  id_ uuid, tool_key_ text, queue_ text, lane_ text, max_attempts_ int, idempotent_ bool, expires_in_ float8, encrypted_ text
) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  RETURN EXISTS (
      SELECT FROM executions e WHERE e.id = id_ AND e.submitted_by = session_user AND e.queued_at = now()
        AND (e.tool_key, e.queue, e.lane, e.max_attempts, e.idempotent, e.expires_in)
          = (tool_key_, queue_, lane_, max_attempts_, idempotent_, expires_in_)
        AND (encrypted_ IS NULL OR e.encrypted_names IS NOT NULL))
    AND NOT EXISTS (SELECT FROM execution_attempts a WHERE a.execution_id = id_);
END $$;

CREATE OR REPLACE FUNCTION forge_may_reject(id_ uuid)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM executions e WHERE e.id = id_ AND e.submitted_by = session_user AND e.queued_at = now())
    AND NOT EXISTS (SELECT FROM execution_queue q WHERE q.id = id_)
    AND NOT EXISTS (SELECT FROM execution_attempts a WHERE a.execution_id = id_);
END $$;

CREATE OR REPLACE FUNCTION forge_owns(id_ uuid)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM executions e WHERE e.id = id_ AND e.submitted_by = session_user);
END $$;

CREATE OR REPLACE FUNCTION forge_uploaded(id_ text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM artifacts a WHERE a.id = id_ AND a.uploaded_by = session_user);
END $$;

CREATE OR REPLACE FUNCTION forge_uploading(id_ text, start_ bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM artifacts a
    WHERE a.id = id_ AND a.uploaded_by = session_user AND NOT a.is_whole AND start_ BETWEEN 0 AND a.size);
END $$;

-- Cancel, as `Endings.cancel` does for roles that may write to the queue. The answer is also 'unknown' for others' calls.

CREATE OR REPLACE FUNCTION forge_cancel(id_ uuid, actor_ text, reason_ text)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
  waiting execution_queue%ROWTYPE;
  by_whom text := session_user || ' (' || coalesce(left(actor_, 200), '') || ')';
  why text := coalesce(left(reason_, 2000), '');
  said text;
BEGIN
  IF NOT forge_owns(id_) THEN
    RETURN 'unknown';
  END IF;
  SELECT * INTO waiting FROM execution_queue WHERE id = id_ FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'over';
  END IF;
  INSERT INTO execution_events (execution_id, at, kind, actor, detail)
    VALUES (id_, now(), 'cancel', by_whom, json_build_object('reason', why));
  IF waiting.status = 'running' THEN
    UPDATE execution_queue SET cancel_requested_at = coalesce(cancel_requested_at, now()) WHERE id = id_;
    RETURN 'requested';
  END IF;
  said := 'Cancelled by ' || by_whom || CASE
    WHEN waiting.attempt > 0 THEN ' after attempt ' || waiting.attempt || ' of ' || waiting.max_attempts
    WHEN waiting.status = 'queued' THEN ' before it started'
    ELSE ' before anybody approved it' END || CASE WHEN why = '' THEN '.' ELSE ': ' || why END;
  INSERT INTO execution_attempts (execution_id, attempt, final, status, completed_at, error, error_code, metadata)
    VALUES (id_, waiting.attempt + 1, true, 'cancelled', now(), said, 'CANCELLED', '{}');
  DELETE FROM execution_queue WHERE id = id_;
  RETURN 'cancelled';
END $$;

REVOKE ALL ON FUNCTION forge_may_enqueue, forge_may_reject, forge_owns, forge_cancel, forge_uploaded, forge_uploading FROM PUBLIC;
GRANT EXECUTE ON FUNCTION forge_may_enqueue, forge_may_reject, forge_owns, forge_cancel, forge_uploaded, forge_uploading
  TO forge_client;

-- Row-level security. It does not bind the owner of the tables, so migrations and stacks without roles work as before.

DO $$
DECLARE one text;
BEGIN
  FOREACH one IN ARRAY ARRAY['executions', 'execution_queue', 'execution_attempts', 'execution_events', 'execution_reports',
      'idempotency_keys', 'artifacts', 'artifact_parts', 'artifact_owners', 'shells', 'session_workspaces'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', one);
    EXECUTE format('DROP POLICY IF EXISTS staff ON %I', one);
    EXECUTE format('CREATE POLICY staff ON %I TO forge_worker, forge_keeper, forge_auditor USING (true) WITH CHECK (true)', one);
    EXECUTE format('DROP POLICY IF EXISTS client_reads ON %I', one);
    EXECUTE format('DROP POLICY IF EXISTS client_writes ON %I', one);
    EXECUTE format('DROP POLICY IF EXISTS client_changes ON %I', one);
    EXECUTE format('DROP POLICY IF EXISTS client_deletes ON %I', one);
  END LOOP;
END $$;

CREATE POLICY client_reads ON executions FOR SELECT TO forge_client USING (submitted_by = session_user);
CREATE POLICY client_writes ON executions FOR INSERT TO forge_client
  WITH CHECK (submitted_by = session_user AND queued_at = now());

CREATE POLICY client_reads ON execution_queue FOR SELECT TO forge_client
  USING (EXISTS (SELECT FROM executions e WHERE e.id = execution_queue.id));
CREATE POLICY client_writes ON execution_queue FOR INSERT TO forge_client WITH CHECK (
  status = 'queued' AND attempt = 0 AND not_before >= now() AND expires_at <= now() + make_interval(secs => expires_in)
  AND forge_may_enqueue(id, tool_key, queue, lane, max_attempts, idempotent, expires_in, encrypted));

CREATE POLICY client_reads ON execution_attempts FOR SELECT TO forge_client
  USING (EXISTS (SELECT FROM executions e WHERE e.id = execution_id));
CREATE POLICY client_writes ON execution_attempts FOR INSERT TO forge_client WITH CHECK (
  attempt = 0 AND final AND status = 'rejected' AND completed_at = now() AND forge_may_reject(execution_id));

CREATE POLICY client_reads ON execution_events FOR SELECT TO forge_client
  USING (EXISTS (SELECT FROM executions e WHERE e.id = execution_id));
CREATE POLICY client_writes ON execution_events FOR INSERT TO forge_client
  WITH CHECK (kind IN ('replay', 'replayed') AND at = now() AND forge_owns(execution_id));

CREATE POLICY client_reads ON execution_reports FOR SELECT TO forge_client
  USING (EXISTS (SELECT FROM executions e WHERE e.id = execution_id));

-- A key is inserted and returned before its execution exists: then the time of its own transaction identifies it.
CREATE POLICY client_reads ON idempotency_keys FOR SELECT TO forge_client
  USING (claimed_at = now() OR forge_owns(execution_id));
CREATE POLICY client_writes ON idempotency_keys FOR INSERT TO forge_client WITH CHECK (claimed_at = now());
CREATE POLICY client_deletes ON idempotency_keys FOR DELETE TO forge_client USING (forge_owns(execution_id));

-- A client reads what its calls kept and what it uploaded. It changes an upload until that is whole, and nothing afterwards.
CREATE POLICY client_reads ON artifact_owners FOR SELECT TO forge_client USING (forge_uploaded(artifact_id) OR
  CASE WHEN execution_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN forge_owns(execution_id::uuid) ELSE false END);
CREATE POLICY client_writes ON artifact_owners FOR INSERT TO forge_client
  WITH CHECK (forge_uploaded(artifact_id) AND execution_id IS NULL AND kept_at = now());
CREATE POLICY client_changes ON artifact_owners FOR UPDATE TO forge_client USING (forge_uploaded(artifact_id))
  WITH CHECK (forge_uploaded(artifact_id) AND execution_id IS NULL AND kept_at = now());
CREATE POLICY client_reads ON artifacts FOR SELECT TO forge_client
  USING (uploaded_by = session_user OR EXISTS (SELECT FROM artifact_owners o WHERE o.artifact_id = artifacts.id));
-- An upload's id is longer than the digests that name other artifacts: this database cannot compute a digest, so a client
-- could keep other bytes under that of somebody else's.
CREATE POLICY client_writes ON artifacts FOR INSERT TO forge_client WITH CHECK (
  id ~ '^[0-9a-f]{64}$' AND uploaded_by = session_user AND NOT is_whole AND created_at = now() AND expires_at <= now() + interval '1 hour');
CREATE POLICY client_changes ON artifacts FOR UPDATE TO forge_client USING (uploaded_by = session_user AND NOT is_whole)
  WITH CHECK (uploaded_by = session_user AND expires_at <= now() + interval '1 year');
CREATE POLICY client_reads ON artifact_parts FOR SELECT TO forge_client
  USING (EXISTS (SELECT FROM artifact_owners o WHERE o.artifact_id = artifact_parts.artifact_id) OR forge_uploaded(artifact_id));
CREATE POLICY client_writes ON artifact_parts FOR INSERT TO forge_client WITH CHECK (forge_uploading(artifact_id, start));
CREATE POLICY client_changes ON artifact_parts FOR UPDATE TO forge_client USING (forge_uploading(artifact_id, start));
CREATE POLICY client_reads ON shells FOR SELECT TO forge_client
  USING (CASE WHEN execution_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN forge_owns(execution_id::uuid) ELSE false END);
CREATE POLICY client_reads ON session_workspaces FOR SELECT TO forge_client USING (true);

COMMIT;
