"""The settings: every section of ditto.yaml as a frozen model, and `DittoConfig`, which holds them all.

A field's description, type and bounds are also its documentation: `reference.py` derives the tables,
and the words of the error messages, from them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeVar
from zoneinfo import ZoneInfo

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ditto_tasks.clock import Cron, Every, Rule
from ditto_tasks.config.environment import EmbeddingEndpoint
from ditto_tasks.contracts.base import (
    MAX_LIMIT,
    Contract,
    Integer,
    ListOf,
    Maybe,
    Model,
    Number,
    Text,
    describe,
    integral,
)
from ditto_tasks.contracts.catalog import NODE_SPECS
from ditto_tasks.contracts.errors import ConfigError
from ditto_tasks.contracts.json_value import JsonObject
from ditto_tasks.contracts.node import NODE_NAME
from ditto_tasks.contracts.retrieval import RetrievalDefaults

__all__ = [
    "MAX_INTEGER",
    "REINDEX_TASK",
    "DittoConfig",
    "MemoryWorker",
    "Runtime",
    "Schedule",
    "Section",
    "Settings",
    "Shared",
    "Transport",
    "Unit",
    "WorkerSection",
    "Workers",
]

MAX_INTEGER = 2**53 - 1  # what JSON readers of every language keep exact
MAX_MILLISECONDS = 2**31 - 1  # about 24 days
MAX_SECONDS = 365 * 86_400
MAX_CONCURRENCY = 1024
MEBIBYTE = 1024 * 1024
DAY = 86_400.0
SCHEDULE_MEMORY = 3600.0  # seconds; far over the time until another beat takes over

_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_PROVIDER_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a setting as it stands in the file."""

    name: str


def _to_seconds(milliseconds: float) -> float:
    return milliseconds / 1000


def _queue(value: str) -> str:
    if not _QUEUE_NAME.fullmatch(value):
        raise PydanticCustomError(
            "queue_name", "must be a queue name: letters, digits and . _ : - only, at most 128 characters"
        )
    return value


K = TypeVar("K")
V = TypeVar("V")


def _frozen(value: Mapping[K, V]) -> Mapping[K, V]:
    return MappingProxyType(dict(value))


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


Natural = Annotated[Integer, Ge(0), Le(MAX_INTEGER)]
Positive = Annotated[Integer, Ge(1), Le(MAX_INTEGER)]
Signed = Annotated[Integer, Ge(-MAX_INTEGER), Le(MAX_INTEGER)]
Limit = Annotated[Integer, Ge(1), Le(MAX_LIMIT)]
Breadth = Annotated[Integer, Ge(1), Le(16)]
Rounds = Annotated[Integer, Ge(1), Le(64)]
Milliseconds = Annotated[
    float, BeforeValidator(integral), Ge(1), Le(MAX_MILLISECONDS), AfterValidator(_to_seconds), Unit("ms")
]
Seconds = Annotated[Number, Ge(1), Le(MAX_SECONDS), AfterValidator(float), Unit("s")]
QueueName = Annotated[Text, AfterValidator(_queue)]


class Section(Model):
    """A part of ditto.yaml: closed and frozen; snake_case in Python, camelCase in the file."""

    model_config = Contract.model_config | ConfigDict(extra="forbid")


class React(Section):
    max_action_calls: Natural = Field(default=16, description="Tool calls in one ReAct run.")
    max_total_tokens: Maybe[Positive] = Field(
        default=None, description="Tokens in one ReAct run; unset: no bound."
    )


class Sandbox(Section):
    timeout: Milliseconds = Field(
        default=5.0, validation_alias="timeoutMs", description="How long one sandboxed command may run."
    )
    max_output_bytes: Annotated[Integer, Ge(1), Le(16 * MEBIBYTE), Unit("bytes")] = Field(
        default=65_536, description="Output and error output of one command together."
    )


class Runtime(Section):
    """What holds for every call that this process makes."""

    timeout: Milliseconds = Field(
        default=30.0,
        validation_alias="timeoutMs",
        description="How long a call may take that names no timeout.",
    )
    max_turns: Positive = Field(default=8, description="Turns of an agent flow that names no bound.")
    graph_concurrency: Maybe[Positive] = Field(
        default=None, description="Steps of one graph that run at once; unset: no bound."
    )
    loop_max_iterations: Positive = Field(default=32, description="Rounds of a loop that names no bound.")
    react: React = Field(default_factory=React)
    sandbox: Sandbox = Field(default_factory=Sandbox)


class Generation(Section):
    temperature: Maybe[Annotated[Number, Ge(0), Le(2)]] = Field(
        default=None, description="Sampling temperature."
    )
    top_p: Maybe[Annotated[Number, Ge(0), Le(1)]] = Field(
        default=None, description="Nucleus sampling: share kept."
    )
    top_k: Maybe[Positive] = Field(default=None, description="Sampling from the best k tokens.")
    max_tokens: Maybe[Positive] = Field(default=None, description="Tokens of one answer.")
    stop: Maybe[ListOf[Text]] = Field(default=None, description="Strings that end an answer.")
    seed: Maybe[Signed] = Field(default=None, description="Seed of the sampling.")


class Constraints(Section):
    max_steps: Positive = Field(default=16, description="Model calls in one trajectory.")
    max_total_tokens: Maybe[Positive] = Field(
        default=None, description="Tokens in one trajectory; unset: no bound."
    )
    timeout: Maybe[Milliseconds] = Field(
        default=None,
        validation_alias="timeoutMs",
        description="How long one trajectory may take; unset: the call's.",
    )


class ChainOfThought(Section):
    rounds: Rounds = Field(default=2, description="Rounds of thought.")


class LongChainOfThought(Section):
    rounds: Rounds = Field(default=4, description="Rounds of thought.")


class TreeOfThoughts(Section):
    breadth: Breadth = Field(default=3, description="Continuations of each thought.")
    depth: Breadth = Field(default=2, description="Levels of the tree.")
    beam_width: Breadth = Field(default=2, description="Thoughts kept at each level.")


class GraphOfThoughts(Section):
    breadth: Breadth = Field(default=3, description="Contributions to each layer.")
    depth: Breadth = Field(default=2, description="Layers.")


class SelfConsistency(Section):
    candidates: Breadth = Field(default=3, description="Answers that vote.")


class Strategies(Section):
    cot: ChainOfThought = Field(default_factory=ChainOfThought)
    long_cot: LongChainOfThought = Field(default_factory=LongChainOfThought, validation_alias="long-cot")
    tot: TreeOfThoughts = Field(default_factory=TreeOfThoughts)
    got: GraphOfThoughts = Field(default_factory=GraphOfThoughts)
    self_consistency: SelfConsistency = Field(
        default_factory=SelfConsistency, validation_alias="self-consistency"
    )


class Deliberate(Section):
    mode: Literal["select", "merge", "consensus", "debate"] = Field(
        default="select", description="How candidates become one answer."
    )
    select_count: Positive = Field(default=1, description="Candidates chosen in the mode `select`.")
    generation: Maybe[Generation] = None  # None: that of workers.infer


class WorkerSection(Section):
    """What every kind of worker has: its slots and its queues."""

    concurrency: Annotated[Integer, Ge(1), Le(MAX_CONCURRENCY)] = Field(
        default=8, description="Calls that one worker process runs at once."
    )
    pool: Literal["threads", "prefork", "solo", "gevent"] = Field(
        default="threads", description="What runs them; `solo` runs one, `gevent` needs the package gevent."
    )
    global_concurrency: Maybe[Positive] = Field(
        default=None, description="Calls that all worker processes together run at once; unset: no bound."
    )
    key_concurrency: Maybe[Positive] = Field(
        default=None,
        description="Calls with the same concurrency key that all processes run at once; unset: no bound.",
    )
    rate_per_second: Maybe[Annotated[Number, Gt(0), Le(1_000_000), AfterValidator(float)]] = Field(
        default=None, description="Calls that all processes together begin in a second; unset: no bound."
    )
    queues: Annotated[Mapping[str, QueueName], AfterValidator(_frozen)] = Field(
        default_factory=_nothing, description="Node name to queue name, where it is not the derived one."
    )


class InferWorker(WorkerSection):
    generation: Generation = Field(default_factory=Generation)
    constraints: Constraints = Field(default_factory=Constraints)
    strategies: Strategies = Field(default_factory=Strategies)
    deliberate: Deliberate = Field(default_factory=Deliberate)


class MemoryWorker(WorkerSection):
    query_limit: Maybe[Limit] = Field(
        default=None, description="Records that MEMORY.QUERY gives when the call names no limit; unset: 100."
    )
    search_limit: Maybe[Limit] = Field(
        default=None, description="Records that MEMORY.SEARCH gives when the call names no limit; unset: 10."
    )


class Embedding(Section):
    model: Literal["minilm", "wordllama"] = Field(
        default="minilm",
        description="The model that makes vectors, unless the environment names an endpoint that does.",
    )
    batch_size: Annotated[Integer, Ge(1), Le(2048)] = Field(default=64, description="Texts in one request.")
    dimensions: Maybe[Positive] = Field(default=None, description="Length of a vector; unset: the model's.")


class Hybrid(Section):
    candidate_limit: Limit = Field(
        default=100, description="Candidates that each branch is asked for, at least."
    )
    rrf_k: Positive = Field(default=60, description="The k of reciprocal rank fusion.")


class Rerank(Section):
    candidate_limit: Limit = Field(default=100, description="Candidates that are reranked, at least.")


class RetrievalWorker(WorkerSection):
    search_limit: Limit = Field(
        default=10, description="Candidates that RETRIEVAL.SEARCH gives when the call names no limit."
    )
    embedding: Embedding = Field(default_factory=Embedding)
    hybrid: Hybrid = Field(default_factory=Hybrid)
    rerank: Rerank = Field(default_factory=Rerank)

    def defaults(self) -> RetrievalDefaults:
        """Return the numbers that providers fall back to."""
        return RetrievalDefaults.from_wire(
            {
                "searchLimit": self.search_limit,
                "embedding": self._embedding_defaults(),
                "hybrid": {"candidateLimit": self.hybrid.candidate_limit, "rrfK": self.hybrid.rrf_k},
                "rerank": {"candidateLimit": self.rerank.candidate_limit},
            }
        )

    def _embedding_defaults(self) -> dict[str, int]:
        numbers = {"batchSize": self.embedding.batch_size}
        dimensions = self.embedding.dimensions
        return numbers if dimensions is None else numbers | {"dimensions": dimensions}


class ReindexWorker(WorkerSection):
    concurrency: Annotated[Integer, Ge(1), Le(MAX_CONCURRENCY)] = Field(
        default=2, description="Calls that one worker process runs at once; embedding takes a core each."
    )
    page_size: Annotated[Integer, Ge(1), Le(1000)] = Field(
        default=128, description="Records in one REINDEX.PAGE of a run; they are read and embedded together."
    )
    max_failed_share: Annotated[Number, Ge(0), Le(1), AfterValidator(float)] = Field(
        default=0.05,
        description="Share of the records that a run may fail to embed; at least 20 may fail in any case.",
    )
    keep_previous: Annotated[Number, Ge(60), Le(MAX_SECONDS), AfterValidator(float), Unit("s")] = Field(
        default=86_400.0,
        description="For how long `ditto-tasks reindex rollback` can go back to the generation before.",
    )


PolicyNumber = Annotated[Integer, Ge(1), Le(1_000_000)]


class ContextPolicy(Section):
    max_inline_bytes: Annotated[PolicyNumber, Unit("bytes")] = Field(
        default=65_536, description="Size up to which an item is kept inline."
    )
    max_items: PolicyNumber = Field(default=256, description="Items of one context.")
    max_tokens: Maybe[PolicyNumber] = Field(
        default=None, description="Tokens of one context; unset: no bound."
    )
    duplicate: Literal["replace", "keep-first", "reject"] = Field(
        default="replace", description="What happens to an item whose id is there already."
    )
    missing_removal: Literal["ignore", "reject"] = Field(
        default="ignore", description="What happens when an item to be removed is not there."
    )


class ContextCache(Section):
    ttl: Milliseconds = Field(
        default=3600.0,
        validation_alias="ttlMs",
        description="How long Redis keeps a context after its last change.",
    )
    key_prefix: Text = Field(default="ditto:context:", description="How its keys in Redis begin.")


class LocalCache(Section):
    ttl: Milliseconds = Field(
        default=3600.0, validation_alias="ttlMs", description="How long a process keeps a context."
    )
    max_entries: Positive = Field(default=1000, description="Contexts that a process keeps.")


class ContextQueue(Section):
    max_pending: Positive = Field(default=1024, description="Changes of contexts that may wait in a process.")


class ContextWorker(WorkerSection):
    policy: ContextPolicy = Field(default_factory=ContextPolicy)
    cache: ContextCache = Field(default_factory=ContextCache)
    local_cache: LocalCache = Field(default_factory=LocalCache)
    queue: ContextQueue = Field(default_factory=ContextQueue)


class Commands(Section):
    max_entries: Limit = Field(default=1000, description="Entries that a listing command gives.")
    max_output_bytes: Annotated[Integer, Ge(1), Le(MEBIBYTE), Unit("bytes")] = Field(
        default=65_536, description="Output of one command."
    )
    max_error_bytes: Annotated[Integer, Ge(1), Le(65_536), Unit("bytes")] = Field(
        default=8192, description="Error output of one command."
    )


class WebSearch(Section):
    timeout: Milliseconds = Field(
        default=30.0, validation_alias="timeoutMs", description="How long one web search may take."
    )
    max_response_bytes: Annotated[Integer, Ge(1), Le(16 * MEBIBYTE), Unit("bytes")] = Field(
        default=MEBIBYTE, description="Size of one answer."
    )


class InteractionWorker(WorkerSection):
    commands: Commands = Field(default_factory=Commands)
    web_search: WebSearch = Field(default_factory=WebSearch)


class Workers(Section):
    infer: InferWorker = Field(default_factory=InferWorker)
    memory: MemoryWorker = Field(default_factory=MemoryWorker)
    retrieval: RetrievalWorker = Field(default_factory=RetrievalWorker)
    reindex: ReindexWorker = Field(default_factory=ReindexWorker)
    context: ContextWorker = Field(default_factory=ContextWorker)
    interaction: InteractionWorker = Field(default_factory=InteractionWorker)

    @field_validator("*")
    @classmethod
    def _queues_of_own_nodes(cls, section: WorkerSection, info: Any) -> WorkerSection:
        capability = info.field_name
        for node in section.queues:
            reason = _not_a_node(node) or _not_of(capability, node)
            if reason:
                raise PydanticCustomError(
                    "not_its_node", "{reason}", {"reason": reason, "at": ("queues", node)}
                )
        return section


class Provider(Section):
    max_tokens_field: Maybe[Literal["max_tokens", "max_completion_tokens"]] = Field(
        default=None,
        description="The request's field for the answer's length; OpenAI-compatible providers only.",
    )
    options: Maybe[JsonObject] = Field(
        default=None, description="Handed on with every request; never credentials."
    )


class Shared(Section):
    providers: Annotated[Mapping[str, Provider], AfterValidator(_frozen)] = Field(default_factory=_nothing)

    @field_validator("providers")
    @classmethod
    def _named(cls, providers: Mapping[str, Provider]) -> Mapping[str, Provider]:
        for name in providers:
            if not _PROVIDER_NAME.fullmatch(name):
                raise PydanticCustomError(
                    "provider_name",
                    "is no provider's name: lower-case letters, digits and _ only, a letter first",
                    {"at": (name,)},
                )
        return providers


class Transport(Section):
    """How calls travel: the queues' names, bounds and expiries."""

    prefix: QueueName = Field(
        default="ditto", description="How the names of the queues and of all keys begin."
    )
    max_pending: Maybe[Positive] = Field(
        default=None,
        description="Calls that may wait in one queue before new ones are refused; unset: no bound.",
    )
    result_expires: Seconds = Field(default=DAY, description="How long a result is kept.")
    broker: Literal["streams", "kombu"] = Field(
        default="streams",
        description="How calls wait in Redis: in streams of ours, or in kombu's lists, with weaker promises.",
    )
    lease: Annotated[Number, Ge(1), Le(3600), AfterValidator(float), Unit("s")] = Field(
        default=10.0, description="After how long a silent worker's calls are taken over by another."
    )
    max_deliveries: Annotated[Integer, Ge(1), Le(100)] = Field(
        default=3, description="How often a call whose process died is begun before it is given up."
    )
    visibility_timeout: Seconds = Field(
        default=3600.0,
        description="kombu's lists only: after how long an unacknowledged call is handed out again.",
    )
    idempotency_expires: Seconds = Field(
        default=DAY, description="How long an idempotency key is remembered."
    )
    large_payloads: Literal["refuse", "reference"] = Field(
        default="refuse",
        description="Inputs and outputs over `maxBodyBytes`: refused, or kept apart in Redis.",
    )
    max_body_bytes: Annotated[Integer, Ge(1024), Le(512 * MEBIBYTE), Unit("bytes")] = Field(
        default=MEBIBYTE, description="Size of one message, encoded."
    )


REINDEX_TASK = "reindex"  # what a schedule may name beside nodes


class Schedule(Section):
    """One call that beat sends again and again: every so many seconds, or by cron."""

    name: Text = Field(description="Names the entry; no two have the same.")
    task: Text = Field(description="The node that is called, or `reindex`.")
    input: JsonObject = Field(default_factory=dict, description="The node's input.")
    target: Maybe[Text] = Field(default=None, description="With `reindex`: the target that is brought up.")
    mode: Maybe[Literal["incremental", "full"]] = Field(
        default=None, description="With `reindex`: what changed, or everything anew; unset: incremental."
    )
    every: Maybe[Annotated[Number, Ge(0.01), Le(MAX_SECONDS), AfterValidator(float), Unit("s")]] = Field(
        default=None, description="The time between two calls; either this or `cron`."
    )
    cron: Maybe[Text] = Field(
        default=None,
        description="Minute, hour, day of month, month, day of week (0 is Sunday); all must match.",
    )
    timezone: Text = Field(default="UTC", description="IANA name of the zone that `cron` is meant in.")
    jitter: Annotated[Number, Ge(0), Le(86_400), AfterValidator(float), Unit("s")] = Field(
        default=0.0, description="Calls are sent up to this much later, each by a time of its own."
    )
    misfire: Literal["skip", "run-once"] = Field(
        default="skip",
        description="What becomes of calls that no beat was there to send: nothing, or one for all of them.",
    )

    @property
    def rule(self) -> Rule:
        """When the call is due."""
        if self.cron is not None:
            return Cron.parse(self.cron, self.timezone)
        return Every.seconds(self.every or 0)

    @field_validator("task")
    @classmethod
    def _is_a_task(cls, task: str) -> str:
        if task != REINDEX_TASK and (reason := _not_a_node(task)):
            raise PydanticCustomError("not_a_node", "{reason}", {"reason": reason})
        return task

    @field_validator("cron")
    @classmethod
    def _is_a_crontab(cls, cron: str) -> str:
        fields = cron.split()
        if len(fields) != 5:
            raise PydanticCustomError("cron", "must have five fields, such as '0 3 * * *'")
        try:
            Cron.parse(" ".join(fields))
        except ValueError as error:
            raise PydanticCustomError(
                "cron", "is no cron expression: {reason}", {"reason": str(error)}
            ) from None
        return " ".join(fields)

    @field_validator("timezone")
    @classmethod
    def _is_a_zone(cls, timezone: str) -> str:
        try:
            ZoneInfo(timezone)
        except (KeyError, ValueError, OSError):
            raise PydanticCustomError(
                "timezone", "must be an IANA time zone, such as Europe/Berlin or UTC"
            ) from None
        return timezone

    @model_validator(mode="after")
    def _has_one_rhythm(self) -> Self:
        if (self.every is None) == (self.cron is None):
            raise PydanticCustomError("rhythm", "needs either 'every' or 'cron', and not both")
        if self.every is not None and "timezone" in self.model_fields_set:
            raise PydanticCustomError("rhythm", "goes with 'cron' only: leave it out", {"at": ("timezone",)})
        return self

    @model_validator(mode="after")
    def _has_what_reindex_needs(self) -> Self:
        is_reindex = self.task == REINDEX_TASK
        for name in ("input",) if is_reindex else ("target", "mode"):
            if name in self.model_fields_set:
                wanted = "give 'target' and 'mode' instead" if is_reindex else "it goes with 'task: reindex'"
                raise PydanticCustomError(
                    "reindex", "is not for this task: {wanted}", {"wanted": wanted, "at": (name,)}
                )
        if is_reindex and self.target is None:
            raise PydanticCustomError(
                "reindex", "is missing: name the target to reindex", {"at": ("target",)}
            )
        return self

    @model_validator(mode="after")
    def _has_an_input_of_its_node(self) -> Self:
        spec = NODE_SPECS.get(self.task)
        if spec is not None:
            try:
                spec.input.from_wire(self.input)
            except ValidationError as error:
                reason = f"is not what {self.task} takes: {describe(error)}"
                raise PydanticCustomError("input", "{reason}", {"reason": reason, "at": ("input",)}) from None
        return self


class Settings(Section):
    """The whole of ditto.yaml."""

    runtime: Runtime = Field(default_factory=Runtime)
    workers: Workers = Field(default_factory=Workers)
    shared: Shared = Field(default_factory=Shared)
    transport: Transport = Field(default_factory=Transport)
    schedules: ListOf[Schedule] = ()

    @field_validator("schedules")
    @classmethod
    def _names_are_unique(cls, schedules: tuple[Schedule, ...]) -> tuple[Schedule, ...]:
        seen: set[str] = set()
        for index, schedule in enumerate(schedules):
            if schedule.name in seen:
                raise PydanticCustomError(
                    "repeated_name", "is taken: give each schedule its own name", {"at": (index, "name")}
                )
            seen.add(schedule.name)
        return schedules

    @model_validator(mode="after")
    def _schedules_are_remembered(self) -> Self:
        if self.schedules and self.transport.idempotency_expires < SCHEDULE_MEMORY:
            raise PydanticCustomError(
                "remembered",
                "must be at least {least} where there are schedules: a beat that takes over from another "
                "knows by it what was sent",
                {"least": int(SCHEDULE_MEMORY), "at": ("transport", "idempotencyExpires")},
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class DittoConfig:
    """Everything that can be set, checked and frozen; URLs stay out of its repr.

    Attributes:
        path: the file that it was read from; None: the defaults.
        broker_url: where calls are queued; None: nowhere, so they run in-process only.
        result_url: where results are kept; None: nowhere.
        memory_store_url: the store of a memory worker; None: a SQLite file in the workspace.
        index_url: the vector index of a retrieval worker; None: a SQLite file in the workspace.
        embedding: base URL, model and key of the endpoint that embeds; None: the model of ditto.yaml does.
        allow_network: origins that providers may reach; `*` stands for all; none: they may reach nothing.
        capabilities: those that a worker app of the configuration serves; none: all.
        environment: development, test or production.
        workspace: an absolute folder, the present one by default.
    """

    runtime: Runtime = field(default_factory=Runtime)
    workers: Workers = field(default_factory=Workers)
    shared: Shared = field(default_factory=Shared)
    transport: Transport = field(default_factory=Transport)
    schedules: tuple[Schedule, ...] = ()
    broker_url: str | None = field(default=None, repr=False)
    result_url: str | None = field(default=None, repr=False)
    memory_store_url: str | None = field(default=None, repr=False)
    index_url: str | None = field(default=None, repr=False)
    embedding: EmbeddingEndpoint | None = field(default=None, repr=False)
    allow_network: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    environment: str = "development"
    workspace: Path = field(default_factory=Path.cwd)
    path: Path | None = None

    def worker(self, capability: str) -> WorkerSection:
        """Return the section of one kind of worker.

        Raises:
            ConfigError: there is no such kind.
        """
        if capability not in Workers.model_fields:
            known = ", ".join(Workers.model_fields)
            raise ConfigError(f"no worker is called {capability!r}: there are {known}")
        section: WorkerSection = getattr(self.workers, capability)
        return section


def _not_a_node(node: str) -> str | None:
    """Say why this names no node; a capability outside the catalogue may hold any."""
    if not NODE_NAME.fullmatch(node):
        return "must be a node's name, such as MEMORY.SEARCH"
    capability = node.partition(".")[0].lower()
    known = [name for name, spec in NODE_SPECS.items() if spec.capability == capability]
    if known and node not in known:
        return f"is no node of the catalogue: there are {', '.join(known)}"
    return None


def _not_of(capability: str, node: str) -> str | None:
    if node.partition(".")[0] != capability.upper():
        return f"is no node of {capability}: set it under the worker that serves it"
    return None
