"""Generations of an index: the one that is searched, the one that is built beside it, and those before.

Which is which stands in one record of the store. A switch is one update of that record, so every search sees
the one generation or the other, whole.
"""

from typing import Any

from pydantic import ValidationError

from ditto_tasks.contracts.base import Contract, ListOf, Maybe
from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.index import IndexManifest
from ditto_tasks.contracts.memory import MemoryStore
from providers.indexes.kept import KeptRecord

__all__ = ["GRACE", "SEEN", "SOON", "Generation", "Generations", "GenerationsRecord"]

SEEN = 0.5  # seconds for which a search trusts what it read of the generations
SOON = 0.05  # seconds for which it does while one is being built: a run waits for no more at its end
GRACE = 60.0  # seconds for which calls that still use what was left may go on; see `Generations.without_old`


class Generation(Contract):
    """One index of a target.

    Attributes:
        model, dimensions, preprocessing: of its manifest.
        since: up to where it followed the store's changes when another was begun beside it, or when it was
            left by going back; absent: that is not known.
        left_at: when it was left, in seconds since the epoch.
    """

    number: int
    model: str
    dimensions: int
    preprocessing: str
    since: Maybe[str] = None
    left_at: Maybe[float] = None

    @classmethod
    def of(cls, number: int, manifest: IndexManifest) -> "Generation":
        """Make the one with a number and a manifest."""
        return cls(
            number=number,
            model=manifest.model,
            dimensions=manifest.dimensions,
            preprocessing=manifest.preprocessing,
        )

    @property
    def manifest(self) -> IndexManifest:
        """What makes its vectors."""
        return IndexManifest(self.model, self.dimensions, self.preprocessing)

    def index_name(self, target: str) -> str:
        """Name the index; the first is called as its target."""
        return target if self.number == 1 else f"{target}_{self.number}"


class Generations(Contract):
    """All generations of one target; frozen: each step makes the next state.

    Attributes:
        last: the number that was given last.
        active: the one that is searched.
        building: complete as soon as it is active.
        previous: active before, to go back to.
        leaving: to be dropped once nobody can be using them.
        rejected: active when somebody went back; its identity is not built again unasked.
        rolled_back_by: the call that went back last.
        token: of the run that wrote this; see `Runs`.
    """

    last: int
    active: Generation
    building: Maybe[Generation] = None
    previous: Maybe[Generation] = None
    leaving: ListOf[Generation] = ()
    rejected: Maybe[Generation] = None
    rolled_back_by: Maybe[str] = None
    token: int = 0

    @classmethod
    def first(cls, manifest: IndexManifest) -> "Generations":
        """Begin with one index."""
        return cls(last=1, active=Generation.of(1, manifest))

    @property
    def all(self) -> tuple[Generation, ...]:
        """All that have an index, the active one first."""
        some = (self.active, self.building, self.previous, *self.leaving)
        return tuple(generation for generation in some if generation is not None)

    @property
    def known(self) -> tuple[Generation, ...]:
        """All that tell something of their models, the active one first."""
        return self.all if self.rejected is None else (*self.all, self.rejected)

    @property
    def trusted_for(self) -> float:
        """Seconds for which a search trusts this: less while a switch may be near."""
        return SEEN if self.building is None else SOON

    @property
    def written(self) -> tuple[Generation, ...]:
        """Those that follow the store's records, the active one first."""
        return (self.active,) if self.building is None else (self.active, self.building)

    def wants(self, manifest: IndexManifest) -> bool:
        """Tell whether vectors of another identity are searched than those wanted, and not by choice."""
        refused = self.rejected.manifest if self.rejected else None
        return manifest not in (self.active.manifest, refused)

    def begun(self, manifest: IndexManifest, *, since: str | None, now: float) -> "Generations":
        """Give the next number to one that is to be built; what was being built is left.

        Args:
            since: up to where the active one follows the store's changes.
        """
        building = Generation.of(self.last + 1, manifest)
        return self._with(
            last=building.number,
            active=self.active.model_copy(update={"since": since}),
            building=building,
            leaving=_left(self.leaving, self.building, now),
        )

    def stayed(self, now: float) -> "Generations":
        """Go on with the active one alone: what was being built is left."""
        return self._with(building=None, leaving=_left(self.leaving, self.building, now))

    def switched(self, now: float) -> "Generations":
        """Search the one that was being built from now on."""
        return self._with(
            active=self.building,
            building=None,
            previous=self.active.model_copy(update={"left_at": now}),
            leaving=_left(self.leaving, self.previous, now),
            rejected=None,
        )

    def rolled_back(self, by: str, *, since: str | None, now: float) -> "Generations":
        """Search the previous one from now on, and keep the active one in its place.

        Args:
            by: the call that wants it.
            since: up to where the active one follows the store's changes.
        """
        return self.stayed(now)._with(
            active=self.previous,
            previous=self.active.model_copy(update={"since": since, "left_at": now}),
            rejected=self.active,
            rolled_back_by=by,
        )

    def without_old(self, now: float, *, keep: float) -> "Generations":
        """Leave the previous one once it is older than `keep`; forget what was left over `GRACE` ago."""
        old = self.previous if self.previous and (self.previous.left_at or 0.0) <= now - keep else None
        leaving = _left(self.leaving, old, now)
        return self._with(
            previous=None if old else self.previous,
            leaving=tuple(left for left in leaving if (left.left_at or 0.0) > now - GRACE),
        )

    def _with(self, **fields: Any) -> "Generations":
        return self.model_copy(update=fields)


class GenerationsRecord:
    """Where the generations of a target are kept."""

    def __init__(self, store: MemoryStore, target: str) -> None:
        self._record = KeptRecord(store, f"generations:{target}")

    @property
    def id(self) -> str | None:
        """Of the record; None before it was read or written."""
        return self._record.id

    def read(self, call: Call) -> Generations | None:
        """Return them as they are now; None: nobody has written any.

        Raises:
            RetrievalError: RETRIEVAL_PROVIDER_UNAVAILABLE when a later version wrote them.
            MemoryNodeError: of the store.
        """
        content = self._record.read(call)
        try:
            return None if content is None else Generations.from_wire(content)
        except ValidationError as error:
            raise RetrievalError(
                "RETRIEVAL_PROVIDER_UNAVAILABLE",
                f"the record {self._record.key} is of another version of ditto-tasks: use that one",
            ) from error

    def write(self, generations: Generations, call: Call) -> None:
        """Put them in the place of those that were read; one update, seen whole or not at all."""
        self._record.write(generations.model_dump(mode="json", by_alias=True, exclude_none=True), call)


def _left(leaving: tuple[Generation, ...], more: Generation | None, now: float) -> tuple[Generation, ...]:
    return leaving if more is None else (*leaving, more.model_copy(update={"left_at": now}))
