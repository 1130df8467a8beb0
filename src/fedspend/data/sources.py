"""Which public data sets exist, and where their files are: `FEDSPEND_DATA`, then the cache, then
Debian's packages.

Guarantee: a data set counts as found only if one folder holds all of its files. The table has a
checksum for each file, taken of the decompressed content, because packagers recompress files.
Downloading is in `download`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fedspend.basics.choices import choose
from fedspend.data.files import locate
from fedspend.errors import InvalidInput

DEBIAN = Path("/usr/share/datasets")


@dataclass(frozen=True)
class SourceFile:
    """`sha256` and `length` describe the decompressed content, or the archive itself if `archive`
    is set.
    """

    name: str
    sha256: str
    length: int
    archive: bool = False


@dataclass(frozen=True)
class Source:
    """A data set that can be downloaded. `layouts` are other sets of files that will do as well;
    `needs` names data sets that it depends on.
    """

    name: str
    about: str
    licence: str
    base_url: str
    files: tuple[SourceFile, ...]
    layouts: tuple[tuple[str, ...], ...] = ()
    needs: tuple[str, ...] = ()

    def complete(self, folder: Path) -> bool:
        """Whether the folder holds all files of one layout."""
        layouts = (tuple(file.name for file in self.files), *self.layouts)
        return any(all(locate(folder, name) for name in layout) for layout in layouts)


def _mnist_files(*checksums: str) -> tuple[SourceFile, ...]:
    names = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    lengths = (47_040_016, 60_008, 7_840_016, 10_008)
    return tuple(
        SourceFile(f"{n}.gz", c, size) for n, c, size in zip(names, checksums, lengths, strict=True)
    )


CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
# what the archive holds
CIFAR_BINARY = tuple(f"cifar-10-batches-bin/{batch}.bin" for batch in CIFAR_BATCHES)

SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        source.name: source
        for source in (
            Source(
                "mnist",
                "handwritten digits, 60,000 + 10,000 images of 28x28",
                "CC BY-SA 3.0",
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                _mnist_files(
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                ),
            ),
            Source(
                "fashion-mnist",
                "pieces of clothing, 60,000 + 10,000 images of 28x28",
                "MIT",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                _mnist_files(
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                ),
            ),
            Source(
                "mnist-writers",
                "mnist with the writer of each digit as its client (QMNIST labels), 539 writers",
                "BSD",
                "https://raw.githubusercontent.com/facebookresearch/qmnist/master",
                (
                    SourceFile(
                        "qmnist-train-labels-idx2-int.gz",
                        "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
                        1_920_012,
                    ),
                ),
                needs=("mnist",),
            ),
            Source(
                "adult",
                "census income, 32,561 + 16,281 people",
                "CC BY 4.0",
                "https://archive.ics.uci.edu/ml/machine-learning-databases/adult",
                (
                    SourceFile(
                        "adult.data",
                        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                        3_974_305,
                    ),
                    SourceFile(
                        "adult.test",
                        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                        2_003_153,
                    ),
                ),
            ),
            Source(
                "heart",
                "heart disease at four centres, 740 patients",
                "CC BY 4.0",
                "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease",
                (
                    SourceFile(
                        "processed.cleveland.data",
                        "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
                        18_461,
                    ),
                    SourceFile(
                        "processed.hungarian.data",
                        "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
                        10_263,
                    ),
                    SourceFile(
                        "processed.switzerland.data",
                        "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
                        4_109,
                    ),
                    SourceFile(
                        "processed.va.data",
                        "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
                        6_737,
                    ),
                ),
            ),
            Source(
                "cifar10",
                "ten kinds of objects, 50,000 + 10,000 colour images of 32x32",
                "research use, cite Krizhevsky 2009",
                "https://www.cs.toronto.edu/~kriz",
                (
                    SourceFile(
                        CIFAR_ARCHIVE,
                        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                        170_052_171,
                        archive=True,
                    ),
                ),
                layouts=(CIFAR_BINARY,),
            ),
        )
    }
)

# Data sets without files: name -> (what it is, the package that provides it).
BUNDLED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "digits": (
            "handwritten digits, 1,437 + 360 images of 8x8, bundled with scikit-learn",
            "sklearn",
        ),
        "diabetes": (
            "regression: progress of the disease, 350 + 92 rows, bundled with scikit-learn",
            "sklearn",
        ),
        "synthetic": ("Gaussian clusters, generated on the fly", "numpy"),
    }
)


@dataclass(frozen=True)
class Status:
    """One line of `fedspend data list`."""

    name: str
    about: str
    ready: bool
    where: Path | None
    licence: str
    hint: str


def cache_folder() -> Path:
    """`FEDSPEND_CACHE`, or the platform's usual cache folder."""
    if given := os.environ.get("FEDSPEND_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        return (
            Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fedspend"
        )
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedspend"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedspend"


def candidates(name: str, folder: Path | None = None) -> list[Path]:
    """Where to look for the files of `name`, in order. If `folder` is given, only there, with or
    without a subfolder of that name.
    """
    if folder is not None:
        return [folder / name, folder]
    given = os.environ.get("FEDSPEND_DATA")
    places = [Path(given).expanduser() / name] if given else []
    return [*places, cache_folder() / name, DEBIAN / name]


def find(
    name: str, folder: Path | None = None, sources: Mapping[str, Source] = SOURCES
) -> Path | None:
    """The folder that holds all files of `name`, or None."""
    source = sources[choose("data set", name, sources)]
    return next((place for place in candidates(name, folder) if source.complete(place)), None)


def require(name: str, folder: Path | None = None, sources: Mapping[str, Source] = SOURCES) -> Path:
    """The folder that holds all files of `name`; if there is none, `InvalidInput` says how to get
    them.
    """
    place = find(name, folder, sources)
    if place is None:
        looked = ", ".join(str(place) for place in candidates(name, folder))
        raise InvalidInput(
            f"the files of data set {name!r} were not found (looked in {looked}); run 'fedspend "
            f"data get {name}', or set FEDSPEND_DATA to a folder that holds {name}/"
        )
    return place


def status(sources: Mapping[str, Source] = SOURCES) -> list[Status]:
    """Where each named data set is, and how to get it if it is missing."""
    lines = []
    for name, (about, package) in BUNDLED.items():
        ready = importlib.util.find_spec(package) is not None
        lines.append(
            Status(
                name, about, ready, None, "BSD", "" if ready else "pip install 'fedspend[train]'"
            )
        )
    for name, source in sources.items():
        where = find(name, sources=sources)
        missing = [need for need in (name, *source.needs) if find(need, sources=sources) is None]
        hint = f"fedspend data get {name}" if missing else ""
        lines.append(Status(name, source.about, not missing, where, source.licence, hint))
    return lines
