"""The pages that people read, their links, anchors and commands."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "examples" / "README.md",
        ROOT / "records" / "peers" / "README.md",
    ]
)
FENCE = re.compile(r"^(?:<!-- needs: (?P<needs>[^>]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.M)


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def list_links(page):
    """Returns the targets of a page that are files of the repository."""
    targets = LINK.findall(without_code(page.read_text(encoding="utf-8")))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def list_anchors(page):
    """Returns the anchors of headings, as GitHub and the site make them."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    words = [
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()) for heading in headings
    ]
    return {word.strip().replace(" ", "-") for word in words}


def list_commands(page):
    """Returns (words of a firesteel command, what its block needs) for each in the shell blocks of a page."""
    commands = []
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        if block["language"] not in ("", "sh", "console"):
            continue
        text = block["text"].replace("\\\n", " ")
        for line in text.splitlines():
            found = re.match(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?firesteel (.*)", line.strip())
            if found:
                commands.append((_split(found[1]), block["needs"]))
    return commands


def list_inline_commands(page):
    """Returns the words of each firesteel command in the text of a page; quoted errors have gaps."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    spans = [" ".join(span.split()) for span in re.findall(r"`(firesteel [^`]+)`", text)]
    return [_split(span.removeprefix("firesteel ")) for span in spans if " ... " not in span]


def _split(command):
    """Returns the words; brackets around what is optional are dropped."""
    return shlex.split(re.sub(r"(?<=\s)\[|\](?=\s|$)", "", command), comments=True)
