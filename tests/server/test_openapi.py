"""The OpenAPI document is right: it has every path and real types, and schemathesis finds no answer outside it."""

import collections
import json
import re
import subprocess
import sys

import pytest

CASES = 2000
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


@pytest.fixture(scope="module")
def document(shared_server):
    return shared_server.get("/openapi.json").json()


def test_every_path_is_documented(document, shared_server):
    paths = set(document["paths"])
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models/{name}", "/health"} <= paths
    assert {"/v1/messages", "/v1/messages/count_tokens"} <= paths
    assert {"/tokenize", "/detokenize", "/metrics", "/ledger"} <= paths
    assert {"/version", "/ping", "/load", "/server_info", "/tokenizer_info"} <= paths
    assert {"/api/version", "/api/tags", "/api/show"} <= paths and set(document["paths"]["/ping"]) == {
        "get",
        "post",
    }


def test_fields_have_their_types_and_bounds(document):
    chat = document["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"]
    temperature = chat["properties"]["temperature"]["anyOf"][0]
    assert temperature == {"type": "number", "minimum": 0, "maximum": 100}
    assert chat["properties"]["model"]["enum"] == ["tiny", None]
    assert chat["properties"]["stop_token_ids"]["anyOf"][0]["items"]["maximum"] == 271
    roles = chat["properties"]["messages"]["items"]["discriminator"]["mapping"]
    assert set(roles) == {"system", "developer", "user", "assistant", "tool"}


def test_type_of_a_part_is_required_only_to_tell_parts_apart(document, server):
    schemas = document["components"]["schemas"]
    assert schemas["TextPart"]["required"] == ["text"]
    assert schemas["AssistantTextPart"]["required"] == ["type", "text"]
    assert server.chat([{"text": "hi"}]).status == 200
    answer = server.post("/v1/chat/completions", {"messages": [{"role": "assistant", "content": [{"text": "hi"}]}]})
    assert answer.status == 400 and answer.error["param"] == "messages[0].content[0].type"


def test_references_resolve(document):
    text = json.dumps(document)
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in document["components"]["schemas"]


def test_answers_are_objects_streams_or_errors(document):
    answers = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
    assert {"400", "401", "404", "413", "422", "429", "503"} <= set(answers)
    assert document["paths"]["/health"]["get"]["responses"]["503"]["content"]["application/json"]


def test_errors_have_the_shape_of_their_api(document):
    for path, name in (("/v1/chat/completions", "ErrorAnswer"), ("/v1/messages", "AnthropicError")):
        answers = document["paths"][path]["post"]["responses"]
        schemas = {
            answers[status]["content"]["application/json"]["schema"]["$ref"] for status in ("400", "401", "503")
        }
        assert schemas == {f"#/components/schemas/{name}"}


@pytest.mark.slow
def test_schemathesis_finds_no_answer_outside_the_document(tmp_path):
    """The engine is a stub; everything before it is real. Failed checks and statuses are read from its report."""
    server = subprocess.Popen(
        [sys.executable, "-m", "firesteel.server.stub.server", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )
    try:
        url = server.stdout.readline().strip()
        statuses = run_schemathesis(url, tmp_path)
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
    total = sum(statuses.values())
    assert total >= CASES, statuses
    assert not [status for status in statuses if status >= 500], statuses
    assert sum(count for status, count in statuses.items() if 200 <= status < 300) >= 0.3 * total, statuses


def run_schemathesis(url, folder):
    """Returns the answers by status: of edge cases of the document, then of requests that follow it."""
    statuses = collections.Counter()
    for mode, phase in (("all", "coverage"), ("positive", "coverage,fuzzing")):
        report = folder / f"report-{mode}.ndjson"
        command = [
            sys.executable,
            "-c",
            "from schemathesis.cli import schemathesis; schemathesis()",
            "run",
            f"{url}/openapi.json",
            "--phases",
            phase,
            "--max-examples",
            "200",
            "--mode",
            mode,
            "--seed",
            "1",
            "--checks",
            ",".join(CHECKS),
            "--report",
            "ndjson",
            "--report-ndjson-path",
            str(report),
            "--no-color",
        ]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=folder, timeout=900)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        statuses.update(int(status) for status in re.findall(r'"status_code": ?(\d+)', report.read_text()))
    return statuses
