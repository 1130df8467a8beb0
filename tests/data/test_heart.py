"""Fed-Heart-Disease from files as UCI publishes them; here made up."""

import pytest

from fedspend import data
from fedspend.data.heart import CENTRES, read_centre
from fedspend.errors import InvalidInput

ROW = "63.0,1.0,{pain},145.0,233.0,1.0,2.0,150.0,0.0,2.3,?,?,?,{sick}"


@pytest.fixture
def folder(tmp_path):
    for number, centre in enumerate(CENTRES):
        lines = [ROW.format(pain=1 + n % 4, sick=n % 5) for n in range(20 + 10 * number)]
        lines.insert(3, ROW.format(pain="?", sick=1))  # incomplete: left out
        (tmp_path / f"processed.{centre}.data").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_four_centres_with_their_own_rows(folder):
    found = data.load("heart", folder=folder, seed=0)
    assert found.features.shape[1] == 13
    federation = data.partition(found, clients=None, kind="natural", seed=0)
    assert sorted(federation.clients) == sorted(CENTRES)
    sizes = {
        name: len(rows) for name, rows in zip(federation.clients, federation.shards, strict=True)
    }
    assert sizes == {"cleveland": 13, "hungarian": 20, "switzerland": 26, "va": 33}, (
        "66% of the complete rows"
    )
    assert len(found.test_labels) == 140 - 92
    assert found.features.min() >= -1
    assert found.features.max() <= 1


def test_the_split_follows_the_seed(folder):
    first, again, other = (data.load("heart", folder=folder, seed=seed) for seed in (1, 1, 2))
    assert (first.features == again.features).all()
    assert (first.labels != other.labels).any()


def test_encoding_uses_written_bounds_only(folder):
    features, labels = read_centre(folder / "processed.cleveland.data")
    row = features[1]  # pain 2
    assert row[:5] == pytest.approx(
        [2 * 43 / 70 - 1, 2 * 65 / 140 - 1, 2 * 233 / 600 - 1, 2 * 90 / 160 - 1, 2 * 5.3 / 10 - 1]
    )
    assert row[5:].tolist() == [1, 1, 0, 1, 0, 0, 0, 1]
    assert labels.tolist()[:5] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1,2,3\n",
        ROW.format(pain="x", sick=0),
        ROW.format(pain="nan", sick=0),
        ROW.format(pain="?", sick=0),
    ],
)
def test_damaged_files(folder, text):
    (folder / "processed.va.data").write_text(text)
    with pytest.raises(InvalidInput, match="va"):
        data.load("heart", folder=folder, seed=0)


def test_missing_files_say_how_to_get_them(tmp_path):
    with pytest.raises(InvalidInput, match="fedspend data get heart"):
        data.load("heart", folder=tmp_path / "nothing", seed=0)
