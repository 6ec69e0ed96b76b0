"""Declarations of the settings: frozen, unique names, help, and defaults that pass their checks."""

import dataclasses

import pytest

from firesteel.config import Config, all_settings

EVERY_KNOB = [pytest.param(setting, id=name) for name, setting in all_settings().items()]


@pytest.mark.parametrize("section", [field.name for field in dataclasses.fields(Config)])
def test_config_is_frozen(section):
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, section, None)
    inner = getattr(config, section)
    for field in dataclasses.fields(inner):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(inner, field.name, None)


def test_names_of_settings_are_unique_over_sections():
    declared = [
        field.name
        for section in dataclasses.fields(Config)
        for field in dataclasses.fields(getattr(Config(), section.name))
    ]
    assert sorted(declared) == sorted(all_settings())


def test_environment_names_are_unique_and_spell_the_setting():
    names = [setting.env for setting in all_settings().values()]
    assert len(set(names)) == len(names)
    assert names == [f"FIRESTEEL_{setting.name.upper()}" for setting in all_settings().values()]
    assert "FIRESTEEL_CONFIG" not in names


@pytest.mark.parametrize("setting", EVERY_KNOB)
def test_default_passes_its_own_check_and_has_help(setting):
    assert type(setting.default) is setting.type
    assert setting.check is None or setting.check(setting.default) is None
    assert len(setting.help) > 10
