-- What a transaction does first: nothing, it is read as of one moment anyway, and there is one writer.

-- name: server
SELECT 'SQLite ' || sqlite_version()
