"""What is used of Qdrant's client; only this module imports it, so that one place says what to install."""

from ditto_tasks.contracts.errors import InvalidDefinition

try:
    from qdrant_client import QdrantClient, models
    from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
except ImportError as error:
    raise InvalidDefinition("Qdrant needs its client: pip install 'ditto-tasks[qdrant]'") from error

__all__ = [
    "QdrantClient",
    "ResourceExhaustedResponse",
    "ResponseHandlingException",
    "UnexpectedResponse",
    "models",
]
