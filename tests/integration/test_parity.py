"""The same calls directly, in-process and over the queue: the same results, byte for byte."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ditto_tasks import NODE_SPECS, NodeResult, Runtime
from ditto_tasks.contracts.json_value import canonical_json
from ditto_tasks.nodes import Memory
from ditto_tasks.queues import capability_nodes
from tests.conftest import StartWorker, connected
from tests.integration.numbered_app import NumberedStore
from workers.memory import memory_worker

CALLS = 240
SEED = 20_260_101

MEMORY_NODES = capability_nodes(["memory"])

IDS = [f"id-{n:04}" for n in range(1, 30)] + ["missing", " "]
KEYS = [f"key-{n}" for n in range(20)] + [" ", "schlüssel", "键"]
WORDS = ["tea", "kettle", "kitchen", "北京", "über", "TCK-358", '"quoted', "a AND", "*", "\u0000"]
VALUES: list[Any] = [
    None,
    True,
    0,
    -0.0,
    1,
    1.0,
    0.1,
    1e22,
    2**60,
    "",
    "text",
    [],
    {},
    [1, [2.0]],
    {"a": {"b": None}},
]
BAD: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 10_001, 10**400, float("nan"), float("-inf")),
    *("", "text", b"bytes", {1}, object(), "\ud800", {"\ud800": 1}),
    *([], [None], [""], [float("nan")], {}, {"id": ""}, {1: 2}, {"a": {"b": float("inf")}}),
]


class Calls:
    """Makes calls, the same ones each time."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for number in range(CALLS):
            node = self._random.choice(MEMORY_NODES) if number > 20 else "MEMORY.WRITE"
            input: Any = self._good(node)
            chance = self._random.random()
            if chance < 0.35:
                input = self._spoiled(input)
            elif chance < 0.45:
                input["unknownField"] = self._pick(BAD)
            elif chance < 0.6:
                input = NODE_SPECS[node].input.from_wire(input)
            yield node, input

    def _good(self, node: str) -> dict[str, Any]:
        verb = node.partition(".")[2].lower()
        return dict(getattr(self, f"_{verb}")())

    def _get(self) -> dict[str, Any]:
        return self._some(ids=self._several(IDS), keys=self._several(KEYS)) or {"ids": []}

    def _query(self) -> dict[str, Any]:
        order = [{"field": self._pick(["id", "key", "n", "kind"]), "direction": self._pick(["asc", "desc"])}]
        return self._some(
            filter=self._filter(),
            limit=self._pick([1, 2.0, 5, 10_000]),
            orderBy=order,
            cursor=self._pick(WORDS[:3]),
        )

    def _search(self) -> dict[str, Any]:
        options = self._some(limit=self._pick([1, 3.0]), strategy="keyword", options={})
        narrow = self._pick([{}, {}, {"filter": self._filter()}, {"strategy": "vector"}])
        return {"query": self._pick([*WORDS, "tea kettle", None, [0.5]]), **options, **narrow}

    def _write(self) -> dict[str, Any]:
        return {"memories": [self._draft() for _ in range(self._random.randint(0, 3))]}

    def _update(self) -> dict[str, Any]:
        ids = self._random.sample(IDS, self._random.randint(0, 2))
        return {"memories": [{"id": id, **(self._some(**self._fields()) or self._fields())} for id in ids]}

    def _delete(self) -> dict[str, Any]:
        return {"ids": self._several(IDS)}

    def _draft(self) -> dict[str, Any]:
        fields = self._fields()
        return {"content": fields["content"], **self._some(key=self._pick(KEYS), metadata=fields["metadata"])}

    def _fields(self) -> dict[str, Any]:
        text = {"text": " ".join(self._several(WORDS)), "n": self._pick(VALUES)}
        metadata = self._some(kind=self._pick(["note", "fact"]), n=self._pick(VALUES))
        return {"content": self._pick([text, text, self._pick(VALUES)]), "metadata": metadata}

    def _filter(self) -> dict[str, Any]:
        return self._some(kind=self._pick(["note", "fact"]), key=self._pick(KEYS), n=self._pick(["text", 1]))

    def _spoiled(self, value: Any) -> Any:
        """Put something bad at one place within a value, or in place of the whole."""
        if not value or self._random.random() < 0.15 or not isinstance(value, dict | list):
            return self._pick(BAD)
        spoiled = value.copy()
        place = self._pick(list(value) if isinstance(value, dict) else list(range(len(value))))
        if isinstance(spoiled, dict) and self._random.random() < 0.2:
            del spoiled[place]
        else:
            spoiled[place] = self._spoiled(value[place])
        return spoiled

    def _some(self, **fields: Any) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if self._random.random() < 0.5}

    def _several(self, values: list[Any]) -> list[Any]:
        return self._random.choices(values, k=self._random.randint(0, 4))

    def _pick(self, values: list[Any]) -> Any:
        return self._random.choice(values)


def comparable(result: NodeResult) -> str:
    wire = result.to_wire()
    assert wire.pop("executionId")
    return canonical_json(wire)


@pytest.fixture(scope="module")
def results(
    queue_url: str, module_worker_process: StartWorker
) -> list[tuple[tuple[str, Any], NodeResult, NodeResult, NodeResult]]:
    """Each call with its results: direct, in-process, queued; each way over a store of its own."""
    module_worker_process(queue_url, module="tests.integration.numbered_app")
    direct = Memory(NumberedStore())
    with Runtime(workers=[memory_worker(NumberedStore())]) as local, connected(queue_url) as queued:
        return [
            (
                (node, input),
                direct.execute(node, input),
                local.invoke(node, input),
                queued.invoke(node, input),
            )
            for node, input in Calls()
        ]


Results = list[tuple[tuple[str, Any], NodeResult, NodeResult, NodeResult]]


def test_the_three_ways_give_the_same_bytes(results: Results) -> None:
    for call, direct, local, queued in results:
        assert comparable(direct) == comparable(local) == comparable(queued), call


def test_the_calls_are_many_and_of_all_kinds(results: Results) -> None:
    assert len(results) >= 200
    statuses = Counter((result.node, result.status) for _, result, _, _ in results)
    assert all(statuses[node, status] >= 5 for node in MEMORY_NODES for status in ("success", "failed")), (
        statuses
    )
    codes = Counter(result.error.code for _, result, _, _ in results if result.error)
    assert {"INVALID_INPUT", "NOT_FOUND", "KEY_CONFLICT"} <= set(codes)
    assert not {"MEMORY_BACKEND_ERROR", "INVALID_BACKEND_OUTPUT"} & set(codes)
    assert any(result.output for _, result, _, _ in results if result.node == "MEMORY.SEARCH")


def test_the_ids_of_the_executions_differ(results: Results) -> None:
    ids = [result.execution_id for _, *three in results for result in three]
    assert len(set(ids)) == 3 * len(results)
