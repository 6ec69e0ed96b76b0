"""Agreement of two runs of the same requests, token by token.

After the first difference two texts diverge, so only the tokens before it count as agreed. In bf16 a batch of
another size may round differently, which decides between two tokens that are almost equally likely. The margin
tells whether that was so: it is the distance in nats between the two most likely tokens of the first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Margins = Mapping[str, Sequence[float]]  # per token, keyed by request


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The tokens of one request in both runs."""

    num_tokens: int  # compared
    num_equal: int  # at the same position
    num_before: int  # tokens before the first difference; all tokens if there is none
    margin: float | None = None  # at the first difference, if known

    @property
    def is_equal(self) -> bool:
        return self.num_before == self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitBits:
    """Rows of logits compared, and what differs in them."""

    rows: int
    rows_differing: int
    bits_differing: int

    def __add__(self, other: LogitBits) -> LogitBits:
        return LogitBits(
            rows=self.rows + other.rows,
            rows_differing=self.rows_differing + other.rows_differing,
            bits_differing=self.bits_differing + other.bits_differing,
        )

    def as_dict(self) -> dict[str, Any]:
        return {f"logit_{name}": value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    equality: str  # "batched = alone"
    evidence: str  # shows that the second run differed as intended
    pairs: tuple[Pair, ...]
    logits: LogitBits | None = None  # if they were kept

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
        """Tokens before the first difference, mean over the requests that differ."""
        differing = [pair.num_before for pair in self.pairs if not pair.is_equal]
        return sum(differing) / len(differing) if differing else None

    @property
    def differences_a_token(self) -> float:
        """Rate of disagreement: first differences over the tokens drawn after equal ones."""
        drawn = sum(pair.num_before + (not pair.is_equal) for pair in self.pairs)
        return sum(not pair.is_equal for pair in self.pairs) / drawn

    @property
    def largest_margin(self) -> float | None:
        return max((pair.margin for pair in self.pairs if pair.margin is not None), default=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "equality": self.equality,
            "evidence": self.evidence,
            "requests": len(self.pairs),
            "tokens": self.num_tokens,
            "token_share": self.token_share,
            "request_share": self.request_share,
            "tokens_before_first_difference": self.tokens_before,
            "differences_a_token": self.differences_a_token,
            "largest_margin_nats": self.largest_margin,
            **({} if self.logits is None else self.logits.as_dict()),
        }


def compare(expected: Sequence[int], actual: Sequence[int], margins: Sequence[float] = ()) -> Pair:
    """Compares two texts; `margins` belong to the expected tokens. Surplus tokens of one text are differences."""
    same = [ours == theirs for ours, theirs in zip(expected, actual, strict=False)]
    longest = max(len(expected), len(actual))
    same += [False] * (longest - len(same))
    before = same.index(False) if False in same else longest
    return Pair(
        num_tokens=longest,
        num_equal=sum(same),
        num_before=before,
        margin=margins[before] if before < min(longest, len(margins)) else None,
    )


def compare_all(
    expected: Mapping[str, Sequence[int]], actual: Mapping[str, Sequence[int]], margins: Margins
) -> list[Pair]:
    """Compares the texts of all requests in `expected`."""
    return [compare(tokens, actual[name], margins.get(name, ())) for name, tokens in expected.items()]
