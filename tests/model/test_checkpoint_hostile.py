"""Hostile and damaged checkpoints: each is refused with one line that names the file, within seconds."""

import json
import os
import shutil
import signal
import socket
from contextlib import contextmanager

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from firesteel.chat.tokenizer import Tokenizer
from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.kernels.rope import RopeSpec
from firesteel.llm import read_stop_ids
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.shards import find_tensors
from firesteel.model.spec import ModelSpec, read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import load_weights
from firesteel.server.generate.sampling import read_defaults

CPU = find_device("cpu")
DEADLINE_S = 6.0  # three times the 2 s that a fault may take: this is about hanging, not about speed
SPEC = ModelSpec(
    num_layers=2,
    hidden_size=64,
    intermediate_size=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    num_experts=4,
    num_active=2,
    vocab_size=300,
    windows=(8, None),
    rope=RopeSpec(theta=10000.0, factor=2.0),
    max_context=256,
)
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
GENERATION, TOKENIZER = "generation_config.json", "tokenizer.json"
NORM = "model.norm.weight"
DEEP = "[" * 100_000 + "]" * 100_000
NUMBERS = [-1, 0, 1.5, "64", None, True, [64], {"a": 1}, 2**62, 10**30, 10**400, 1e308]
JSON_FAULTS = {
    "empty": "",
    "a list": "[]",
    "a number": "5",
    "null": "null",
    "a text": '"x"',
    "cut off": "{",
    "two objects": "{}{}",
    "deep lists": '{"a":' + DEEP + "}",
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "65 levels": '{"a":' * 66 + "1" + "}" * 66,
    "duplicate name": '{"a": 1, "a": 1}',
    "NaN": '{"a": NaN}',
    "Infinity": '{"a": -Infinity}',
    "long integer": '{"a": ' + "9" * 5000 + "}",
    "byte order mark": "\ufeff{}",
    "UTF-16": "{}".encode("utf-16"),
    "bytes": b"\xff\xfe\x00",
    "nul bytes": bytes(1000),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Returns two folders of one checkpoint: in one file, and in shards."""
    vocab = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    folders = {}
    for shape, shard_bytes in (("single", None), ("sharded", 20_000)):
        folder = folders[shape] = tmp_path_factory.mktemp(shape)
        save_checkpoint(folder, SPEC, synthetic_weights(SPEC, CPU, seed=3), shard_bytes=shard_bytes)
        backend.save(str(folder / TOKENIZER))
        (folder / GENERATION).write_text('{"eos_token_id": [1, 2], "temperature": 0.5}')
    return folders


@contextmanager
def deadline():
    def stop(*_):
        raise TimeoutError(f"no answer within {DEADLINE_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def open_checkpoint(folder):
    """Reads every file of a checkpoint in the order of a server's start."""
    spec = read_spec(folder)
    Tokenizer.load(folder).check_fits(spec.vocab_size)
    read_stop_ids(folder)
    read_defaults(folder)
    load_weights(folder, spec, CPU, workers=2, reserve_gib=0.0)


def refusal(folder):
    with deadline(), pytest.raises(UserError) as raised:
        open_checkpoint(folder)
    message = str(raised.value)
    assert message.isprintable() and len(message) < 600, message
    return message


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))


def edit_config(folder, **changes):
    content = json.loads((folder / CONFIG).read_text())
    write(folder / CONFIG, json.dumps({**content, **changes}))


def edit_header(folder, change):
    """Rewrites the header after `change(header)`, which may return something else to write."""
    data = (folder / SINGLE).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    replaced = change(header)
    write_header(folder, header if replaced is None else replaced, data[end:])


def write_header(folder, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    write(folder / SINGLE, len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def single(sound, tmp_path):
    return shutil.copytree(sound["single"], tmp_path / "model")


@pytest.fixture
def sharded(sound, tmp_path):
    return shutil.copytree(sound["sharded"], tmp_path / "model")


def test_the_sound_checkpoints_load(single, sound):
    open_checkpoint(single)
    open_checkpoint(sound["sharded"])


def test_links_out_of_the_folder_load_as_in_the_hugging_face_cache(sharded, tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(sharded.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    open_checkpoint(snapshot)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (name, fault)
        for name in (CONFIG, GENERATION, TOKENIZER, INDEX)
        for fault in JSON_FAULTS
        if (name, fault) != (TOKENIZER, "duplicate name")  # its own library reads it, and takes the last one
    ],
)
def test_file_that_is_not_a_plain_json_object(single, name, fault):
    write(single / name, JSON_FAULTS[fault])
    assert name in refusal(single)


@pytest.mark.parametrize("fault", JSON_FAULTS)
def test_header_that_is_not_a_plain_json_object(single, fault):
    content = JSON_FAULTS[fault]
    write_header(single, content if isinstance(content, bytes) else content.encode())
    assert SINGLE in refusal(single)


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


SPECIAL_FILES = {
    "FIFO": make_fifo,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "socket": make_socket,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a FIFO": lambda path: (os.mkfifo(path.with_name("fifo")), path.symlink_to("fifo")),
    "file without end": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.parametrize("kind", SPECIAL_FILES)
@pytest.mark.parametrize("name", [CONFIG, GENERATION, TOKENIZER, INDEX, SINGLE])
def test_file_that_is_not_a_regular_one(single, name, kind, monkeypatch):
    monkeypatch.chdir(single)  # a socket's path is short
    (single / name).unlink(missing_ok=True)
    SPECIAL_FILES[kind](single / name)
    assert name in refusal(single)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_shard_that_is_not_a_regular_file(sharded, kind, monkeypatch):
    monkeypatch.chdir(sharded)
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    SPECIAL_FILES[kind](shard)
    assert shard.name in refusal(sharded)


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize(
    "name",
    [
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "num_local_experts",
        "num_experts_per_tok",
        "vocab_size",
        "sliding_window",
        "max_position_embeddings",
    ],
)
def test_size_of_the_wrong_type_or_magnitude(single, name, value):
    edit_config(single, **{name: value})
    message = refusal(single)
    assert CONFIG in message and name in message


@pytest.mark.parametrize("layers", [10**6, 10**9, 10**30, 2**62, 1025])
def test_number_of_layers_that_would_take_for_ever(single, layers):
    edit_config(single, num_hidden_layers=layers, layer_types=None)
    assert "num_hidden_layers" in refusal(single)


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e999", "-1e999", "1e300", "0", '"1"', "[]"])
@pytest.mark.parametrize("name", ["rms_norm_eps", "swiglu_limit", "rope_theta"])
def test_constant_of_the_wrong_type_or_magnitude(single, name, value):
    text = (single / CONFIG).read_text()
    content = json.loads(text)
    write(single / CONFIG, text.replace(f'"{name}": {json.dumps(content[name])}', f'"{name}": {value}'))
    assert CONFIG in refusal(single)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 1},
        {"rope_theta": 0.5},
        {"layer_types": {}},
        {"layer_types": ""},
        {"layer_types": 0},
        {"layer_types": [5, []]},
        {"layer_types": ["full_attention"] * 100_000},
        {"rope_scaling": []},
        {"rope_scaling": False},
        {"rope_scaling": "yarn"},
        {"rope_scaling": {"rope_type": ["yarn"]}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 10**400}},
        {"quantization_config": []},
        {"quantization_config": {"quant_method": ["mxfp4"]}},
        {"quantization_config": {"quant_method": "mxfp4", "mxfp4_layers": [["moe"]]}},
        {"quantization_config": {"quant_method": "mxfp4", "mxfp4_layers": "moe"}},
        {"model_type": ["gpt_oss"]},
        {"model_type": "x" * 1_000_000},
        {"attention_bias": 1},
        {"tie_word_embeddings": 0},
        {"\x1b[2J\n": 1},
        {"x" * 1_000_000: 1},
        {"\ud800": 1},
    ],
    ids=lambda changes: ascii(changes)[:60],
)
def test_config_with_other_faults(single, changes):
    edit_config(single, **changes)
    assert CONFIG in refusal(single)


OFFSETS = [None, 5, [], [0], [0, 1, 2], ["0", "128"], [-128, 0], [0, 2**62], [128, 0], [0, 1e3], {"a": 1}]
HEADER_ENTRIES = {
    "no object": [None, 5, "x", [], {}],
    "dtype": [None, 5, [], ["BF16"], {"a": 1}, "BF17", "F64", ""],
    "shape": [None, 5, "64", [None], ["64"], [64.0], [-64], [2**62], [2**64, 2**64], [[64]], [True], [1] * 99_999],
    "data_offsets": OFFSETS,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in HEADER_ENTRIES.items() for value in values],
    ids=lambda value: ascii(value)[:40],
)
def test_header_entry_that_is_malformed(single, field, value):
    def change(header):
        header[NORM] = value if field == "no object" else {**header[NORM], field: value}

    edit_header(single, change)
    message = refusal(single)
    assert SINGLE in message and NORM in message


@pytest.mark.parametrize("name", ["dtype", "shape", "data_offsets"])
def test_header_entry_that_lacks_a_field(single, name):
    edit_header(single, lambda header: header[NORM].pop(name) and None)
    assert NORM in refusal(single)


def by_offset(header):
    return sorted(
        (name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"]
    )


def test_two_tensors_on_the_same_bytes(single):
    def change(header):
        weights = [name for name in by_offset(header) if name.endswith("layernorm.weight")]
        header[weights[1]]["data_offsets"] = header[weights[0]]["data_offsets"]

    edit_header(single, change)
    assert "overlaps" in refusal(single)


def test_tensors_that_overlap_in_part(single):
    def change(header):
        begin, end = header[NORM]["data_offsets"]
        header[NORM]["data_offsets"] = [begin - 2, end - 2]

    edit_header(single, change)
    assert "overlaps" in refusal(single) or "gap" in refusal(single)


def test_bytes_of_no_tensor(single):
    data = (single / SINGLE).read_bytes()
    write(single / SINGLE, data + b"PK\x03\x04")
    assert "4 bytes after its last tensor" in refusal(single)
    edit_header(single, lambda header: header.pop(by_offset(header)[0]) and None)
    assert "leaves a gap after the header" in refusal(single)


@pytest.mark.parametrize("metadata", [None, 5, [], "x"])
def test_metadata_that_is_not_an_object(single, metadata):
    edit_header(single, lambda header: header.update({"__metadata__": metadata}))
    assert "__metadata__" in refusal(single)


@pytest.mark.parametrize("length", [0, 2**62, 2**63, 2**64 - 1, 1 << 30])
def test_header_of_an_impossible_length(single, length):
    data = (single / SINGLE).read_bytes()
    write(single / SINGLE, length.to_bytes(8, "little") + data[8:])
    assert "is cut off inside its header" in refusal(single)


def test_header_above_the_limit(single):
    write_header(single, b" " * (9 << 20) + b"{}")
    assert "the limit is" in refusal(single)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 0.1, 0.5, -1])
def test_file_that_is_cut_off(single, keep):
    data = (single / SINGLE).read_bytes()
    write(single / SINGLE, data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    assert SINGLE in refusal(single)


INDEX_VALUES = [
    5,
    None,
    True,
    ["a"],
    {"a": 1},
    "",
    ".",
    "..",
    "../x",
    "../model/model-00001-of-00009.safetensors",
    "./model-00001-of-00009.safetensors",
    "/etc/passwd",
    "/dev/zero",
    "//x.safetensors",
    "a\\..\\x\x00.safetensors",
    "x\n.safetensors",
    "\x1b]0;x\x07.safetensors",
    "\ud800.safetensors",
    "x" * 5000 + ".safetensors",
    "config.json",
]


@pytest.mark.parametrize("value", INDEX_VALUES, ids=lambda value: ascii(value)[:40])
def test_index_that_names_something_else_than_a_file_of_its_folder(sharded, value):
    content = json.loads((sharded / INDEX).read_text())
    content["weight_map"][NORM] = value
    write(sharded / INDEX, json.dumps(content))
    assert INDEX in refusal(sharded)


@pytest.mark.parametrize("weight_map", [None, 5, [], ["a"], "x", {}])
def test_index_without_a_map(sharded, weight_map):
    write(sharded / INDEX, json.dumps({"weight_map": weight_map}))
    assert INDEX in refusal(sharded) or weight_map == {}


def test_index_that_names_a_file_of_another_folder_is_refused_though_the_file_is_sound(sharded, sound):
    content = json.loads((sharded / INDEX).read_text())
    elsewhere = os.path.relpath(sound["sharded"], sharded)
    content["weight_map"] = {name: f"{elsewhere}/{file}" for name, file in content["weight_map"].items()}
    write(sharded / INDEX, json.dumps(content))
    with pytest.raises(UserError, match=r"not the name of a \.safetensors file in this folder"):
        find_tensors(sharded)


@pytest.mark.parametrize(
    "changes",
    [
        {"eos_token_id": "x"},
        {"eos_token_id": [None]},
        {"eos_token_id": -1},
        {"eos_token_id": 2**62},
        {"eos_token_id": True},
        {"eos_token_id": {}},
        {"temperature": "hot"},
        {"temperature": -1},
        {"temperature": 10**400},
        {"temperature": []},
        {"top_p": 2},
        {"top_k": 1.5},
        {"top_k": 2**70},
        {"repetition_penalty": 0},
    ],
    ids=str,
)
def test_generation_config_with_bad_values(single, changes):
    write(single / GENERATION, json.dumps(changes))
    message = refusal(single)
    assert GENERATION in message and next(iter(changes)) in message


def edit_tokenizer(folder, change):
    content = json.loads((folder / TOKENIZER).read_text())
    change(content)
    write(folder / TOKENIZER, json.dumps(content))


def add_token(token_id):
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return lambda content: content["added_tokens"].append({**token, "id": token_id, "content": "<|x|>"})


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["model"]["vocab"].update({"日": 256}),
        lambda content: content["model"]["vocab"].update({"ab": 2**31}),
        lambda content: content["model"]["vocab"].update({"ab": -1}),
        lambda content: content["model"]["vocab"].pop("a"),
        lambda content: content["model"].update(merges=[["a", "zz"]]),
        lambda content: content["model"].update(merges=5),
        lambda content: content.update(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}),
        lambda content: content.update(decoder=None),
        lambda content: content.update(model={"type": "Unigram", "vocab": []}),
        lambda content: content.update(added_tokens=5),
        add_token(2**40),
    ],
)
def test_tokenizer_with_bad_content(single, change):
    edit_tokenizer(single, change)
    assert TOKENIZER in refusal(single)


def test_tokenizer_of_a_larger_model(single):
    edit_config(single, vocab_size=200)
    assert "tokens up to id 255, but the model's vocabulary has 200" in refusal(single)
