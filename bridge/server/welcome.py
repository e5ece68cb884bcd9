"""What a person sees who opens the server's address in a browser: a page that says what answers
here. It is the same for everybody, so it needs no authentication; it has no scripts, no styles and
nothing of any task."""

from __future__ import annotations

import html

from aiohttp import web

from bridge.transports.negotiation import prefers_html

_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_EXAMPLE = """\
curl -N {base}/a2a/jsonrpc \\
  -H 'Content-Type: application/json' -H 'A2A-Version: 1.0' \\
  -H "Authorization: Bearer $TOKEN" \\
  -d '{{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{{"message":
       {{"messageId":"1","role":"ROLE_USER","parts":[{{"text":"Describe this project"}}]}}}}}}'"""
_PAGE = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>coding-agent-bridge</title></head>
<body>
<h1>coding-agent-bridge</h1>
<p>This server lets programs use a coding agent through the Agent2Agent protocol (A2A). It has no
pages for people: an A2A client or curl talks to it.</p>
<ul>
<li><a href="{base}/.well-known/agent-card.json">The agent card</a> says what the agent can do and
where a client reaches it.</li>
<li><a href="{base}/health">/health</a> says whether the server works.</li>
</ul>
<h2>An example</h2>
<p>Where the server needs a token, <code>TOKEN</code> is the one that its operator gave you.
docs/protocol.md of the project explains the answer, and docs/curl.md shows how to answer a question
of the agent.</p>
<pre>{example}</pre>
</body>
</html>
"""


def is_for(request: web.Request) -> bool:
    """Whether a browser asks for the server's root."""
    root = request.method in ("GET", "HEAD") and request.rel_url.raw_path == "/"
    return root and prefers_html(request)


def respond(base: str) -> web.Response:
    """`base`: the address by which the client knows the server."""
    example = html.escape(_EXAMPLE.format(base=base))
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "Vary": "Accept"}
    return web.Response(
        text=_PAGE.format(base=html.escape(base), example=example),
        content_type="text/html",
        headers=headers,
    )
