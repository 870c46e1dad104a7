"""Images: content ids, sizes, decoding, and the store."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path

import pytest
from PIL import Image as Pillow

from purerl.errors import ImageError
from purerl.images import Cache, Image, ImageStore, content_id, decode, hex_id
from tests.backends.vision import picture


def png_header(width: int, height: int) -> bytes:
    """A PNG file whose header says that it has this size, with one row of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def _saved(image: Pillow.Image, kind: str = "PNG", **options: object) -> bytes:
    image.save(file := BytesIO(), format=kind, **options)
    return file.getvalue()


def test_content_id_depends_on_the_bytes_only(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(1))
    from_file, from_bytes, other = Image(tmp_path / "a.png"), Image(picture(1)), Image(picture(2))
    assert from_file == from_bytes
    assert from_file.id == from_bytes.id == content_id(picture(1))
    assert other != from_bytes
    assert 0 < other.id < 2**63
    assert from_file.size == (32, 24)
    assert hash(from_file) == hash(from_bytes)


BAD = {
    "no image": (b"some text", "no image in a format that Pillow reads"),
    "nothing": (b"", "no image in a format that Pillow reads"),
    "too many pixels": (png_header(12_000, 10_000), "12,000 x 10,000 pixels"),
    "far too many pixels": (png_header(2**31 - 1, 2**31 - 1), "exceeds limit of"),
}


@pytest.mark.parametrize("name", BAD)
def test_header_of_a_bad_image_is_refused(name: str) -> None:
    data, got = BAD[name]
    with pytest.raises(ImageError, match=got):
        _ = Image(data).size


TRUNCATED = {
    "truncated PNG": picture(0)[:-600],
    "truncated JPEG": picture(0, (64, 64), "JPEG")[:-600],
    "PNG with missing rows": png_header(64, 64),
}


@pytest.mark.parametrize("name", TRUNCATED)
def test_a_truncated_image_has_a_size_and_is_not_stored(name: str, tmp_path: Path) -> None:
    image, store = Image(TRUNCATED[name]), ImageStore(tmp_path / "images")
    assert image.size
    with pytest.raises(ImageError, match="bytes: an image"):
        store.add([image])
    assert not (tmp_path / "images").exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="No such file"):
        _ = Image(tmp_path / "a.png").id
    assert "a.png" in repr(Image(tmp_path / "a.png"))


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(1))
    image = Image(tmp_path / "a.png")
    assert image.id
    (tmp_path / "a.png").write_bytes(picture(2))
    with pytest.raises(ImageError, match="changed during the run"):
        ImageStore(tmp_path / "images").add([image])


def test_decoding_turns_the_image_as_exif_says() -> None:
    wide = Pillow.new("RGB", (30, 10), "red")
    wide.paste("blue", (0, 0, 10, 10))
    exif = Pillow.Exif()
    exif[0x0112] = 6  # a quarter turn clockwise
    data = _saved(wide, exif=exif)
    assert Image(data).size == decode(data).size == (10, 30)
    assert decode(data).getpixel((5, 5)) == (0, 0, 255), "what was left is on top"


def test_transparent_pixels_are_white() -> None:
    for image in (Pillow.new("RGBA", (4, 4), (255, 0, 0, 0)), Pillow.new("LA", (4, 4), (0, 0))):
        assert decode(_saved(image)).getpixel((1, 1)) == (255, 255, 255)
    assert decode(_saved(Pillow.new("L", (4, 4), 7))).getpixel((1, 1)) == (7, 7, 7)


def test_store_returns_the_bytes_of_an_id_and_writes_each_image_once(tmp_path: Path) -> None:
    store, images = ImageStore(tmp_path / "images"), [Image(picture(k)) for k in (1, 2, 1)]
    store.add(images)
    assert [store.read(image.id) for image in images] == [picture(1), picture(2), picture(1)]
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == sorted({hex_id(i.id) for i in images})
    before = store.path(images[0].id).stat().st_mtime_ns
    store.add(images)
    assert store.path(images[0].id).stat().st_mtime_ns == before


def test_an_empty_file_is_written_again(tmp_path: Path) -> None:
    store, image = ImageStore(tmp_path), Image(picture())
    store.path(image.id).touch()
    store.add([image])
    assert store.read(image.id) == picture()


def test_each_added_image_is_flushed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr("purerl.images.sync", flushed.append)
    store, images = ImageStore(tmp_path), [Image(picture(seed)) for seed in range(40)]
    store.sync()
    assert flushed == []
    store.add(images)
    store.sync()
    assert sorted(flushed[:-1]) == sorted(store.path(image.id) for image in images)
    assert flushed[-1] == tmp_path
    store.add(images)
    store.sync()
    assert len(flushed) == 41


def test_store_refuses_missing_and_changed_files(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    with pytest.raises(ImageError, match="No such file"):
        store.read(5)
    store.path(5).write_bytes(picture(1))
    with pytest.raises(ImageError, match="another content"):
        store.read(5)


def _add(folder: Path, seeds: range) -> None:
    ImageStore(folder).add(Image(picture(seed)) for seed in seeds)


def test_processes_that_add_the_same_images_do_not_disturb_each_other(tmp_path: Path) -> None:
    workers = [get_context("fork").Process(target=_add, args=(tmp_path, range(20))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    store = ImageStore(tmp_path)
    assert all(store.read(Image(picture(seed)).id) == picture(seed) for seed in range(20))
    assert len(list(tmp_path.iterdir())) == 20, "no unfinished file"


def test_cache_keeps_what_was_used_last() -> None:
    cache, made = Cache(max_bytes=3), []

    def get(key: str) -> str:
        return cache.get(key, lambda: made.append(key) or key, len)

    for key in ("a", "bb", "a", "c"):  # 4 bytes: bb, which was used first, goes
        assert get(key) == key
    get("a"), get("bb"), get("too long")
    get("too long")
    assert made == ["a", "bb", "c", "bb", "too long", "too long"]
