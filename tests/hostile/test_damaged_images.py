"""Images that are damaged, forged, too large, or no images, to every command that opens one."""

import math

from cases import case, check_all
from damage import fifo, flip, float_tiff, folder, jpeg, link, png, truncate

PHOTO = "photos/0.jpg"
IMAGES = (
    ("empty.jpg", b"", "empty"),
    ("text.jpg", b"hello", "not an image"),
    ("html.jpg", b"<html><script>alert(1)</script></html>", "not an image"),
    ("zeros.jpg", bytes(5000), "not an image"),
    ("zeros.png", bytes(5000), "not an image"),
    ("half.png", jpeg(kind="PNG")[:900], "damaged"),
    ("start.jpg", jpeg()[:30], "i"),
    ("bomb.png", png(60_000, 60_000, bytes(1000)), "too large"),
    ("wide.png", png(2_000_000_000, 1), "too large"),
    ("none.png", png(0, 0), "i"),
    ("nan.tif", float_tiff(math.nan), "not finite"),
    ("infinite.tif", float_tiff(math.inf), "not finite"),
    ("program.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\n", "not an image"),
    ("drawing.svg", b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not an image"),
    ("elf.png", b"\x7fELF" + bytes(200), "not an image"),
    ("gif.gif", b"GIF89a" + b"\xff" * 40, "i"),
    ("webp.webp", b"RIFF\x10\x00\x00\x00WEBPVP8 " + bytes(8), "i"),
)
DESCRIBE = "describe {} --model captioner"
SCORE = "score {} 'a red ball' --model captioner"
SEARCH = "search {} --model captioner --collection c"
REGIONS = "describe {} --model dense --regions 9"
TRANSLATE = "translate 'a red ball' --model translator --image {}"

test_describe = check_all(
    *(case(DESCRIBE.format(name), name, reason, files={name: data}) for name, data, reason in IMAGES)
)

test_other_commands = check_all(
    *(
        case(command.format(name), name, reason, files={name: data})
        for command in (SCORE, SEARCH, REGIONS, TRANSLATE)
        for name, data, reason in IMAGES[:12:2]
    )
)

test_what_is_no_file = check_all(
    *(
        one
        for command in (DESCRIBE, SCORE, REGIONS, TRANSLATE)
        for one in (
            case(command.format("nothing.jpg"), "nothing.jpg", "no such"),
            case(command.format("link.jpg"), "link.jpg", "no such", files={"link.jpg": link("nothing.jpg")}),
            case(command.format("loop.jpg"), "loop.jpg", files={"loop.jpg": link("loop.jpg")}),
            case(command.format("pipe.jpg"), "pipe.jpg", files={"pipe.jpg": fifo}),
            case(command.format("/dev/zero"), "/dev/zero"),
            case(command.format("/dev/null"), "/dev/null"),
            case(command.format("zero.png"), "zero.png", files={"zero.png": link("/dev/zero")}),
            case(command.format("empty"), "empty", files={"empty": folder}),
            case(command.format("''"), "got an empty text", status=2),
            case(command.format("x" * 300 + ".jpg"), "xxx"),
            case(command.format("notes.txt"), "notes.txt"),
            case(command.format("notes.txt/0.jpg"), "notes.txt/0.jpg"),
        )
    )
)

test_several = check_all(
    case(DESCRIBE.format(f"{PHOTO} bad.jpg"), "bad.jpg", "not an image", files={"bad.jpg": b"x"}),
    case(f"{DESCRIBE.format(f'{PHOTO} bad.jpg')} --json", "bad.jpg", "not an image", files={"bad.jpg": b"x"}),
    case(DESCRIBE.format("photos"), "photos/3.jpg", files={"photos/3.jpg": b"x"}),
    case("describe - --model captioner", "gone.jpg", stdin=b"gone.jpg\n"),
    case("describe - --model captioner", "standard input", stdin=b""),
    case("describe - --model captioner", "standard input", stdin=b"\n\n\n"),
    case("describe - --model captioner", "standard input", "binary", stdin=b"nul\0name.jpg\n"),
    case("describe - --model captioner", "\\xff\\xfe.jpg", stdin=b"\xff\xfe.jpg\n"),
    case(REGIONS.format(f"{PHOTO} bad.jpg"), "bad.jpg", "not an image", files={"bad.jpg": b"x"}),
)

test_damaged_images = check_all(
    case(DESCRIBE.format("half.jpg"), "half.jpg", files={"half.jpg": jpeg(400, 300)[:20_000]}),
    case(
        DESCRIBE.format("flipped.png"),
        "flipped.png",
        files={"flipped.png": jpeg(kind="PNG"), "./flipped.png": flip(0.5)},
    ),
    case(DESCRIBE.format(PHOTO), PHOTO, files={PHOTO: truncate(0.3)}),
)

test_unusual_images = check_all(
    case(DESCRIBE.format("grey.png"), files={"grey.png": jpeg(1, 1, "PNG")}, status=0),
    case(DESCRIBE.format("wide.png"), files={"wide.png": jpeg(3000, 1, "PNG")}, status=0),
    case(DESCRIBE.format("PHOTO.JPG"), files={"PHOTO.JPG": jpeg()}, status=0),
    case(DESCRIBE.format("photo.jfif"), files={"photo.jfif": jpeg()}, status=0),
    case(DESCRIBE.format("photo"), files={"photo": jpeg()}, status=0),
    case(DESCRIBE.format("photo.png"), files={"photo.png": jpeg()}, status=0),
    case(DESCRIBE.format("'a b;c$(d).jpg'"), "a b;c$(d).jpg", files={"a b;c$(d).jpg": jpeg()}, status=0),
    case(
        DESCRIBE.format("'[red]x[/red].jpg' photos/0.jpg"),
        "[red]x",
        files={"[red]x[/red].jpg": jpeg(kind="JPEG")},
        status=0,
    ),
    case(
        "describe names --model captioner",
        "\\x1b[31m",
        files={"names/\x1b[31m.jpg": jpeg(), "names/a.jpg": jpeg()},
        status=0,
    ),
    case("describe names --model captioner", "\\t", files={"names/a\tb.jpg": jpeg(), "names/a.jpg": jpeg()}, status=0),
    case("describe names --model captioner", "\\n", files={"names/a\nb.jpg": jpeg(), "names/a.jpg": jpeg()}, status=0),
    case(
        "describe names --model captioner --json", files={"names/a\nb.jpg": jpeg(), "names/\x1b.jpg": jpeg()}, status=0
    ),
    case(
        "describe names --model dense --regions 9", files={"names/a\nb.jpg": jpeg(), "names/\x1b.jpg": jpeg()}, status=0
    ),
)
