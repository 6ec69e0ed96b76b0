"""A reference of another model or tokenizer is not compared with."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from firesteel.lab.reference.match import check_same_model
from firesteel.lab.reference.reference import ReferenceFailed
from firesteel.lab.reference.texts import TextEncoder
from firesteel.lab.servers.target import Target
from tests.lab.reference.test_recorded import reference_of


def check(served, *, probe=(1, 2, 3), named="", **fields):
    target = Target(api=SimpleNamespace(model=served), kind="other", folder=Path(), model=named or served)
    encoder = None if probe is None else TextEncoder(encode=lambda text: list(probe))
    check_same_model(target, reference_of(**fields), encoder)


@pytest.mark.parametrize("probe", [(1, 2, 3), None, (0, 1, 2, 3)])
def test_same_model_by_another_name_is_accepted(probe):
    check("openai/gpt-oss-120b", probe=probe)


def test_model_may_be_named_on_either_side():
    check("served", named="/models/gpt-oss-120b")
    check("mine", checkpoint="/models/mine")
    with pytest.raises(ReferenceFailed, match=r"reference is of gpt-oss-120b, this server has served: .* --model"):
        check("served")


def test_reference_of_another_size_is_refused():
    with pytest.raises(ReferenceFailed, match="reference is of gpt-oss-120b, this server has gpt-oss-20b"):
        check("gpt-oss-20b")


@pytest.mark.parametrize("probe", [(1, 2, 4), (1, 2), (9, 9, 1, 2, 3), ()])
def test_reference_with_another_tokenizer_is_refused(probe):
    with pytest.raises(ReferenceFailed, match="another tokenizer"):
        check("gpt-oss-120b", probe=probe)
