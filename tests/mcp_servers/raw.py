"""A hand-written server that does what none should: `raw.py MODE`; `plain` behaves."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

NAMES = ["echo", "crash", "half", "hang", "change", "odd"]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "mark": {"type": "string"}}}
MODE = sys.argv[1]
names = list(NAMES)
done = Counter[str]()
marks: dict[Any, str] = {}


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def send(message: dict[str, Any]) -> None:
    if MODE == "noisy":
        write("DEBUG: about to answer\n{not json}\n\x1b[31mred\x1b[0m\n" + '{"jsonrpc": "2.0"}\n' + "y" * 5000 + "\n")
    write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def said(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def call(id_: Any, name: str, arguments: dict[str, Any]) -> None:
    if MODE == "deaf":
        signal.pause()
    if name == "crash":
        print("Segmentation fault (not really)", file=sys.stderr, flush=True)
        os._exit(7)
    if name == "half":
        write('{"jsonrpc": "2.0", "id": ')
        os._exit(0)
    if name == "hang":
        marks[id_] = arguments["mark"]
        Path(arguments["mark"]).write_text(f"began {os.getpid()}")
        return
    if MODE == "garbled" and name == "odd":
        write(f'{{"jsonrpc": "2.0", "id": {json.dumps(id_)}, {arguments["text"]}}}\n')
        return
    if name == "odd":
        send({"id": id_, "result": {"content": [{"type": "hologram", "data": 3}]}})
        return
    if name == "change":
        done["change"] += 1
        names[:] = ["echo", "change", "fresh"]
        send({"method": "notifications/tools/list_changed"})
    if name == "either":
        send({"id": id_, "result": said(json.dumps(arguments))})
        return
    if name not in names:
        send({"id": id_, "error": {"code": -32602, "message": f"Unknown tool: {name}"}})
        return
    send({"id": id_, "result": said(arguments.get("text", name))})


def listed(cursor: str | None) -> dict[str, Any]:
    done["list"] += 1
    if MODE == "careless" or (MODE == "slip" and done["change"] == 1):
        return {"tools": [{"name": "echo"}]}
    if MODE == "restless":
        send({"method": "notifications/tools/list_changed"})
        return {"tools": [{"name": name, "inputSchema": SCHEMA} for name in ("echo", f"tool{done['list']}")]}
    if MODE == "endless":
        at = int(cursor or 0)
        return {"tools": [{"name": f"tool{at}", "inputSchema": {"type": "object"}}], "nextCursor": str(at + 1)}
    tools = [{"name": name, "description": name, "inputSchema": SCHEMA} for name in names]
    if MODE == "unspeakable":
        tools += [
            {"name": "bad", "inputSchema": {"type": "object", "properties": {"two words": {"type": "string"}}}},
            {
                "name": "remote",
                "inputSchema": {"type": "object", "properties": {"p": {"$ref": "https://example.com/p"}}},
            },
            {"name": "either", "inputSchema": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
            {"name": "list.things/v2", "inputSchema": {"type": "object"}},
            {"name": "nul", "description": "a\0b", "inputSchema": {"type": "object", "title": "a\0b"}},
        ]
    if MODE == "tasks":
        tools += [
            {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
            for name, support in (("long", "required"), ("maybe", "optional"))
        ]
    at = int(cursor or 0)
    more = {"nextCursor": str(at + 2)} if at + 2 < len(tools) else {}
    return {"tools": tools[at : at + 2], **more}


def answer(message: dict[str, Any]) -> None:
    method, id_, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        facts = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "raw", "version": "1"}}
        send({"id": id_, "result": {"protocolVersion": "2025-11-25", **facts}})
    elif method == "tools/list":
        send({"id": id_, "result": listed(params.get("cursor"))})
    elif method == "tools/call":
        call(id_, params["name"], params.get("arguments") or {})
    elif method == "notifications/cancelled":
        Path(marks[params["requestId"]]).write_text("cancelled")
    elif id_ is not None:
        send({"id": id_, "error": {"code": -32601, "message": "Method not found"}})


def main() -> None:
    if MODE == "slow":
        began = time.monotonic()
        time.sleep(0.3)
        Path(sys.argv[2], str(os.getpid())).write_text(f"{began} {time.monotonic()}")
    if MODE == "broken" or (MODE == "until" and not Path(sys.argv[2]).exists()):
        print("no licence for this machine", file=sys.stderr)
        raise SystemExit(3)
    if MODE == "chatty":
        print("Usage: server --port PORT")
        raise SystemExit(0)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        Path(sys.argv[2]).write_text(f"{os.getpid()} {child.pid}")
    for line in sys.stdin:
        if MODE != "silent":
            answer(json.loads(line))
    if MODE == "stubborn":
        signal.pause()


if __name__ == "__main__":
    main()
