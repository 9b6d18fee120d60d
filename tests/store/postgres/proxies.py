"""A proxy before the server that can fall silent: connections stay open, new ones are accepted, nothing comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit


class Proxy:
    """Carries bytes both ways as long as it is `answering`."""

    def __init__(self, dsn: str) -> None:
        self._upstream = urlsplit(dsn)
        self.answering = asyncio.Event()
        self.answering.set()
        self.accepted = 0
        self.dsn = ""
        self._carrying: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        upstream_reader, upstream_writer = await self._connect()
        self._writers += [writer, upstream_writer]
        for source, sink in ((reader, upstream_writer), (upstream_reader, writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        options = parse_qs(self._upstream.query)
        host = options.get("host", [self._upstream.hostname or "localhost"])[0]
        port = options.get("port", [str(self._upstream.port or 5432)])[0]
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, int(port))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(65536):
                await self.answering.wait()
                sink.write(piece)
                await sink.drain()
            sink.close()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        user = self._upstream.netloc.rpartition("@")[0]
        self.dsn = f"postgresql://{user}@127.0.0.1:{port}{self._upstream.path}?sslmode=disable"
        try:
            yield self
        finally:
            server.close()
            for task in list(self._carrying):
                task.cancel()
            await asyncio.gather(*self._carrying, return_exceptions=True)
            for writer in self._writers:
                writer.transport.abort()
