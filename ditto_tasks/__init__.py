"""ditto-tasks: agent nodes as Celery tasks."""
