"""The commands at work, in a folder where `up` runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import COMMAND_TIME, DITTO, Shell
from tests.conftest import connected

PAGES = {
    "guide.md": "# Guide\n\nHow tides come about.\n\n## Moon\n\nThe moon pulls the water.\n",
    "notes.txt": "Spring tides are the highest.\n",
    "picture.png": "\0\0",
    ".hidden/secret.md": "# Secret\n",
}


def write_pages(folder: Path) -> Path:
    pages = folder / "pages"
    for name, text in PAGES.items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(text)
    return pages


def counts(shell: Shell, *paths: str) -> tuple[int, int, int, int]:
    done = shell.json("ingest", *paths, "--json")
    return done["new"], done["changed"], done["unchanged"], done["removed"]


def test_every_command_has_an_example(shell: Shell) -> None:
    listing = "status", "schedules", "search", "targets"
    reindexing = "reindex", "reindex run", "reindex status", "reindex cancel", "index", "index check"
    commands = ("up", "worker", "invoke", "result", "cancel", "ingest", "demo", *listing, *reindexing)
    for command in commands:
        shown = shell.run(*command.split(), "--help")
        assert shown.returncode == 0
        assert "Example" in shown.stdout


def test_invoke_takes_json_a_file_and_standard_input(running: Shell) -> None:
    (running.folder / "input.json").write_text('{"keys": ["absent"]}')
    for source, input in (
        ('{"keys": ["absent"]}', None),
        ("@input.json", None),
        ("-", '{"keys": ["absent"]}'),
    ):
        result = running.json("invoke", "MEMORY.GET", source, input=input)
        assert (result["node"], result["status"], result["output"]) == ("MEMORY.GET", "success", [])


def test_result_gives_again_what_invoke_gave(running: Shell) -> None:
    first = running.json("invoke", "MEMORY.QUERY", '{"limit": 1}')
    assert running.json("result", first["executionId"]) == first


def test_the_result_of_a_call_that_nobody_knows(running: Shell) -> None:
    absent = running.run("result", "no-such-call", "--wait", "0.1")
    assert absent.returncode == 3
    assert "no worker has begun it" in absent.stderr


def test_cancel_keeps_a_waiting_call_from_running(shell: Shell, broker_url: str) -> None:
    environ = {"DITTO_BROKER_URL": broker_url}
    with connected(broker_url) as runtime:
        invocation = runtime.submit("MEMORY.WRITE", {"memories": [{"key": "late", "content": 1}]})
        assert shell.json("cancel", invocation.id, "--json", environ=environ)["state"] == "pending"
        shell.environ["DITTO_BROKER_URL"] = broker_url
        shell.up("memory")
        assert invocation.result(60).status == "cancelled"
    assert shell.json("invoke", "MEMORY.GET", '{"keys": ["late"]}')["output"] == []


def test_status_shows_queues_workers_and_capabilities(running: Shell) -> None:
    status = running.json("status", "--json")
    assert status["capabilities"] == ["MEMORY", "REINDEX", "RETRIEVAL"]
    assert {worker["type"]: worker["concurrency"] for worker in status["workers"]} == {
        "MEMORY": 8,
        "REINDEX": 2,
        "RETRIEVAL": 8,
    }
    get = next(queue for queue in status["queues"] if queue["node"] == "MEMORY.GET")
    assert get == {"name": "ditto.memory.get", "node": "MEMORY.GET", "waiting": 0, "workers": 1}
    assert "ditto.memory.get" in running.run("status").stdout


def test_ingest_twice_changes_nothing_and_follows_what_the_files_say(running: Shell) -> None:
    pages = write_pages(running.folder)
    assert counts(running, "pages") == (3, 0, 0, 0)
    assert counts(running, "pages") == (0, 0, 3, 0)
    assert counts(running, "pages/guide.md", str(pages / "notes.txt")) == (0, 0, 3, 0)
    (pages / "guide.md").write_text("# Guide\n\nHow tides come about, and when.\n")
    assert counts(running, "pages") == (0, 1, 1, 1)
    [candidate] = running.json("search", "when do tides come", "--json", "--limit", "1")["candidates"]
    assert candidate["content"]["content"] == "# Guide\n\nHow tides come about, and when."
    assert candidate["content"]["metadata"] == {
        "kind": "document",
        "path": "pages/guide.md",
        "position": 1,
        "heading": "Guide",
    }
    gone = running.json("search", "moon pulls water", "--strategy", "keyword", "--json")
    assert gone["candidates"] == []


def test_what_is_ingested_is_found_by_words_by_meaning_and_by_both(running: Shell) -> None:
    write_pages(running.folder)
    running.json("ingest", "pages", "--json")
    for strategy in ("keyword", "vector", "hybrid"):
        output = running.json("search", "how tides come about", "--strategy", strategy, "--json")
        assert output["strategy"] == strategy
        assert output["candidates"][0]["content"]["metadata"]["path"] == "pages/guide.md"
    by_meaning = running.json(
        "search", "ebb and flow of the sea", "--strategy", "vector", "--limit", "1", "--json"
    )
    assert "ides" in by_meaning["candidates"][0]["content"]["content"]


def test_search_takes_filters_and_explains(running: Shell) -> None:
    write_pages(running.folder)
    running.json("ingest", "pages", "--json")
    arguments = ("search", "tides", "--filter", "kind=document", "--explain")
    explained = running.json(*arguments, "--json")["metadata"]["explanation"]
    for entry in explained["candidates"]:
        added = sum(branch["contribution"] for branch in entry["branches"])
        assert added == pytest.approx(entry["before"]["score"])
    shown = running.run(*arguments).stdout
    assert "adds" in shown
    assert "keyword" in shown
    assert running.json("search", "tides", "--filter", "kind=other", "--json")["candidates"] == []
    for wrong in ("--filter kind", "--filter colour=red", "--strategy rag", "--target no"):
        assert running.run("search", "tides", *wrong.split()).returncode in (1, 2)


def test_targets_shows_what_there_is_to_search(running: Shell) -> None:
    write_pages(running.folder)
    running.json("ingest", "pages", "--json")
    [target] = running.json("targets", "--json")
    assert target["name"] == "memories"
    assert target["strategies"] == ["keyword", "vector", "hybrid"]
    assert target["defaultStrategy"] == "hybrid"
    assert target["drift"]["stale"] == target["drift"]["orphaned"] == 0
    assert target["records"] - target["indexed"] == target["drift"]["missing"]
    assert target["dimensions"] == 384
    assert "memories" in running.run("targets").stdout


def test_ingest_removes_all_that_a_much_shorter_file_leaves(running: Shell) -> None:
    page = running.folder / "long.md"
    page.write_text("\n".join(f"# Part {number}\n\nText {number}." for number in range(120)))
    assert counts(running, "long.md") == (120, 0, 0, 0)
    page.write_text("# Part 0\n\nText 0.")
    assert counts(running, "long.md") == (0, 0, 1, 119)


def test_ingest_says_what_it_skipped(running: Shell) -> None:
    write_pages(running.folder)
    done = running.json("ingest", "pages", "--json")
    assert (done["files"], done["skipped"]) == (2, 1)
    assert "from 2 files (1 skipped); 0 embedded" in running.run("ingest", "pages").stdout


def test_ingest_says_when_nothing_is_embedded(shell: Shell) -> None:
    write_pages(shell.folder)
    shell.up("memory")
    done = shell.json("ingest", "pages", "--json")
    assert (done["new"], done["embedded"], done["isIndexed"]) == (3, 0, False)
    assert "ditto-tasks worker reindex" in shell.run("ingest", "pages").stdout


def test_output_survives_a_closed_pipe(running: Shell) -> None:
    with subprocess.Popen(
        [*DITTO, "status"],
        cwd=running.folder,
        env=running.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_config_check_names_variables_and_no_values(shell: Shell) -> None:
    environ = {"DITTO_BROKER_URL": "redis://:secret@localhost:6379/0"}
    checked = shell.run("config", "check", environ=environ)
    assert checked.returncode == 0
    assert "DITTO_BROKER_URL" in checked.stdout
    assert "secret" not in checked.stdout + checked.stderr
    assert shell.json("config", "check", "--json", environ=environ) == {
        "file": None,
        "environment": ["DITTO_BROKER_URL"],
    }


def test_demo_on_a_small_folder(shell: Shell) -> None:
    write_pages(shell.folder)
    shown = shell.run("demo", "pages")
    assert shown.returncode == 0, shown.stderr
    assert "3 new" in shown.stdout
    for said in ("keyword:", "vector:", "hybrid:", "adds"):
        assert said in shown.stdout
    assert '"executionId"' in shown.stdout
    assert "ditto.memory.search" in shown.stdout
    assert "median" in shown.stdout
    assert not (shell.folder / ".ditto").exists()


def test_an_app_with_packages_called_like_ours_enqueues_and_runs_our_worker(running: Shell) -> None:
    app = running.folder / "app"
    for package in ("workers", "providers"):
        (app / package).mkdir(parents=True)
        (app / package / "__init__.py").write_text("raise RuntimeError('the package of the application')\n")
    (app / "enqueue.py").write_text(
        "import json\n"
        "from ditto_tasks import Runtime\n"
        "with Runtime.from_config(None) as runtime:\n"
        "    print(json.dumps(runtime.invoke('MEMORY.QUERY', {'limit': 1}).to_wire()))\n"
    )
    inside = Shell(app)
    inside.environ["PYTHONPATH"] = f"{app}:{inside.environ['PYTHONPATH']}"
    inside.up()
    enqueued = subprocess.run(
        [sys.executable, "enqueue.py"],
        cwd=app,
        env=inside.environ,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIME,
    )
    inside.close()
    assert enqueued.returncode == 0, enqueued.stderr
    assert json.loads(enqueued.stdout)["status"] == "success"
