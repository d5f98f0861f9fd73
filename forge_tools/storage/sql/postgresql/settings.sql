-- What a transaction does first, where this database needs more than SQLite, which has one writer and is read as of one moment.

-- name: still
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- A plan for any cursor would be made for the middle of history, and for values as frequent as others are.
-- name: page
{still};
SET LOCAL plan_cache_mode = force_custom_plan

-- 64 MB sort the calls of a day in memory. It takes what lies between two ids for one row, and would compare each call of an hour with each attempt of it.
-- name: figures_of_all
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
SET LOCAL work_mem = '64MB';
SET LOCAL enable_nestloop = off

-- name: figures_of_some
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
SET LOCAL work_mem = '64MB';
SET LOCAL enable_nestloop = on

-- Let nothing that follows scan a table, whatever is known of it, nor take more than one core.
-- name: by_index
SET LOCAL enable_seqscan = off;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
SET LOCAL max_parallel_workers_per_gather = 0

-- Let no other writer in: a switch must find the definition that is published meanwhile, or be found.
-- name: catalogue_in_turn
LOCK TABLE tools IN SHARE ROW EXCLUSIVE MODE

-- Locks of the server, named by a number.
-- name: first_batch
SELECT pg_advisory_xact_lock(302517479269)

-- One process at a time migrates: this says whether it is the one that asks, until its connection ends.
-- name: migrate
SELECT pg_try_advisory_lock(439956432741)

-- name: who_migrates
SELECT a.pid, a.usename, host(a.client_addr), extract(epoch FROM clock_timestamp() - a.backend_start)::float8
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = 439956432741 >> 32
  AND l.objid = 439956432741 & 4294967295 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())

-- For a role without privileges, and without asking for what only others may see.
-- name: connections
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true), '0')::int,
       (SELECT sum(numbackends) FROM pg_stat_database)::int,
       (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forge-tools')::int,
       (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout')
