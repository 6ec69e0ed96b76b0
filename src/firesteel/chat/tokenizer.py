"""Converts text to token ids and back with the checkpoint's tokenizer file.

Ordinary text never becomes a special token: `<|end|>` typed by a user is encoded as plain characters. Callers place
special tokens by id, from `special_ids`.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from firesteel.errors import RequestError, UserError
from firesteel.untrusted.json_file import read_bytes, reading, shorten
from firesteel.untrusted.panics import is_panic, panics_as

LARGEST_BYTES = 128 << 20  # of the file; gpt-oss has 28 MB
CURE = "download the checkpoint again"
_UNASSIGNED = "\ufffd".encode()


class TokenizerError(UserError):
    """The tokenizer file is missing or broken, or lacks a token that is needed."""


class Tokenizer:
    """A byte-level BPE tokenizer, read from the checkpoint's `tokenizer.json`."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        if not isinstance(backend.decoder, tokenizers.decoders.ByteLevel):
            raise TokenizerError("the tokenizer is not byte-level, so it cannot encode every text")
        if not isinstance(backend.model, tokenizers.models.BPE):
            raise TokenizerError("the tokenizer is not a BPE model")
        vocab = backend.get_vocab(with_added_tokens=False)
        if odd := set().union(*vocab) - _BYTE_OF_CHARACTER.keys():
            raise TokenizerError(f"a token holds {shorten(min(odd))!r}, which stands for no byte")
        if missing := _BYTE_OF_CHARACTER.keys() - vocab:
            raise TokenizerError(f"{len(missing)} of the 256 bytes have no token, so it cannot encode every text")
        backend.no_padding()
        backend.no_truncation()
        _make_all_special(backend)
        # Makes the backend split special-token strings in the input like any other text.
        backend.encode_special_tokens = True
        added = backend.get_added_tokens_decoder()
        self.special_ids: dict[str, int] = {token.content: token_id for token_id, token in added.items()}
        self.vocab_size: int = max([*vocab.values(), *added]) + 1
        self._backend = backend
        self._token_bytes: dict[int, bytes] = {
            token_id: token.encode() for token, token_id in self.special_ids.items()
        }

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        path = directory / "tokenizer.json"
        with reading(path, TokenizerError, CURE) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > LARGEST_BYTES:
                raise TokenizerError(f"{path} has {size} bytes, the limit is {LARGEST_BYTES}; {CURE}")
            data = read_bytes(descriptor, size)
        try:
            return cls(tokenizers.Tokenizer.from_buffer(data))
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}; {CURE}") from error
        # The binding raises a bare Exception for every fault in the file, and a BaseException for a panic.
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise TokenizerError(f"cannot read {path}: {shorten(str(error))}; {CURE}") from error

    def check_fits(self, vocab_size: int) -> None:
        """Raises if the model of this tokenizer's checkpoint has no row for one of its tokens."""
        if self.vocab_size > vocab_size:
            raise TokenizerError(
                f"tokenizer.json has tokens up to id {self.vocab_size - 1}, but the model's vocabulary has "
                f"{vocab_size}: the files belong to different models; {CURE}"
            )

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes each text separately, in one call; lone surrogates become U+FFFD.

        Raises RequestError for a text that the backend cannot split, such as ten million blanks in a row.
        """
        with panics_as(RequestError, "the text cannot be tokenized"):
            try:
                encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
            except (TypeError, UnicodeEncodeError):
                whole = [_replace_surrogates(text) for text in texts]
                encodings = self._backend.encode_batch_fast(whole, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decodes tokens: special tokens to their text, bytes that are not UTF-8 to U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of a token; U+FFFD for an id without a token, which a model can still sample."""
        known = self._token_bytes.get(token_id)
        if known is None:
            known = self._token_bytes[token_id] = self._spell(token_id)
        return known

    def stream(self) -> TextStream:
        return TextStream(self)

    def _spell(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if token is None:
            return _UNASSIGNED
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)


class TextStream:
    """Incremental decoder: a character appears once its last byte has come, never in parts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Returns U+FFFD for an unfinished character, else nothing, and resets the stream."""
        return self._decoder.decode(b"", final=True)


def _make_all_special(backend: tokenizers.Tokenizer) -> None:
    """Marks all added tokens as special: the others would still be matched in ordinary text."""
    plain = [token for token in backend.get_added_tokens_decoder().values() if not token.special]
    if plain:
        backend.add_special_tokens([tokenizers.AddedToken(t.content, special=True) for t in plain])


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _byte_of_character() -> dict[str, int]:
    """Returns the byte of each character of a byte-level vocabulary: itself if visible, else from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER = _byte_of_character()
