"""Puts the examples into the package, for `fedspend new`; everything else is in pyproject.toml.

They have one source, the folder `examples`. An editable install reads them from there.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SUFFIXES = {".toml", ".py", ".csv", ".ipynb"}


class WithExamples(build_py):
    """Copies `examples` beside the modules."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for source in sorted(Path("examples").rglob("*")):
            if source.is_file() and source.suffix in SUFFIXES:
                target = Path(self.build_lib, "fedspend", source)
                target.parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(str(source), str(target))


setup(cmdclass={"build_py": WithExamples})
