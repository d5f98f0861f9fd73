"""The one-machine stack: a folder with its lock, Valkey, SQLite and three workers. It prints nothing; callers do."""
