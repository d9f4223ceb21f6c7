"""Texts in the metadata of images: their encoding, and which of them are captions.

Cameras and programs fill the fields of captions with their names, file names and settings.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Collection
from pathlib import PurePath

from limner.media.image import IMAGE_SUFFIXES

_WORD = re.compile(r"[^\W_]+")
_STRUCTURED = re.compile(r"\{.*\}|\[[\[{\"].*\]|<.*(xmlns|\?>).*|\w+=\S.*|.*\bSteps: \d+, Sampler: .*", re.DOTALL)
"""JSON, XML, settings (`ImageJ=1.53t`), and parameters of image generators."""
_FILLER = re.compile(r"(.)\1+", re.DOTALL)
_MACHINE_WORDS = frozenset(
    """
    acd acer adobe agfa aiptek applemark arw ascii asus balong beautiful benq binary btf btfhdr btfmdn btr burst
    by cam camedia camera cameras canon caption casio charset cof comment compressed concord converted coolpix
    created creator cyber cybershot dav dc dcim default description digimax digital digitalcamera dimage dji dng
    dsc dslr dvc easyshare edf edited empty epson exif exilim exported fbt fbthdr file finepix frem from
    frontbhdp fshbty fuji fujifilm generated gimp gopro hdr hdrb hdrpl hisilicon hp htc huawei image
    imagedescription imagemagick imaging img imlib in iphone irfanview jenoptik jpeg jpg jvc kenox kodak konica
    kyocera leica lg lightroom lumix made mavica mde media medion minolta mobile mon motorola mov mp4 my nef net
    nikon no nokia none nor null olympus oneplus oplus oppo optimized orf oznor oznorwo paint panasonic pentax
    phone photo photos photoshop photosmart picasa picture pictures polaroid powershot praktica preset processed
    ptr qrf raf rbt realme rhdr ricoh rpt samsung sanyo saved scan scanned screenshot sdr sigma snapseed soft
    software sony still stillcamera systems taken technologies techwin the title toshiba traveler undefined
    unknown untitled user using version vivitar vivo vsco vscocam with written xiaomi yashica zoom
    ducky inc intel lead library on optio quickcam shot videomask ycard
    """.split()  # noqa: SIM905
)
"""Words that names of cameras, messages of programs and placeholders consist of, besides numbers."""
_SHORT = 5
"""Largest number of letters and digits of a caption without words; longer ones are times and numbers of files."""


def decode_text(data: bytes) -> str:
    """Decode a text of EXIF or IPTC data up to its first NUL: UTF-8, else Windows-1252, which extends Latin-1."""
    text, _, rest = data.partition(b"\0")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "" if rest.strip(b"\0") else text.decode("cp1252", errors="replace")  # binary data have NUL inside


def decode_utf16(data: bytes) -> str:
    """Decode UTF-16; without a byte order mark, high bytes are the bytes that vary less, as in a text of one script."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="ignore")
    is_little = len(set(data[1::2])) <= len(set(data[::2]))
    return data.decode("utf-16-le" if is_little else "utf-16-be", errors="ignore")


def is_caption(text: str, names: Collection[str] = ()) -> bool:
    """Whether a text of the metadata is a caption, not what a camera or a program enters.

    Args:
        text: text of a field for captions, without white space around it.
        names: names of the camera and the program, in lower case.

    Returns:
        False for binary data, repeated signs, punctuation, file names, structured data, and a text that consists of
        numbers, identifiers, words of these names and words of cameras and programs, unless short numbers and
        identifiers are all that it has ('1984', 'H2O').
    """
    is_binary = any(sign == "\ufffd" or (unicodedata.category(sign) == "Cc" and not sign.isspace()) for sign in text)
    is_filler = _FILLER.fullmatch(text) is not None and unicodedata.category(text[0]) != "Lo"
    if is_binary or is_filler or PurePath(text).suffix.lower() in IMAGE_SUFFIXES or _STRUCTURED.fullmatch(text):
        return False
    words = _WORD.findall(text.casefold())
    if not words:
        return any(unicodedata.category(sign) == "So" for sign in text)  # emoji
    machine_words = _MACHINE_WORDS.union(*(_WORD.findall(name) for name in names))
    others = [word for word in words if word not in machine_words]
    if not all(word.isascii() and (len(word) == 1 or any(map(str.isdigit, word))) for word in others):
        return True
    return len(others) == len(words) and len("".join(words)) <= _SHORT
