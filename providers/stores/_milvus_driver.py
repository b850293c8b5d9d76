"""What is used of Milvus's client; only this module imports it, so that one place says what to install."""

import logging

from ditto_tasks.contracts.errors import InvalidDefinition

try:
    from pymilvus import DataType, Function, FunctionType, MilvusClient, MilvusException
except ImportError as error:
    raise InvalidDefinition("Milvus needs its client: pip install 'ditto-tasks[milvus]'") from error

__all__ = ["DataType", "Function", "FunctionType", "MilvusClient", "MilvusException", "release_file"]

# Both write each failed request to the console, with what was asked for and a traceback; whoever gets our
# error has it as the cause.
for name in ("pymilvus", "milvus_lite"):
    logging.getLogger(name).setLevel(logging.CRITICAL)


def release_file(path: str) -> None:
    """Stop what serves a file in this process, so that another may open it."""
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_server(path)
