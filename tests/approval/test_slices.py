"""Slices of a plan: each shows its client everything of its own and nothing of the others."""

from __future__ import annotations

import copy
import hashlib
import json

import pytest
from approval.offers import BUDGETS, CLIENTS, offered, planned

from fedspend.approval.slices import load_offer, load_slice, new_offer, read_slice
from fedspend.approval.tree import climbed, levels, path_of
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.plan import Plan


def hashes(count):
    return [hashlib.sha256(str(n).encode()).hexdigest() for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 31, 100])
def test_every_leaf_has_a_path_to_the_root_and_no_other_leaf_fits_it(count):
    leaves = hashes(count)
    tree = levels(leaves)
    stranger = hashlib.sha256(b"stranger").hexdigest()
    for number, leaf in enumerate(leaves):
        path = path_of(tree, number)
        assert climbed(leaf, path) == tree[-1][0]
        assert climbed(stranger, path) != tree[-1][0]
        assert len(path) <= 7


def test_the_root_of_three_leaves_by_hand():
    a, b, c = map(bytes.fromhex, hashes(3))

    def inner(left, right):
        return hashlib.sha256(b"fedspend-tree-1\n" + left + right).digest()

    assert levels(hashes(3))[-1] == [inner(inner(a, b), c).hex()]


@pytest.mark.parametrize(
    "path",
    [
        None,
        {},
        [["up", "0" * 64]],
        [["left", "0" * 63]],
        [["left"]],
        [7],
        [["left", "0" * 64]] * 65,
    ],
)
def test_what_is_no_path_leads_nowhere(path):
    assert climbed("0" * 64, path) is None


def test_all_slices_of_an_offer_have_one_root_and_each_its_own_column(tmp_path):
    offer = offered()
    files = offer.save(tmp_path)
    slices = [load_slice(file) for file in files]
    assert {slice.root for slice in slices} == {offer.root}
    assert [slice.client for slice in slices] == list(CLIENTS)
    for number, slice in enumerate(slices):
        own = offer.plan.schedules
        column = int(own.of_client[number])
        assert slice.plan.budget.tolist() == [BUDGETS[number]]
        assert (
            slice.plan.noise_multiplier[:, 0].tolist() == own.noise_multiplier[:, column].tolist()
        )
        assert slice.clip_norm.tolist() == own.clip_norm[:, column].tolist()
        assert slice.key == f"SHA256:{CLIENTS[number]}"
        assert oct(files[number].stat().st_mode & 0o777) == "0o600"
        assert read_slice(json.loads(slice.to_bytes())).digest == slice.digest


def test_a_slice_names_no_other_client_and_no_other_budget(tmp_path):
    plan = planned(budgets=(3.0, 6.125, 9.25))
    text = offered(plan).save(tmp_path)[0].read_text()
    for other in ("south", "harbour", "6.125", "9.25", plan.hash):
        assert other not in text


def test_budgets_cannot_be_tried_out_on_a_root():
    """The same plan under other openings has another root; under the same ones, the same."""
    offer = offered()
    again = new_offer(offer.terms, offer.plan, offer.keys)
    assert again.root != offer.root
    mine, theirs = (one.slice_of(0).path for one in (offer, again))
    assert not {hash for _, hash in mine} & {hash for _, hash in theirs}


def changed(content, where, value):
    content = copy.deepcopy(content)
    inner = content
    for key in where[:-1]:
        inner = inner[key]
    assert inner[where[-1]] != value
    inner[where[-1]] = value
    return content


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("own", "plan", "clients", "budget"), [8.0]),
        (("own", "plan", "clients", "id"), ["south"]),
        (("own", "plan", "schedules", 0, "epsilon"), 0.5),
        (("own", "plan", "schedules", 0, "noise_multiplier"), [[9.0, 6]]),
        (("own", "plan", "schedules", 0, "sampling_rate"), [[0.1, 6]]),
        (("own", "plan", "guarantee", "delta"), 1e-9),
        (("own", "clip_norm"), [[0.01, 6]]),
        (("own", "key"), "SHA256:south"),
        (("terms", "clients"), 4),
        (("terms", "run"), "ba9876543210"),
        (("terms", "method"), "dp-fedavg"),
        (("terms", "noise"), "distributed"),
        (("terms", "simulation"), True),
        (("terms", "size"), 8),
        (("opening",), "00" * 32),
        (("path", 0, 0), "left"),
        (("path", 0, 1), "0" * 64),
        (("path",), []),
        (("root",), "0" * 64),
    ],
)
def test_whatever_is_changed_in_a_slice_its_proof_fails(where, value):
    content = offered().slice_of(0).content()
    with pytest.raises(Refused, match="does not belong to the root"):
        read_slice(changed(content, where, value))


def test_a_column_under_anothers_proof_is_refused():
    offer = offered()
    mine, other = offer.slice_of(0).content(), offer.slice_of(1).content()
    for key in ("own", "opening", "path"):
        with pytest.raises(Refused, match="does not belong to the root"):
            read_slice(mine | {key: other[key]})


def test_the_file_of_a_changed_slice_is_named_and_refused(tmp_path):
    """A check that failed, like a plan that was altered; a file that is no slice is bad input."""
    path = tmp_path / "north.slice.json"
    path.write_text(json.dumps(offered().slice_of(0).content() | {"root": "0" * 64}))
    with pytest.raises(Refused, match=r"north\.slice\.json: .* ask the server for another"):
        load_slice(path)


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("terms", "clients"), 0),
        (("terms", "clients"), True),
        (("terms", "noise"), "loud"),
        (("terms", "bits"), None),
        (("terms", "bits"), 7),
        (("terms", "grid_steps"), None),
        (("terms", "grid_steps"), 1),
        (("terms", "grid_steps"), 2**19),
        (("terms", "grid_steps"), True),
        (("own", "clip_norm"), [[1e-170, 6]]),
        (("terms", "bit_noise"), -1.0),
        (("terms", "rounds"), 7),
        (("terms", "planned_clips"), False),
        (("own", "clip_norm"), None),
        (("own", "clip_norm"), [[-1.0, 6]]),
        (("own", "key"), 3),
        (("own", "plan"), {}),
        (("own", "plan", "rounds"), "six"),
        (("opening",), "zz"),
        (("opening",), "00"),
        (("path",), "up"),
        (("version",), 2),
        (("format",), "fedspend-plan"),
    ],
)
def test_a_slice_that_makes_no_sense_is_bad_input(where, value):
    content = offered().slice_of(0).content()
    with pytest.raises(InvalidInput):
        read_slice(changed(content, where, value))


@pytest.mark.parametrize(
    ("noise", "steps", "sound"),
    [
        ("central", 1, False),
        ("distributed", 1, False),
        ("distributed", 2**19, False),
        ("distributed", 2**20, True),
        ("discrete-distributed", 1, False),
        ("discrete-distributed", 15, False),
        ("discrete", 8, False),
    ],
)
def test_noise_coarser_than_the_proofs_need_is_not_offered(noise, steps, sound):
    if sound:
        assert offered(noise=noise, grid_steps=steps).slice_of(0).terms.grid_steps == steps
        return
    with pytest.raises(InvalidInput, match="grid_steps is not valid"):
        offered(noise=noise, grid_steps=steps)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "NaN", '{"format": "fedspend-slice"}', '{"a": 1, "a": 2}']
)
def test_a_file_that_is_no_slice_is_named(tmp_path, text):
    path = tmp_path / "north.slice.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"north\.slice\.json: "):
        load_slice(path)
    with pytest.raises(InvalidInput, match="absent"):
        load_slice(tmp_path / "absent")


def test_an_offer_is_read_back_and_a_changed_one_is_refused(tmp_path):
    offer = offered()
    offer.save(tmp_path)
    again = load_offer(tmp_path)
    assert (again.root, again.terms, again.plan.hash) == (offer.root, offer.terms, offer.plan.hash)
    body = json.loads((tmp_path / "offer.json").read_text())
    for change in (
        {"root": "0" * 64},
        {"openings": body["openings"][:2]},
        {"openings": [body["openings"][0]] * 3},
        {"keys": {}},
        {"terms": body["terms"] | {"size": 9}},
    ):
        (tmp_path / "offer.json").write_text(json.dumps(body | change))
        with pytest.raises(Refused, match="does not fit the plan beside it"):
            load_offer(tmp_path)
    (tmp_path / "offer.json").write_text(json.dumps(body))
    planned(rounds=7).save(tmp_path / "plan.json")
    with pytest.raises(Refused, match="does not fit"):
        load_offer(tmp_path)
    with pytest.raises(InvalidInput, match="fedspend flower slices"):
        load_offer(tmp_path / "elsewhere")


@pytest.mark.full
def test_a_slice_is_verified_like_a_plan():
    """Its claim is read again by accountants that share no code with the planner."""
    plan = planned(rounds=2)
    assert offered(plan).slice_of(0).plan.verify().ok
    cheap = plan.replace(noise_multiplier=plan.noise_multiplier * 0.5, clip_norm=plan.clip_norm * 2)
    wrong = offered(cheap).slice_of(0)
    assert isinstance(wrong.plan, Plan)
    assert not wrong.plan.verify().ok
