"""What the runner costs and gains compared with raw Celery and LangChain, measured in one run; figures, not tests."""
