"""`TenantContract`: through `scoped`, nothing of one tenant is seen, changed or counted by another."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.nodes.memory import Memory
from providers.stores import Store
from providers.stores.scoped import scoped
from tests.contract.memory_store import with_fixtures

OWNER = "team-a:alice"
ATTACKER = "team-b:mallory"
SECRET = "zebra"
KEYS = [f"{OWNER}:note-{number}" for number in range(3)]

hostile = st.sampled_from(
    [
        *KEYS,
        OWNER,
        "team-a:%",
        "team_a:alice",
        f"{ATTACKER}:' OR '1'='1",
        f"{ATTACKER}:%",
        f"{OWNER}\x00",
        f"{ATTACKER}:\x00{KEYS[0]}",
        f"{ATTACKER}:*",
        "') OR 1=1 --",
        "\\",
        '"',
        "*",
    ]
) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
own_keys = hostile.map(lambda text: f"{ATTACKER}:{text}")
filters = st.dictionaries(
    st.sampled_from(["key", "namespace", "kind", "metadata.namespace"]), hostile, max_size=2
)
places = st.integers(0, len(KEYS) - 1)  # of the owner's records, whose ids no strategy knows


class TenantContract:
    """The store's test class gives the fixture `store`."""

    @pytest.fixture
    def owner(self, store: Store) -> Memory:
        owner = Memory(scoped(store, OWNER))
        drafts = [{"key": key, "content": f"{SECRET} {key}", "metadata": {"kind": "note"}} for key in KEYS]
        owner.write({"memories": drafts}).unwrap()
        return owner

    @with_fixtures
    @given(data=st.data())
    def test_nothing_of_another_tenant_is_seen_changed_or_counted(
        self, store: Store, owner: Memory, data: st.DataObject
    ) -> None:
        self.attack(store, owner, data)

    def attack(self, store: Store, owner: Memory, data: st.DataObject) -> None:
        """Make one call of every node in the name of the other tenant."""
        before = owner.get({"keys": KEYS}).unwrap()
        ids = [record["id"] for record in before]
        attacker = Memory(scoped(store, ATTACKER))
        for node, input in _calls(data, ids):
            output = attacker.execute(node, input).to_wire().get("output")
            seen = encode_json(output).decode()
            assert SECRET not in seen, node
            assert not [id for id in ids if id in seen], node
        assert owner.get({"keys": KEYS}).unwrap() == before
        listed = owner.query({}).unwrap()["items"]
        assert sorted(record["id"] for record in listed) == sorted(ids)


def _calls(data: st.DataObject, ids: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    foreign = [ids[data.draw(places)], data.draw(hostile)]
    filter, cursor = data.draw(filters), data.draw(st.sampled_from(ids) | hostile)
    listing: dict[str, Any] = {"filter": filter} if data.draw(st.booleans()) else {"cursor": cursor}
    return [
        ("MEMORY.GET", {"ids": foreign}),
        ("MEMORY.GET", {"keys": [data.draw(own_keys), data.draw(hostile)]}),
        ("MEMORY.QUERY", listing),
        ("MEMORY.SEARCH", {"query": SECRET, "filter": filter}),
        ("MEMORY.SEARCH", {"query": data.draw(hostile)}),
        ("MEMORY.UPDATE", {"memories": [{"id": foreign[0], "content": "taken"}]}),
        ("MEMORY.WRITE", {"memories": [{"key": data.draw(hostile), "content": "taken"}]}),
        (
            "MEMORY.WRITE",
            {"memories": [{"key": KEYS[0], "content": "taken", "metadata": {"namespace": ATTACKER}}]},
        ),
        ("MEMORY.DELETE", {"ids": foreign}),
    ]
