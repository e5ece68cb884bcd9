"""Send a task over a Unix socket with aiohttp: PATH TEXT."""

import asyncio
import json
import sys

import aiohttp


async def main(path: str, text: str) -> None:
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": text}]}
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendStreamingMessage",
        "params": {"message": message},
    }
    connector = aiohttp.UnixConnector(path)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        headers = {"A2A-Version": "1.0"}
        url = "http://localhost/a2a/jsonrpc"
        async with session.post(url, json=request, headers=headers) as response:
            async for line in response.content:
                if line.startswith(b"data:"):
                    print(json.loads(line[5:])["result"])


asyncio.run(main(sys.argv[1], sys.argv[2]))
