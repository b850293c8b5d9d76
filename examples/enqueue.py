"""Submit a call, do something else, read its result.

export DITTO_BROKER_URL=redis://127.0.0.1:6379/0
python examples/enqueue.py            # a worker may be started before or after
"""

from ditto_tasks import Runtime

with Runtime.from_config(None) as runtime:
    note = {"key": "notes:tea", "content": {"text": "The kettle is in the kitchen."}}
    written = runtime.submit("MEMORY.WRITE", {"memories": [note]})
    print("submitted as", written.id, "-", written.status())
    [item] = written.result().unwrap()
    print("stored as", item["id"])
    [hit] = runtime.invoke("MEMORY.SEARCH", {"query": "kettle", "limit": 1}).unwrap()
    print("found:", hit["memory"]["content"]["text"])
