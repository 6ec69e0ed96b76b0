"""An op bound to one device: candidates are chosen once, at start, and every call goes into the ledger."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

from firesteel.errors import ArgumentsRefused, KernelError
from firesteel.kernels.call_key import make_key
from firesteel.kernels.ledger import Launch, Ledger, Ran, watch_launches
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.op.verdict import judge_compiled

if TYPE_CHECKING:
    from firesteel.kernels.op.op import Implementation, Op

P = ParamSpec("P")
R = TypeVar("R")
MOST_CHOICES = 4096  # per op: bounds what is kept when shapes never repeat


class KeptChoice(NamedTuple, Generic[R]):
    function: Callable[..., R]
    ran: Ran


@dataclass(frozen=True, slots=True)
class Chosen(Generic[P, R]):
    """An op on one device. A call runs the first candidate that accepts the arguments, or raises all refusals."""

    op: Op[P, R]
    candidates: list[Implementation[P, R]]
    ledger: Ledger
    others: tuple[str, ...] = ()  # implementations that could run on this device, but were not chosen
    required: Requirement | None = None
    activation: str = "bf16"  # the one that the verdict of `required` was given for
    # Storing activations as Fed pays for this op; candidates that do not read Fed compute from the plain ones.
    reads_fed: bool = field(init=False)
    _choices: dict[Hashable, KeptChoice[R]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_fed", any(candidate.reads_fed for candidate in self.candidates))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        key = make_key(args) if self.op.keeps_choice and not kwargs else None
        choice = self._choices.get(key)  # none is kept for None
        if choice is None:
            choice = self._choose(args, kwargs)
            if key is not None:
                self._keep(key, choice)
        if self.required is None or self.required.verdict is None:
            return self.ledger.run(choice.ran, choice.function, *args, **kwargs)
        with watch_launches(self._judge):
            return self.ledger.run(choice.ran, choice.function, *args, **kwargs)

    def _choose(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KeptChoice[R]:
        refusals: list[str] = []
        for candidate in self.candidates:
            why = candidate.accepts(*args, **kwargs) if candidate.accepts else None
            if why is None:
                ran = Ran(self.op.name, candidate.name, self.op.find_activation(args))
                if self.required is not None:
                    self._check(self.required, ran, refusals)
                return KeptChoice(candidate.function, ran)
            refusals.append(f"{candidate.name} {why}")
        choice = f"; --kernels {self.op.name}=IMPLEMENTATION chooses among {', '.join(self.others)}"
        cure = choice if self.others else ""
        said = "; ".join(refusals)
        raise ArgumentsRefused(f"{self.op.name}: no implementation takes these arguments: {said}{cure}")

    def _keep(self, key: Hashable, choice: KeptChoice[R]) -> None:
        if len(self._choices) >= MOST_CHOICES:
            self._choices.clear()
        self._choices[key] = choice

    def _check(self, required: Requirement, ran: Ran, refusals: list[str]) -> None:
        if not required.names(ran.implementation):
            refused = f": {'; '.join(refusals)}" if refusals else ""
            untried = self.candidates[len(refusals) + 1 :]
            pin = next((candidate.name for candidate in untried if required.names(candidate.name)), None)
            cure = f"; --kernels {self.op.name}={pin} has it run in every call" if pin else ""
            raise KernelError(f"{required} is required, but {ran.implementation} would run{refused}{cure}")
        if required.verdict is not None and ran.activation not in ("", self.activation):
            raise KernelError(
                f"{required} is required, and was proven for {self.activation} activations, but a layer with "
                f"{ran.activation} ones would run: --mxfp4-layers all leaves none"
            )

    def _judge(self, launch: Launch) -> None:
        """Raises if a launched kernel has another verdict than the required one.

        Tiles and shapes determine what is compiled, so the launched kernel may differ from the one proven at start.
        """
        assert self.required is not None
        verdict = "none" if launch.compiled is None else judge_compiled(launch.compiled)
        if verdict not in ("none", self.required.verdict):
            raise KernelError(
                f"{self.required} is required, but {launch.kernel} {launch.tile} was launched and is {verdict}"
            )
