"""Ollama's routes list the served models; the shapes are those that its clients read."""

from firesteel.server.status.ollama import describe_files


def test_version_is_one_that_has_the_responses_api(server):
    version = server.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)


def test_tags_name_every_served_model(open_server):
    server = open_server(model="gpt-oss-20b", served_model_name="gpt-oss:20b, mine")
    models = server.get("/api/tags").json()["models"]
    assert [model["name"] for model in models] == [model["model"] for model in models] == ["gpt-oss:20b", "mine"]
    assert models[0]["size"] > 0 and len(models[0]["digest"]) == 64
    assert models[0]["details"]["family"] == "gptoss" and models[0]["modified_at"].endswith("+00:00")


def test_show_says_context_and_capabilities(server):
    for field in ("model", "name"):
        shown = server.post("/api/show", {field: "tiny"}).json()
        assert shown["capabilities"] == ["completion", "tools", "thinking"]
        architecture = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{architecture}.context_length"] == 4096
    assert server.post("/api/show", {"model": "other"}).status == 404
    assert server.post("/api/show", {}).error["param"] == "model"


def test_digest_changes_with_the_files(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    size, digest = describe_files(tmp_path)
    assert size == 5 and describe_files(tmp_path) == (size, digest)
    (tmp_path / "config.json").write_text("{}")
    assert describe_files(tmp_path)[0] == 5 and describe_files(tmp_path)[1] != digest
