"""`fedspend keys new`: makes a key pair to sign runs and publications with."""

from __future__ import annotations

import argparse

from fedspend.errors import InvalidInput

HELP = "make keys to sign runs and publications with"
DESCRIPTION = (
    "Make an Ed25519 key pair: a private key to sign with, which stays with you, and a public key, "
    "which you give to everyone who should be able to check your signatures."
)
EXAMPLES = """examples:
  fedspend keys new --out keys
  fedspend train hospitals.toml -o runs/first --sign keys/fedspend.key
  fedspend publish runs/first --sign keys/fedspend.key
  fedspend verify runs/first.publication --key keys/fedspend.pub
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    new = actions.add_parser(
        "new",
        help="make a key pair",
        description="Make a key pair. Existing files are not overwritten.",
        allow_abbrev=False,
    )
    new.add_argument(
        "--out", default=".", metavar="DIR", help="folder for the two files (default: this one)"
    )
    new.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    if args.action is None:
        raise InvalidInput("'fedspend keys' needs an action: new; see fedspend keys --help")
    from fedspend.signing.keys import new_keys

    made = new_keys(args.out)
    private, public, name = made.private, made.public, made.fingerprint
    if args.json:
        import json

        print(json.dumps({"private": str(private), "public": str(public), "fingerprint": name}))
        return 0
    print(f"private key: {private} (sign with it; keep it to yourself, and keep a copy)")
    print(f"public key:  {public} (give it to everyone who checks your signatures)")
    print(f"fingerprint: {name} (read it out, so that nobody can slip in another key)")
    return 0
