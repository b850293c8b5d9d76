"""How commands fail: one sentence on standard error, and an exit status by the kind of error."""

import logging
import os
import sys
from typing import Any, NoReturn

import click

from ditto_tasks.contracts.errors import (
    BrokerUnavailable,
    ConfigError,
    DittoError,
    InvalidDefinition,
    InvalidPayload,
    NodeFailed,
    PayloadTooLarge,
)
from ditto_tasks.embedded.errors import CannotStart, ProcessDied

__all__ = ["FAILED", "NEVER_RAN", "WRONG_USE", "Commands", "NoDeadCall", "NoRun", "Unhealthy"]

FAILED = 1  # a call ended without success, or a process died
WRONG_USE = 2  # as click has it for wrong options
NEVER_RAN = 3  # the call never ran, or its outcome is not known


class NoDeadCall(DittoError):
    """No dead letter has this execution id."""

    code = "NO_DEAD_CALL"


class NoRun(DittoError):
    """No run of this target goes on, or is known."""

    code = "NO_RUN"


class Unhealthy(DittoError):
    """A capability did not answer its canary."""

    code = "UNHEALTHY"


_STATUSES: tuple[tuple[type[DittoError] | tuple[type[DittoError], ...], int], ...] = (
    ((NodeFailed, ProcessDied), FAILED),
    (
        (ConfigError, InvalidDefinition, InvalidPayload, PayloadTooLarge, CannotStart, NoDeadCall, NoRun),
        WRONG_USE,
    ),
    (DittoError, NEVER_RAN),
)


class Commands(click.Group):
    """A group of commands that tells an error in a sentence, without a traceback."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the arguments; usage lines show our own name, however Python was started."""
        return super().make_context(self.name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit with the status of the error that it raised, if any."""
        logging.basicConfig(format="ditto-tasks: %(message)s", level=logging.WARNING)
        try:
            return super().invoke(ctx)
        except DittoError as error:
            _fail(error)


def _fail(error: DittoError) -> NoReturn:
    click.echo(f"ditto-tasks: {_sentence(error)}", err=True)
    sys.exit(next(status for kinds, status in _STATUSES if isinstance(error, kinds)))


def _sentence(error: DittoError) -> str:
    if isinstance(error, BrokerUnavailable) and not os.environ.get("DITTO_BROKER_URL"):
        return "the broker of this folder does not answer: start it with `ditto-tasks up`"
    return str(error)
