"""`python -m backends.local`: the engine process that the supervisor starts."""

import argparse

from backends.local.engine import run_engine
from backends.local.models import DEFAULT_MODEL
from backends.local.scheduler import MAX_QUEUE


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m backends.local", description="Serve one model on torch.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--uds", help="path of the Unix socket to listen on")
    where.add_argument("--port", type=int, help="TCP port to listen on")
    parser.add_argument("--host", default="127.0.0.1", help="address for --port (default %(default)s)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model name, folder or .gguf file (default %(default)s)")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--max-queue", type=int, default=MAX_QUEUE, help="requests that may wait (default %(default)s)")
    parser.add_argument("--parent-pipe", action="store_true", help="end when standard input is closed")
    options = parser.parse_args()
    run_engine(
        model=options.model,
        precision=options.precision,
        uds=options.uds,
        host=options.host,
        port=options.port,
        parent_pipe=options.parent_pipe,
        max_queue=options.max_queue,
    )


if __name__ == "__main__":
    main()
