"""The Celery worker process. It imports forge_tools; nothing imports it: `forge-tools worker` runs it as a program."""
