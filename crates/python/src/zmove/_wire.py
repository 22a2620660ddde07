"""HTTP over a Unix socket, the loopback or a reverse proxy with TLS: blocking requests, and streams for asyncio."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket as sockets
import ssl
from pathlib import Path
from typing import Any, AsyncIterator, Awaitable, Dict, Optional, Tuple, TypeVar
from urllib.parse import urlsplit

from ._errors import ApiError, NotRunning, ZmoveError

T = TypeVar("T")

#: Maximum length of a line in a stream, in bytes.
LINE_BYTES_MAX = 16 << 20


def jobs_directory() -> Path:
    """Returns the directory of this user's jobs, like ``zmove``."""
    if os.environ.get("ZMOVE_JOBS"):
        return Path(os.environ["ZMOVE_JOBS"])
    if os.environ.get("ZMOVE_HOME"):
        return Path(os.environ["ZMOVE_HOME"]) / "jobs"
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local/state"
    return base / "zmove/jobs"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Wire:
    """A connection to the runner."""

    def __init__(
        self,
        address: Optional[str],
        token: Optional[str],
        socket: Optional[Path],
        tls: Optional[ssl.SSLContext],
        timeout: float,
    ) -> None:
        if address is not None and socket is not None:
            raise ValueError("give an address or a socket, not both")
        self._timeout = timeout
        self._socket: Optional[Path] = None
        self._host = ("localhost", 80)
        self._tls: Optional[ssl.SSLContext] = None
        self._headers: Dict[str, str] = {"Host": "localhost"}
        self._token_file: Optional[Path] = None
        parts = urlsplit(address or "")
        if tls and parts.scheme != "https":
            raise ValueError("a TLS context is for https://HOST:PORT")
        if address is None:
            self._socket = socket or jobs_directory() / "api.sock"
            return
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{address}' is not http://HOST:PORT or https://HOST:PORT")
        self._host = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        self._headers = {"Host": parts.netloc}
        if parts.scheme == "https":
            if token is None:
                raise ValueError("https needs the token of the runner: token=...")
            self._tls = tls or ssl.create_default_context()
        if token is None:
            self._token_file = jobs_directory() / "token"
            token = self._token_file.read_text().strip()
        self._headers["Authorization"] = f"Bearer {token}"

    def __str__(self) -> str:
        scheme = "https" if self._tls else "http"
        return str(self._socket) if self._socket else f"{scheme}://{self._host[0]}:{self._host[1]}"

    def _has_new_token(self) -> bool:
        """Reads the token file again. Returns whether the token differs from the refused one, as after a restart."""
        if self._token_file is None:
            return False
        try:
            said = f"Bearer {self._token_file.read_text().strip()}"
        except OSError:
            return False
        is_new = said != self._headers["Authorization"]
        self._headers["Authorization"] = said
        return is_new

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and returns the response: a JSON value, or text."""
        try:
            return self._ask(method, path, body)
        except ApiError as error:
            # The refused request had no effect, so it is repeated once with a new token.
            if error.status != 401 or not self._has_new_token():
                raise
        return self._ask(method, path, body)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        connection: http.client.HTTPConnection
        if self._socket:
            connection = _UnixConnection(self._socket, self._timeout)
        elif self._tls:
            connection = http.client.HTTPSConnection(*self._host, timeout=self._timeout, context=self._tls)
        else:
            connection = http.client.HTTPConnection(*self._host, timeout=self._timeout)
        headers = dict(self._headers)
        data = None
        if body is not None:
            # A request without parameters has no body. The runner would close the connection without reading it.
            data = json.dumps(body)
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body=data, headers=headers)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.IncompleteRead) as error:
            raise self._gone(error) from error
        except http.client.HTTPException as error:
            raise stranger(0) from error
        finally:
            connection.close()
        kind = answer.getheader("Content-Type") or ""
        value = _value(kind, said)
        if answer.status >= 300:
            raise refusal(answer.status, value)
        if value is None and not (kind.startswith("text/plain") and path.endswith("/log")):
            raise stranger(answer.status)
        return said.decode(errors="replace") if value is None else value

    def _gone(self, error: Exception) -> ZmoveError:
        # A TLS failure is permanent, but a missing TLS close_notify only means that a proxy was killed.
        if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return ApiError(0, f"TLS with '{self}' failed: {error}")
        return NotRunning(f"no answer from '{self}': {error}; is 'zmove runner --http' running?")

    async def stream(self, path: str, last: Optional[int]) -> AsyncIterator[Tuple[str, Optional[int], Any]]:
        """Yields the name, number and data of each message in a stream of server-sent events, until it ends."""
        try:
            async for message in self._stream(path, last):
                yield message
            return
        except ApiError as error:
            # A refused stream has yielded no messages, so it can be opened again.
            if error.status != 401 or not self._has_new_token():
                raise
        async for message in self._stream(path, last):
            yield message

    async def _stream(self, path: str, last: Optional[int]) -> AsyncIterator[Tuple[str, Optional[int], Any]]:
        try:
            if self._socket:
                connecting = asyncio.open_unix_connection(str(self._socket), limit=LINE_BYTES_MAX)
            else:
                connecting = asyncio.open_connection(*self._host, limit=LINE_BYTES_MAX, ssl=self._tls)
            reader, writer = await _within(connecting, self._timeout)
        except (OSError, asyncio.TimeoutError) as error:
            raise self._gone(error) from error
        try:
            headers = dict(self._headers, Accept="text/event-stream")
            if last is not None:
                headers["Last-Event-ID"] = str(last)
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            # The request is short, so drain() is not needed. It could report a lost connection and hide the reason.
            writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
            lines = _lines(_body(await self._answer(reader), reader))
            async for message in _messages(lines):
                yield message
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.LimitOverrunError) as error:
            raise self._gone(error) from error
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Dict[str, str]:
        head = await _within(reader.readuntil(b"\r\n\r\n"), self._timeout)
        first, *rest = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in rest:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        kind, words = headers.get("content-type", ""), first.split(" ")
        if not first.startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise stranger(0)
        status = int(words[1])
        if status == 200 and kind.startswith("text/event-stream"):
            return headers
        length = headers.get("content-length", "")
        bytes_max = min(int(length), LINE_BYTES_MAX) if length.isdigit() else 0
        said = await _within(reader.read(bytes_max), self._timeout)
        raise refusal(status, _value(kind, said))


async def _within(what: Awaitable[T], seconds: float) -> T:
    """Like ``asyncio.wait_for``, which before Python 3.12 loses a cancellation that arrives with the result."""
    task = asyncio.ensure_future(what)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise asyncio.TimeoutError
    return task.result()


def _value(kind: str, said: bytes) -> Any:
    """Returns the JSON value of a response, or ``None``."""
    try:
        return json.loads(said) if kind.startswith("application/json") else None
    except ValueError:
        return None


def refusal(status: int, value: Any) -> ApiError:
    """Returns the exception for an error response."""
    if isinstance(value, dict) and "error" in value:
        return ApiError(status, str(value["error"]), value.get("exit"))
    return stranger(status)


def stranger(status: int) -> ApiError:
    """The error of an answer that no runner gives. It ends what asks again by itself: the token went along."""
    return ApiError(status, f"the server at this address is not the runner (status {status})")


#: Maximum silence of a stream before it counts as lost, in seconds. The runner sends something every 15 s.
SILENCE_MAX = 60.0


async def _body(headers: Dict[str, str], reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yields the pieces of a body, which is chunked or ends with the connection."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        while True:
            piece = await _within(reader.read(65536), SILENCE_MAX)
            if not piece:
                return
            yield piece
    while True:
        line = await _within(reader.readuntil(b"\r\n"), SILENCE_MAX)
        length = int(line.split(b";")[0], 16)
        piece = await _within(reader.readexactly(length + 2), SILENCE_MAX)
        if length == 0:
            return
        yield piece[:-2]


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").decode(errors="replace")


async def _messages(lines: AsyncIterator[str]) -> AsyncIterator[Tuple[str, Optional[int], Any]]:
    kind, number, data = "message", None, []  # type: ignore[var-annotated]
    async for line in lines:
        if not line:
            if data:
                yield kind, number, json.loads("\n".join(data))
            kind, number, data = "message", None, []
            continue
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            kind = value
        elif name == "id":
            number = int(value)
        elif name == "data":
            data.append(value)
