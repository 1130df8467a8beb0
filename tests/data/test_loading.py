from __future__ import annotations

import io
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from fedspend.data import DATA_SETS, load, options_of
from fedspend.data.adult import CATEGORIES, COLUMNS, NUMBERS
from fedspend.data.loading import FILES
from fedspend.errors import InvalidInput


def test_data_works_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import fedspend.data as d; "
        "print(d.load('synthetic').features.shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(2000, 20)"


def test_every_name_says_which_options_it_takes():
    assert {name for name in DATA_SETS.names if options_of(name)} == {"synthetic", *FILES}
    assert "seed" not in options_of("synthetic")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnits", {}, "unknown data set 'mnits'; did you mean 'mnist'?"),
        ("imagenet21k-extra", {}, "choose one of digits, diabetes, synthetic, mnist"),
        ("digits", {"clases": 3}, "unknown option of data set 'digits': 'clases'; there are none"),
        ("synthetic", {"clases": 3}, "did you mean 'classes'"),
        ("synthetic", {"classes": 1}, "classes must be a whole number of at least 2"),
        ("synthetic", {"separation": float("nan")}, "separation must be a finite number"),
        ("synthetic", {"seed": -1}, "seed must be a whole number of at least 0"),
        ("csv", {}, "data set 'csv' needs a file"),
        ("csv", {"path": "x.csv", "standardise": True}, "would learn from private rows.*bounds"),
        ("npz", {"path": "x.npz", "normalize": "mean"}, "would learn from private rows"),
    ],
)
def test_bad_requests(name, options, message):
    with pytest.raises(InvalidInput, match=message):
        load(name, **options)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "mnist-writers", "adult", "cifar10"])
def test_missing_files_say_how_to_get_them(name, tmp_path):
    with pytest.raises(InvalidInput, match=f"run 'fedspend data get {name}', or set FEDSPEND_DATA"):
        load(name)
    with pytest.raises(InvalidInput, match=str(tmp_path)):
        load(name, folder=tmp_path)


def test_digits_have_their_fixed_split():
    data = load("digits")
    assert data.features.shape == (1437, 1, 8, 8)
    assert data.test_features.shape == (360, 1, 8, 8)
    assert data.public
    assert (data.features.min(), data.features.max()) == (0, 1)
    assert np.bincount(data.test_labels).tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    np.testing.assert_array_equal(load("digits", seed=7).test_features, data.test_features)
    held = load("digits", validation=0.1)
    assert (len(held.labels), len(held.test_labels)) == (1293, 144)
    tests = {row.tobytes() for row in data.test_features}
    assert not tests & {row.tobytes() for row in held.test_features}


def test_synthetic_is_seeded_bounded_and_learnable():
    data = load("synthetic", examples=900, features=10, classes=3, seed=5)
    assert (data.features.shape, data.test_features.shape) == ((900, 10), (225, 10))
    assert np.bincount(data.labels).tolist() == [300, 300, 300]
    assert np.abs(data.features).max() <= 1
    np.testing.assert_array_equal(
        load("synthetic", examples=900, features=10, classes=3, seed=5).features, data.features
    )
    centres = np.stack([data.features[data.labels == label].mean(0) for label in range(3)])
    nearest = ((data.test_features[:, None] - centres) ** 2).sum(2).argmin(1)
    assert (nearest == data.test_labels).mean() > 0.8


def test_mnist_is_read_and_scaled(mnist_folder):
    for folder in (mnist_folder, mnist_folder / "mnist"):
        data = load("mnist", folder=folder)
        assert data.features.shape == (30, 1, 28, 28)
        assert data.test_features.shape == (20, 1, 28, 28)
        assert data.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] * 3
        assert 0 <= data.features.min() < 0.01 < 0.99 < data.features.max() <= 1


def test_mnist_is_found_through_the_environment(mnist_folder, monkeypatch):
    monkeypatch.setenv("FEDSPEND_DATA", str(mnist_folder))
    assert len(load("mnist").labels) == 30


def test_images_and_labels_must_belong_together(mnist_folder, write_idx):
    write_idx(mnist_folder / "mnist" / "train-labels-idx1-ubyte.gz", np.zeros(29, dtype=np.uint8))
    with pytest.raises(InvalidInput, match="features has 30 rows and labels 29"):
        load("mnist", folder=mnist_folder)


def test_writers_are_clients(mnist_folder, write_idx):
    table = np.zeros((30, 8), dtype=np.int32)
    table[:, 0] = np.arange(30) % 10
    table[:, 2] = 2000 + np.arange(30) // 10
    path = write_idx(mnist_folder / "mnist-writers" / "qmnist-train-labels-idx2-int.gz", table)
    data = load("mnist-writers", folder=mnist_folder)
    assert data.client_of is not None
    assert data.client_of.tolist() == [2000] * 10 + [2001] * 10 + [2002] * 10
    table[3, 0] = 9
    write_idx(path, table)
    with pytest.raises(InvalidInput, match="does not describe the 30 training images"):
        load("mnist-writers", folder=mnist_folder)


# --- Adult ----------------------------------------------------------------------------------------

ADULT = (
    "39, State-gov, 7, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, Cuba, <=50K"
)
UNKNOWN = "50, ?, 83311, Masters, 14, Divorced, ?, Wife, Black, Female, 99999, 0, 100, ?, >50K"


@pytest.fixture
def adult(tmp_path):
    def write(train: str, test: str = f"|1x3 Cross validator\n{ADULT}.\n\n") -> object:
        (tmp_path / "adult.data").write_text(train)
        (tmp_path / "adult.test").write_text(test)
        return load("adult", folder=tmp_path)

    return write


def test_adult_is_coded_by_published_lists_and_bounds(adult):
    assert COLUMNS == 104
    assert [len(values) for _, values in CATEGORIES.values()] == [8, 16, 7, 14, 6, 5, 2, 41]
    data = adult(f"{ADULT}\n{UNKNOWN}\n\n")
    assert data.features.shape == (2, 104)
    assert data.labels.tolist() == [0, 1]
    np.testing.assert_allclose(
        data.features[0, :5], [0.39, 0.8, np.log1p(2174) / np.log1p(99_999), 0, 0.4], rtol=1e-6
    )
    assert data.features[:, 2][1] == 1
    assert data.features[:, len(NUMBERS) :].sum(1).tolist() == [8, 5]  # three are unknown
    np.testing.assert_array_equal(data.test_features, data.features[:1])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            ADULT.replace("White", "Green"),
            r"adult.data:2: race 'Green' is not in the published list",
        ),
        (ADULT.replace("39,", "old,"), r"adult.data:2: age must be a number, got 'old'"),
        (ADULT.replace("39,", "nan,"), r"adult.data:2: age must be a number, got 'nan'"),
        (
            ADULT.replace("<=50K", "50K"),
            r"adult.data:2: the label must be <=50K or >50K, got '50K'",
        ),
        ("1, 2, 3", r"adult.data:2: 3 cells, but 15 are needed"),
    ],
)
def test_a_bad_adult_line_is_named(adult, line, message):
    with pytest.raises(InvalidInput, match=message):
        adult(f"{ADULT}\n{line}\n")


def test_an_empty_adult_file_is_refused(adult):
    with pytest.raises(InvalidInput, match="has no rows"):
        adult("\n\n")


# --- CIFAR-10 -------------------------------------------------------------------------------------

BATCHES = (
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
    "test_batch",
)


@pytest.fixture
def cifar():
    """Two images per batch, as a table of (label, red plane, green plane, blue plane)."""
    generator = np.random.default_rng(1)
    tables = {}
    for n, batch in enumerate(BATCHES):
        table = generator.integers(0, 256, (2, 3073)).astype(np.uint8)
        table[:, 0] = [n, 9 - n]
        tables[batch] = table
    return tables


def write_binary(folder, cifar) -> None:
    inner = folder / "cifar-10-batches-bin"
    inner.mkdir()
    for batch, table in cifar.items():
        (inner / f"{batch}.bin").write_bytes(table.tobytes())


def write_archive(folder, cifar) -> None:
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for batch, table in cifar.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{batch}.bin")
            member.size = table.nbytes
            tar.addfile(member, io.BytesIO(table.tobytes()))


@pytest.mark.parametrize("write", [write_binary, write_archive])
def test_all_layouts_of_cifar_are_the_same_data(tmp_path, cifar, write):
    write(tmp_path, cifar)
    data = load("cifar10", folder=tmp_path)
    assert data.features.shape == (10, 3, 32, 32)
    assert data.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert data.test_labels.tolist() == [5, 4]
    expected = cifar["test_batch"][:, 1:].reshape(2, 3, 32, 32) / np.float32(255)
    np.testing.assert_allclose(data.test_features, expected, rtol=1e-6)


def test_damaged_cifar_is_refused(tmp_path, cifar):
    write_binary(tmp_path, cifar)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").write_bytes(b"x" * 3000)
    with pytest.raises(
        InvalidInput,
        match=r"data_batch_3.bin: 3000 bytes are not a whole number of 3073-byte images",
    ):
        load("cifar10", folder=tmp_path)


def test_a_damaged_cifar_archive_is_refused(tmp_path, cifar):
    write_archive(tmp_path, cifar)
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(InvalidInput, match="not the CIFAR-10 archive, or damaged"):
        load("cifar10", folder=tmp_path)
