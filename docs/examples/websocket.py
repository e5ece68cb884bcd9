"""Send a task over WebSocket with `websockets`: URL TOKEN TEXT. Its default limit of 1 MiB for a
frame is too small for large tasks."""

import asyncio
import json
import sys

from websockets.asyncio.client import connect


async def main(url: str, token: str, text: str) -> None:
    message = {"messageId": "m-2", "role": "ROLE_USER", "parts": [{"text": text}]}
    request = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
    headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
    address = f"{url.replace('http', 'ws', 1)}/a2a/ws"
    async with connect(address, additional_headers=headers, max_size=None) as socket:
        await socket.send(json.dumps({**request, "params": {"message": message}}))
        async for frame in socket:
            answer = json.loads(frame)
            if "streamEnd" in answer:
                break
            print(answer.get("result", answer.get("error")))


asyncio.run(main(*sys.argv[1:]))
