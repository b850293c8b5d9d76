"""The six MEMORY nodes over a SQLite file, in this process: no broker, no worker.

python examples/memory.py [FILE]
"""

import sys

from ditto_tasks import Runtime
from workers.memory import memory_worker

path = sys.argv[1] if len(sys.argv) > 1 else "notes.db"

with Runtime(workers=[memory_worker(f"sqlite:///{path}")]) as runtime:
    drafts = [
        {"key": "tea", "content": {"text": "Tea is brewed at 95 degrees."}, "metadata": {"kind": "fact"}},
        {"key": "coffee", "content": {"text": "Coffee is ground just before."}, "metadata": {"kind": "fact"}},
    ]
    tea, coffee = runtime.invoke("MEMORY.WRITE", {"memories": drafts}).unwrap()
    print("written:", tea["key"], coffee["key"])

    [found] = runtime.invoke("MEMORY.GET", {"keys": ["tea"]}).unwrap()
    print("read:", found["content"]["text"])

    page = runtime.invoke("MEMORY.QUERY", {"filter": {"kind": "fact"}, "limit": 10}).unwrap()
    print("listed:", len(page["items"]))

    [hit] = runtime.invoke("MEMORY.SEARCH", {"query": "ground coffee"}).unwrap()
    print("best hit:", hit["memory"]["key"])

    patch = {"id": tea["id"], "content": {"text": "Green tea is brewed at 80 degrees."}}
    [updated] = runtime.invoke("MEMORY.UPDATE", {"memories": [patch]}).unwrap()
    print("updated:", updated["content"]["text"])

    print(
        "deleted:",
        len(runtime.invoke("MEMORY.DELETE", {"ids": [tea["id"], coffee["id"]]}).unwrap()["deleted"]),
    )

    missing = runtime.invoke("MEMORY.UPDATE", {"memories": [patch]})
    print("failed as it should:", missing.error.code if missing.error else None)
