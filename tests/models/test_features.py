from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="features need the train extra")

from fedspend.data import load  # noqa: E402
from fedspend.errors import InvalidInput  # noqa: E402
from fedspend.models.feature_cache import cached_features  # noqa: E402
from fedspend.models.features import LENGTH, NAMES, features, gabor_kernels  # noqa: E402


def images(count: int, shape=(1, 28, 28), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, *shape), dtype=np.float32)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (1, 5, 60), (1, 1, 1)])
def test_every_size_gives_the_same_number_of_finite_features(shape, name):
    values = features(name, images(3, shape))
    assert values.shape == (3, LENGTH) == (3, 449)
    assert values.dtype == np.float32
    assert np.isfinite(values).all()


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shape", "count"), [((1, 28, 28), 150), ((1, 8, 8), 30), ((3, 32, 32), 30)]
)
def test_an_image_does_not_feel_the_others(shape, count, name):
    """Bit for bit: in another order, alone, and among other images; within a chunk and across
    chunks.
    """
    rows = images(count, shape)
    together = features(name, rows)
    order = np.random.default_rng(1).permutation(count)
    np.testing.assert_array_equal(features(name, rows[order]), together[order])
    np.testing.assert_array_equal(features(name, rows[7:8]), together[7:8])
    others = images(count, shape, seed=2) * 100
    others[-1] = rows[7]
    np.testing.assert_array_equal(features(name, others)[-1], together[7])


def test_features_are_standardised_within_the_image():
    values = features("gabor", images(4) * np.float32([1, 5, 0.3, 2])[:, None, None, None])
    for part in (values[:, :400], values[:, 400:]):
        np.testing.assert_allclose(part.mean(1), 0, atol=1e-5)
        np.testing.assert_allclose(part.std(1), 1, atol=0.05)


def test_each_band_is_standardised_by_itself_and_is_otherwise_the_same():
    rows = images(4)
    plain, bands = features("gabor", rows), features("gabor-bands", rows)
    for part in (slice(0, 200), slice(200, 400)):
        np.testing.assert_allclose(bands[:, part].mean(1), 0, atol=1e-5)
        np.testing.assert_allclose(bands[:, part].std(1), 1, atol=0.05)
        assert np.abs(plain[:, part].mean(1)).min() > 0.05, "one band has more energy"
        for one, other in zip(plain[:, part], bands[:, part], strict=True):
            np.testing.assert_allclose(np.corrcoef(one, other)[0, 1], 1, atol=1e-5)
    np.testing.assert_array_equal(bands[:, 400:], plain[:, 400:])


def test_an_image_of_one_colour_is_finite_and_small():
    values = features("gabor", np.zeros((2, 1, 28, 28), dtype=np.float32))
    np.testing.assert_array_equal(values, 0)


def test_filters_see_edges_and_not_brightness():
    kernels = gabor_kernels()
    assert kernels.shape[:2] == (32, 1)
    sums = kernels.flatten(1).sum(1)
    assert sums.abs().max() < 1e-5
    np.testing.assert_allclose(kernels.flatten(1).norm(dim=1), 1, rtol=1e-5)


def test_an_orientation_answers_to_its_own_stripes():
    """Vertical stripes vary along x (angle 0), horizontal ones along y (a quarter turn)."""
    line = np.sin(2 * np.pi * np.arange(28) / 4).astype(np.float32)
    vertical = np.broadcast_to(line, (28, 28))
    both = features("gabor", np.stack([vertical, vertical.T])[:, None])
    energy = both[:, :400].reshape(2, -1, 25).mean(2)
    angles = energy.shape[1] // 2  # per wavelength; the first wavelength is the stripes' own
    assert energy[0].argmax() == 0
    assert energy[1].argmax() == angles // 2


def test_the_thumbnail_is_the_mean_of_its_cells():
    rows = images(1)
    cells = rows.reshape(7, 4, 7, 4).mean((1, 3)).ravel()
    expected = (cells - cells.mean()) / (cells.std() + 1e-3)
    np.testing.assert_allclose(features("gabor", rows)[0, 400:], expected, atol=1e-5)


def test_channels_are_averaged():
    rows = images(2, (3, 28, 28))
    np.testing.assert_allclose(
        features("gabor", rows), features("gabor", rows.mean(1, keepdims=True)), atol=1e-4
    )


@pytest.mark.full
def test_a_data_set_with_features_keeps_its_labels(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSPEND_CACHE", str(tmp_path))
    data = load("digits")
    seen = cached_features("gabor", data)
    assert (seen.features.shape, seen.test_features.shape) == ((1437, 449), (360, 449))
    assert seen.labels is data.labels
    centres = np.stack([seen.features[seen.labels == label].mean(0) for label in range(10)])
    nearest = ((seen.test_features[:, None] - centres) ** 2).sum(2).argmin(1)
    assert (nearest == seen.test_labels).mean() > 0.9


def test_bad_requests():
    with pytest.raises(InvalidInput, match="unknown features 'gabro'; did you mean 'gabor'"):
        features("gabro", images(1))
    with pytest.raises(
        InvalidInput, match=r"need images \(n, channels, height, width\), got shape \(2, 104\)"
    ):
        features("gabor", np.zeros((2, 104), dtype=np.float32))
    with pytest.raises(InvalidInput, match="need images"):
        features("gabor", np.zeros((0, 1, 28, 28), dtype=np.float32))


@pytest.mark.full
def test_features_are_computed_once_for_the_same_images(tmp_path, monkeypatch):
    from fedspend.models import feature_cache

    monkeypatch.setenv("FEDSPEND_CACHE", str(tmp_path))
    data = load("digits")
    first = cached_features("gabor", data)
    calls = []
    monkeypatch.setattr(
        feature_cache.maps,
        "features",
        lambda name, rows: calls.append(name) or features(name, rows),
    )
    again = cached_features("gabor", data)
    assert calls == []
    np.testing.assert_array_equal(first.features, again.features)
    for damaged in (tmp_path / "features").iterdir():
        damaged.write_bytes(b"broken")
    np.testing.assert_array_equal(cached_features("gabor", data).features, first.features)
    assert calls == ["gabor", "gabor"]


# --- whose images ---


def own_images(counts):
    from fedspend.data import from_arrays

    total = sum(counts)
    owners = np.repeat([f"client {n}" for n in range(len(counts))], counts)
    return from_arrays(
        images(total),
        np.zeros(total, int),
        classes=2,
        test_features=images(2),
        test_labels=[0, 1],
        client_of=owners,
    )


def test_images_of_one_client_never_share_a_chunk_with_anothers(tmp_path, monkeypatch):
    from fedspend.data import partition
    from fedspend.models import feature_cache

    monkeypatch.setenv("FEDSPEND_CACHE", str(tmp_path))
    data = own_images([3, 70, 1])
    federation = partition(data, clients=None, kind="natural", seed=0)
    calls = []
    monkeypatch.setattr(
        feature_cache.maps,
        "features",
        lambda name, rows: calls.append(rows) or features(name, rows),
    )
    seen = cached_features("gabor", data, federation.shards[1:])  # the first has withdrawn
    for call, shard in zip(calls, federation.shards[1:], strict=False):
        np.testing.assert_array_equal(call, data.features[shard])
    assert len(calls) == 3, "two clients, and the rows to test on"
    for shard in federation.shards[1:]:
        np.testing.assert_array_equal(seen.features[shard], features("gabor", data.features[shard]))
    assert not seen.features[federation.shards[0]].any(), "rows of nobody are not looked at"


def test_features_of_your_own_images_are_never_kept(tmp_path, monkeypatch):
    import dataclasses

    monkeypatch.setenv("FEDSPEND_CACHE", str(tmp_path))
    data = own_images([3, 4])
    cached_features("gabor", data)
    cached_features("gabor", data, (np.arange(3), np.arange(3, 7)))
    assert list(tmp_path.iterdir()) == []
    public = dataclasses.replace(data, public=True)
    pooled = cached_features("gabor", public)
    apart = cached_features("gabor", public, (np.arange(3), np.arange(3, 7)))
    assert len(list((tmp_path / "features").iterdir())) == 3, (
        "whose they are is part of the key; test rows are the same"
    )
    np.testing.assert_allclose(apart.features, pooled.features, atol=1e-5)
    again = cached_features("gabor", public, (np.arange(3), np.arange(3, 7)))
    np.testing.assert_array_equal(again.features, apart.features)
