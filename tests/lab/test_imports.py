"""Where packages come from."""

import psutil

from firesteel.lab.imports import find_libraries, find_packages, judge_places


def test_own_packages_are_found_where_they_are():
    import firesteel

    found = find_packages(psutil.Process(), ["firesteel", "no_such_package"])
    assert found["firesteel"] + "/__init__.py" == firesteel.__file__ and found["no_such_package"] is None


def test_loaded_machine_code_of_torch_is_seen():
    import torch

    [place] = find_libraries([psutil.Process()])["torch"]
    assert torch.__file__.startswith(place)


def test_faults_are_missing_packages_and_machine_code_from_elsewhere():
    assert not judge_places({"torch": "/a/torch"}, {"torch": ["/a/torch"], "numpy": ["/a/numpy"]})
    [missing] = judge_places({"vllm": None}, {})
    assert "vllm cannot be imported" in missing
    [elsewhere] = judge_places({"torch": "/a/torch"}, {"torch": ["/b/torch"]})
    assert "imported from /a/torch, but machine code from /b/torch" in elsewhere
    [twice] = judge_places({}, {"flashinfer": ["/a/flashinfer", "/b/flashinfer"]})
    assert "two places" in twice
