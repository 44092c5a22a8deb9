"""`python -m backends.local`: the engine process that the supervisor starts."""

import argparse

from backends.local.engine import run_engine
from backends.local.limits import KV_MEMORY, MAX_QUEUE, MAX_RUNNING
from backends.local.models import DEFAULT_MODEL


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m backends.local", description="Serve one model on torch.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--uds", help="path of the Unix socket to listen on")
    where.add_argument("--port", type=int, help="TCP port to listen on")
    parser.add_argument("--host", default="127.0.0.1", help="address for --port (default %(default)s)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model name, folder or .gguf file (default %(default)s)")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--quantize", default="none", choices=["none", "int8", "int4"])
    parser.add_argument(
        "--max-running", type=_positive, default=MAX_RUNNING, help="answers written at once (default %(default)s)"
    )
    parser.add_argument(
        "--max-queue", type=_natural, default=MAX_QUEUE, help="requests that may wait (default %(default)s)"
    )
    parser.add_argument(
        "--kv-memory", type=_positive, default=KV_MEMORY, help="bytes for keys and values (default %(default)s)"
    )
    parser.add_argument("--any-model", action="store_true", help="answer whatever model a request names")
    parser.add_argument("--parent-pipe", action="store_true", help="end when standard input is closed")
    options = parser.parse_args()
    run_engine(
        model=options.model,
        precision=options.precision,
        quantize=options.quantize,
        uds=options.uds,
        host=options.host,
        port=options.port,
        parent_pipe=options.parent_pipe,
        max_running=options.max_running,
        max_queue=options.max_queue,
        kv_memory=options.kv_memory,
        any_model=options.any_model,
    )


def _natural(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{number} is below 0")
    return number


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


if __name__ == "__main__":
    main()
