"""The noting app where somebody listens to Celery's signals of tasks, and notes what is heard."""

import os
import time
from typing import Any

from celery import signals

from tests.integration.notes import Note
from tests.integration.noting_app import app, notes

__all__ = ["app"]


def _hear(event: str, id: str) -> None:
    notes.add(Note(event, id, os.getpid(), time.time()))


@signals.task_received.connect
def _received(request: Any, **_: Any) -> None:
    _hear("received", request.id)


@signals.task_prerun.connect
def _prerun(task_id: str, **_: Any) -> None:
    _hear("prerun", task_id)


@signals.task_success.connect
def _success(sender: Any, **_: Any) -> None:
    _hear("success", sender.request.id)


@signals.task_postrun.connect
def _postrun(task_id: str, **_: Any) -> None:
    _hear("postrun", task_id)
