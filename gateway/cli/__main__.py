"""`python -m gateway.cli`: the same as `refrain`."""

from gateway.cli import main

main()
