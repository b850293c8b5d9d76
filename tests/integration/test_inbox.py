"""The inbox of a caller: leaves the server alone while nothing is waited for."""

import pytest

from ditto_tasks.transport import inbox as inboxes
from ditto_tasks.transport.connection import RedisClient, connect
from ditto_tasks.transport.inbox import Inbox
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.payloads import Payloads
from tests.conftest import wait_until

_STORED = b'{"task_id":"%b","status":"SUCCESS","result":{"executionId":"%b","node":"A.B","status":"success"}}'


def test_an_inbox_that_rests_takes_nothing_out_until_something_is_waited_for(
    queue_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "BLOCK_TIME", 1)
    keys, client = Keys("rest"), connect(queue_url)
    inbox = Inbox(client, connect(queue_url), keys, Payloads(client, keys, 60))
    inbox.forget("a", inbox.expect("a"))
    wait_until(lambda: _is_read(client))
    wait_until(lambda: not _is_read(client))
    client.rpush(inbox.key, _STORED % (b"a", b"a"))
    assert client.llen(inbox.key) == 1

    future = inbox.expect("b")
    client.rpush(inbox.key, _STORED % (b"b", b"b"))

    assert future.result(10).execution_id == "b"
    inbox.close()
    assert client.llen(inbox.key) == 0
    client.close()


def _is_read(client: RedisClient) -> bool:
    """Tell whether somebody waits in the server for what comes into an inbox of this database."""
    database = client.connection_pool.connection_kwargs["db"]
    waiting = [other for other in client.client_list() if "b" in other["flags"]]
    return any(other["cmd"] == "blmpop" and int(other["db"]) == database for other in waiting)
