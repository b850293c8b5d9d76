"""What importing and running in-process loads, in fresh processes."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

HEAVY = ("numpy", "psycopg", "httpx", "workers", "providers", "beat")
IN_PROCESS = """
from ditto_tasks import Runtime
from workers.memory import memory_worker
with Runtime(workers=[memory_worker("memory://")]) as runtime:
    runtime.invoke("MEMORY.WRITE", {"memories": [{"content": 1}]}).unwrap()
"""

FIRST_USE = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from ditto_tasks import Runtime
from ditto_tasks.contracts.memory import MemoryWriteInput
from ditto_tasks.nodes import Memory
from providers.stores.in_memory import InMemoryStore

sys.setswitchinterval(1e-6)  # seconds; threads meet wherever they can
together = threading.Barrier(8)

def use(number):
    together.wait()
    Runtime().close()
    draft = {"key": str(number), "content": {}}
    assert MemoryWriteInput.from_wire({"memories": [draft]}).to_wire() == {"memories": [draft]}
    memory = Memory(InMemoryStore())
    [written] = memory.write({"memories": [draft]}).unwrap()
    assert memory.get({"ids": [written["id"]]}).unwrap() == [{**draft, "id": written["id"]}]
    return MemoryWriteInput.__pydantic_validator__

with ThreadPoolExecutor(8) as threads:
    assert len(set(threads.map(use, range(8)))) == 1
"""


def loaded_after(code: str) -> set[str]:
    """Run code in a fresh process; returns the modules that it loaded."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}\nimport sys; print(*sys.modules)"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return set(ended.stdout.split())


@pytest.fixture(scope="module")
def after_import() -> set[str]:
    return loaded_after("import ditto_tasks")


@pytest.fixture(scope="module")
def after_a_call() -> set[str]:
    return loaded_after(IN_PROCESS)


@pytest.mark.parametrize("module", HEAVY)
def test_importing_ditto_tasks_loads_nothing_heavy(after_import: set[str], module: str) -> None:
    assert module not in after_import


def test_importing_ditto_tasks_loads_no_client_of_the_broker(after_import: set[str]) -> None:
    clients = ("redis", "sqlite3", "celery", "kombu")
    assert not {name for name in after_import if name.partition(".")[0] in clients}
    assert "ditto_tasks.transport.client" not in after_import


@pytest.mark.parametrize("module", ["celery.worker", "celery.apps.worker", "ditto_tasks.transport.client"])
def test_calls_in_process_load_no_celery_worker(after_a_call: set[str], module: str) -> None:
    assert "workers.memory" in after_a_call
    assert module not in after_a_call


def test_a_config_file_and_the_environment_are_not_read_at_import() -> None:
    broken = "import os; os.environ.update(DITTO_CONFIG='/no/such/file', DITTO_BROKER_URL='no url')"
    assert "ditto_tasks" in loaded_after(f"{broken}\nimport ditto_tasks; ditto_tasks.Runtime().close()")


def test_models_are_built_at_their_first_use_by_whatever_threads_meet_there(after_import: set[str]) -> None:
    assert "ditto_tasks.contracts.memory" in after_import
    assert "importlib.metadata" not in after_import  # what building a model begins with
    assert "ditto_tasks.contracts.memory" in loaded_after(FIRST_USE)


def test_every_public_name_is_there() -> None:
    assert "ditto_tasks" in loaded_after(
        "import ditto_tasks; assert all(hasattr(ditto_tasks, name) for name in ditto_tasks.__all__)"
    )
