"""A worker over a store of the application's own.

    export DITTO_BROKER_URL=redis://127.0.0.1:6379/0
    celery -A own_store worker            # in this folder; `examples/enqueue.py` calls it

A store given by URL is opened and closed by each worker process; this one is the application's, so its module
opens it. It must live in one process: the threads pool, which is the default.
"""

import atexit
import os

from ditto_tasks import load_config
from providers.stores import open_store
from workers.factory import create_worker_app
from workers.memory import memory_worker

store = open_store(os.environ.get("OWN_STORE_URL", "memory://"))
atexit.register(store.close)

config = load_config(None)
app = create_worker_app(config, workers=[memory_worker(store, concurrency=16)])
