"""The environment: addresses and credentials. A message names the variable and never its value."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ditto_tasks.contracts.errors import ConfigError
from ditto_tasks.contracts.origin import exact_origin

__all__ = ["ENVIRONMENT", "EmbeddingEndpoint", "Environment", "find_config", "read_environment"]

CONFIG = "DITTO_CONFIG"
BROKER_URL = "DITTO_BROKER_URL"
RESULT_URL = "DITTO_RESULT_URL"
MEMORY_STORE_URL = "DITTO_WORKER_MEMORY_STORE_URL"
INDEX_URL = "DITTO_WORKER_RETRIEVAL_INDEX_URL"
EMBEDDING_BASE_URL = "DITTO_WORKER_RETRIEVAL_EMBEDDING_BASE_URL"
EMBEDDING_MODEL = "DITTO_WORKER_RETRIEVAL_EMBEDDING_MODEL"
EMBEDDING_API_KEY = "DITTO_WORKER_RETRIEVAL_EMBEDDING_API_KEY"
ALLOW_NETWORK = "DITTO_SHARED_SANDBOX_ALLOW_NETWORK"
CAPABILITIES = "DITTO_WORKER_CAPABILITIES"
RUNTIME_ENV = "DITTO_RUNTIME_ENV"
RUNTIME_WORKSPACE = "DITTO_RUNTIME_WORKSPACE"

ENVIRONMENT: tuple[str, ...] = (
    CONFIG,
    BROKER_URL,
    RESULT_URL,
    MEMORY_STORE_URL,
    INDEX_URL,
    EMBEDDING_BASE_URL,
    EMBEDDING_MODEL,
    EMBEDDING_API_KEY,
    ALLOW_NETWORK,
    CAPABILITIES,
    RUNTIME_ENV,
    RUNTIME_WORKSPACE,
)
"""Every variable that is read; an empty one counts as not set."""

DEFAULT_PATH = Path("ditto.yaml")
ENVIRONMENTS = ("development", "test", "production")

_SOCKET_SCHEMES = ("redis+socket", "unix")
_REDIS_SCHEMES = ("redis", "rediss", *_SOCKET_SCHEMES)
_LIST_SCHEMES = ("sentinel", "amqp", "amqps")  # several addresses, parted by semicolons, are one URL
_RESULT_SCHEMES = (*_REDIS_SCHEMES, "sentinel")
_BROKER_SCHEMES = (*_REDIS_SCHEMES, *_LIST_SCHEMES)

_MOVED: tuple[tuple[str, str], ...] = (
    (r"DITTO_ENV", "set DITTO_RUNTIME_ENV"),
    (r"DITTO_MODEL", "set DITTO_WORKER_INFER_MODEL_PROVIDER and DITTO_WORKER_INFER_MODEL"),
    (r"DITTO_PROVIDERS", "set DITTO_SHARED_PROVIDERS"),
    (r"DITTO_(SHARED_)?PROVIDER_.+_OPTIONS", "set shared.providers.<name>.options in ditto.yaml"),
    (r"DITTO_PROVIDER_.+", "its name begins with DITTO_SHARED_PROVIDER_ now"),
    (r"DITTO_ALLOW_.+", "its name begins with DITTO_SHARED_SANDBOX_ALLOW_ now"),
    (r"DITTO_WORKER_TOKEN", "set DITTO_TRANSPORT_HTTP_WORKER_TOKEN"),
    (r"DITTO_TIMEOUT_MS", "set runtime.timeoutMs in ditto.yaml"),
)


@dataclass(frozen=True, slots=True)
class EmbeddingEndpoint:
    """An HTTP endpoint that embeds; the key stays out of its repr."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says, checked."""

    broker_url: str | None
    result_url: str | None
    memory_store_url: str | None
    index_url: str | None
    embedding: EmbeddingEndpoint | None
    allow_network: tuple[str, ...]
    capabilities: tuple[str, ...]
    environment: str
    workspace: Path


def find_config(environ: Mapping[str, str]) -> Path | None:
    """Name the file that a process without arguments reads: DITTO_CONFIG, else ditto.yaml if it is there."""
    if named := environ.get(CONFIG):
        return Path(named)
    return DEFAULT_PATH if DEFAULT_PATH.is_file() else None


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Read every variable but DITTO_CONFIG, and the embedding's, which the application asks for itself.

    Raises:
        ConfigError: one is malformed, or has a name of former times.
    """
    _refuse_moved(environ)
    broker_url = _url(environ, BROKER_URL, _BROKER_SCHEMES)
    result_url = _url(environ, RESULT_URL, _RESULT_SCHEMES)
    if result_url is None and broker_url is not None and _scheme(broker_url) in _RESULT_SCHEMES:
        result_url = broker_url
    return Environment(
        broker_url=broker_url,
        result_url=result_url,
        memory_store_url=_store_url(environ, MEMORY_STORE_URL),
        index_url=_store_url(environ, INDEX_URL),
        embedding=_embedding(environ),
        allow_network=_origins(environ),
        capabilities=tuple(
            name.strip().lower() for name in environ.get(CAPABILITIES, "").split(",") if name.strip()
        ),
        environment=_runtime_env(environ),
        workspace=Path(environ.get(RUNTIME_WORKSPACE) or ".").absolute(),
    )


def _refuse_moved(environ: Mapping[str, str]) -> None:
    for name in sorted(environ):
        for pattern, remedy in _MOVED:
            if re.fullmatch(pattern, name):
                raise ConfigError(f"{name} is not read any more: unset it and {remedy}")


def _runtime_env(environ: Mapping[str, str]) -> str:
    value = environ.get(RUNTIME_ENV) or ENVIRONMENTS[0]
    if value not in ENVIRONMENTS:
        raise ConfigError(f"{RUNTIME_ENV} must be one of {', '.join(ENVIRONMENTS)}")
    return value


def _store_url(environ: Mapping[str, str], name: str) -> str | None:
    url = environ.get(name) or None
    if url is not None and (not _is_one_line(url) or not re.match(r"[a-z][a-z0-9+.-]*://", url)):
        raise ConfigError(f"{name} must be a URL, such as sqlite:///memory.db or postgresql://...")
    return url


def _embedding(environ: Mapping[str, str]) -> EmbeddingEndpoint | None:
    base_url, model = environ.get(EMBEDDING_BASE_URL) or None, environ.get(EMBEDDING_MODEL) or None
    if base_url is None and model is None:
        return None
    if base_url is None or model is None:
        missing, given = (
            (EMBEDDING_BASE_URL, EMBEDDING_MODEL)
            if base_url is None
            else (EMBEDDING_MODEL, EMBEDDING_BASE_URL)
        )
        raise ConfigError(f"{missing} is not set, but {given} is: set both, or neither")
    return EmbeddingEndpoint(base_url, model, environ.get(EMBEDDING_API_KEY) or None)


def _origins(environ: Mapping[str, str]) -> tuple[str, ...]:
    entries = [entry.strip() for entry in environ.get(ALLOW_NETWORK, "").split(",")]
    try:
        return tuple(entry if entry == "*" else exact_origin(entry) for entry in entries if entry)
    except ValueError:
        raise ConfigError(
            f"{ALLOW_NETWORK} must be a comma list of origins, each as https://HOST or http://HOST:PORT, or *"
        ) from None


def _url(environ: Mapping[str, str], name: str, schemes: tuple[str, ...]) -> str | None:
    url = environ.get(name) or None
    if url is None:
        return None
    if not _is_one_line(url):
        raise ConfigError(f"{name} holds white space or control characters: remove or percent-encode them")
    scheme = _scheme(url)
    if scheme not in schemes:
        raise ConfigError(f"{name} must be a URL that begins with one of {', '.join(schemes)} and ://")
    for part in url.split(";") if scheme in _LIST_SCHEMES else (url,):
        if not _is_address(part, schemes):
            example = "unix:///run/redis.sock" if scheme in _SOCKET_SCHEMES else f"{scheme}://HOST:PORT/0"
            raise ConfigError(
                f"{name} is no address such as {example}; percent-encode what a password has of :/?#[]@"
            )
    return url


def _is_address(url: str, schemes: tuple[str, ...]) -> bool:
    """Whether one address has the parts that its scheme needs."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port  # the port is parsed here, and may be refused
    except ValueError:
        return False
    if parts.scheme not in schemes or port == 0 or parts.fragment:
        return False
    if parts.scheme in _SOCKET_SCHEMES:
        return len(parts.path) > 1
    if parts.scheme in ("redis", "rediss"):
        return bool(host) and re.fullmatch(r"/?[0-9]*", parts.path) is not None
    return bool(host)


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


def _is_one_line(url: str) -> bool:
    return url.isprintable() and not any(character.isspace() for character in url)
