"""Captions in XMP packets (ISO 16684-1): `dc:description` and `Iptc4xmpCore:AltTextAccessibility`.

A packet is a text in XML that comes with a photograph from anywhere: a document type declaration, which entities need,
is refused. Only properties of the image count; ingredients of a composed image have properties of their own, inside it.
"""

from __future__ import annotations

import re
from typing import Any

from lxml import etree

from limner.errors import MetadataError

MAX_PACKET = 16 << 20
"""Largest size of a packet that is read, in bytes."""
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_NAMES = {
    "x": "adobe:ns:meta/",
    "rdf": _RDF,
    "dc": "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}
CAPTIONS = (f"{{{_NAMES['dc']}}}description", f"{{{_NAMES['Iptc4xmpCore']}}}AltTextAccessibility")
"""Properties that hold the caption of an image."""
_COPIES = ("{http://ns.adobe.com/tiff/1.0/}ImageDescription", "{http://ns.adobe.com/exif/1.0/}UserComment")
"""Properties that copy the caption in EXIF."""
_DESCRIPTION, _ITEM = f"{{{_RDF}}}Description", f"{{{_RDF}}}li"
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_DEFAULT_LANG = "x-default"
_NEW = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
    f'<x:xmpmeta xmlns:x="{_NAMES["x"]}">\n <rdf:RDF xmlns:rdf="{_RDF}">\n'
    '  <rdf:Description rdf:about=""/>\n </rdf:RDF>\n</x:xmpmeta>\n<?xpacket end="w"?>'
)
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def find_captions(packet: bytes, *, is_damaged: bool = False) -> list[str]:
    """Return the texts of the captions of an image, texts of the default language of each property first.

    Args:
        packet: XMP packet of an image, or its sidecar.
        is_damaged: whether as much is read as possible of a damaged packet.

    Raises:
        MetadataError: the packet is damaged, too large, or declares a document type.
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
    """Return a packet with a caption; all other properties stay as they are.

    The caption is the default text of both properties and that of its language; texts in other languages are kept.

    Args:
        packet: existing packet; None for a new one.
        text: caption.
        lang: its language code.

    Raises:
        MetadataError: as for `find_captions`, or the packet contains no RDF.
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
    new = etree.Element(name, nsmap={key: space for key, space in _NAMES.items() if name.startswith(f"{{{space}}}")})
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
    """Return the descriptions of the image, which is the subject of the first one, has no name, or has a UUID."""
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
