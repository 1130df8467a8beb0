"""Which rows are held out or kept, where clients are real: every row decides for itself, and nobody
for anybody else.
"""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend.configuration.config import config_of
from fedspend.configuration.data_inputs import Source, federation_of
from fedspend.data.row_choice import chosen_ids, chosen_rows
from fedspend.errors import InvalidInput


def rows(count, seed=0, width=5):
    generator = np.random.default_rng(seed)
    features = generator.random((count, width)).astype(np.float32)
    return (
        generator.choice(["north", "south", "east"], count),
        features,
        generator.integers(0, 3, count),
    )


def choose(client_of, features, labels, share=0.5, purpose="hold-out", seed=0):
    return chosen_rows(client_of, features, labels, share, purpose, seed)


@pytest.mark.full
@given(st.integers(0, 20), st.data())
def test_a_row_is_not_moved_by_what_others_hold_or_where_it_stands(seed, data):
    owners, features, labels = rows(60, seed)
    before = choose(owners, features, labels)
    order = np.random.default_rng(seed + 1).permutation(60)
    np.testing.assert_array_equal(
        choose(owners[order], features[order], labels[order]), before[order]
    )
    stays = np.array(
        data.draw(st.lists(st.booleans(), min_size=60, max_size=60).filter(lambda x: sum(x) > 30))
    )
    np.testing.assert_array_equal(
        choose(owners[stays], features[stays], labels[stays]), before[stays]
    )
    one = owners == "north"
    changed, relabelled = features.copy(), labels.copy()
    changed[one], relabelled[one] = 0.5, 1
    np.testing.assert_array_equal(choose(owners, changed, relabelled)[~one], before[~one])


def test_about_the_share_is_chosen_in_every_client():
    owners, features, labels = rows(30_000)
    for share in (0.05, 0.2, 0.9):
        chosen = choose(owners, features, labels, share)
        for client in ("north", "south", "east"):
            assert chosen[owners == client].mean() == pytest.approx(share, abs=0.02)


def test_purposes_seeds_and_clients_are_independent():
    owners, features, labels = rows(20_000)
    first = choose(owners, features, labels)
    others = (
        choose(owners, features, labels, purpose="sample 2"),
        choose(owners, features, labels, seed=1),
        choose(np.char.add(owners, "x"), features, labels),
        choose(None, features, labels),
    )
    for other in others:
        assert (first == other).mean() == pytest.approx(0.5, abs=0.02)
    np.testing.assert_array_equal(choose(owners, features, labels), first)


def test_a_smaller_share_is_a_part_of_a_larger_one():
    owners, features, labels = rows(1000)
    small, large = choose(owners, features, labels, 0.2), choose(owners, features, labels, 0.6)
    assert not (small & ~large).any()


def test_duplicates_share_their_fate_and_ids_cannot_run_into_rows():
    features, labels = np.zeros((40, 3), np.float32), np.zeros(40, np.int64)
    owners = np.array([f"client {n // 2}" for n in range(40)])
    chosen = choose(owners, features, labels)
    np.testing.assert_array_equal(chosen[::2], chosen[1::2])


@pytest.mark.full
def test_sixty_thousand_images_take_about_a_second():
    features = np.random.default_rng(0).random((60_000, 1, 28, 28), dtype=np.float32)
    labels, owners = np.zeros(60_000, np.int64), np.arange(60_000) % 500
    start = time.process_time()
    choose(owners, features, labels, 0.1)
    assert time.process_time() - start < 12  # 0.6 on one quiet core


def test_a_share_that_leaves_one_side_empty_is_refused():
    owners, features, labels = rows(3)
    with pytest.raises(
        InvalidInput, match=r"a share of 1e-09 takes 0 of 3 rows; .* another share or seed"
    ):
        choose(owners, features, labels, 1e-9)
    with pytest.raises(InvalidInput, match="choose another share, or have more rows"):
        chosen_rows(owners, features, labels, 1e-9, "hold-out", 0, secret=b"k" * 32)


# --- in a federation ---


def write(path, clients, budget=False):
    generator = np.random.default_rng(7)
    lines = ["client,a,b,label" + (",epsilon" if budget else "")]
    for client in ("north", "south", "east"):
        values = generator.random((40, 2))
        for n, (a, b) in enumerate(values):
            if client in clients:
                extra = f",{1 + round(a, 3)}" if budget else ""
                lines.append(f"{client},{round(a, 3)},{b},{n % 2}{extra}")
    path.write_text("\n".join(lines) + "\n")


def config(path, **data):
    data = {"name": "csv", "path": str(path), "classes": 2} | data
    return config_of(
        {"data": data, "privacy": {"epsilon": 1.0, "delta": 1e-2}, "train": {"seed": 3}}
    )


def held_by(federation):
    features = federation.dataset.features
    return {
        c: {row.tobytes() for row in features[s]}
        for c, s in zip(federation.clients, federation.shards, strict=True)
    }


@pytest.mark.parametrize(
    "options", [{"validation": 0.3}, {"validation": 0.3, "share": 0.5, "test_share": 0.5}]
)
def test_one_client_never_decides_which_rows_of_another_are_used(tmp_path, options):
    """Emptied, one client moved the sum by 16 times its clip: hold-out rows were drawn over the
    pool.
    """
    everyone, fewer = tmp_path / "all.csv", tmp_path / "fewer.csv"
    write(everyone, ("north", "south", "east"))
    write(fewer, ("south", "east"))
    before, after = (
        held_by(federation_of(config(everyone, **options))),
        held_by(federation_of(config(fewer, **options))),
    )
    assert set(before) == {"north", "south", "east"}
    assert after == {client: before[client] for client in ("south", "east")}
    assert 0 < len(before["north"]) < 40


def test_dealt_rows_are_held_out_and_sampled_as_ever(tmp_path):
    """Dealing is a simulation; seeded results of before stay as they were."""
    from fedspend import data

    write(tmp_path / "all.csv", ("north", "south", "east"))
    options = {"validation": 0.25, "share": 0.5, "test_share": 0.5}
    settings = config_of(
        {
            "data": {
                "name": "csv",
                "path": str(tmp_path / "all.csv"),
                "classes": 2,
                "partition": "iid",
                "clients": 4,
            }
            | options,
            "privacy": {"randomness": "seeded"},
            "train": {"seed": 3},
        }
    )
    plain = data.load("csv", path=tmp_path / "all.csv", classes=2, validation=0.25, seed=3)
    plain = data.partition(
        data.sample(plain, share=0.5, test_share=0.5), clients=4, kind="iid", seed=3
    )
    found = federation_of(settings)
    np.testing.assert_array_equal(found.dataset.features, plain.dataset.features)
    np.testing.assert_array_equal(found.dataset.test_features, plain.dataset.test_features)
    assert (len(found.dataset.labels), len(found.dataset.test_labels)) == (45, 15)
    for mine, theirs in zip(found.shards, plain.shards, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_budgets_travel_with_their_rows(tmp_path):
    write(tmp_path / "all.csv", ("north", "south", "east"), budget=True)
    settings = config(tmp_path / "all.csv", validation=0.3, share=0.6, budget="epsilon")
    dataset = Source(settings).dataset
    np.testing.assert_allclose(dataset.budget_of, 1 + dataset.features[:, 0], rtol=1e-6)
    assert len(dataset.budget_of) == len(dataset.labels) == len(dataset.client_of) < 75


def test_the_sample_is_the_same_for_every_seed_and_the_hold_out_is_not(tmp_path):
    write(tmp_path / "all.csv", ("north", "south", "east"))

    def used(seed, **options):
        settings = config(tmp_path / "all.csv", **options)
        settings = config_of({**settings.values, "train": {"seed": seed}})
        return held_by(federation_of(settings))

    (tmp_path / "test.csv").write_text((tmp_path / "all.csv").read_text())
    sample = {"share": 0.5, "test_path": str(tmp_path / "test.csv")}
    assert used(1, **sample) == used(2, **sample)
    assert used(1, validation=0.5) != used(2, validation=0.5)


def test_in_one_silo_of_your_own_no_record_moves_another(tmp_path):
    """All rows are one client's, which is no dealing: they are real, and each may have a budget of
    its own.
    """
    write(tmp_path / "all.csv", ("north", "south", "east"))
    lines = [line.partition(",")[2] for line in (tmp_path / "all.csv").read_text().splitlines()]
    for name, kept in (("all", lines), ("fewer", [*lines[:1], *lines[41:]])):
        (tmp_path / f"{name}.csv").write_text("\n".join(kept) + "\n")
    options = {"validation": 0.3, "share": 0.5, "clients": 1}
    (everyone,), (fewer,) = (
        held_by(federation_of(config(tmp_path / f"{n}.csv", **options))).values()
        for n in ("all", "fewer")
    )
    assert fewer < everyone
    assert 10 < len(fewer) < 50


def test_records_with_ids_are_chosen_by_id_alone():
    owners, features, labels = rows(2000)
    ids = np.array([f"p{n}" for n in range(2000)])
    before = chosen_rows(owners, features, labels, 0.5, "hold-out", 0, ids)
    np.testing.assert_array_equal(
        chosen_rows(owners, 1 - features, 2 - labels, 0.5, "hold-out", 0, ids), before
    )
    np.testing.assert_array_equal(chosen_ids(owners, ids, 0.5, "hold-out", 0), before)
    for other in (
        chosen_ids(owners, ids, 0.5, "hold-out", 1),
        chosen_ids(owners, ids, 0.5, "sample 2", 0),
        chosen_ids(np.char.add(owners, "x"), ids, 0.5, "hold-out", 0),
        chosen_ids(owners, np.char.add(ids, "x"), 0.5, "hold-out", 0),
        choose(owners, features, labels),
    ):
        assert (before == other).mean() == pytest.approx(0.5, abs=0.05)
    with pytest.raises(InvalidInput, match="at least one must be taken"):
        chosen_rows(owners[:3], features[:3], labels[:3], 1e-6, "hold-out", 0, ids[:3])
