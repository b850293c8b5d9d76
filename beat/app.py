"""The Celery app that `celery -A beat.app beat` finds.

Reads the file that DITTO_CONFIG names, else ditto.yaml; the broker comes from the environment, or from a
running `ditto-tasks up` of this folder.
"""

import os

from beat.scheduler import SlotScheduler
from ditto_tasks.config import find_config, load_config
from ditto_tasks.embedded.state import with_embedded_broker
from ditto_tasks.transport.app import create_app

__all__ = ["app"]

config = with_embedded_broker(load_config(find_config(os.environ)))
app = create_app(config, name="ditto-beat")
app.conf.update(beat_scheduler=SlotScheduler, ditto_config=config)
