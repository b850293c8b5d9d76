"""Celery and Redis, and nowhere else: how a call becomes a task and its result comes back.

`port.py` is all that the rest of ditto-tasks knows of it.
"""
