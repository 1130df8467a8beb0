"""Folders of images by client and label."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedspend.data.image_folders import read_images
from fedspend.errors import InvalidInput

PIL = pytest.importorskip("PIL.Image")
DECLARED = {"labels": ["cat", "dog"], "image_size": [1, 4, 6]}


def picture(seed: int, size=(4, 6), mode: str = "L") -> np.ndarray:
    shape = size if mode == "L" else (*size, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def root(tmp_path):
    def save(name: str, seed: int, **how) -> None:
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        PIL.fromarray(picture(seed, **how)).save(file)

    save("anna/cat/1.png", 1)
    save("anna/dog/2.png", 2)
    save("ben/dog/1.png", 3)
    (tmp_path / "images" / ".DS_Store").write_text("x")
    (tmp_path / "images" / "empty").mkdir()
    return tmp_path / "images"


def test_images_are_read_by_client_and_label(root):
    rows = read_images(root, **DECLARED, record="file")
    assert rows.clients == ("anna", "ben")
    assert rows.labels.tolist() == [0, 1, 1]
    assert rows.record_of.tolist() == ["anna/cat/1.png", "anna/dog/2.png", "ben/dog/1.png"]
    np.testing.assert_array_equal(rows.features[0, 0], picture(1).astype(np.float32) / 255)


def test_images_are_brought_to_the_declared_size_and_colours(root):
    PIL.fromarray(picture(9, (8, 9), "RGB")).save(root / "ben" / "dog" / "big.png")
    rows = read_images(root, labels=["cat", "dog"], image_size=[3, 4, 6])
    assert rows.features.shape == (4, 3, 4, 6)
    assert rows.features.min() >= 0
    assert rows.features.max() <= 1
    grey = read_images(root, **DECLARED)
    assert grey.features.shape == (4, 1, 4, 6)


def test_one_clients_images_do_not_change_anothers(root):
    before = read_images(root, **DECLARED)
    PIL.fromarray(picture(10, (40, 40), "RGB")).save(root / "ben" / "cat.tmp", "PNG")
    (root / "ben" / "cat").mkdir()
    (root / "ben" / "cat.tmp").rename(root / "ben" / "cat" / "0.png")
    after = read_images(root, **DECLARED)
    for rows in (before, after):
        assert rows.features[rows.client_of == "anna"].tobytes() == (
            before.features[before.client_of == "anna"].tobytes()
        )
    assert len(after.labels) == 4


def test_public_test_images_have_labels_and_public_images_none(root, tmp_path):
    for name in ("tests/cat/a.png", "plain/b.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        PIL.fromarray(picture(5)).save(tmp_path / name)
    rows = read_images(
        root, test_path=tmp_path / "tests", public_path=tmp_path / "plain", **DECLARED
    )
    assert rows.test_labels.tolist() == [0]
    assert rows.public_features.shape == (1, 1, 4, 6)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"image_size": None}, r"image_size is missing: .* image_size = \[1, 28, 28\]"),
        ({"image_size": [28, 28]}, "channels, height and width"),
        ({"image_size": [2, 28, 28]}, r"1 channel \(grey\) or 3"),
        ({"image_size": [1, 28, 99999]}, "sides of at most"),
        ({"labels": None}, "classes is missing"),
        ({"labels": ["cat", "cow"]}, r"dog: 'dog' is not among the classes cat, cow"),
        ({"record": "patient"}, 'record is "file"'),
    ],
)
def test_what_is_not_declared_is_refused(root, options, told):
    with pytest.raises(InvalidInput, match=told):
        read_images(root, **DECLARED | options)


def test_files_that_are_no_images_are_refused_by_name(root, tmp_path):
    bad = root / "anna" / "cat" / "bad.png"
    bad.write_text("hello")
    with pytest.raises(InvalidInput, match=r"bad.png: is no image that is whole"):
        read_images(root, **DECLARED)
    bad.write_bytes((root / "anna" / "cat" / "1.png").read_bytes()[:50])
    with pytest.raises(InvalidInput, match=r"bad.png: "):
        read_images(root, **DECLARED)
    bad.unlink()
    PIL.fromarray(np.zeros((4, 6), dtype=np.uint16)).save(bad)
    with pytest.raises(InvalidInput, match=r"bad.png: its pixels are of kind 'I;16'"):
        read_images(root, **DECLARED)
    bad.unlink()
    (root / "stray.png").write_text("x")
    with pytest.raises(InvalidInput, match=r"stray.png: is a file where a folder for each client"):
        read_images(root, **DECLARED)
    (root / "stray.png").unlink()
    (root / "anna" / "cat" / "deeper").mkdir()
    with pytest.raises(InvalidInput, match="is a folder where images were expected"):
        read_images(root, **DECLARED)
    with pytest.raises(InvalidInput, match="there is no such folder"):
        read_images(tmp_path / "nothing", **DECLARED)
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidInput, match=r"there is no image in it; images belong in CLIENT"):
        read_images(tmp_path / "none", **DECLARED)


def test_without_pillow_the_extra_is_named(root, monkeypatch):
    import PIL as package

    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.delattr(package, "Image")
    with pytest.raises(InvalidInput, match=r"pip install 'fedspend\[images\]'"):
        read_images(root, **DECLARED)
