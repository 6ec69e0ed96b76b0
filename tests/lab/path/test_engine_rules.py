"""Files of rules: complete, and refused by name if they are wrong."""

import pytest

from firesteel.errors import UserError
from firesteel.kernels.registry import find_op
from firesteel.lab.path.engine_rules import RULES, EngineRules, load_rules
from tests.lab.path.evidence_lines import B200, GB10, HOPPER

ENGINES = sorted(path.stem for path in RULES.glob("*.toml"))


@pytest.mark.parametrize("engine", ENGINES)
def test_rule_files_are_complete_and_have_usual_expectations_for_every_device(engine):
    rules = load_rules(engine)
    assert rules.engine == engine
    for device, capability in (("cpu", None), ("gpu", HOPPER), ("gpu", B200), ("gpu", GB10)):
        expectations = rules.find_expectations(device, capability)
        assert {"moe", "sinks"} <= expectations.required <= set(expectations.by_slot)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_named_path_is_a_set_of_expectations_of_some_slots(engine):
    rules = load_rules(engine)
    for path in {path.name for path in rules.paths if path.name}:
        expectations = rules.find_expectations("gpu", GB10, path=path)
        assert expectations.path == path and expectations.required and expectations.is_explicit


@pytest.mark.parametrize("engine", ENGINES)
def test_every_cure_is_of_a_value_that_can_be_seen(engine):
    rules = load_rules(engine)
    for slot, cures in rules.cures.items():
        for name in set(cures) - {"", "unseen"}:
            value = name.removeprefix("!")
            assert any(known == value or known.startswith(f"{value}:") for known in rules.values[slot]), (
                slot,
                name,
            )


@pytest.mark.parametrize(("engine", "prefix"), [("firesteel", ""), ("vllm+firesteel", "firesteel:")])
@pytest.mark.parametrize(
    ("slot", "op"),
    [("moe", "moe_matmul"), ("moe", "decode_experts"), ("dense", "linear"), ("attention", "attention")],
)
def test_every_implementation_of_ours_is_a_value_that_can_be_expected(engine, prefix, slot, op):
    families = {name.partition(":")[0] for name in find_op(op).implementations}
    assert {f"{prefix}{family}" for family in families} <= load_rules(engine).values[slot]


def test_unknown_engine_has_no_rules():
    assert load_rules("other") is None


def test_what_the_user_expects_replaces_a_path_slot_by_slot_and_alone_is_required():
    rules = load_rules("vllm")
    both = rules.find_expectations("gpu", GB10, path="native-fp4", expect="moe=trtllm,graphs=on")
    assert both.required == {"moe", "activation", "graphs"} and both.by_slot["moe"].text == "trtllm"
    assert both.by_slot["sinks"].text == "on"  # still must not be contradicted


def test_unknown_path_and_value_are_refused_with_the_known_ones():
    rules = load_rules("vllm")
    with pytest.raises(UserError, match="cpu, marlin, triton, cutlass"):
        rules.find_expectations("gpu", GB10, path="magic")
    with pytest.raises(UserError, match=r"--expect: attention=flashinfr can never be seen; values .*flashinfer"):
        rules.find_expectations("gpu", GB10, expect="attention=flashinfr")


HEAD = 'engine = "x"\npackages = []\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + '[[sign]]\nslot = "moe"\nvalue = "a"\nlog = ["("]\n[[path]]\n', r"x.toml: moe=a: '\('"),
        (HEAD + '[[sign]]\nslot = "experts"\nvalue = "a"\n[[path]]\n', "x.toml: 'experts' is not a slot"),
        (HEAD + '[[sign]]\nslot = "moe"\nlog = ["a"]\n[[path]]\n', "'a' of moe shows no value"),
        (HEAD + '[[sign]]\nslot = "moe"\nvalue = "a"\n[[path]]\nexpect = {moe = "b"}\n', "moe=b can never be seen"),
        (HEAD + '[[sign]]\nslot = "moe"\nvalue = "a"\n[[path]]\n[cures.expert]\n', "'expert' is not a slot"),
        ('engine = "x"\n', "not a file of rules"),
        ("nonsense", "not a file of rules"),
    ],
)
def test_invalid_rule_file_is_refused_by_name(text, words, tmp_path):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UserError, match=words):
        EngineRules.load(tmp_path / "x.toml")
