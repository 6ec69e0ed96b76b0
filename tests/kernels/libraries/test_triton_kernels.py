"""triton_kernels: when it is refused, how pairs are given to it, and what the ledger says of its launches."""

import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.ledger import Ledger, Ran
from firesteel.kernels.libraries import triton_kernels
from firesteel.kernels.libraries.package import LibraryPackage
from firesteel.kernels.libraries.triton_kernels import lacks_triton_kernels, noting_launches, pack_bits
from tests.kernels.libraries.stand_in import make_library, use_stand_in

CPU = find_device("cpu")
HOPPER = replace(CPU, capability=(9, 0), name="NVIDIA H200")


@pytest.fixture
def found(tmp_path, monkeypatch):
    """A folder with the modules that are looked for."""
    package = LibraryPackage("triton_kernels", "1.0", tmp_path)
    for name in triton_kernels.MODULES:
        (tmp_path / name).touch()
    monkeypatch.setattr(triton_kernels, "find_triton_kernels", lambda: package)
    return tmp_path


def test_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(triton_kernels, "find_triton_kernels", lambda: None)
    why = lacks_triton_kernels(HOPPER)
    assert "triton_kernels, which is not installed" in why and "firesteel[triton-kernels]" in why


def test_another_project_of_the_same_name_and_later_versions_are_refused(found):
    (found / "routing.py").unlink()
    why = lacks_triton_kernels(HOPPER)
    assert f"triton_kernels 1.0 at {found} has no routing.py" in why and "another project" in why


def test_library_without_triton_is_refused(found, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert lacks_triton_kernels(HOPPER) == "needs Triton, which is not installed"


@pytest.mark.parametrize("capability", [None, (8, 0), (10, 0), (12, 1)])
def test_order_of_the_experts_is_for_hopper_only(found, capability):
    assert "SM90" in lacks_triton_kernels(replace(CPU, capability=capability, name="GPU"))
    assert lacks_triton_kernels(HOPPER) is None


def test_asking_whether_it_can_run_imports_nothing(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton_kernels", None)
    assert lacks_triton_kernels(HOPPER) is None


def test_bits_are_those_of_the_chosen_experts(monkeypatch):
    ids = torch.tensor([[0, 31, 32, 127], [63, 64, -1, 96], [-1, -1, -1, -1]])
    bits = pack_bits(ids, 128).view(torch.uint32).long()
    set_bits = [[32 * word + bit for word in range(4) for bit in range(32) if row[word] >> bit & 1] for row in bits]
    assert set_bits == [[0, 31, 32, 127], [63, 64, 96], []]
    assert pack_bits(ids[:, :1], 33).shape == (3, 2)


def test_routing_is_given_ids_of_16_bits_and_the_weights_as_they_are(monkeypatch):
    given = []
    library = make_library()
    library.routing.routing_from_bitmatrix = lambda *args: given.append(args) or ("data", "gather", "scatter")
    use_stand_in(monkeypatch, library)
    ids, weights = torch.tensor([[3, 1]]), torch.tensor([[0.25, 0.75]])
    assert triton_kernels.route(ids, weights, 5) == ("data", "gather", "scatter")
    mask, passed, short, *sizes = given[0]
    assert mask.shape == [1, 32] and mask.data.dtype == torch.uint32 and int(mask.data[0, 0]) == 0b1010
    assert passed is weights and short.dtype == torch.int16 and short.tolist() == [[3, 1]] and sizes == [5, 2]


def test_ledger_names_the_kernels_the_version_and_the_place(monkeypatch):
    knobs = pytest.importorskip("triton").knobs
    use_stand_in(monkeypatch)
    compiled = SimpleNamespace(function=77, hash="c0de")
    kernel = SimpleNamespace(device_caches={0: ({"key": compiled}, {})})
    monkeypatch.setitem(sys.modules, "matmul_ogs_test", SimpleNamespace(kernel=kernel))
    ledger = Ledger()

    def launch():
        with noting_launches():
            for name, function in (("_matmul_ogs_a", 77), ("_matmul_ogs_a", 77), ("_topk", 78)):
                knobs.runtime.launch_enter_hook(SimpleNamespace(data={"name": name, "function": function}))
        knobs.runtime.launch_enter_hook(SimpleNamespace(data={}))  # nothing listens any more

    triton_kernels._find_compiled.cache_clear()
    ledger.run(Ran("moe_matmul", "triton_kernels"), launch)
    triton_kernels._find_compiled.cache_clear()
    (entry,) = ledger.entries.values()
    lines = {(launch.kernel, launch.tile, launch.artefact): count for launch, count in entry.launches.items()}
    library = "triton_kernels 1.0 at FOLDER"
    assert lines == {("_matmul_ogs_a", library, "c0de"): 2, ("_topk", library, "_topk 78"): 1}


def test_package_that_cannot_be_imported_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "__init__.py").write_text("raise ImportError('needs a newer Triton')", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "triton_kernels", raising=False)
    package = LibraryPackage("triton_kernels", "1.0", tmp_path)
    for _ in range(2):
        with pytest.raises(ImportError, match="needs a newer Triton"):
            triton_kernels._import_from(package)
    assert "triton_kernels" not in sys.modules
