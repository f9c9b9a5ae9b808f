"""Images as people have them: each odd or broken kind has a named outcome."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from erpcnet.data import images
from erpcnet.data.images import find_images, image_pixels, load_image, read_image
from erpcnet.errors import InputError

# Left half red, right half green; wider than high.
COLOURS = np.zeros((20, 40, 3), dtype=np.uint8)
COLOURS[:, :20, 0] = 255
COLOURS[:, 20:, 1] = 255


def _is_the_picture(picture: Image.Image, tolerance: int = 40) -> bool:
    pixels = np.asarray(picture, dtype=int)
    return picture.mode == "RGB" and pixels.shape == (20, 40, 3) and np.abs(pixels - COLOURS).mean() < tolerance


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "bmp", "tiff"])
def test_common_formats(tmp_path: Path, ending: str) -> None:
    Image.fromarray(COLOURS).save(tmp_path / f"a.{ending}")
    assert _is_the_picture(load_image(tmp_path / f"a.{ending}"))


@pytest.mark.parametrize("name", ["a.heic", "a.HEIF", "a.jpg"])
def test_heic_of_telephones(tmp_path: Path, name: str) -> None:
    """Whatever it is called: it is what is in it that counts."""
    pytest.importorskip("pillow_heif").register_heif_opener()
    Image.fromarray(COLOURS).save(tmp_path / name, "HEIF", quality=95)
    assert _is_the_picture(load_image(tmp_path / name))
    content = BytesIO((tmp_path / name).read_bytes())
    assert image_pixels(content, "this") == 800
    assert _is_the_picture(read_image(content, "this"))


def test_heic_without_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_known_formats", lambda: ("JPEG", "PNG"))
    (tmp_path / "a.heic").write_bytes(b"...")
    with pytest.raises(InputError, match=r"a\.heic: reading \.heic files needs pip install 'erpcnet\[heic\]'"):
        load_image(tmp_path / "a.heic")


def test_cmyk_palette_and_transparency_become_rgb(tmp_path: Path) -> None:
    picture = Image.fromarray(COLOURS)
    picture.convert("CMYK").save(tmp_path / "cmyk.jpg")
    picture.convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "palette.png")
    clear = picture.convert("RGBA")
    clear.putalpha(Image.fromarray(np.where(np.arange(40) < 20, 255, 0).astype(np.uint8)[None].repeat(20, 0)))
    clear.save(tmp_path / "clear.png")
    assert _is_the_picture(load_image(tmp_path / "cmyk.jpg"))
    assert _is_the_picture(load_image(tmp_path / "palette.png"))
    on_white = np.asarray(load_image(tmp_path / "clear.png"))
    assert (on_white[:, 20:] == 255).all()
    assert (on_white[:, :20] == (255, 0, 0)).all()


def test_grey_and_sixteen_bit_become_rgb(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(40, dtype=np.float32) / 39, (20, 1))
    Image.fromarray((ramp * 255).astype(np.uint8)).save(tmp_path / "grey.png")
    Image.fromarray((ramp * 65535).astype(np.uint16)).save(tmp_path / "deep.png")
    for name in ("grey.png", "deep.png"):
        found = np.asarray(load_image(tmp_path / name), dtype=float)
        np.testing.assert_allclose(found, (ramp * 255)[..., None].repeat(3, 2), atol=1.5)


def test_the_first_frame_of_an_animation_is_taken(tmp_path: Path) -> None:
    frames = [Image.fromarray(COLOURS), Image.new("RGB", (40, 20), "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert _is_the_picture(load_image(tmp_path / "a.gif"))


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to see it upright
    Image.fromarray(COLOURS).transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.jpg", exif=exif)
    assert _is_the_picture(load_image(tmp_path / "a.jpg"))


def test_names_beyond_ascii(tmp_path: Path) -> None:
    (tmp_path / "vögel 鳥").mkdir()
    Image.fromarray(COLOURS).save(tmp_path / "vögel 鳥" / "bild é.png")
    (found,) = find_images(tmp_path)
    assert _is_the_picture(load_image(tmp_path / found))


@pytest.mark.parametrize("kind", ["truncated", "empty", "text"])
def test_what_does_not_decode_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"{kind}.jpg"
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path)
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"a bird, honestly"}[kind])
    with pytest.raises(InputError, match=rf"{kind}\.jpg does not decode as an image \(.+\); replace the file"):
        load_image(path)


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for side in (12_000, 60_000):  # beyond Pillow's warning, and beyond its error
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
        (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
        with pytest.raises(InputError, match=r"bomb\.png has more than \d+ million pixels"):
            load_image(tmp_path / "bomb.png")


def test_a_box_is_cut_out(tmp_path: Path) -> None:
    Image.fromarray(COLOURS).save(tmp_path / "a.png")
    right = load_image(tmp_path / "a.png", np.array([20, 5, 99, 15]))
    assert right.size == (20, 10)
    assert (np.asarray(right) == (0, 255, 0)).all()
    with pytest.raises(InputError, match=r"box \[50, 0, 60, 10\] lies outside of the 40 x 20 image"):
        load_image(tmp_path / "a.png", np.array([50, 0, 60, 10]))


def test_hidden_folders_and_other_files_are_passed_over(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "a/.hidden.jpg", ".cache/2.jpg", "a/notes.txt", "b/3.WEBP"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [str(found) for found in find_images(tmp_path)] == ["a/1.jpg", "b/3.WEBP"]
