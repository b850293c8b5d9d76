"""`ditto-tasks dead`: calls that killed every process that ran them: looked at, sent again, thrown away."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.dead import DeadCall, DeadLetters
from ditto_tasks.transport.keys import Keys
from tests.acceptance.conftest import Shell
from tests.conftest import StartWorker, connected

MINUTE = 60.0


@pytest.fixture
def caller(shell: Shell, broker_url: str) -> Shell:
    """A shell whose commands use a broker of their own."""
    shell.environ["DITTO_BROKER_URL"] = broker_url
    return shell


@pytest.fixture
def letters(broker_url: str) -> Iterator[DeadLetters]:
    with connect(broker_url) as client:
        yield DeadLetters(client, Keys("ditto"))


def add(letters: DeadLetters, *ids: str) -> None:
    for id in ids:
        letters.add(DeadCall(id, "MEMORY.GET", {"keys": [f"key of {id}"]}, 1_700_000_000.5))


def test_a_call_that_kills_its_workers_is_kept_and_runs_once_it_is_requeued(
    caller: Shell, broker_url: str, worker_process: StartWorker, tmp_path: Path
) -> None:
    settings = tmp_path / "ditto.yaml"
    settings.write_text("transport:\n  lease: 1\n  maxDeliveries: 2\n")
    poison = tmp_path / "poison"
    poison.touch()

    def start() -> None:
        worker_process(
            broker_url, module="tests.acceptance.dying_app", DITTO_CONFIG=str(settings), wait=False
        )

    with connected(broker_url) as runtime:
        given_up = runtime.submit("TEST.DIE", {"while": str(poison)})
        for _ in range(3):  # two die of it, the third gives it up
            start()
        result = given_up.result(MINUTE)
        assert (result.error and result.error.code) == "WORKER_LOST"

        [listed] = caller.json("dead", "list", "--json")
        assert (listed["executionId"], listed["node"]) == (given_up.id, "TEST.DIE")
        assert listed["input"] == {"while": str(poison)}

        poison.unlink()
        again = caller.json("dead", "requeue", given_up.id, "--json")
        assert again["requeued"] == given_up.id
        assert runtime.invocation(again["executionId"]).result(MINUTE).unwrap() == {"while": str(poison)}
        assert given_up.result() == result
    assert caller.json("dead", "list", "--json") == []


def test_list_and_show_tell_what_was_called_and_when(caller: Shell, letters: DeadLetters) -> None:
    add(letters, "older", "newer")
    table = caller.run("dead", "list").stdout
    assert table.index("newer") < table.index("older")
    assert "2023-11-14 22:13:20+00:00" in table
    assert "key of" not in table
    assert caller.json("dead", "show", "older", "--json") == {
        "executionId": "older",
        "node": "MEMORY.GET",
        "input": {"keys": ["key of older"]},
        "givenUpAt": 1_700_000_000.5,
    }
    assert '"key of older"' in caller.run("dead", "show", "older").stdout


def test_requeue_sends_all_of_them_each_once(caller: Shell, letters: DeadLetters, broker_url: str) -> None:
    add(letters, "one", "two", "two")
    done = caller.run("dead", "requeue", "--all")
    assert done.returncode == 0
    assert [line.split(" ")[0] for line in done.stdout.splitlines()] == ["two", "one"]
    assert letters.list() == []
    ids = {line.split(" ")[-1] for line in done.stdout.splitlines()}
    assert len(ids - {"one", "two"}) == 2
    with connect(broker_url) as client:
        assert client.xlen("ditto.memory.get:normal") == 2


def test_what_cannot_be_sent_stays_on_the_list(caller: Shell, letters: DeadLetters) -> None:
    add(letters, "large")
    (caller.folder / "ditto.yaml").write_text("transport:\n  maxBodyBytes: 1024\n")
    letters.add(DeadCall("larger", "MEMORY.GET", {"keys": ["k" * 2000]}, 0.0))
    refused = caller.run("dead", "requeue", "--all")
    assert refused.returncode == 2
    assert "over the limit" in refused.stderr
    assert "larger" in [call.execution_id for call in letters.list()]


def test_drop_takes_one_or_all_off(caller: Shell, letters: DeadLetters) -> None:
    add(letters, "one", "two", "three")
    assert caller.json("dead", "drop", "two", "--json") == {"dropped": "two", "node": "MEMORY.GET"}
    assert [call.execution_id for call in letters.list()] == ["three", "one"]
    assert caller.run("dead", "drop", "--all").returncode == 0
    assert letters.list() == []


@pytest.mark.parametrize("command", ["show", "requeue", "drop"])
def test_an_id_that_nobody_knows_is_told_in_one_sentence(caller: Shell, command: str) -> None:
    refused = caller.run("dead", command, "no-such-call")
    assert refused.returncode == 2
    assert refused.stderr == "ditto-tasks: no call no-such-call was given up: see `ditto-tasks dead list`\n"


@pytest.mark.parametrize("command", ["requeue", "drop"])
@pytest.mark.parametrize("arguments", [(), ("some-id", "--all")])
def test_one_or_all_must_be_said(caller: Shell, command: str, arguments: tuple[str, ...]) -> None:
    refused = caller.run("dead", command, *arguments)
    assert refused.returncode == 2
    assert "name an execution id, or say --all" in refused.stderr


@pytest.mark.parametrize("command", ["list", "show", "requeue", "drop"])
def test_every_command_has_an_example_and_needs_a_broker(shell: Shell, command: str) -> None:
    assert "Example" in shell.run("dead", command, "--help").stdout
    arguments = () if command == "list" else ("some-id",)
    refused = shell.run("dead", command, *arguments)
    assert refused.returncode == 2
    assert "set DITTO_BROKER_URL" in refused.stderr


def test_a_broker_that_is_down_is_told(shell: Shell) -> None:
    shell.environ["DITTO_BROKER_URL"] = "redis://127.0.0.1:1/0"
    refused = shell.run("dead", "list")
    assert refused.returncode == 3
    assert refused.stderr.startswith("ditto-tasks: reading the dead letters failed")
