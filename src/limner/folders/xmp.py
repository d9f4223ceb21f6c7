"""Captions in XMP packets (ISO 16684-1): `dc:description` and `Iptc4xmpCore:AltTextAccessibility`.

A packet is a text in XML that comes with a photograph from anywhere: a document type declaration, which entities need,
is refused before the packet is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.parsers import expat

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
DESCRIPTION = f"{{{_NAMES['dc']}}}description"
ALT_TEXT = f"{{{_NAMES['Iptc4xmpCore']}}}AltTextAccessibility"
CAPTIONS = (DESCRIPTION, ALT_TEXT)
"""Properties that hold the caption of an image."""
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_DEFAULT_LANG = "x-default"
_NEW = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
    f'<x:xmpmeta xmlns:x="{_NAMES["x"]}">\n <rdf:RDF xmlns:rdf="{_RDF}">\n'
    '  <rdf:Description rdf:about=""/>\n </rdf:RDF>\n</x:xmpmeta>\n<?xpacket end="w"?>'
)
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def find_captions(packet: bytes) -> list[str]:
    """Return the captions of a packet: the default texts of `CAPTIONS` that are not empty.

    Raises:
        MetadataError: the packet is damaged, too large, or declares a document type.
    """
    root = _parse(packet)
    texts = [_default_text(one) for name in CAPTIONS for one in root.iter(name)]
    texts += [text for one in root.iter(f"{{{_RDF}}}Description") for name in CAPTIONS if (text := one.get(name))]
    return [text.strip() for text in texts if text.strip()]


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
    root = _parse(_NEW.encode() if packet is None else packet)
    rdf = next(root.iter(f"{{{_RDF}}}RDF"), None)
    if rdf is None:
        raise MetadataError("expected RDF in the packet, found none")
    text = " ".join(_NOT_XML.sub(" ", text).split())
    for name in CAPTIONS:
        _set_text(rdf, name, text, lang)
    written: bytes = etree.tostring(root.getroottree(), encoding="utf-8", xml_declaration=False)
    return written + b"\n"


def _set_text(rdf: Any, name: str, text: str, lang: str) -> None:  # noqa: ANN401  (lxml has no types)
    """Set the texts of one property."""
    descriptions = rdf.findall(f"{{{_RDF}}}Description")
    for one in descriptions:
        one.attrib.pop(name, None)
    found = [child for one in descriptions for child in one.findall(name)]
    others = [item for one in found for item in _items(one) if item[0] not in (_DEFAULT_LANG, lang)]
    parent = found[0].getparent() if found else _description(rdf, descriptions)
    new = etree.Element(name, nsmap={key: space for key, space in _NAMES.items() if name.startswith(f"{{{space}}}")})
    alternatives = etree.SubElement(new, f"{{{_RDF}}}Alt")
    for language, value in ((_DEFAULT_LANG, text), (lang, text), *others):
        item = etree.SubElement(alternatives, f"{{{_RDF}}}li")
        item.set(_LANG, language)
        item.text = value
    if found:
        new.tail = found[0].tail
        parent.replace(found[0], new)
        for one in found[1:]:
            one.getparent().remove(one)
    else:
        parent.append(new)


def _default_text(element: Any) -> str:  # noqa: ANN401
    """Return the default text of a property, else the first one, else the text without alternatives."""
    items = list(_items(element)) or [(_DEFAULT_LANG, "".join(element.itertext()))]
    return dict(reversed(items)).get(_DEFAULT_LANG, items[0][1])


def _items(element: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Return the language and the text of each alternative of a property."""
    for item in element.iter(f"{{{_RDF}}}li"):
        if text := "".join(item.itertext()).strip():
            yield item.get(_LANG, _DEFAULT_LANG), text


def _description(rdf: Any, descriptions: list[Any]) -> Any:  # noqa: ANN401
    """Return the element that new properties are added to."""
    if descriptions:
        return descriptions[0]
    created = etree.SubElement(rdf, f"{{{_RDF}}}Description")
    created.set(f"{{{_RDF}}}about", "")
    return created


def _parse(packet: bytes) -> Any:  # noqa: ANN401
    """Parse a packet without document type, entities and network.

    Raises:
        MetadataError: it is not well-formed, too large or nested too deeply, or declares a document type.
    """
    if len(packet) > MAX_PACKET:
        raise MetadataError(f"expected a packet of at most {MAX_PACKET:,} bytes, found {len(packet):,}")
    packet = packet.strip(b"\0 \t\r\n")
    _refuse_document_type(packet)
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        return etree.fromstring(packet, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise MetadataError(f"expected XML, found none that can be read ({str(error).splitlines()[0]})") from None


def _refuse_document_type(packet: bytes) -> None:
    def refuse(*_: object) -> None:
        raise MetadataError("expected a packet without a document type declaration (DOCTYPE), found one")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(packet, True)
    except expat.ExpatError as error:
        raise MetadataError(f"expected XML, found none that can be read ({error})") from None
    except ValueError as error:  # an encoding that has no bytes of its own
        raise MetadataError(f"expected XML in UTF-8, found another encoding ({error})") from None
