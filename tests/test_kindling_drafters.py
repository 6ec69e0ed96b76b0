"""The drafters that ship for Kindling are small."""

from firesteel.hub import BUILT_IN

LIMIT = 4_000_000  # bytes, of both together
SHARES = {"kindling_eagle3": 2_200_000, "kindling_dflash": LIMIT}


def folder_bytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_drafters_take_little_room():
    sizes = {name: folder_bytes(BUILT_IN.with_name(name)) for name in SHARES if BUILT_IN.with_name(name).is_dir()}
    assert "kindling_eagle3" in sizes and sum(sizes.values()) <= LIMIT, sizes
    assert all(size <= SHARES[name] for name, size in sizes.items()), sizes


def test_drafters_have_weights_config_and_card():
    for folder in filter(lambda folder: folder.is_dir(), (BUILT_IN.with_name(name) for name in SHARES)):
        names = {file.name for file in folder.iterdir()}
        assert {"config.json", "model.safetensors", "README.md"} <= names
