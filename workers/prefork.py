"""A prefork pool that keeps what it was given, whether or not the connection lasts."""

from typing import Any

__all__ = ["keep_jobs"]


def keep_jobs(pool: Any) -> None:
    """Make a pool's flush drop nothing.

    With a lost connection, Celery has the pool forget whatever it has not heard to be running, for the broker
    to deliver it again. Our messages outlive connections: what was still to be sent would never run, and what
    a child was about to run would never free its slot.

    Args:
        pool: Celery's prefork pool, started.
    """
    children, flush = pool._pool, pool.flush

    def flush_and_keep() -> None:
        kept = [job for job in tuple(children._cache.values()) if not job._accepted]
        flush()
        for job in kept:
            children._cache[job._job] = job
            if job._write_to is None:  # sent to no child yet
                children.outbound_buffer.append(job)

    pool.flush = flush_and_keep
