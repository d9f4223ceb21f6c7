"""Images fetched from allow-listed hosts; every other URL is refused, so that no request reaches other machines."""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import socket
import ssl
from urllib.parse import urlsplit

from limner.errors import MediaError
from limner.server.errors import InvalidRequestError, TooLargeError
from limner.server.settings import ServerSettings

FETCH_SECONDS = 10.0
"""Time limit of fetching an image."""
_CHUNK = 1 << 16


async def fetch_image(url: str, settings: ServerSettings, param: str) -> bytes:
    """Fetch an image by http(s) from an allow-listed host; redirects are not followed.

    Args:
        url: address of the image.
        settings: settings with `image_hosts` and `max_body`.
        param: name of the field, for errors.

    Raises:
        InvalidRequestError: the host is not allow-listed, or it resolves to a private address and its address is not.
        MediaError: the host does not answer with an image.
        TooLargeError: the image is larger than `max_body`.
    """
    host, port = _host_and_port(url, param)
    if host not in settings.image_hosts:
        raise InvalidRequestError(
            f"{param}: images are not fetched from '{host}'; send a data: URL or an upload, or start limner serve with "
            f"--image-host {host}",
            param,
        )
    address = await _public_address(host, port, settings, param)
    try:
        return await asyncio.wait_for(asyncio.to_thread(_get, url, host, address, settings.max_body), FETCH_SECONDS)
    except TimeoutError:
        raise MediaError(f"{host}: no image within {FETCH_SECONDS:g} seconds; send a data: URL or an upload") from None


def _host_and_port(url: str, param: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or "@" in url.partition("//")[2].partition("/")[0]:
        raise InvalidRequestError(f"{param}: expected a URL with a host and without a user name", param)
    return host.lower(), port or (443 if url.startswith("https:") else 80)


async def _public_address(host: str, port: int, settings: ServerSettings, param: str) -> str:
    """Resolve a host once; the connection is made to this address, so that a second answer cannot differ."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise MediaError(f"{host}: no such host ({error.strerror}); send a data: URL or an upload") from None
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        if not ipaddress.ip_address(address).is_global and address not in settings.image_hosts:
            raise InvalidRequestError(
                f"{param}: '{host}' has the private address {address}; start limner serve with --image-host {address} "
                "to allow it",
                param,
            )
    return addresses[0]


def _get(url: str, host: str, address: str, limit: int) -> bytes:
    """Fetch a URL from an address; called in a thread."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    stream = socket.create_connection((address, port), timeout=FETCH_SECONDS)
    try:
        if parts.scheme == "https":
            stream = ssl.create_default_context().wrap_socket(stream, server_hostname=host)
        connection = http.client.HTTPConnection(host, port, timeout=FETCH_SECONDS)
        connection.sock = stream
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "image/*"})
        return _body(connection.getresponse(), host, limit)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise MediaError(f"{host}: cannot fetch the image ({error}); send a data: URL or an upload") from None
    finally:
        stream.close()


def _body(response: http.client.HTTPResponse, host: str, limit: int) -> bytes:
    if response.status != 200:
        raise MediaError(f"{host}: answered with status {response.status}, and redirects are not followed")
    body = bytearray()
    while chunk := response.read(_CHUNK):
        body += chunk
        if len(body) > limit:
            raise TooLargeError(f"{host}: the image is larger than {limit:,} bytes; send a smaller copy", "image")
    return bytes(body)
