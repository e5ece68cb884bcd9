"""A program for the `jsonl` adapter that calls the gRPC port with the address and the token of its
prompt, and reports the code of the answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc

PROGRAM = str(Path(__file__).resolve())


def main() -> None:
    for line in sys.stdin:
        prompt = json.loads(line)
        if prompt["type"] == "prompt":
            address, token = prompt["text"].split()
            metadata = (("a2a-version", "1.0"), ("authorization", f"Bearer {token}"))
            with grpc.insecure_channel(address) as channel:
                try:
                    channel.unary_unary("/lf.a2a.v1.A2AService/ListTasks")(b"", metadata=metadata)
                    code = "OK"
                except grpc.RpcError as error:
                    code = error.code().name
            print(json.dumps({"type": "text", "text": code}), flush=True)
            print(json.dumps({"type": "done"}), flush=True)


if __name__ == "__main__":
    main()
