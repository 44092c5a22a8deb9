"""Talking to the admin API of a running gateway: what lies in its memory, no file can tell."""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import typer

DEFAULT_URL = "http://127.0.0.1:8080"
KEY_VARIABLE = "REFRAIN_KEY"

Url = Annotated[str, typer.Option("--url", help="The gateway.", envvar="REFRAIN_URL")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def credentials() -> dict[str, str]:
    """The key is read from the environment: on the command line, others on the machine could see it."""
    key = os.environ.get(KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}


def call(method: str, url: str, path: str, body: Mapping[str, Any] | None = None, *, as_json: bool) -> Any:
    """The answer of the gateway, parsed. Prints what went wrong and exits where there is none."""
    import httpx

    try:
        with httpx.Client(base_url=url, headers=credentials(), timeout=30, trust_env=False) as client:
            response = client.request(method, path, json=body)
    except httpx.ConnectError:
        stop(f"No gateway answers at {url}. Start one with `refrain serve`, or name another with --url.", as_json)
    except UnicodeError:
        stop(f"{KEY_VARIABLE} holds characters that no key has.", as_json)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        stop(f"The gateway at {url} gave no answer: {type(error).__name__}.", as_json)
    if response.status_code == 401:
        stop(f"The gateway wants a key with the role `admin`: set {KEY_VARIABLE} to one.", as_json)
    if response.status_code != 200:
        stop(f"{response.status_code}: {message(response.text)}", as_json)
    try:
        return response.json()
    except ValueError:
        stop(f"What answers at {url} is no gateway.", as_json)


def message(body: str) -> str:
    """The text of an error in the envelope."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:500]


def stop(text: str, as_json: bool) -> NoReturn:
    typer.echo(json.dumps({"error": text}) if as_json else text, err=not as_json)
    raise typer.Exit(1)
