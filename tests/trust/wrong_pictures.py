"""Bad pictures."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from trust.batches import Maker, Trial, cli
from trust.cases import command, generator
from trust.damage import Random, of_bytes, one_of, pick, truncate
from trust.world import World, unsound
from trust.wrong_texts import ODD_FILES


def pictures(world: World) -> list[Maker]:
    """What `predict` and the library take for pictures."""
    good = good_pictures()
    return [
        *(_odd_file(world, kind) for kind in ODD_FILES),
        *(_named(world, name) for name in NAMES),
        *(_written(world, name, content) for name, content in foreign_files().items()),
        *(_written(world, name, content) for name, content in bombs().items()),
        *(_cut(world, name) for name in good),
        *([_damaged(world)] * 190),
        *([_folder(world)] * 10),
    ]


def good_pictures() -> dict[str, bytes]:
    """The formats that are read, in the forms that they come in."""
    random = generator(0, "pictures")
    rgb = Image.fromarray(random.integers(0, 256, (60, 70, 3), dtype=np.uint8))
    grey, alpha = rgb.convert("L"), rgb.convert("RGBA")
    deep = Image.fromarray(random.integers(0, 65536, (40, 50), dtype=np.uint16))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "somebody"
    forms: tuple[tuple[str, Image.Image, str, dict[str, Any]], ...] = (
        ("rgb.png", rgb, "PNG", {}),
        ("alpha.png", alpha, "PNG", {}),
        ("palette.png", rgb.quantize(16), "PNG", {"transparency": 3}),
        ("bits.png", rgb.convert("1"), "PNG", {}),
        ("deep.png", deep, "PNG", {}),
        ("moving.png", rgb, "PNG", {"save_all": True, "append_images": [rgb.rotate(90), rgb.rotate(180)]}),
        ("plain.jpg", rgb, "JPEG", {"exif": exif}),
        ("progressive.jpg", rgb, "JPEG", {"progressive": True}),
        ("cmyk.jpg", rgb.convert("CMYK"), "JPEG", {}),
        ("grey.jpg", grey, "JPEG", {"icc_profile": random.bytes(300)}),
        ("moving.gif", rgb, "GIF", {"save_all": True, "append_images": [grey.convert("RGB")], "loop": 0}),
        ("plain.bmp", rgb, "BMP", {}),
        ("plain.tif", rgb, "TIFF", {}),
        ("packed.tif", rgb, "TIFF", {"compression": "tiff_lzw"}),
        ("deflated.tif", rgb, "TIFF", {"compression": "tiff_adobe_deflate"}),
        ("fax.tif", rgb.convert("1"), "TIFF", {"compression": "group4"}),
        ("real.tif", grey.convert("F"), "TIFF", {}),
        ("lossy.webp", rgb, "WEBP", {}),
        ("lossless.webp", alpha, "WEBP", {"lossless": True, "exif": exif}),
        ("moving.webp", rgb, "WEBP", {"save_all": True, "append_images": [rgb.rotate(90)]}),
    )
    found = {}
    for name, picture, kind, options in forms:
        file = io.BytesIO()
        picture.save(file, kind, **options)
        found[name] = file.getvalue()
    return found


def foreign_files() -> dict[str, bytes]:
    """Files of other kinds under the names of pictures; programs that they would be handed to never see them."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n%%EndComments\n(%pipe%touch broken-in)"
    eps += b" (w) file\nshowpage\n"
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
    found = {
        "eps.png": eps,
        "eps.eps": eps,
        "eps.jpg": b"\xc5\xd0\xd3\xc6" + struct.pack("<IIIIII", 30, len(eps), 0, 0, 0, 0) + eps,
        "svg.png": svg,
        "page.svg": svg,
        "page.pdf": b"%PDF-1.4\n1 0 obj\n<< >>\nendobj\ntrailer\n<< /Root 1 0 R >>\n%%EOF",
        "pdf.jpg": b"%PDF-1.4\n%%EOF",
        "text.png": b"this is no picture",
        "page.html": b"<html><body>",
        "zip.png": b"PK\x03\x04" + bytes(100),
        "pickle.png": b"\x80\x04\x95\x15\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        "elf.png": b"\x7fELF" + bytes(100),
        "head.png": b"\x89PNG\r\n\x1a\n",
        "head.jpg": b"\xff\xd8\xff",
        "head.gif": b"GIF89a",
        "head.webp": b"RIFF\x10\x00\x00\x00WEBPVP8 ",
        "head.tif": b"II*\x00\x08\x00\x00\x00",
        "round.tif": b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00",
        "head.bmp": b"BM" + bytes(52),
        "head.heic": b"\x00\x00\x00\x18ftypheic" + bytes(40),
    }
    one = Image.fromarray(generator(0, "foreign").integers(0, 256, (8, 8, 3), dtype=np.uint8))
    for kind in ("PPM", "ICO", "TGA", "SGI", "PCX", "IM", "DDS", "ICNS", "JPEG2000", "XBM"):
        file = io.BytesIO()
        (one.convert("1") if kind == "XBM" else one).save(file, kind)
        found[f"{kind.lower()}.png"] = file.getvalue()
    return found


def png(width: int, height: int, data: bytes, kind: int = 2, more: bytes = b"") -> bytes:
    """A PNG of these chunks, whatever they say."""
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + more + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bombs() -> dict[str, bytes]:
    """Small files of many pixels, or none; all of them are wrong."""
    zeros = zlib.compress(bytes(10**7))
    gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\x80\x00\x00" + bytes(6)
    gif += b"," + struct.pack("<HHHH", 0, 0, 65535, 65535) + b"\x00\x02\x02\x44\x01\x00;"
    bmp = (
        b"BM"
        + struct.pack("<IHHI", 70, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 40000, 40000, 1, 24, 0, 0, 1, 1, 0, 0)
    )
    text = _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200_000_000)))
    found = {
        "huge.png": png(60_000, 60_000, zeros),
        "wide.png": png(2**31 - 1, 1, zeros),
        "beyond.png": png(2**32 - 1, 2**32 - 1, zeros),
        "none.png": png(0, 0, zlib.compress(b"")),
        "flat.png": png(100, 0, zlib.compress(b"")),
        "short.png": png(3000, 3000, zlib.compress(bytes(100))),
        "huge.gif": gif,
        "huge.bmp": bmp,
        "less.bmp": bmp.replace(struct.pack("<i", 40000), struct.pack("<i", -(2**31))),
        "text.png": png(8, 8, zlib.compress(bytes(200)), more=text),
    }
    for width, height in ((65500, 65500), (0, 0), (16383, 16383)):
        size = struct.pack(">HH", height, width)
        jpeg = good_pictures()["plain.jpg"]
        place = jpeg.index(b"\xff\xc0") + 5
        found[f"{width}.jpg"] = jpeg[:place] + size + jpeg[place + 4 :]
    return found


NAMES = (
    *(
        "",
        "not-there.png",
        "a\0b.png",
        "x" * 300 + ".png",
        "/".join(["y" * 100] * 60) + ".png",
        "*.png",
        "[a-",
        "**/*.png",
    ),
    *("a\nb.png", "a\x1b[31mb.png", "\udcff\udcfe.png", "~/x.png", "file:///etc/passwd", "http://localhost/x.png", "-"),
    *(
        "data:image/png;base64,AAAA",
        "\u202egnp.exe",
        "[red]x.png",
        "[/].png",
        "/proc/self/mem",
        "/dev/stdin",
        "/dev/zero",
    ),
)


def _shown(what: str, world: World, work: Path, path: Path | str, random: Random, wrong: bool) -> Trial:
    """Shown to the library or given to a command."""
    text = str(path)
    if random.random() < 0.35:
        return cli(what, ["predict", world.run, text], wrong=wrong, wanting=not wrong, sane=_nothing_broken_in)

    def act() -> Any:
        return world.fresh_classifier().predict(text)

    return Trial(what, act, wrong, lambda found, _: _nothing_broken_in() or unsound(world, found), library=True)


def _nothing_broken_in(*_: object) -> str | None:
    return "it ran what the file said" if Path("broken-in").exists() else None


def _odd_file(world: World, kind: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        path = work / one_of(random, ("x.png", "x.jpg", "x.tif", "x.webp"))
        ODD_FILES[kind](path)
        return _shown(f"a picture is {kind}", world, work, path, random, wrong=True)

    return make


def _named(world: World, name: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        # One with an odd name that is there is a picture; one that is not there is none.
        there = bool(random.random() < 0.5) and name[:1] not in ("", "/", "-") and "\0" not in name and "/" not in name
        if there and len(name) < 200 and not any(mark in name for mark in "*["):
            (work / name).write_bytes(good_pictures()["rgb.png"])
        else:
            there = False
        return _shown(f"a picture is called {name!r}", world, work, name, random, wrong=not there)

    return make


def _written(world: World, name: str, content: bytes) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        (work / name).write_bytes(content)
        # Text that a picture carries may be passed over.
        wrong = (name, content[:4]) != ("text.png", b"\x89PNG")
        return _shown(f"{name} of another kind", world, work, work / name, random, wrong)

    return make


def _cut(world: World, name: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        content = good_pictures()[name]
        end = int(random.integers(1, len(content) // 3))
        (work / name).write_bytes(content[:end])
        return _shown(f"{name} cut off after {end}", world, work, work / name, random, wrong=True)

    return make


def _damaged(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        good = good_pictures()
        name = one_of(random, tuple(good))
        how: Callable[[Random, bytes], tuple[str, bytes]] = pick(random, (of_bytes, of_bytes, of_bytes, truncate))
        what, content = how(random, good[name])
        (work / name).write_bytes(content)
        return _shown(f"{name}: {what}", world, work, work / name, random, wrong=False)

    return make


def _folder(world: World) -> Maker:
    """Good and bad ones together: a sentence for each that is bad, and an answer for each that is good."""

    def make(work: Path, random: Random) -> Trial:
        folder = work / "pictures"
        folder.mkdir()
        good = good_pictures()
        bad = {
            **foreign_files(),
            **{f"bomb-{name}": content for name, content in bombs().items() if name != "text.png"},
        }
        names = [one_of(random, tuple(bad)) for _ in range(4)]
        for name in names:
            place = folder / name
            (place if place.suffix in (".png", ".jpg") else place.with_suffix(".png")).write_bytes(bad[name])
        os.mkfifo(folder / "fifo.png")
        count = int(random.integers(1, 4))
        for number in range(count):
            (folder / f"good-{number}.png").write_bytes(good["rgb.png"])
        out = work / "found.csv"

        words = ["predict", str(world.run), str(folder), "--out", str(out)]

        def act() -> int:
            code = command(words)()
            lines = out.read_text().splitlines()
            answered = [line for line in lines[1:] if "good-" in line]
            assert (code, len(lines), len(answered)) == (1, count + 1, count), f"code {code}: {lines}"
            return code

        return Trial(f"a folder of {names}", act, wrong=False, wanting=True, several=True, leaves=True)

    return make
