"""`ditto-tasks reindex` and `index check`, as a user runs them."""

from tests.acceptance.conftest import Shell

DRAFTS = '{"memories": [{"content": "the tides"}, {"content": "the moon"}]}'


def test_reindex_brings_up_what_was_written_and_says_so(running: Shell) -> None:
    written = running.json("invoke", "MEMORY.WRITE", DRAFTS)["output"]
    drifted = running.run("index", "check", "memories", "--json")
    assert drifted.returncode == 1
    assert all(record["id"] in drifted.stdout for record in written)
    assert written[0]["id"] in running.run("index", "check", "memories").stdout.replace("\n", "")

    done = running.run("reindex", "memories")
    assert done.returncode == 0, done.stderr
    assert "2 embedded" in done.stdout
    assert running.run("index", "check", "memories").returncode == 0
    assert running.json("reindex", "memories", "--mode", "full", "--json")["embedded"] == 2
    assert "memories: finished, full" in running.run("reindex", "status", "memories", "--follow").stdout
    assert running.json("reindex", "status", "memories", "--json")["state"] == "finished"
    assert running.run("reindex", "cancel", "memories").returncode == 2
    assert "memories: generation 1" in running.run("reindex", "rollback", "memories").stdout

    [hit] = running.json("search", "tides", "--limit", "1", "--json")["candidates"]
    assert hit["content"]["content"] == "the tides"


def test_check_repairs_and_a_detached_run_is_found_by_its_id(running: Shell) -> None:
    running.json("invoke", "MEMORY.WRITE", '{"memories": [{"content": "the shore"}]}')
    repaired = running.json("index", "check", "memories", "--repair", "--json")
    assert repaired["repaired"]["embedded"] == repaired["drift"]["missing"]
    sent = running.run("reindex", "memories", "--detach")
    result = running.json("result", sent.stdout.strip(), "--wait", "60")
    assert (result["node"], result["status"]) == ("REINDEX.RUN", "success")


def test_wrong_use_is_told(running: Shell) -> None:
    unknown = running.run("reindex", "status", "nowhere")
    assert (unknown.returncode, "nothing is known" in unknown.stderr) == (2, True)
    assert running.run("reindex", "nowhere").returncode == 1
    alone = running.run("reindex", "rollback", "nowhere")
    assert (alone.returncode, "no target 'nowhere'" in alone.stderr) == (1, True)
    assert running.run("reindex", "memories", "--mode", "quick").returncode == 2
