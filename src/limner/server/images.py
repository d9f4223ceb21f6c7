"""Images of requests: base64, `data:` URLs and uploads; http(s) URLs of hosts that are allow-listed only.

No field of a request ever names a file of this machine.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from limner.media.image import require_pixels
from limner.server.errors import InvalidRequestError
from limner.server.remote_images import ImageFetcher
from limner.server.settings import ServerSettings

_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?P<parameters>(;[\w.+-]+=[\w.+-]+)*)(?P<base64>;base64)?,")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_MAX_HEADER = 200
"""Characters of a `data:` URL before its content."""


async def read_image_reference(reference: str, fetcher: ImageFetcher, param: str = "image") -> bytes:
    """Return the encoded bytes of an image that a request names: base64, a `data:` URL, or an allow-listed URL.

    Args:
        reference: text of the field.
        fetcher: fetches images of allow-listed hosts.
        param: name of the field, for errors.

    Raises:
        InvalidRequestError: it is none of them, or a URL of a host that is not allow-listed.
        LimnerError: see `ImageFetcher.fetch`.
    """
    if reference.startswith(("http:", "https:")):
        return await fetcher.fetch(reference, param)
    return decode_image_text(reference, param)


def decode_image_text(text: str, param: str = "image") -> bytes:
    """Decode base64 or a `data:` URL; whitespace in base64 is ignored, as line breaks of mail programs are.

    Raises:
        InvalidRequestError: the text is neither.
    """
    if text.startswith("data:"):
        header = _DATA_URL.match(text[:_MAX_HEADER])
        if header is None:
            raise InvalidRequestError(f"{param}: expected a data: URL such as data:image/jpeg;base64,…", param)
        media_type, content = header["type"], text[header.end() :]
        if media_type and not media_type.startswith("image/") and media_type != "application/octet-stream":
            raise InvalidRequestError(f"{param}: expected a data: URL of an image, got {media_type}", param)
        if not header["base64"]:
            return unquote_to_bytes(content)
        text = content
    elif _URL.match(text[:20]):
        raise InvalidRequestError(
            f"{param}: expected base64, a data: URL or an upload; other URLs and files are not opened", param
        )
    try:
        compact = "".join(text.split())
        decoded = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(
            f"{param}: expected an image in base64 or a data: URL, got other text", param
        ) from None
    if not decoded:
        raise InvalidRequestError(f"{param}: expected an image, got an empty text", param)
    return decoded


def require_size(data: bytes, settings: ServerSettings) -> None:
    """Check the number of pixels of an image by its header, before it is decoded.

    Raises:
        ImageTooLargeError: it has more than `max_pixels`.
        MediaError: it is not an image.
    """
    require_pixels(data, settings.max_pixels)
