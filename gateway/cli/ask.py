"""`refrain ask "question"`: one question to a running gateway, streamed, then how it was answered."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.remote import DEFAULT_URL, Url, credentials, message, stop

if TYPE_CHECKING:
    import httpx


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    url: Url = DEFAULT_URL,
    endpoint: Annotated[str, typer.Option("--endpoint", help="The endpoint to ask.")] = "default",
    model: Annotated[str, typer.Option("--model", help="The model to ask for.")] = "SmolLM2-135M-Instruct",
    system: Annotated[str | None, typer.Option("--system", help="A system prompt.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not take a stored answer (Cache-Control).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print answer and decision as JSON.")] = False,
) -> None:
    """Ask one question and show where the answer came from. The key, if one is needed, is read from REFRAIN_KEY."""
    import httpx

    messages = [{"role": "system", "content": system}] if system else []
    body = {
        "model": model,
        "messages": [*messages, {"role": "user", "content": question}],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = credentials() | ({"cache-control": "no-cache"} if fresh else {})
    prefix = "/v1" if endpoint == "default" else f"/{endpoint}/v1"
    timeout = httpx.Timeout(600, connect=5)
    try:
        with (
            httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False) as client,
            client.stream("POST", f"{prefix}/chat/completions", json=body) as response,
        ):
            text, usage = _read(response, quiet=as_json)
            shown = {"outcome": _outcome(response), "answer": text, "usage": usage, "headers": _shown(response)}
    except httpx.ConnectError:
        stop(f"No gateway answers at {url}. Start one with `refrain serve`, or name another with --url.", as_json)
    except httpx.HTTPError as error:
        stop(f"The answer broke off: {type(error).__name__}.", as_json)
    if as_json:
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        _explain(shown)


def _read(response: "httpx.Response", *, quiet: bool) -> tuple[str, dict[str, Any] | None]:
    """The text as it comes, and the usage."""
    if response.status_code != 200:
        response.read()
        stop(f"{response.status_code}: {message(response.text)}", quiet)
    text, usage = "", None
    for line in response.iter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            stop(f"The answer broke off: {chunk['error'].get('message')}", quiet)
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            piece = choice["delta"].get("content") or ""
            text += piece
            if not quiet:
                sys.stdout.write(piece)
                sys.stdout.flush()
    if not quiet:
        sys.stdout.write("\n")
    return text, usage


def _outcome(response: "httpx.Response") -> str:
    return str(response.headers.get("x-refrain-cache", "unknown"))


def _shown(response: "httpx.Response") -> dict[str, str]:
    names = ("x-refrain-cache", "cache-status", "age", "x-refrain-saved", "server-timing", "x-request-id")
    return {name: response.headers[name] for name in names if name in response.headers}


def _explain(shown: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    meaning = {
        "exact": "from the exact cache: the same request was answered before",
        "semantic": "from the semantic cache: a question that means the same was answered before",
        "stale": "from the cache, past its life, as the endpoint or the request allows",
        "joined": "shared with an identical request that was being answered already",
        "miss": "made by the backend, and kept if it may be reused",
        "bypass": "made by the backend; no cache was used",
    }
    outcome, usage = shown["outcome"], shown["usage"] or {}
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("answered", f"[bold]{outcome}[/bold]  {meaning.get(outcome, '')}")
    table.add_row("tokens", f"{usage.get('prompt_tokens', '?')} in, {usage.get('completion_tokens', '?')} out")
    labels = (("cache-status", "tiers"), ("age", "age (s)"), ("x-refrain-saved", "saved"), ("server-timing", "time"))
    for name, label in (*labels, ("x-request-id", "request")):
        if name in shown["headers"]:
            table.add_row(label, shown["headers"][name])
    if "x-request-id" in shown["headers"]:
        table.add_row("more", f"refrain why {shown['headers']['x-request-id']}")
    Console(stderr=True, highlight=False).print("", table)
