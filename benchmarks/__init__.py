"""What the runner costs and gains beside raw Celery and LangChain, measured in one run; figures, never tests."""
