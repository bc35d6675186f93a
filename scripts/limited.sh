#!/usr/bin/env bash
# Runs a program, and ends it and all that it has started after SECONDS: the runner of cargo in
# scripts/test.sh. Exit code: that of the program, or 124.
#   scripts/limited.sh SECONDS PROGRAM [ARGUMENT]...
set -m # Otherwise the program would ignore SIGINT.
timeout --verbose --kill-after 10 "$@" &
# timeout has a process group of its own, which a terminal does not interrupt.
trap 'kill $!' INT TERM HUP
wait $! # Ends with the code of the program, or early with that of a signal.
