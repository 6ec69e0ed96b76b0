"""The verb `lab report`: writes a report again."""

import json


def test_report_is_written_beside_the_result(run, tmp_path):
    level = {"level": "1", "title": "smoke", "passed": True, "reason": "it answered", "figures": {}}
    (tmp_path / "result.json").write_text(json.dumps({"levels": [level]}))
    assert run("lab", "report", str(tmp_path)).exit_code == 0
    assert "it answered" in (tmp_path / "report.html").read_text()
    assert run("lab", "report", str(tmp_path / "result.json"), "--out", str(tmp_path / "other")).exit_code == 0
    assert "it answered" in (tmp_path / "other" / "report.md").read_text()
    assert 'href="../result.json"' in (tmp_path / "other" / "report.html").read_text()


def test_missing_result_is_reported(run, tmp_path):
    assert "cannot read" in str(run("lab", "report", str(tmp_path)).exception)
