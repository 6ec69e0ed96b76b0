"""The Grafana dashboard of docs/recipes.md shows metrics that the server exports."""

import json
import re

from firesteel.engine.statistics import Statistics
from firesteel.server.observe.metrics import Metrics
from tests.docs.markdown import ROOT

DASHBOARD = ROOT / "docs" / "files" / "grafana-dashboard.json"


def test_every_metric_of_the_dashboard_is_exported():
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    named = {name for text in expressions for name in re.findall(r"(?:vllm:|firesteel_)\w+", text)}
    metrics = Metrics("kindling")
    metrics.count_answer("/v1/completions", 200)
    text = metrics.render(Statistics(), num_deaths=0, num_under_way=0).decode()
    exported = set(re.findall(r"^((?:vllm:|firesteel_)\w+)[{ ]", text, re.M))
    exported |= set(re.findall(r"^# TYPE (\S+)", text, re.M))
    assert len(named) > 15
    assert named - exported == set()
    assert len({panel["id"] for panel in panels}) == len(panels)
