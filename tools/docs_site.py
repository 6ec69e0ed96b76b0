"""Hooks of mkdocs: pages made from other files and from the program itself, and links that leave docs/.

The home page is the README; the pages of commands and settings come from the command line's own declarations. A
link to a file of the repository outside docs/ becomes its path, because the site has only docs/; if there is no
such file, the build warns, and `--strict` makes that an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
COPIED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
log = logging.getLogger("mkdocs.plugins.docs_site")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that do not stand in docs/."""
    for source, page in COPIED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=LINK.sub(_from_root, text)))
    files.append(File.generated(config, "commands.md", content="\n".join(describe_commands())))
    files.append(File.generated(config, "settings.md", content="\n".join(describe_settings())))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces links to files outside docs/ by their paths."""
    return LINK.sub(lambda match: _replace_link(match, page.file.src_uri), markdown)


def _from_root(match: re.Match[str]) -> str:
    """Returns a link of a file in the root as one of a page in docs/."""
    words, target = match.groups()
    if re.match(r"[a-z]+:|#", target):
        return match[0]
    path, hash_sign, anchor = target.partition("#")
    if path in COPIED:
        return f"{words}({COPIED[path]}{hash_sign}{anchor})"
    inside = path.removeprefix("docs/")
    return f"{words}({inside if inside != path else f'../{path}'}{hash_sign}{anchor})"


def _replace_link(match: re.Match[str], page: str) -> str:
    words, target = match.groups()
    path = target.partition("#")[0]
    if not path.startswith("../"):
        return match[0]
    inside = path.removeprefix("../")
    if inside in COPIED:
        return f"{words}({COPIED[inside]})"
    if not (ROOT / inside).exists():
        log.warning("%s links to %s, which does not exist", page, target)
    text = words.lstrip("!")[1:-1]
    return text if text.strip("`") == inside else f"{text} (`{inside}`)"


def describe_commands() -> Iterator[str]:
    """Yields the page of commands: each with its help and its own options."""
    from firesteel.cli import app

    yield (
        "# Commands\n\nThe program's own help. Flags that are settings are on [their page](settings.md); files of "
        "settings, completions and exit codes on that of the [command line](cli.md).\n"
    )
    root = typer.main.get_command(app)
    yield from _describe_group(root, ["firesteel"])


def _describe_group(group: Any, words: list[str]) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _describe_group(command, [*words, name])
        else:
            yield from _describe_command(command, [*words, name])


def _describe_command(command: Any, words: list[str]) -> Iterator[str]:
    settings = _names_of_settings()
    yield f"## {' '.join(words)}\n"
    yield (command.help or "").replace("\b", "").strip() + "\n"
    yield f"Example: `{command.example}`\n"
    own = [known for known in command.params if known.name not in settings and not getattr(known, "hidden", False)]
    rows = [row for known in own if (row := _describe_parameter(known))]
    if rows:
        yield "| argument or option | meaning |\n|---|---|"
        yield from rows
        yield ""
    if any(known.name in settings for known in command.params):
        yield "Also every [setting](settings.md) as a flag.\n"


def _describe_parameter(known: Any) -> str:
    help_text = (getattr(known, "help", None) or "").replace("|", "\\|").replace("\n", " ").replace("\\[", "[")
    if known.param_type_name == "argument":
        names = f"`{known.name}`"
    else:
        names = "<br>".join(f"`{name}`" for name in [*known.opts, *known.secondary_opts])
    return f"| {names} | {help_text} |"


def _names_of_settings() -> frozenset[str]:
    from firesteel.config import all_settings

    return frozenset(all_settings())


def describe_settings() -> Iterator[str]:
    """Yields the page of settings: flag, variable, default and meaning, by section."""
    from firesteel.config import all_settings

    yield "# Settings\n"
    yield (
        "Each is a flag, an environment variable, a key of a TOML file and a keyword of `LLM`. A flag wins over "
        "the variable, that over the file, that over the default. `firesteel env` shows what holds here, and why.\n"
    )
    section = ""
    for setting in all_settings().values():
        if setting.section != section:
            section = setting.section
            yield f"## {section}\n\n| flag | variable | default | meaning |\n|---|---|---|---|"
        flag = f"--{setting.name.replace('_', '-')}"
        default = "none" if setting.default == "" else setting.default
        help_text = setting.help.replace("|", "\\|")
        yield f"| `{flag}` | `{setting.env}` | {default} | {help_text} |"
    yield ""
