"""The Celery app of the scheduler, read from the file that DITTO_CONFIG names, else from ditto.yaml."""

import os

from beat.schedules import beat_entries
from ditto_tasks.config import find_config, load_config
from ditto_tasks.transport.app import create_app

__all__ = ["app"]

config = load_config(find_config(os.environ))
app = create_app(config, name="ditto-beat")
app.conf.beat_schedule = beat_entries(config)
