"""The comparison with other engines: best days, empty cells, and what is bold."""

import json

from tables import peers


def test_engine_that_was_measured_on_several_days_has_its_better_day():
    speeds = peers.read_speeds()
    days = [
        json.loads(line)
        for path in sorted(peers.PEERS.glob("vllm-0.26.0--*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    decoded = [line["decode_tok_s"] for line in days if line["kind"] == "batch_decode" and line["batch"] == 32]
    first = [sorted(line["runs"])[1] for line in days if line["kind"] == "prefill" and line["prompt"] == 8192]
    assert len(decoded) == len(first) == 2
    assert speeds[("requests", 32)][peers.STOCK] == max(decoded)
    assert speeds[("tokens", 8192)][peers.STOCK] == 1e3 * min(first)


def test_cell_that_was_not_measured_stays_empty():
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in peers.peers_table().splitlines()[2:]}
    assert rows["decode, 8 requests, tok/s"][5].strip(" |") == ""
    assert rows["first token of 20,000 tokens, ms"][2].strip(" |") == ""  # of the plugin
    assert rows["first token of 20,000 tokens, ms"][3].startswith("544")


def test_best_of_several_figures_in_a_row_is_bold_and_no_other():
    for row in peers.peers_table().splitlines()[2:]:
        figures = [cell.strip(" |") for cell in row.split(" | ")[1:]]
        known = [(float(figure.strip("*").replace(",", "")), figure) for figure in figures if figure]
        best = (min if ", ms" in row else max)(known)[0]
        is_best = [value == best and len(known) > 1 for value, _ in known]
        assert [figure.startswith("**") for _, figure in known] == is_best


def test_readme_shows_seven_measurements_of_the_same_table():
    whole, quick = peers.peers_table().splitlines(), peers.quick_table().splitlines()
    assert len(quick) == 2 + 7 and set(quick) <= set(whole)
