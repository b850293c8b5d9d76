"""What other systems trip over: each of it was seen once, here or elsewhere, and must not happen again."""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from celery import Celery

from ditto_tasks import Invocation, Runtime
from ditto_tasks.transport.app import create_app
from ditto_tasks.transport.dead import DeadLetters
from ditto_tasks.transport.serializer import CONTENT_TYPE
from tests.conftest import LATE, ROOT, RedisServer, StartWorker, wait_until
from tests.integration.conftest import Site

POOLS = ["threads", "prefork", "solo"]
PASSWORD = "s3cret-w0rd"
RECOVERED = 10.0  # seconds in which workers go on with new calls once the server is back

HEADERS = {"task": "NOTED.WORK", "id": "garbage", "lang": "py"}
PROPERTIES: dict[str, Any] = {"delivery_info": {}, "delivery_tag": "x"}
WHOLE = {"headers": HEADERS, "properties": PROPERTIES, "content-type": "application/json"}
NO_BODIES = [
    "",
    "null",
    "3",
    "[]",
    "[1]",
    "[1, 2, 3]",
    "{}",
    '{"a": 1, "b": 2, "c": 3}',
    "[[{}], [], {}]",
    '"args"',
]
PUSHED: list[Any] = [
    [],
    {},
    {"headers": {}, "properties": {"delivery_info": 1}, "body": "x"},
    {**WHOLE, "headers": {"task": ["x"], "id": 2}, "body": "x"},
    {**WHOLE, "headers": {"task": "NOTED.WORK"}, "body": "[[], {}, {}]"},
    {**WHOLE, "headers": {**HEADERS, "timelimit": 3}, "body": "[[], {}, {}]"},
    *(
        {**WHOLE, "headers": {**HEADERS, name: 3}, "body": "[[], {}, {}]"}
        for name in ("_children", "get", "__class__", "ditto_dead", "ditto_attempt")
    ),
    *(
        {**WHOLE, "headers": {**HEADERS, name: value}, "body": "[[], {}, {}]"}
        for name, value in [
            ("timelimit", ["soon", {}]),
            ("chain", {}),
            ("chain", [1]),
            ("callbacks", "later"),
            ("chord", []),
            ("expires", []),
            ("expires", 3),
            ("expires", "some day"),
            ("eta", {}),
        ]
    ),
    *(
        {**WHOLE, "body": json.dumps([[], {}, embedded])}
        for embedded in ({"chain": {}}, {"errbacks": [1]}, {"chord": 3}, {"get": 1})
    ),
    {**WHOLE, "body": 3},
    {**WHOLE, "properties": {**PROPERTIES, "body_encoding": "base64"}, "body": "no base64"},
    WHOLE,
    *({**WHOLE, "content-encoding": "utf-8", "body": body} for body in NO_BODIES),
]
GARBAGE = [
    b"",
    b"\x00\xff\xfe",
    b"not json",
    b"[" * 100_000,
    *(json.dumps(message).encode() for message in PUSHED),
]
STREAM_GARBAGE: list[dict[Any, Any]] = [
    {"x": "y"},
    {"i": "", "m": "", "b": ""},
    {"i": "1", "m": "{}", "b": "[]"},
    {"i": b"\xff\xfe", "m": b"\xff", "b": b"\xff"},
    {b"\xff": b"\xff"},
    {"k": b"\xff key", "m": "[", "b": ""},
    {"k": b"key", "m": "[", "b": ""},
    {"i": "2", "m": json.dumps(WHOLE), "b": b"\xff"},
    {"i": "3", "m": json.dumps(WHOLE), "b": b"[1, 2]"},
]


@pytest.fixture(scope="module", params=POOLS)
def pool(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client_app(site: Site) -> Iterator[Celery]:
    """An app of ours as a caller has it."""
    with site.runtime() as runtime:
        app = create_app(runtime.config)
    yield app
    app.close()


def goes_on(runtime: Runtime, within: float = 30) -> bool:
    return runtime.submit("NOTED.WORK", {"label": "goes on"}).result(within).status == "success"


def statuses(calls: list[Invocation], timeout: float = 60) -> set[str]:
    return {call.result(timeout).status for call in calls}


def celery(site: Site, *arguments: str) -> str:
    """Run a command of Celery's; returns what it printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tests.integration.noting_app", *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "DITTO_BROKER_URL": site.url, "DITTO_CONFIG": site.settings()},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.stdout + ended.stderr


def test_garbage_in_lists_and_streams_ends_in_the_dead_letters(site: Site, pool: str) -> None:
    worker = site.hire(pool=pool)
    for body in GARBAGE:
        site.client.lpush("ditto.noted.work", body)
    for fields in STREAM_GARBAGE:
        site.client.xadd(site.stream("NOTED.WORK"), fields)
        site.client.xadd(site.stream("KEYED.WORK"), fields)
    with site.runtime() as runtime:
        wait_until(lambda: site.client.llen("ditto.noted.work") == 0, what="the list is read")
        wait_until(lambda: site.entries() == 0, what="nothing of it is left")
        assert goes_on(runtime)
        key = runtime.submit("KEYED.WORK", {"label": "key"}, concurrency_key="k")
        assert key.result(30).status == "success"
    assert len(DeadLetters(site.client, site.keys).list()) == len(GARBAGE) + 2 * len(STREAM_GARBAGE)
    assert psutil.pid_exists(worker.pid)
    assert "Traceback" not in worker.log
    assert site.notes.started() == ["goes on", "key"]


def test_a_message_that_was_written_twice_runs_once(site: Site, pool: str) -> None:
    with site.runtime() as runtime:
        calls = [
            runtime.submit(node, {"label": node, "seconds": 0.5}) for node in ("NOTED.READ", "NOTED.WORK")
        ]
        for call in calls:
            stream = site.stream(call.node)
            [(_, fields)] = site.client.xrange(stream)
            site.client.xadd(stream, fields)
        site.hire(pool=pool)
        assert statuses(calls) == {"success"}
        wait_until(lambda: site.entries() == 0, what="both messages are gone")
    assert sorted(site.notes.started()) == ["NOTED.READ", "NOTED.WORK"]


def test_a_sender_that_wants_no_sensible_reply_has_its_call_run(site: Site, pool: str) -> None:
    worker = site.hire(pool=pool, concurrency=1)
    with site.runtime() as runtime:
        for id, reply_to in (("number", 5), ("list", ["x"]), ("none", None)):
            message = {
                "headers": {"task": "NOTED.WORK", "id": id, "lang": "py"},
                "properties": {**PROPERTIES, "reply_to": reply_to},
                "content-type": CONTENT_TYPE,
                "content-encoding": "utf-8",
            }
            fields = {"i": id, "m": json.dumps(message), "b": json.dumps([[{"label": id}], {}, {}])}
            site.client.xadd(site.stream("NOTED.WORK"), fields)
            assert runtime.invocation(id).result(30).status == "success"
    assert worker.stop() == 0


def test_a_node_that_exits_fails_and_its_worker_goes_on(site: Site, pool: str) -> None:
    worker = site.hire(pool=pool, concurrency=1)
    with site.runtime() as runtime:
        for _ in range(2):
            result = runtime.invoke("NOTED.EXIT", {"label": "exit"}, timeout=30)
            assert (result.status, result.error and result.error.code) == ("failed", "EXECUTION_FAILED")
        assert goes_on(runtime)
    assert psutil.pid_exists(worker.pid)
    assert site.notes.started("exit") == ["exit"] * 2
    assert site.entries() == 0


def test_a_task_of_celerys_own_is_run_like_any_other(site: Site, client_app: Celery, pool: str) -> None:
    site.hire(pool=pool)
    with site.runtime() as runtime:
        assert goes_on(runtime)  # from now on a read waits
        sent = client_app.send_task("celery.accumulate", [3], queue="ditto.noted.work")
        wait_until(lambda: site.client.exists(site.keys.result(sent.id)), what="the task has run")
        assert goes_on(runtime)


def test_a_worker_goes_on_when_the_server_cannot_begin_a_call(
    site: Site, client_app: Celery, pool: str
) -> None:
    worker = site.hire(pool=pool)
    with site.runtime() as runtime:
        assert goes_on(runtime)
        site.client.set(site.keys.call("stuck"), "no hash")
        client_app.send_task("NOTED.WORK", [{"label": "stuck"}], task_id="stuck", queue="ditto.noted.work")
        wait_until(lambda: "cannot begin" in worker.log, what="the call could not be begun")
        site.client.delete(site.keys.call("stuck"))

        assert runtime.invocation("stuck").result(30).unwrap()["label"] == "stuck"
        assert goes_on(runtime)


def test_garbage_on_the_channel_of_cancels_does_not_stop_cancelling(site: Site) -> None:
    site.hire()
    with site.runtime() as runtime:
        first, second = (runtime.submit("NOTED.LOOP", {"label": name}) for name in ("first", "second"))
        site.wait_started("first", "second")
        channel = site.keys.cancel_channel
        wait_until(lambda: site.client.pubsub_numsub(channel)[0][1] >= 1, what="the worker listens")
        for told in (b"", b"\xff", b"nonsense", b"1", b"null", b"{}", b'["one"]', b'[["a"], {}]', b"[1,2,3]"):
            assert site.client.publish(channel, told) >= 1
        first.cancel()
        assert first.result(30).status == "cancelled"
        second.cancel()
        assert second.result(30).status == "cancelled"


def test_a_call_that_expired_by_celery_is_not_run(site: Site, client_app: Celery) -> None:
    with site.runtime() as runtime:
        with client_app.connection_for_write() as connection:
            long_ago = datetime.now(UTC) - timedelta(hours=1)
            sent = client_app.send_task(
                "NOTED.WORK", [{"label": "late"}], expires=long_ago, connection=connection
            )
            in_time = client_app.send_task(
                "NOTED.WORK", [{"label": "in time"}], expires=60, connection=connection
            )
        late, timely = runtime.invocation(sent.id), runtime.invocation(in_time.id)
        site.hire()
        assert timely.result(60).status == "success"
        result = late.result(30)
    assert (result.status, result.error and result.error.code) == ("timeout", "TIMEOUT")
    assert site.notes.started() == ["in time"]


def test_a_worker_holds_no_more_than_its_slots_while_another_is_idle(site: Site) -> None:
    """Three queues get a call in one moment, so that a blocking read brings all three."""
    nodes = ("NOTED.WORK", "NOTED.READ", "NOTED.OTHER")
    with site.runtime() as runtime:
        calls = [runtime.submit(node, {"label": node, "until": str(site.gate)}) for node in nodes]
        messages = {stream: site.client.xrange(stream)[0][1] for stream in map(site.stream, nodes)}
        site.client.delete(*messages)
        site.hire_many(2, concurrency=1)
        wait_until(lambda: waiting_reads(site) == 2, what="both are idle")
        together = site.client.pipeline(transaction=True)
        for stream, fields in messages.items():
            together.xadd(stream, fields)
        together.execute()
        wait_until(lambda: len(site.notes.of("started")) == 2, what="both work")
        site.gate.touch()
        assert statuses(calls) == {"success"}
    assert set(site.notes.most_at_once_by_pid().values()) == {1}
    first, second, third = site.notes.of("started")
    first_end = min(note.at for note in site.notes.of("ended"))
    assert first.pid != second.pid
    assert second.at < first_end
    assert third.at < first_end + 1 + LATE


def waiting_reads(site: Site) -> int:
    """Count the workers that wait for a call."""
    database = site.url.rsplit("/", 1)[1]
    clients = [client for client in site.client.client_list() if client["db"] == database]
    return sum(client["cmd"] == "xreadgroup" and "b" in client["flags"] for client in clients)


def test_calls_that_are_sent_after_a_purge_are_run(site: Site, pool: str) -> None:
    worker = site.hire(pool=pool, concurrency=2)
    with site.runtime() as runtime:
        running = runtime.submit("NOTED.WORK", {"label": "running", "seconds": 1})
        site.wait_started("running")
        more_than_are_run_before_the_purge = range(60)
        waiting = [
            runtime.submit("NOTED.OTHER", {"label": "purged", "seconds": 1})
            for _ in more_than_are_run_before_the_purge
        ]
        assert "Purged" in celery(site, "purge", "-f")
        calls = [
            runtime.submit(node, {"label": "after"}) for node in ("NOTED.WORK", "NOTED.READ", "NOTED.OTHER")
        ]
        assert statuses([running, *calls]) == {"success"}
        assert {call.status() for call in waiting} <= {"pending", "running", "success"}
    assert "Traceback" not in worker.log


@pytest.fixture
def guarded_url(own_server: RedisServer) -> str:
    """The URL of a server that asks for a password."""
    with redis.Redis.from_url(own_server.url()) as admin:
        admin.config_set("requirepass", PASSWORD)
    return own_server.url().replace("redis://", f"redis://:{PASSWORD}@")


def test_the_password_of_the_broker_is_shown_nowhere(
    guarded_url: str, worker_process: StartWorker, tmp_path: Path
) -> None:
    site = Site(worker_process, guarded_url, tmp_path)
    worker = site.hire()
    with site.runtime() as runtime:
        assert goes_on(runtime)
        app = create_app(runtime.config)
    shown = [repr(runtime.config), app.bugreport(), celery(site, "report"), worker.log]
    for asking in (app, Celery("foreign", broker=guarded_url, set_as_current=False)):
        with asking.connection_for_write() as connection:
            inspect = asking.control.inspect(connection=connection, timeout=30, limit=1)
            answers = [inspect.conf(with_defaults=True), inspect.stats(), inspect.registered()]
        asking.close()
        assert [list(answer) for answer in answers] == [[worker.name]] * 3
        shown += map(str, answers)
    site.close()
    assert [PASSWORD in text for text in shown] == [False] * len(shown)


def test_gevent_runs_many_short_calls_soon_and_cancels(site: Site) -> None:
    worker = site.hire(pool="gevent", concurrency=4)
    with site.runtime() as runtime:
        began = time.monotonic()
        calls = [runtime.submit("NOTED.WORK", {"label": "short"}) for _ in range(40)]
        assert statuses(calls) == {"success"}
        assert time.monotonic() - began < 3 + LATE
        loops = [runtime.submit("NOTED.LOOP", {"label": "loop"}) for _ in range(4)]
        wait_until(lambda: len(site.notes.started("loop")) == 4)
        cancelled_at = time.monotonic()
        for call in loops:
            call.cancel()
        assert statuses(loops) == {"cancelled"}
        assert goes_on(runtime)
        assert time.monotonic() - cancelled_at < 2 + LATE
    assert site.notes.most_at_once() == 4
    assert worker.stop() == 0


def test_workers_go_on_when_the_server_lost_its_data(
    own_server: RedisServer, worker_process: StartWorker, tmp_path: Path, pool: str
) -> None:
    site = Site(worker_process, own_server.url(), tmp_path)
    workers = site.hire_many(2, pool=pool, concurrency=2)
    with site.runtime() as runtime:
        assert goes_on(runtime)
        own_server.kill()
        shutil.rmtree(tmp_path / "redis" / "appendonlydir")
        own_server.start()
        back_at = time.monotonic()
        calls = [runtime.submit("NOTED.WORK", {"label": str(n)}) for n in range(6)]
        calls.append(runtime.submit("LIMITED.READ", {"label": "limited"}))
        calls += [runtime.submit("KEYED.WORK", {"label": "keyed"}, concurrency_key="k") for _ in range(2)]
        assert statuses(calls) == {"success"}
        assert time.monotonic() - back_at < RECOVERED + LATE
        wait_until(lambda: len(runtime.workers()) == 2, RECOVERED + LATE, "both announce themselves again")
        loop = runtime.submit("NOTED.LOOP", {"label": "loop"})
        site.wait_started("loop")
        loop.cancel()
        assert loop.result(30).status == "cancelled"
    assert all(psutil.pid_exists(worker.pid) for worker in workers)
    site.close()


def test_a_closed_runtime_leaves_no_thread_and_no_connection_to_three_workers(site: Site) -> None:
    site.hire_many(3)

    def ours() -> set[int | threading.Thread]:
        port = int(site.url.split(":")[2].split("/")[0])
        open_now = psutil.Process().net_connections()
        to_server = {one.fd for one in open_now if one.raddr and one.raddr.port == port}
        return to_server | set(threading.enumerate())

    site.client.ping()
    before = ours()
    with site.runtime() as runtime:
        calls = [runtime.submit("NOTED.WORK", {"label": "a", "seconds": 0.05}) for _ in range(20)]
        keyed = runtime.submit("NOTED.WORK", {"label": "k"}, idempotency_key="k")
        assert statuses([*calls, keyed]) == {"success"}
        abandoned = runtime.submit("NOTED.LOOP", {"label": "abandoned"})
        assert len(runtime.workers()) == 3
    assert ours() <= before
    with site.runtime() as other:
        other.invocation(abandoned.id).cancel()
    assert ours() <= before
