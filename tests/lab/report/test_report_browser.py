"""The report in Chromium: no errors, no requests, nothing too wide, broken or pale, light and dark."""

import itertools

import pytest

from firesteel.lab.report.report import write_report
from tests.lab import report_parts as parts
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import judge as judge_slots
from tests.lab.path.evidence_lines import vllm

pytestmark = pytest.mark.browser
OPEN_ALL = "document.querySelectorAll('details').forEach(fold => fold.open = true)"
# Words of up to 20 characters whose letters are on more than one line.
BROKEN_WORDS = """(() => {
    const broken = [], walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        for (const word of node.data.matchAll(/[A-Za-z0-9]{2,20}/g)) {
            const range = document.createRange();
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            const boxes = [...range.getClientRects()].filter(box => box.width);
            if (new Set(boxes.map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
        }
    }
    return broken;
})()"""
COLLISIONS = """[...document.querySelectorAll('svg')].flatMap(svg => {
    const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    return boxes.flatMap(([name, a], number) => boxes.slice(number + 1).filter(([, b]) => a.width && b.width &&
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        .map(([other]) => name + ' / ' + other));
})"""
# Texts whose contrast with what is behind them is below 4.5, as WCAG computes it.
PALE_TEXTS = """(() => {
    const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const parse = colour => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data];
    };
    const linear = value => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = element => {
        const colour = element ? parse(getComputedStyle(element).backgroundColor) : [255, 255, 255, 255];
        return colour[3] ? colour : behind(element.parentElement);
    };
    return [...document.querySelectorAll('main *')].filter(element => element.checkVisibility() &&
        [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())).filter(element => {
        const style = getComputedStyle(element);
        const colours = [parse(element.closest('svg') ? style.fill : style.color), behind(element)];
        const [high, low] = colours.map(luminance).sort((a, b) => b - a);
        return (high + 0.05) / (low + 0.05) < 4.5;
    }).map(element => element.className + ': ' + element.textContent.slice(0, 40));
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The address of a report with every section, long names, and a matrix of three gates."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "result.json").write_text("{}")
    slots = judge_slots("vllm", log=vllm(lines.MARLIN, lines.FLASHINFER), expect="moe=cutlass,graphs=on")
    rows = [parts.bench_row(depth=depth, pp=pp) for depth in (0, 4096, 32768) for pp in (512, 2048, 8192)]
    rows += [
        parts.bench_row((90.0 * streams, 91.0 * streams), concurrency=streams) for streams in (2, 4, 8, 16, 32)
    ]
    check = {"check": "moe", "verdict": "failed", "words": "moe=marlin", "cure": "--moe-backend flashinfer_cutlass"}
    levels = [parts.level("1.5", "failed", slots=slots.as_dict(), checks=[check]), parts.level("4")]
    environment = {"FLASHINFER_WORKSPACE_BASE_AND_OTHERS": "/a/very/long/path/" + 12 * "of-a-folder/"}
    engine = {"name": "vllm", "kind": "vllm", "version": "0.32.0", "environment": environment}
    gates = {"kv_dtype": ["auto", "fp8"], "moe_activation": ["bf16", "mxfp8", "mxfp4"], "prefix_caching": ["on"]}
    cells = [
        {
            "gates": dict(zip(gates, chosen, strict=True)),
            "status": "done",
            "figures": {"tg_tok_s": 100.0 + 9 * number},
            "samples": {"tg_tok_s": [100.0 + 9 * number, 100.1 + 9 * number]},
            "verdict": "passed",
            "unranked": "",
        }
        for number, chosen in enumerate(itertools.product(*gates.values()))
    ]
    matrix = {**parts.matrix(), "gates": gates, "cells": cells}
    result = parts.result(levels=levels, bench=parts.bench(rows), engine=engine, matrix=matrix)
    return write_report(result, folder)[0].as_uri()


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [400, 1600])
def test_page_fits_and_makes_no_requests(browser, page, width, is_dark):
    browser.open(page, width=width, is_dark=is_dark)
    for unfold in ("", OPEN_ALL):
        browser.run(unfold)
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert not browser.errors
    assert all(url.startswith(("file:", "data:")) for url in browser.requests)
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) == is_dark


@pytest.mark.parametrize("is_dark", [False, True])
def test_all_texts_have_enough_contrast(browser, page, is_dark):
    browser.open(page, width=1600, is_dark=is_dark)
    browser.run(OPEN_ALL)
    assert browser.run(PALE_TEXTS) == []


def test_texts_of_a_chart_stay_inside_and_do_not_collide(browser, page):
    browser.open(page, width=400)
    outside = browser.run("""[...document.querySelectorAll('svg text')].filter(one => {
        const text = one.getBoundingClientRect(), drawing = one.closest('svg').getBoundingClientRect();
        return text.width && (text.right > drawing.right + 2 || text.left < drawing.left - 2);
    }).map(one => one.textContent)""")
    assert outside == []
    assert browser.run(COLLISIONS) == []


def test_rows_are_cards_on_a_phone_and_no_word_is_broken(browser, page):
    browser.open(page, width=400)
    browser.run(OPEN_ALL)
    shown = (
        "[...new Set([...document.querySelectorAll('.cards tbody tr')].map(row => getComputedStyle(row).display))]"
    )
    assert browser.run(shown) == ["grid"]
    narrow = "[...document.querySelectorAll('.cards td')].filter(cell => cell.checkVisibility())"
    assert browser.run(f"Math.min(...{narrow}.map(cell => cell.clientWidth))") >= 80
    assert browser.run(f"{narrow}.filter(cell => cell.scrollWidth > cell.clientWidth + 1).length") == 0
    assert browser.run(BROKEN_WORDS) == []


@pytest.mark.parametrize("width", [400, 1600])
def test_tables_fit_without_scrolling(browser, page, width):
    browser.open(page, width=width)
    browser.run(OPEN_ALL)
    wide = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth + 1)"
    assert browser.run(f"{wide}.map(box => box.textContent.slice(0, 60))") == []
    assert browser.run(BROKEN_WORDS) == []


def test_command_can_be_reached_and_selected_by_keyboard(browser, page):
    browser.open(page, width=1600)
    found = browser.run("""(() => {
        const field = document.querySelector('textarea');
        field.focus();
        field.select();
        const label = field.labels[0].textContent;
        return [label.startsWith('Run it again'), field.readOnly, document.activeElement === field,
                field.value.slice(field.selectionStart, field.selectionEnd)];
    })()""")
    assert found[:3] == [True, True, True] and found[3].startswith("firesteel lab")
    assert browser.run("[...document.querySelectorAll('summary, a')].every(one => one.tabIndex === 0)")


def test_button_copies_the_command(browser, page):
    browser.open(page, width=400)
    browser.run("document.querySelector('.files button').click()")
    assert browser.run("document.querySelector('.files button').textContent") in (
        "Copied",
        "Selected: press Ctrl+C",
    )
    selected = "document.querySelector('textarea')"
    chosen = browser.run(f"{selected}.value.slice({selected}.selectionStart, {selected}.selectionEnd)")
    assert chosen.startswith("firesteel lab") and chosen == browser.run(f"{selected}.value")


def test_icons_have_words_beside_them(browser, page):
    browser.open(page, width=400)
    words = "[...document.querySelectorAll('.icon')].map(icon => icon.parentElement.textContent)"
    assert browser.run(f"{words}.filter(text => !/[a-z]{{3}}/i.test(text))") == []
    assert browser.run("document.querySelectorAll('.icon:not([aria-hidden])').length") == 0
