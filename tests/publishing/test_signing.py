"""Keys and signatures: of runs, and of publications; on the command line and in Python."""

from __future__ import annotations

import json
import shutil
import stat

import pytest
from published import train_real

from fedspend.cli.main import main
from fedspend.errors import InvalidInput
from fedspend.runs.signed import check_signature
from fedspend.signing.keys import new_keys, private_key, public_key
from fedspend.signing.signatures import PUBLICATION, RUN, NotSigned, check, signed
from fedspend.stored.files import CERTIFICATE, MODEL, PLAN, SEEN_HEAD, SIGNATURE


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    return new_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="session")
def others(tmp_path_factory):
    return new_keys(tmp_path_factory.mktemp("others"))


# --- keys -----------------------------------------------------------------------------------------


def test_new_keys_are_private_and_never_overwritten(tmp_path, capsys):
    assert main(["keys", "new", "--out", str(tmp_path / "k")]) == 0
    said = capsys.readouterr().out
    private, public = tmp_path / "k" / "fedspend.key", tmp_path / "k" / "fedspend.pub"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    body = private.read_bytes()
    assert body.decode() not in said
    assert main(["keys", "new", "--out", str(tmp_path / "k")]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert private.read_bytes() == body
    private.unlink()  # the public one alone is not overwritten either
    assert main(["keys", "new", "--out", str(tmp_path / "k")]) == 2
    assert not private.exists()


def test_json_names_the_files(tmp_path, capsys):
    assert main(["keys", "new", "--out", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["private"] == str(tmp_path / "fedspend.key")
    assert len(shown["fingerprint"]) == 35


def test_a_key_that_others_can_read_is_not_used(keys, tmp_path):
    copy = tmp_path / "copy.key"
    shutil.copy(keys[0], copy)
    for mode in (0o644, 0o640, 0o602):
        copy.chmod(mode)
        with pytest.raises(InvalidInput, match="chmod 600"):
            private_key(copy)
    copy.chmod(0o600)
    private_key(copy)


@pytest.mark.parametrize("body", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_key_is_refused_in_one_line(keys, tmp_path, body):
    path = tmp_path / "x"
    path.write_bytes(body)
    path.chmod(0o600)
    for read in (private_key, public_key):
        with pytest.raises(InvalidInput) as refused:
            read(path)
        assert "\n" not in str(refused.value)
        with pytest.raises(InvalidInput, match="cannot read the key"):
            read(tmp_path / "missing")
    with pytest.raises(InvalidInput, match="holds a private key; give the public one"):
        public_key(keys[0])
    with pytest.raises(InvalidInput, match="no Ed25519 private key"):
        private_key(keys[1])


def test_keys_of_another_kind_are_refused(tmp_path):
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = X25519PrivateKey.generate()
    (tmp_path / "x.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (tmp_path / "x.pub").write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "x.key").chmod(0o600)
    with pytest.raises(InvalidInput, match="no Ed25519 private key"):
        private_key(tmp_path / "x.key")
    with pytest.raises(InvalidInput, match="no public key"):
        public_key(tmp_path / "x.pub")


# --- signatures -----------------------------------------------------------------------------------


def test_a_signature_fits_its_statement_its_kind_and_its_key(keys, others):
    statement = {"b": [1, 2.5, None], "a": "é"}
    made = signed(RUN, statement, private_key(keys[0]))
    known, other = public_key(keys[1]), public_key(others[1])
    assert check(RUN, statement, made, known) == check(RUN, statement, made)
    assert check(RUN, {"a": "é", "b": [1, 2.5, None]}, made, known)  # layout does not matter
    for statement_, made_, key in (
        (statement | {"a": "e"}, made, known),
        (statement | {"c": 1}, made, known),
        (statement, made, other),
        (statement, made | {"kind": PUBLICATION}, known),
        (statement, made | {"signature": "AAAA"}, known),
        (statement, made | {"signature": "%%%"}, known),
        (statement, made | {"signature": made["signature"][:-4] + "AAA="}, known),
        (statement, made | {"public_key": "AAAA"}, known),
        (statement, made | {"algorithm": "none"}, known),
        (statement, None, known),
        (statement, [], known),
        (statement, {}, None),
    ):
        with pytest.raises(NotSigned):
            check(RUN, statement_, made_, key)
    # a signature of one kind is none of the other
    with pytest.raises(NotSigned):
        check(PUBLICATION, statement, made | {"kind": PUBLICATION}, known)


# --- runs -----------------------------------------------------------------------------------------


def test_a_signed_run_is_checked_with_the_public_key(original, others, capsys):
    assert main(["verify", str(original.run), "--key", str(original.public)]) == 0
    assert "the key that was given" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", str(original.run), "--key", str(others[1])]) == 1
    assert "signed by another key" in capsys.readouterr().out
    assert stat.S_IMODE(SIGNATURE.of(original.run).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("file", "part"),
    [(MODEL, "model"), (CERTIFICATE, "certificate"), (PLAN, ""), (SEEN_HEAD, "ledger_head")],
)
def test_a_run_that_was_changed_after_it_was_signed_fails(original, tmp_path, file, part):
    copy = tmp_path / "run"
    shutil.copytree(original.run, copy)
    path, key = file.of(copy), public_key(original.public)
    assert check_signature(copy, key).good
    if file == CERTIFICATE:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"ok": False}))
    elif file == SEEN_HEAD:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"entries": 3}))
    else:
        body = path.read_bytes()
        path.write_bytes(body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])
    found = check_signature(copy, key)
    assert found.good is False
    assert part in found.words
    path.unlink()
    assert check_signature(copy, key).good is False


def test_an_unsigned_run_says_so_and_fails_under_a_key(original, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(original.run, copy)
    SIGNATURE.of(copy).unlink()
    found = check_signature(copy, None)
    assert found.good is None
    assert "not signed" in found.words
    assert main(["verify", str(copy), "--key", str(original.public)]) == 1
    assert "not signed" in capsys.readouterr().out
    for body in ("{", "[]", '{"statement": 1}', '{"statement": {}, "signature": {}}'):
        SIGNATURE.of(copy).write_text(body)
        assert check_signature(copy, None).good is False


def test_the_releases_are_those_of_the_account(original, tmp_path):
    """A statement with other releases, signed by a stranger, does not fit the account."""
    copy = tmp_path / "run"
    shutil.copytree(original.run, copy)
    body = json.loads(SIGNATURE.of(copy).read_text())
    assert sorted(body["statement"]["releases"]) == ["1", "2", "3"]
    body["statement"]["releases"]["2"] = "x" * 43
    body["signature"] = signed(RUN, body["statement"], private_key(original.private))
    SIGNATURE.of(copy).write_text(json.dumps(body))
    found = check_signature(copy, public_key(original.public))
    assert found.good is False
    assert "releases" in found.words


@pytest.mark.usefixtures("quick_verify")
def test_a_bad_key_stops_a_run_before_anything_is_written(tmp_path):
    for key in (tmp_path / "missing.key", __file__):
        with pytest.raises(InvalidInput, match="key"):
            train_real(tmp_path / "run", sign=key)
        assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidInput, match="cannot be signed"):
        train_real(None, sign=new_keys(tmp_path / "keys")[0])


# --- publications ---------------------------------------------------------------------------------


def test_publications_under_a_key(published, others, capsys):
    folder, key = str(published.folder), str(published.public)
    assert main(["verify", folder, "--key", key]) == 0
    assert main(["verify", folder, "--key", str(others[1])]) == 1
    assert "signed by another key" in capsys.readouterr().out
    document = published.document
    del document["signature"]
    published.rewrite(document)
    capsys.readouterr()
    assert main(["verify", folder]) == 0
    assert "not signed: nobody vouches for it" in capsys.readouterr().out
    assert main(["verify", folder, "--key", key]) == 1
    # signed anew by somebody else: it fits itself, and not the key
    document["signature"] = signed(PUBLICATION, document, private_key(others[0]))
    published.rewrite(document)
    assert main(["verify", folder]) == 0
    assert main(["verify", folder, "--key", key]) == 1


def test_flags_that_do_not_fit_are_refused(published, original, capsys):
    plan, folder = str(PLAN.of(original.run)), str(published.folder)
    for arguments, words in (
        ([plan, "--key", str(original.public)], "--key is not for a plan file"),
        ([plan, "--open", "x.json"], "--open is not for a plan file"),
        ([folder, "--colluders", "3"], "--colluders is not for a publication"),
        ([folder, "--open", "missing.json"], "there is no such file"),
        ([folder, "--key", "missing.pub"], "cannot read the key"),
        ([str(original.run), "--open", "x.json"], "--open is not for a run directory"),
    ):
        assert main(["verify", *arguments]) == 2
        said = capsys.readouterr()
        assert words in said.err
        assert said.out == ""


def test_json_and_quiet(published, capsys):
    folder, opening = str(published.folder), str(published.opening("north"))
    assert main(["verify", folder, "--open", opening, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is True
    assert shown["simulation"] is False
    assert shown["guarantee"]["delta"] == 1e-3
    assert {one["check"] for one in shown["checks"]} >= {"guarantee", "own budget", "own noise"}
    assert main(["verify", folder, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
