-- Partitions by month for the two large tables, `executions` and `execution_attempts`, by ranges of ids: a UUIDv7 begins
-- with its time. Run it as the owner, while no worker and no client runs. Running it again is harmless and adds months:
--
--     psql "$OWNER_URL" -v ON_ERROR_STOP=1 -f deploy/postgres/partitions.sql
--
-- The existing table becomes the first partition: no row is copied, each is read once. Then run roles.sql again.
-- Later, once a month: SELECT forge_add_partitions(3);

BEGIN;

-- The lowest id of a time: ids made then or later are not below it.
CREATE OR REPLACE FUNCTION forge_id_floor(moment timestamptz) RETURNS uuid LANGUAGE sql STABLE AS $$
  SELECT (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-0000-0000-000000000000')::uuid
  FROM (SELECT lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') AS h) AS hex
$$;

-- Make partitions up to this many months ahead. Ids may be an hour off the clock, so one month is the minimum.
CREATE OR REPLACE FUNCTION forge_add_partitions(months int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  whole text;
  first date;
  name text;
  made int := 0;
BEGIN
  FOREACH whole IN ARRAY ARRAY['executions', 'execution_attempts'] LOOP
    FOR ahead IN 0..greatest(months, 1) LOOP
      first := (date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => ahead))::date;
      name := whole || to_char(first, '_YYYY_MM');
      CONTINUE WHEN to_regclass(name) IS NOT NULL OR EXISTS (
        SELECT FROM forge_first_partition f WHERE f.parent = whole AND first < f.until);
      EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)', name, whole,
        forge_id_floor(first::timestamp AT TIME ZONE 'UTC'),
        forge_id_floor((first + interval '1 month') AT TIME ZONE 'UTC'));
      made := made + 1;
    END LOOP;
  END LOOP;
  RETURN made;
END $$;

CREATE TABLE IF NOT EXISTS forge_first_partition (parent text PRIMARY KEY, until date NOT NULL);

CREATE OR REPLACE FUNCTION forge_partition(parent text, key text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  old text := parent || '_before';
  until date := (date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month')::date;
  ceiling uuid := forge_id_floor(until::timestamp AT TIME ZONE 'UTC');
  definitions text[];
  primary_key text;
  one record;
  definition text;
BEGIN
  IF (SELECT relkind FROM pg_class WHERE oid = parent::regclass) = 'p' THEN
    RETURN;
  END IF;
  SELECT array_agg(pg_get_indexdef(indexrelid)) INTO definitions
    FROM pg_index WHERE indrelid = parent::regclass AND NOT indisprimary;
  SELECT pg_get_constraintdef(oid) INTO primary_key FROM pg_constraint WHERE conrelid = parent::regclass AND contype = 'p';
  EXECUTE format('ALTER TABLE %I RENAME TO %I', parent, old);
  FOR one IN SELECT indexrelid::regclass::text AS name FROM pg_index WHERE indrelid = old::regclass LOOP
    EXECUTE format('ALTER INDEX %I RENAME TO %I', one.name, one.name || '_before');
  END LOOP;
  EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING STORAGE INCLUDING CONSTRAINTS) PARTITION BY RANGE (%I)',
    parent, old, key);
  EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I CHECK (%I < %L)', old, parent || '_is_before', key, ceiling);
  EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I %s', parent, parent || '_pkey', primary_key);
  FOREACH definition IN ARRAY coalesce(definitions, '{}') LOOP
    EXECUTE definition;
  END LOOP;
  EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (MINVALUE) TO (%L)', parent, old, ceiling);
  INSERT INTO forge_first_partition VALUES (parent, until);
END $$;

DO $$
DECLARE
  view_definition text := pg_get_viewdef('tool_executions'::regclass);
  view_options text[] := (SELECT reloptions FROM pg_class WHERE oid = 'tool_executions'::regclass);
BEGIN
  DROP VIEW tool_executions;  -- or it would keep reading the table under its new name
  PERFORM forge_partition('executions', 'id');
  PERFORM forge_partition('execution_attempts', 'execution_id');
  EXECUTE 'CREATE VIEW tool_executions AS ' || view_definition;
  IF 'security_invoker=true' = ANY (view_options) THEN
    ALTER VIEW tool_executions SET (security_invoker = true);
  END IF;
  PERFORM forge_add_partitions(3);
END $$;

COMMIT;
