from __future__ import annotations

import gzip

import numpy as np
import pytest

from fedspend.data.files import locate, read_idx
from fedspend.errors import InvalidInput

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("array", [IMAGES, np.array([[1, -2, 70000]], dtype=np.int32)])
def test_what_is_written_is_read(tmp_path, write_idx, array, compress):
    path = write_idx(tmp_path / "file", array, compress)
    np.testing.assert_array_equal(read_idx(path, array.ndim), array)


def damaged(content: bytes) -> dict[str, tuple[bytes, str]]:
    return {
        "empty file": (b"", "not an idx file, it has only 0 bytes"),
        "wrong magic": (b"\x89PNG" + content[4:], "not an idx file, it begins with 89504e47"),
        "unknown type": (b"\0\0\x07\x03" + content[4:], "not an idx file"),
        "other dimensions": (
            b"\0\0\x08\x01" + content[4:],
            "has 1 dimensions, but 3 are needed",
        ),
        "cut header": (content[:10], "ends inside its header"),
        "cut data": (content[:-1], r"23 bytes of data, but shape \(2, 3, 4\) needs 24"),
        "more data": (content + b"\0", "25 bytes of data"),
        "no rows": (content[:4] + bytes(4) + content[8:16], "has no data"),
        "huge count": (content[:4] + b"\xff" * 12 + content[16:], "24 bytes of data, but shape"),
        "cut gzip": (gzip.compress(content, mtime=0)[:-9], "damaged gzip file"),
        "damaged gzip": (b"\x1f\x8b" + bytes(30), "damaged gzip file"),
    }


@pytest.mark.parametrize("case", damaged(b"").keys())
def test_a_damaged_file_is_refused_by_name(tmp_path, write_idx, case):
    path = write_idx(tmp_path / "file", IMAGES, compress=False)
    content, message = damaged(path.read_bytes())[case]
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as refusal:
        read_idx(path, 3)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_idx(tmp_path / "nothing", 3)


def test_compressed_and_plain_names_are_the_same_file(tmp_path):
    (tmp_path / "a.gz").touch()
    (tmp_path / "b").touch()
    assert locate(tmp_path, "a") == locate(tmp_path, "a.gz") == tmp_path / "a.gz"
    assert locate(tmp_path, "b") == locate(tmp_path, "b.gz") == tmp_path / "b"
    assert locate(tmp_path, "c") is None
