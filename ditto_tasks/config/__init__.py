"""Configuration: ditto.yaml and the environment, read once, checked whole, then frozen.

Nothing is read on import. Durations are seconds here, whatever unit the file has.
"""

from ditto_tasks.config.environment import ENVIRONMENT, find_config
from ditto_tasks.config.loader import load_config
from ditto_tasks.config.model import (
    REINDEX_TASK,
    DittoConfig,
    MemoryWorker,
    Runtime,
    Schedule,
    Transport,
    WorkerSection,
)

__all__ = [
    "ENVIRONMENT",
    "REINDEX_TASK",
    "DittoConfig",
    "MemoryWorker",
    "Runtime",
    "Schedule",
    "Transport",
    "WorkerSection",
    "find_config",
    "load_config",
]
