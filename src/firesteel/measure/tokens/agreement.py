"""How far two runs of the same requests agree, token by token; runs nothing.

After the first difference two texts go their own ways, so what follows says little: the tokens before it are what
was agreed on. In bf16 a batch of another size may round otherwise, and where two tokens are nearly as likely the
other one wins. The margin says whether that was so: nats between the two most likely tokens of the first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Margins = Mapping[str, Sequence[float]]  # of each token, by request


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The tokens of one request in both runs."""

    num_tokens: int  # compared
    num_equal: int  # at the same place
    num_before: int  # the first difference; all where there is none
    margin: float | None = None  # at the first difference, where known

    @property
    def is_equal(self) -> bool:
        return self.num_before == self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    equality: str  # "batched = alone"
    evidence: str  # what shows that the second run was run that way
    pairs: tuple[Pair, ...]

    @property
    def num_tokens(self) -> int:
        return sum(pair.num_tokens for pair in self.pairs)

    @property
    def token_share(self) -> float:
        return sum(pair.num_equal for pair in self.pairs) / self.num_tokens

    @property
    def request_share(self) -> float:
        return sum(pair.is_equal for pair in self.pairs) / len(self.pairs)

    @property
    def tokens_before(self) -> float | None:
        """The first difference, on average over the requests that have one."""
        differing = [pair.num_before for pair in self.pairs if not pair.is_equal]
        return sum(differing) / len(differing) if differing else None

    @property
    def differences_a_token(self) -> float:
        """First differences over the tokens drawn after equal ones: the rate of disagreement."""
        drawn = sum(pair.num_before + (not pair.is_equal) for pair in self.pairs)
        return sum(not pair.is_equal for pair in self.pairs) / drawn

    @property
    def largest_margin(self) -> float | None:
        return max((pair.margin for pair in self.pairs if pair.margin is not None), default=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "equality": self.equality, "evidence": self.evidence, "requests": len(self.pairs),
            "tokens": self.num_tokens, "token_share": self.token_share, "request_share": self.request_share,
            "tokens_before_first_difference": self.tokens_before, "differences_a_token": self.differences_a_token,
            "largest_margin_nats": self.largest_margin,
        }  # fmt: skip


def compare(expected: Sequence[int], actual: Sequence[int], margins: Sequence[float] = ()) -> Pair:
    """`margins` are those of the expected tokens. Tokens that one run has more of are differences."""
    same = [one == other for one, other in zip(expected, actual, strict=False)]
    longest = max(len(expected), len(actual))
    same += [False] * (longest - len(same))
    before = same.index(False) if False in same else longest
    return Pair(
        num_tokens=longest, num_equal=sum(same), num_before=before,
        margin=margins[before] if before < min(longest, len(margins)) else None,
    )  # fmt: skip


def compare_all(
    expected: Mapping[str, Sequence[int]], actual: Mapping[str, Sequence[int]], margins: Margins
) -> list[Pair]:
    """Of all requests that `expected` names."""
    return [compare(tokens, actual[name], margins.get(name, ())) for name, tokens in expected.items()]
