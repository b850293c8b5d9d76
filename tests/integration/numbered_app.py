"""A worker over a store whose ids are counted, so that equal calls give equal records everywhere."""

import itertools
import os
from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import patch

from ditto_tasks import Call, load_config
from ditto_tasks.config import find_config
from ditto_tasks.contracts.call import NO_CALL
from ditto_tasks.contracts.memory import MemoryItem, MemoryWriteInput
from providers.stores import in_memory
from workers.factory import create_worker_app
from workers.memory import memory_worker


class NumberedStore(in_memory.InMemoryStore):
    """Gives the ids `id-0001`, `id-0002` and so on; for one call at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    def write(self, request: MemoryWriteInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        counted = SimpleNamespace(uuid4=lambda: f"id-{next(self._numbers):04}")
        with patch.object(in_memory, "uuid", counted):
            return super().write(request, call)


if "DITTO_BROKER_URL" in os.environ:  # the tests import the store only
    config = load_config(find_config(os.environ))
    app = create_worker_app(config, workers=[memory_worker(NumberedStore())])
