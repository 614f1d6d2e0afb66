#!/usr/bin/env bash
# Runs a test program if INLOCK_TEST_PROGRAMS names it, as PACKAGE or PACKAGE:TARGET. Cargo's runner in test.sh: Cargo
# builds all test programs once, where another selection of packages would have other features, and build them again.
# Appends the name to the file INLOCK_TEST_PROGRAMS_RUN.
set -euo pipefail
target=$(basename "$1")
# Cargo appends a hash.
target=${target%-*}
for program in "$CARGO_PKG_NAME" "$CARGO_PKG_NAME:$target"; do
    if [[ " $INLOCK_TEST_PROGRAMS " == *" $program "* ]]; then
        echo "$program" >> "$INLOCK_TEST_PROGRAMS_RUN"
        exec "$@"
    fi
done
