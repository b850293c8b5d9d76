"""The console command `ditto-tasks`; each module holds the commands of one noun."""

from ditto_tasks.cli.dead import dead
from ditto_tasks.cli.demo import demo
from ditto_tasks.cli.errors import Commands
from ditto_tasks.cli.health import health
from ditto_tasks.cli.index import index
from ditto_tasks.cli.ingest import ingest
from ditto_tasks.cli.invoke import cancel, invoke, result
from ditto_tasks.cli.reindex import reindex
from ditto_tasks.cli.schedules import schedules
from ditto_tasks.cli.search import search, targets
from ditto_tasks.cli.settings import config
from ditto_tasks.cli.status import status
from ditto_tasks.cli.up import up
from ditto_tasks.cli.worker import worker

__all__ = ["main"]


main = Commands(
    "ditto-tasks",
    help=(
        "Call agent nodes as Celery tasks, run their workers, and look after both.\n\n"
        "Exit status: 0; 1 when a call's result is no success; 2 for wrong use; 3 when a call never ran, "
        "or nobody knows its outcome.\n\n"
        "Begin with `ditto-tasks up` in one terminal and `ditto-tasks ingest docs` in another."
    ),
)
for command in (
    up,
    worker,
    invoke,
    result,
    cancel,
    status,
    schedules,
    health,
    dead,
    ingest,
    search,
    targets,
    reindex,
    index,
    demo,
    config,
):
    main.add_command(command)
