"""Images of requests: base64, `data:` URLs, uploads, and http(s) URLs of allow-listed hosts only.

No field of a request ever names a file of this machine, or reaches another machine that is not allow-listed. A fetch is
bounded as a whole: one deadline covers the wait for a free connection, the look-up of the name, the connection, TLS,
the head and the body. It occupies no thread that other work needs, and its connection is closed when the deadline
passes, the client leaves or the service stops.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from urllib.parse import unquote_to_bytes

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from limner.apps.server.errors import InvalidRequestError, QueueFullError, TooLargeError
from limner.apps.server.request_bodies import converted
from limner.apps.server.settings import BODIES_AT_ONCE, ServerSettings
from limner.errors import MediaError
from limner.files.structured import one_line

CONNECTIONS_PER_HOST = 64
"""Maximum number of images that are fetched from one host at once; further images wait until their deadline."""
_CHUNK = 1 << 16
_REMEDY = "send a data: URL or an upload"
_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?P<parameters>(;[\w.+-]+=[\w.+-]+)*)(?P<base64>;base64)?,")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_MAX_HEADER = 200
"""Characters of a `data:` URL before its content."""


async def read_image_reference(reference: str, fetcher: ImageFetcher, param: str = "image") -> bytes:
    """Return the encoded bytes of an image that the field `param` names: base64, a `data:` URL, or an allow-listed URL.

    InvalidRequestError for another text, or another host; for other errors see `ImageFetcher.fetch`.
    """
    if reference.startswith(("http:", "https:")):
        return await fetcher.fetch(reference, param)
    return await converted(lambda text: decode_image_text(text, param), reference)


def decode_image_text(text: str, param: str = "image") -> bytes:
    """Decode base64, in which white space is ignored, or a `data:` URL; InvalidRequestError for other text."""

    def refused(reason: str) -> InvalidRequestError:
        return InvalidRequestError(f"{param}: {reason}", param)

    if text.startswith("data:"):
        header = _DATA_URL.match(text[:_MAX_HEADER])
        if header is None:
            raise refused("expected a data: URL such as data:image/jpeg;base64,…")
        media_type, content = header["type"], text[header.end() :]
        if media_type and not media_type.startswith("image/") and media_type != "application/octet-stream":
            raise refused(f"expected a data: URL of an image, got {media_type}")
        if not header["base64"]:
            return unquote_to_bytes(content)
        text = content
    elif _URL.match(text[:20]):
        raise refused("expected base64, a data: URL or an upload; other URLs and files are not opened")
    try:
        compact = "".join(text.split())
        decoded = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise refused("expected an image in base64 or a data: URL, got other text") from None
    if not decoded:
        raise refused("expected an image, got an empty text")
    return decoded


class PublicAddresses(AbstractResolver):
    """Addresses of allow-listed hosts; connections use these addresses, so that a second look-up cannot differ.

    A look-up blocks a thread until the system gives up; each host has a separate thread.
    """

    def __init__(self, hosts: frozenset[str]) -> None:
        self.hosts = hosts
        self._threads = {host: ThreadPoolExecutor(1, "resolve") for host in hosts}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host; InvalidRequestError for private addresses, OSError for an unknown name."""
        loop = asyncio.get_running_loop()
        addresses = await loop.run_in_executor(
            self._threads[host.lower()], socket.getaddrinfo, host, port, family, socket.SOCK_STREAM
        )
        results: list[ResolveResult] = []
        for kind, _, protocol, _, place in addresses:
            address = str(place[0])
            if not ipaddress.ip_address(address).is_global and address not in self.hosts:
                raise InvalidRequestError(
                    f"'{host}' has the private address {address}; start limner serve with --image-host {address} "
                    "to allow it"
                )
            results.append(
                ResolveResult(
                    hostname=host, host=address, port=port, family=kind, proto=protocol, flags=socket.AI_NUMERICHOST
                )
            )
        return results

    async def close(self) -> None:
        """End the threads, without waiting for a look-up."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)


class ImageFetcher:
    """Fetches images by http(s) from allow-listed hosts; redirects are not followed."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.hosts = frozenset(_encoded(host) for host in settings.image_hosts)
        self._bytes = 0

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=PublicAddresses(self.hosts),
            use_dns_cache=False,
            limit=0,
            limit_per_host=CONNECTIONS_PER_HOST,
            force_close=True,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # `fetch` has the deadline
            headers={"Accept": "image/*", "Accept-Encoding": "identity"},
            auto_decompress=False,
        )

    async def fetch(self, url: str, param: str) -> bytes:
        """Fetch the image that the field `param` names.

        InvalidRequestError for a host, or its private address, that is not allow-listed; MediaError for no image within
        `fetch_timeout`; TooLargeError above `max_body`; QueueFullError for too many large images at once.
        """
        address = self._allowed(url, param)
        seconds = self.settings.fetch_timeout
        try:
            async with asyncio.timeout(seconds), self._session.get(address, allow_redirects=False) as response:
                if response.status != 200:
                    raise MediaError(
                        f"{address.host}: answered with status {response.status}, and redirects are not followed"
                    )
                return await self._body(response, param)
        except TimeoutError:
            raise MediaError(f"{address.host}: no image within {seconds:g} seconds; {_REMEDY}") from None
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{param}: {error}", param) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise MediaError(f"{address.host}: cannot fetch the image ({one_line(str(error))}); {_REMEDY}") from None

    def _allowed(self, url: str, param: str) -> URL:
        try:
            is_encoded = url.isascii() and url.isprintable() and " " not in url
            address = URL(url, encoded=is_encoded)  # signed URLs are sent as they are
            host = address.raw_host
        except ValueError:
            host = None
        if not host or address.user is not None or address.password is not None:
            raise InvalidRequestError(f"{param}: expected a URL with a host and without a user name", param)
        if host.lower() not in self.hosts:
            raise InvalidRequestError(
                f"{param}: images are not fetched from '{host}'; send a data: URL or an upload, or start limner serve "
                f"with --image-host {host}",
                param,
            )
        return address

    async def _body(self, response: aiohttp.ClientResponse, param: str) -> bytes:
        limit, body = self.settings.max_body, bytearray()
        try:
            async for chunk in response.content.iter_chunked(_CHUNK):
                body += chunk
                self._bytes += len(chunk)
                if len(body) > limit:
                    raise TooLargeError(
                        f"{response.url.host}: the image is larger than {limit:,} bytes; send a smaller copy", param
                    )
                if self._bytes > BODIES_AT_ONCE * limit:
                    raise QueueFullError("too many large images at once; repeat the request later", 1.0)
            return bytes(body)
        finally:
            self._bytes -= len(body)

    async def close(self) -> None:
        """Close all connections."""
        if "_session" in vars(self):
            await self._session.close()


def _encoded(host: str) -> str:
    """Return a host name in lower case and in Punycode, as for a look-up."""
    try:
        return URL.build(scheme="http", host=host).raw_host or host
    except ValueError:
        return host
