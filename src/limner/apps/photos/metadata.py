"""Captions in the metadata of image files: XMP, EXIF, IPTC and the texts of PNG, in every format that Pillow reads.

Cameras and programs fill the fields of captions with their names, file names and settings, which are left out. An XMP
packet (ISO 16684-1) has `dc:description` and `Iptc4xmpCore:AltTextAccessibility`. A packet is untrusted XML: a document
type declaration, which entities need, is refused. Only properties of the image itself count, not properties of the
ingredients of a composed image.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from warnings import catch_warnings

from lxml import etree
from PIL import ExifTags, Image, IptcImagePlugin
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile, iTXt

from limner.errors import MetadataError
from limner.files import read_bytes
from limner.media.image import IMAGE_SUFFIXES, opened_image

MAX_PACKET = 16 << 20
"""Largest size of a packet that is read, in bytes."""
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_SPACES = {
    "x": "adobe:ns:meta/",
    "rdf": _RDF,
    "dc": "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}
CAPTIONS = (f"{{{_SPACES['dc']}}}description", f"{{{_SPACES['Iptc4xmpCore']}}}AltTextAccessibility")
"""Properties that hold the caption of an image."""
_COPIES = ("{http://ns.adobe.com/tiff/1.0/}ImageDescription", "{http://ns.adobe.com/exif/1.0/}UserComment")
"""Properties that copy the caption in EXIF."""
_DESCRIPTION, _ITEM = f"{{{_RDF}}}Description", f"{{{_RDF}}}li"
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_DEFAULT_LANG = "x-default"
_NEW = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
    f'<x:xmpmeta xmlns:x="{_SPACES["x"]}">\n <rdf:RDF xmlns:rdf="{_RDF}">\n'
    '  <rdf:Description rdf:about=""/>\n </rdf:RDF>\n</x:xmpmeta>\n<?xpacket end="w"?>'
)
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def find_captions(packet: bytes, *, is_damaged: bool = False) -> list[str]:
    """Return the texts of the captions in an XMP packet or a sidecar, of the default language of each property first.

    With `is_damaged`, a damaged packet is read as far as possible. MetadataError if the packet is damaged, too large,
    or declares a document type.
    """
    descriptions = _descriptions(_parse_rdf(packet, is_damaged))
    texts: list[str] = []
    for name in (*CAPTIONS, *_COPIES):
        texts += [description.get(name, "") for description in descriptions]
        for element in (child for description in descriptions for child in description.findall(name)):
            items = sorted(element.findall(f"*/{_ITEM}"), key=lambda item: _lang(item) != _DEFAULT_LANG)
            texts += map(_text, items or [element])
    return list(dict.fromkeys(text.strip() for text in texts if text.strip()))


def add_caption(packet: bytes | None, text: str, lang: str) -> bytes:
    """Return a packet, by default a new one, with a caption; all other properties stay as they are.

    The caption becomes the default text and the text of its language in both properties; texts in other languages are
    kept. MetadataError if the packet cannot be read, see `find_captions`, or contains no RDF.
    """
    rdf = _parse_rdf(_NEW.encode() if packet is None else packet)
    descriptions = _descriptions(rdf) or [etree.SubElement(rdf, _DESCRIPTION, {f"{{{_RDF}}}about": ""})]
    text = " ".join(_NOT_XML.sub(" ", text).split())
    for name in CAPTIONS:
        _set_text(descriptions, name, text, lang)
    written: bytes = etree.tostring(rdf.getroottree(), encoding="utf-8", xml_declaration=False)
    return written + b"\n"


def _set_text(descriptions: list[Any], name: str, text: str, lang: str) -> None:
    """Set the default text of a property and its text in a language."""
    before = [child for description in descriptions for child in description.findall(name)]
    kept = [item for child in before for item in child.findall(f"*/{_ITEM}")]
    kept = [item for item in kept if _lang(item) not in (_DEFAULT_LANG, lang.lower())]
    new = etree.Element(name, nsmap={key: space for key, space in _SPACES.items() if name.startswith(f"{{{space}}}")})
    alternatives = etree.SubElement(new, f"{{{_RDF}}}Alt")
    for language in (_DEFAULT_LANG, lang):
        etree.SubElement(alternatives, _ITEM, {_LANG: language}).text = text
    alternatives.extend(kept)
    for description in descriptions:
        description.attrib.pop(name, None)
    if before:
        new.tail = before[0].tail
        before[0].getparent().replace(before[0], new)
        for child in before[1:]:
            child.getparent().remove(child)
    else:
        descriptions[0].append(new)


def _descriptions(rdf: Any) -> list[Any]:  # noqa: ANN401  (lxml has no types)
    """Return the descriptions whose subject is the image: the subject of the first description, no name, or a UUID."""
    descriptions = rdf.findall(_DESCRIPTION)
    subjects = [item.get(f"{{{_RDF}}}about") or item.get("about") or "" for item in descriptions]
    return [
        description
        for description, subject in zip(descriptions, subjects, strict=True)
        if subject in ("", subjects[0]) or subject.startswith("uuid:")
    ]


def _lang(item: Any) -> str:  # noqa: ANN401
    """Return the language of a text, whose case has no meaning (RFC 5646)."""
    return str(item.get(_LANG, _DEFAULT_LANG)).lower()


def _text(element: Any) -> str:  # noqa: ANN401
    """Return the text of an element without comments and qualifiers."""
    value = element.find(f".//{{{_RDF}}}value")
    return str((element if value is None else value).xpath("string()"))


def _parse_rdf(packet: bytes, is_damaged: bool = False) -> Any:  # noqa: ANN401
    """Parse a packet without document type, entities and network, and return its outermost RDF."""
    if len(packet) > MAX_PACKET:
        raise MetadataError(f"expected a packet of at most {MAX_PACKET:,} bytes, found {len(packet):,}")
    if b"\0" not in packet[:4]:  # not UTF-16
        packet = packet.strip(b"\0 \t\r\n")
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, recover=is_damaged
    )
    try:
        root = etree.fromstring(packet, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise MetadataError(f"expected XML, found none that can be read ({str(error).splitlines()[0]})") from None
    if root is not None and root.getroottree().docinfo.doctype:
        raise MetadataError("expected a packet without a document type declaration (DOCTYPE), found one")
    rdf = None if root is None else next(root.iter(f"{{{_RDF}}}RDF"), None)
    if rdf is None:
        raise MetadataError("expected RDF in the packet, found none")
    return rdf


_IPTC_CAPTION = (2, 120)
_RAW_PROFILE = "Raw profile type "
"""Prefix of the keyword under which ImageMagick and ExifTool store a packet (xmp) or captions (iptc) in PNG."""
_BEGIN, _END = b"<x:xmpmeta", re.compile(rb"</x:xmpmeta\s*>")
_MACHINES = (ExifTags.Base.Make, ExifTags.Base.Model, ExifTags.Base.Software)
_XP_TEXTS = (ExifTags.Base.XPTitle, ExifTags.Base.XPComment, ExifTags.Base.XPSubject)
_UTF8_ENTRIES = ((b"\x0e\x01\x81\0", b"\x0e\x01\2\0"), (b"\x01\x0e\0\x81", b"\x01\x0e\0\2"))
"""Prefix of an ImageDescription of type 129 (UTF-8, EXIF 3.0), which Pillow skips, and of type 2."""
_WORD = re.compile(r"[^\W_]+")
_STRUCTURED = re.compile(r"\{.*\}|\[[\[{\"].*\]|<.*(xmlns|\?>).*|\w+=\S.*|.*\bSteps: \d+, Sampler: .*", re.DOTALL)
"""JSON, XML, settings (`ImageJ=1.53t`), and parameters of image generators."""
_FILLER = re.compile(r"(.)\1+", re.DOTALL)
_MACHINE_WORDS = frozenset(read_bytes(Path(__file__).with_name("machine_words.txt")).decode().split())
"""Words that names of cameras, messages of programs and placeholders consist of, besides numbers."""
_SHORT = 5
"""Largest number of letters and digits of a caption without words; longer texts are times and numbers of files."""


class Metadata(NamedTuple):
    """Caption and XMP packet of an image file."""

    caption: str = ""  # the first caption; empty if there is none
    packet: bytes | None = None  # XMP packet; None if there is none


def read_metadata(source: Path | bytes) -> Metadata:
    """Read the caption and the XMP packet of an image file or its contents; both are empty where damaged."""
    packet = None
    # Pillow raises almost any exception for a damaged file, and warns of damaged metadata.
    with suppress(Exception), catch_warnings(action="ignore"), opened_image(source) as image:
        packet, exif = _read_packet(image), _read_exif(image)
        names = [str(exif.get(tag, "")).strip("\0 ").casefold() for tag in _MACHINES]
        for texts in (_xmp_texts(packet), _exif_texts(exif), _iptc_texts(image), _png_texts(image)):
            with suppress(Exception):
                for text in texts:
                    if is_caption(text := text.strip("\0 \t\r\n"), names):
                        return Metadata(text, packet)
    return Metadata("", packet)


def _read_packet(image: ImageFile) -> bytes | None:
    if isinstance(image, PngImageFile):
        image.load()  # chunks after the image data are read with it
    packet: bytes | None = image.info.get("xmp")
    if packet is None and (profile := _raw_profile(image, "xmp")):
        return profile
    if packet is None and image.format in ("GIF", "JPEG2000") and image.fp is not None:  # Pillow skips it
        image.fp.seek(0)
        _, begin, rest = image.fp.read().partition(_BEGIN)
        return begin + rest[: end.end()] if (end := _END.search(rest)) else None
    return packet


def _raw_profile(image: ImageFile, name: str) -> bytes:
    """Return a profile that PNG stores as hexadecimal digits after three lines; empty for none."""
    return bytes.fromhex("".join(image.info.get(f"{_RAW_PROFILE}{name}", "").split("\n")[3:]))


def _read_exif(image: ImageFile) -> Image.Exif:
    exif = Image.Exif()
    with suppress(Exception):
        if not isinstance(block := image.info.get("exif"), bytes):
            return image.getexif()
        for skipped, read in _UTF8_ENTRIES:
            block = block.replace(skipped, read)
        exif.load(block)
    return exif


def _xmp_texts(packet: bytes | None) -> Iterator[str]:
    if packet is not None:
        yield from find_captions(packet, is_damaged=True)


def _exif_texts(exif: Image.Exif) -> Iterator[str]:
    description = exif.get(ExifTags.Base.ImageDescription)
    if isinstance(description, str):  # Pillow decodes text as Latin-1
        description = description.encode("latin-1")
    if isinstance(description, bytes):
        yield decode_text(description)
    for tag in _XP_TEXTS:
        if isinstance(value := exif.get(tag), bytes):
            yield value.decode("utf-16-le", errors="ignore").partition("\0")[0]
    comment = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment)
    if isinstance(comment, bytes):
        charset, text = comment[:8].rstrip(b"\0 ").upper(), comment[8:]
        if charset == b"UNICODE":
            yield decode_unicode(text)
        elif charset == b"JIS":
            yield text.decode("iso2022_jp")
        else:
            yield decode_text(text if charset in (b"ASCII", b"") else comment)


def _iptc_texts(image: ImageFile) -> Iterator[str]:
    caption = (IptcImagePlugin.getiptcinfo(image) or {}).get(_IPTC_CAPTION, [])
    for text in [caption] if isinstance(caption, bytes) else caption:
        yield decode_text(text)
    _, _, rest = _raw_profile(image, "iptc").partition(b"\x1c" + bytes(_IPTC_CAPTION))
    yield decode_text(rest[2 : 2 + int.from_bytes(rest[:2], "big")])


def _png_texts(image: ImageFile) -> Iterator[str]:
    for keyword, text in image.text.items() if isinstance(image, PngImageFile) else ():
        if keyword.casefold() == "description":
            yield text if isinstance(text, iTXt) else decode_text(text.encode("latin-1"))


def decode_text(data: bytes) -> str:
    """Decode a text of EXIF or IPTC data up to its first NUL: UTF-8, else Windows-1252, which extends Latin-1."""
    text, _, rest = data.partition(b"\0")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "" if rest.strip(b"\0") else text.decode("cp1252", errors="replace")  # binary data have NUL inside


def decode_unicode(data: bytes) -> str:
    """Decode UTF-16, or UTF-8 as some programs write it: without NUL, and with a space or characters beyond ASCII.

    In UTF-16 without a byte order mark, high bytes are the bytes that vary less, as in a text of one script.
    """
    with suppress(UnicodeDecodeError):
        if 0 not in data.rstrip(b"\0") and (b" " in data or not data.isascii()):
            return data.decode()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="ignore")
    is_little = len(set(data[1::2])) <= len(set(data[::2]))
    return data.decode("utf-16-le" if is_little else "utf-16-be", errors="ignore")


def is_caption(text: str, names: Collection[str] = ()) -> bool:
    """Whether a text of the metadata, without white space around it, is a caption and not written by a program.

    False for binary data, repeated signs, punctuation, file names, structured data, and a text that consists of
    numbers, identifiers, words of the lower-case names of the camera and the program, and words of cameras and
    programs, unless it consists of short numbers and identifiers alone ('1984', 'H2O').
    """
    is_binary = any(sign == "\ufffd" or (unicodedata.category(sign) == "Cc" and not sign.isspace()) for sign in text)
    is_filler = _FILLER.fullmatch(text) is not None and unicodedata.category(text[0]) != "Lo"
    if is_binary or is_filler or PurePath(text).suffix.lower() in IMAGE_SUFFIXES or _STRUCTURED.fullmatch(text):
        return False
    words = _WORD.findall(text.casefold())
    if not words:
        return any(unicodedata.category(sign) == "So" for sign in text)  # emoji
    machine_words = _MACHINE_WORDS.union(*(_WORD.findall(name) for name in names))
    human_words = [word for word in words if word not in machine_words]
    if not all(word.isascii() and (len(word) == 1 or any(map(str.isdigit, word))) for word in human_words):
        return True
    return len(human_words) == len(words) and len("".join(words)) <= _SHORT
