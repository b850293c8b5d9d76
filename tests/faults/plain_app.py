"""Plain Celery with late acknowledgement, which the benchmark of faults holds us against."""

import os
import time
from pathlib import Path

from celery import Celery

NOTES = Path(os.environ["DITTO_TEST_TRACE"])

app = Celery("plain", broker=os.environ["DITTO_BROKER_URL"], backend=os.environ["DITTO_BROKER_URL"])
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": float(os.environ["PLAIN_VISIBILITY_TIMEOUT"]),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)


@app.task(name="work", bind=True)
def work(task: object, seconds: float) -> str:
    with NOTES.open("a") as notes:
        notes.write(f"started {task.request.id} {os.getpid()} {time.time()}\n")  # type: ignore[attr-defined]
    time.sleep(seconds)
    return "done"
