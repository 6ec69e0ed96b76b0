"""Downloads of single files by huggingface_hub.

Recent versions of huggingface_hub delete an interrupted file instead of resuming it later. Its function for one
HTTP download can resume: that is called here, and `fetch` places the files in the cache's layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
    logging,
)

from firesteel.errors import UserError
from firesteel.hub.faults import explaining
from firesteel.hub.listing import Listing, RemoteFile
from firesteel.hub.partial import Oversized, PartialFile, SmallFile
from firesteel.hub.plan import PullPlan
from firesteel.untrusted.json_file import LARGEST_BYTES, parse_object, read_object

PIECE_BYTES = 1 << 20  # that are written at a time


def download(listing: Listing, file: RemoteFile, target: PartialFile | SmallFile, *, held_bytes: int = 0) -> None:
    """Writes a file to `target`, which has its first `held_bytes`; lost connections are tried again for a while."""
    http_get(
        hf_hub_url(listing.repository, file.name, revision=listing.commit),
        cast(BinaryIO, target),
        resume_size=held_bytes,
        # A compressed answer could not be resumed.
        headers={**build_hf_headers(library_name="firesteel"), "Accept-Encoding": "identity"},
        expected_size=file.num_bytes,
    )


def read_config(plan: PullPlan) -> dict[str, Any]:
    """Returns the content of config.json, from the cache or the hub; writes nothing."""
    listing, item = plan.listing, next(item for item in plan.items if item.file.name == "config.json")
    if item.is_fetched:
        return read_object(item.link if item.is_linked else item.blob, UserError, "delete it and pull it again")
    name = f"config.json of {listing.repository}"
    if item.file.num_bytes > LARGEST_BYTES:
        raise UserError(f"{name} has {item.file.num_bytes} bytes, the limit is {LARGEST_BYTES}: it is not gpt-oss")
    content = SmallFile(item.file)
    with adapted_hub(), explaining(listing.repository, listing.revision), suppress(Oversized):
        download(listing, item.file, content)
    if not content.is_right():
        raise UserError(describe_wrong(item.file))
    return parse_object(content.getvalue(), name, UserError, "choose another repository")


def describe_wrong(file: RemoteFile) -> str:
    return (
        f"{file.name} from {constants.ENDPOINT} does not have the checksum {file.digest} that the hub states, and "
        "is not kept: a proxy or mirror alters it; try again later, or with another HF_ENDPOINT"
    )


@contextmanager
def adapted_hub() -> Iterator[None]:
    """Silences the bars and warnings of huggingface_hub, which would be printed over ours, and cuts smaller pieces.

    What has come of a piece is lost if the pull is interrupted, and the bar moves by pieces.
    """
    verbosity, had_bars = logging.get_verbosity(), not are_progress_bars_disabled()
    piece_bytes = constants.DOWNLOAD_CHUNK_SIZE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a variable that forces the bars
        disable_progress_bars()
    logging.set_verbosity_error()
    constants.DOWNLOAD_CHUNK_SIZE = min(piece_bytes, PIECE_BYTES)
    try:
        yield
    finally:
        constants.DOWNLOAD_CHUNK_SIZE = piece_bytes
        logging.set_verbosity(verbosity)
        if had_bars:
            enable_progress_bars()
