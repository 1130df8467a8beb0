"""`fedspend predict RUN_DIR FILE`: what a trained model makes of new rows."""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from pathlib import Path

HELP = "ask a trained model about new rows"
DESCRIPTION = (
    "Load the model of a run and print a prediction for each row of a CSV or NPZ file. The file "
    "has the columns that the run was trained with; a label is not needed, and not read. Columns, "
    "bounds and levels are those that the run's config declared. It costs no privacy: the model "
    "was released already. In Python: fedspend.predict, fedspend.load_model."
)
EXAMPLES = """examples:
  fedspend predict runs/hospitals new_patients.csv
  fedspend predict runs/hospitals new_patients.csv -o predictions.csv --outputs
  fedspend predict runs/first rows.npz --json
  fedspend predict runs/own rows.npz --model my_models:make
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN_DIR", help="the directory of a run that has finished or was stopped")
    add("data", metavar="FILE", help="new rows: .csv, or .npz with an array features")
    add(
        "--model",
        metavar="MODULE:FUNCTION",
        help="a model of your own: its name as in the run's config, which allows importing it from "
        "where Python finds it, or from this folder",
    )
    add("-o", "--output", metavar="FILE.csv", help="write the predictions here, not to the screen")
    add(
        "--outputs",
        action="store_true",
        help="also what the model gave: a column for each class or label, by its name if declared",
    )
    add("--json", action="store_true", help="print JSON instead of CSV")


def run(args: argparse.Namespace) -> int:
    from fedspend.basics.files import write_whole
    from fedspend.runs.predicting import predict

    if args.model is not None:
        sys.path.append(os.getcwd())
    found = predict(args.run, args.data, args.model)
    if args.json:
        import json

        told = {"kind": found.kind, "predictions": found.values.tolist()}
        if found.names is not None:
            told["classes"] = list(found.names)
        if found.columns:
            told["labels"] = list(found.columns)
        if args.outputs:
            told["outputs"] = found.outputs.tolist()
        body = json.dumps(told) + "\n"
    else:
        cells = found.shown()
        if args.outputs:
            gave = found.outputs.reshape(len(found), -1).tolist()
            cells = [
                said + [f"{value:.7g}" for value in row]
                for said, row in zip(cells, gave, strict=True)
            ]
        body = as_csv(found.header(outputs=args.outputs), cells)
    if args.output is None:
        sys.stdout.write(body)
    else:
        write_whole(Path(args.output), body.encode(), private=True)
    return 0


def as_csv(header: list[str], cells: list[list[str]]) -> str:
    """A line for each row, under a header.

    >>> print(as_csv(["prediction", "output_no", "output_yes"], [["yes", "0.25", "0.75"]]).strip())
    prediction,output_no,output_yes
    yes,0.25,0.75
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *cells])
    return text.getvalue()
