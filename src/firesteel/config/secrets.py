"""Recognises secrets and hides them wherever commands, addresses, variables and logs are shown or recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

HIDDEN = "(hidden)"  # stands for a secret
# Names of secrets. A name that ends in "token" may also mean a token of text; TEXT_TOKENS tells them apart.
SECRETS = (
    r"(key|secret|passw(or)?d|passphrase|credential|(auth|access|api|bearer|hf|hub|refresh)[_-]?token)s?$|^-hft$"
)
TEXT_TOKENS = (
    r"(a|audio|begin|bos|cls|decode|draft|end|eos|first|generated|image|input|last|mask|max|min|new|next|num|output|"
    r"pad|per|prefix|prompt|sep|special|start|stop|think|tool|unk|video)"
)
HEADERS = ("authorization", "cookie")  # ends of names, beside names like X-Api-Key
PARAMETERS = {"auth", "sig", "signature", "x-amz-signature"}  # of addresses, beside names like api_key
SHORTEST = 4  # characters of a secret that is hidden outside its address or header too
WORDS = re.compile(r"""\s+|(?:'[^']*'|"[^"]*"|\S)+""")  # words of a command line, and the space between them


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """A place of secrets in texts: `secret` after `before`, whose group is a name that `is_hidden` judges.

    Repetitions are bounded, so that the time to search a text grows with its length alone.
    """

    before: re.Pattern[str]
    secret: re.Pattern[str]
    is_hidden: Callable[[str], bool] = lambda name: True

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields the begin and end of each secret."""
        position = 0
        while begin := self.before.search(text, position):
            position = max(begin.end(), position + 1)
            if self.is_hidden(begin[1]) and (secret := self.secret.match(text, begin.end())):
                yield secret.span()
                position = secret.end()


def is_secret(name: str) -> bool:
    """Returns whether a flag, variable or field of this name holds a secret."""
    if re.search(SECRETS, name, re.IGNORECASE):
        return True
    is_token = re.search(r"(^|[_-])token$", name, re.IGNORECASE)
    return is_token is not None and not re.search(rf"(^|[_-]){TEXT_TOKENS}[_-]token$", name, re.IGNORECASE)


def hide_secrets(words: Iterable[str]) -> list[str]:
    """Hides secrets in a command line: --flag value, --flag=value, NAME=value, and the same in quoted commands.

    Also hides those of `hide_in_text`: passwords and keys in addresses, values of HTTP headers.
    """
    shown = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        name_is_secret = not re.search(r"\s", name) and is_secret(name)
        if hide_next:
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={HIDDEN}" if name_is_secret and equals else _hide_inside(hide_in_text(word)))
        hide_next = name_is_secret and not equals and name.startswith("-")
    return shown


def _hide_inside(word: str) -> str:
    """Hides secrets in a command line given as one word, as `sh -c` takes it; all other text stays as it is."""
    parts = WORDS.findall(word)
    if len(parts) == 1 and len(word) > 1 and word[0] in "'\"" and word[-1] == word[0]:
        return word[0] + _hide_inside(word[1:-1]) + word[0]
    if len(parts) < 2:
        return word
    shown = iter(hide_secrets(part for part in parts if not part.isspace()))
    return "".join(part if part.isspace() else next(shown) for part in parts)


def hide_in_text(text: str) -> str:
    """Hides `user:password@` and secret parameters of addresses, values of secret HTTP headers, bearer tokens."""
    for place in _PLACES:
        shown, position = "", 0
        for begin, end in place.find(text):
            shown += text[position:begin] + HIDDEN
            position = end
        text = shown + text[position:]
    return text


def find_in_text(text: str) -> Iterator[str]:
    """Yields the secrets that `hide_in_text` hides; of `user:password`, the password alone too."""
    for place in _PLACES:
        for begin, end in place.find(text):
            secret = text[begin:end]
            parts = (secret, re.split(r"[:\s]+", secret)[-1])  # "Bearer KEY" and "KEY"
            yield from (part for part in parts if len(part) >= SHORTEST and HIDDEN not in secret)


def shown_value(name: str, value: Any) -> Any:
    """Returns a setting's value as it may be shown."""
    if is_secret(name) and value:
        return HIDDEN
    return hide_in_text(value) if isinstance(value, str) else value


def _is_parameter(name: str) -> bool:
    return is_secret(name) or name.lower() in PARAMETERS


def _is_header(name: str) -> bool:
    """Returns whether a header or JSON field is secret; a bare word such as "key:" is prose more often."""
    return name.lower().endswith(HEADERS) or (is_secret(name) and ("-" in name or "_" in name))


_PLACES = (
    SecretPlace(re.compile(r"()://"), re.compile(r"""[^/?#\s'"]{1,1000}(?=@)""")),
    # user:password@host without http://; neither an image's name:tag@sha256:... nor an op's triton:gemm@verdict
    SecretPlace(
        re.compile(r"()(?<![\w./:@%+-])(?=[\w.%+-])"),
        re.compile(
            r"""[\w.%+-]{1,200}:[^/?#\s'"@]{1,200}(?=@(?!sha\d+:|(?:native-fp4|fp8|int8|bf16|none)\b)[\w\[])"""
        ),
    ),
    SecretPlace(re.compile(r"[?&;]([\w.-]{1,60})="), re.compile(r"""[^&;#\s'"]+"""), _is_parameter),
    SecretPlace(
        re.compile(r"""\b([A-Za-z][\w-]{0,60})["']?[ \t]{0,9}:[ \t]{0,9}["']?"""),
        re.compile(r"""[^\s'"][^'"\r\n]*"""),
        _is_header,
    ),
    SecretPlace(re.compile(r"()\b[Bb]earer\s{1,9}"), re.compile(r"[\w.~+/=-]{8,}")),
)
