"""Endpoints by which vLLM's clients find out what runs here: version, load, settings, tokenizer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from firesteel.config import shown_value
from firesteel.errors import UserError
from firesteel.server.http.errors import ApiError, json_response
from firesteel.server.http.route import ApiRoute
from firesteel.server.openai.answers import ApiAnswer, Health
from firesteel.server.service import Service
from firesteel.server.status.endpoint import StatusEndpoints
from firesteel.untrusted.json_file import read_object
from firesteel.version import find_version

SECTIONS = ("model", "batch", "cache", "kernels", "speculate")  # of the settings; the others name files and hosts


class Version(ApiAnswer, kw_only=True):
    version: str


class Load(ApiAnswer, kw_only=True):
    server_load: int  # requests under way, each choice as one


class ServerInfo(ApiAnswer, kw_only=True):
    version: str
    device: str
    formats: dict[str, str]
    vllm_config: dict[str, dict[str, Any]]  # settings by section, under vLLM's name for them


class TokenizerInfo(ApiAnswer, kw_only=True):
    """Facts of tokenizer_config.json; the chat template is that file's own, or chat_template.jinja."""

    tokenizer_class: str | UnsetType = UNSET
    bos_token: str | UnsetType = UNSET
    eos_token: str | UnsetType = UNSET
    pad_token: str | UnsetType = UNSET
    unk_token: str | UnsetType = UNSET
    chat_template: str | UnsetType = UNSET


class Inventory:
    def __init__(self, service: Service, status: StatusEndpoints) -> None:
        self.service = service
        self.status = status

    def routes(self) -> Sequence[ApiRoute]:
        ping = ApiRoute(
            path="/ping",
            answer=self.status.health,
            says="Readiness, same as /health",
            gives=Health,
            is_open=True,
            unready=503,
            errors=(),
        )
        return [
            ping,
            replace(ping, verb="POST"),
            ApiRoute(path="/version", answer=self.version, says="Version of firesteel", gives=Version),
            ApiRoute(path="/load", answer=self.load, says="Requests under way", gives=Load),
            ApiRoute(path="/server_info", answer=self.server_info, says="Settings and device", gives=ServerInfo),
            ApiRoute(
                path="/tokenizer_info",
                answer=self.tokenizer_info,
                says="Special tokens and chat template",
                gives=TokenizerInfo,
                errors=(401, 404),
            ),
        ]

    async def version(self, request: HttpRequest) -> Response:
        return json_response(Version(version=find_version()))

    async def load(self, request: HttpRequest) -> Response:
        return json_response(Load(server_load=self.service.admission.num_under_way))

    async def server_info(self, request: HttpRequest) -> Response:
        facts, config = self.service.engine.facts, asdict(self.service.config)
        settings = {
            section: {name: shown_value(name, value) for name, value in config[section].items()}
            for section in SECTIONS
        }
        settings["model"] |= {"max_model_len": facts.max_context, "max_num_seqs": facts.max_num_seqs}
        info = ServerInfo(version=find_version(), device=facts.device, formats=facts.formats, vllm_config=settings)
        return json_response(info)

    async def tokenizer_info(self, request: HttpRequest) -> Response:
        return json_response(read_tokenizer_info(self.service.directory))


def read_tokenizer_info(directory: Path) -> TokenizerInfo:
    """Reads the checkpoint's file; raises ApiError if there is none."""
    path = directory / "tokenizer_config.json"
    if not os.path.lexists(path):
        raise ApiError(404, "the checkpoint has no tokenizer_config.json", code="not_found")
    content = read_object(path, UserError, "download the checkpoint again")
    template = directory / "chat_template.jinja"
    if os.path.lexists(template):
        content["chat_template"] = template.read_text(encoding="utf-8")
    texts = {name: _text_of(content.get(name)) for name in TokenizerInfo.__struct_fields__}
    return msgspec.convert({name: text for name, text in texts.items() if text is not None}, TokenizerInfo)


def _text_of(value: Any) -> str | None:
    """Returns a token's text, which may be inside an object; None for anything else."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
