"""Declarations of the settings: frozen, unique names, help, and defaults that pass their checks."""

import dataclasses

import pytest

from firesteel.config import Config, knobs

EVERY_KNOB = [pytest.param(knob, id=name) for name, knob in knobs().items()]


@pytest.mark.parametrize("section", [field.name for field in dataclasses.fields(Config)])
def test_config_is_frozen(section):
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, section, None)
    inner = getattr(config, section)
    for field in dataclasses.fields(inner):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(inner, field.name, None)


def test_knob_names_are_unique_over_sections():
    declared = [
        field.name for section in dataclasses.fields(Config) for field in dataclasses.fields(section.default)
    ]
    assert sorted(declared) == sorted(knobs())


def test_environment_names_are_unique_and_spell_the_knob():
    names = [knob.env for knob in knobs().values()]
    assert len(set(names)) == len(names)
    assert names == [f"FIRESTEEL_{knob.name.upper()}" for knob in knobs().values()]
    assert "FIRESTEEL_CONFIG" not in names


@pytest.mark.parametrize("knob", EVERY_KNOB)
def test_default_passes_its_own_check_and_has_help(knob):
    assert type(knob.default) is knob.type
    assert knob.check is None or knob.check(knob.default) is None
    assert len(knob.help) > 10
