"""The Celery app that `celery -A workers.app worker` finds.

Reads the file that DITTO_CONFIG names, else ditto.yaml, else takes the defaults; addresses come from the
environment, or from a running `ditto-tasks up` of this folder. DITTO_WORKER_CAPABILITIES names what it
serves, memory alone, say; unset: everything.
"""

import os

from ditto_tasks.config import find_config, load_config
from ditto_tasks.contracts.catalog import CAPABILITIES
from ditto_tasks.embedded.state import with_embedded_broker
from workers.factory import configured_workers, create_worker_app

__all__ = ["app"]

config = with_embedded_broker(load_config(find_config(os.environ)))
app = create_worker_app(config, workers=configured_workers(config, config.capabilities or CAPABILITIES))
