"""The context of a node's task has the headers of its message, as Celery's has."""

from typing import Any

from celery.app.task import Context

from ditto_tasks.transport.tracer import NodeContext

_MESSAGE: dict[str, Any] = {
    "id": "a",
    "task": "A.B",
    "lang": "py",
    "argsrepr": "(...)",
    "timelimit": [20, 10],
    "ditto_deadline": 5.0,
    "x": "y",
}


def test_the_headers_of_a_context_are_those_of_its_message_whatever_is_noted_in_it() -> None:
    context = NodeContext(_MESSAGE, [], {})
    context.ditto_attempt = 2

    assert context.headers == Context(_MESSAGE).headers == {"ditto_deadline": 5.0, "x": "y"}


def test_a_context_has_the_attributes_that_celerys_has() -> None:
    context, celerys = NodeContext(_MESSAGE, [1], {}), Context(_MESSAGE, args=[1], kwargs={})

    names = [name for name in (*vars(Context), *_MESSAGE) if name[0] != "_" and name != "called_directly"]
    of_values = [name for name in names if not callable(getattr(celerys, name))]
    assert {name: getattr(context, name) for name in of_values} == {
        name: getattr(celerys, name) for name in of_values
    }
    assert (context.time_limit, context.soft_time_limit) == (20, 10)
