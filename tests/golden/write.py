"""Writes every golden file anew: `make golden`. Read the diff before you commit it.

With names, only those files: `python -m golden.write help/plan.txt said/train.txt`.
"""

from __future__ import annotations

import sys
import time


def main(names: list[str]) -> int:
    import torch
    from golden.cases import FILES, all_cases
    from golden.comparing import MACHINE, machine

    torch.set_num_threads(1)
    cases = all_cases()
    if unknown := set(names) - {case.name for case in cases}:
        print(f"no golden file {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    for case in cases:
        if names and case.name not in names:
            continue
        began = time.monotonic()
        text = case.make()
        case.path.parent.mkdir(parents=True, exist_ok=True)
        changed = not case.path.exists() or case.path.read_text(encoding="utf-8") != text
        case.path.write_text(text, encoding="utf-8")
        spent = time.monotonic() - began
        print(f"{'changed' if changed else '       '}  {spent:6.2f} s  {case.name}", flush=True)
    if not names:
        MACHINE.write_text(machine(), encoding="utf-8")
        known = {case.path for case in cases} | {MACHINE}
        for path in sorted(FILES.rglob("*")):
            if path.is_file() and path not in known:
                path.unlink()
                print(f"removed            {path.relative_to(FILES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
