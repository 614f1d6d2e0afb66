#!/usr/bin/env bash
# Runs a test program if INLOCK_TEST_PROGRAMS names it, as PACKAGE or PACKAGE:TARGET. Cargo's runner in test.sh: Cargo
# builds all test programs once, where another selection of packages would have other features, and build them again.
set -euo pipefail
target=$(basename "$1")
# Cargo appends a hash.
target=${target%-*}
case " $INLOCK_TEST_PROGRAMS " in
    *" $CARGO_PKG_NAME "* | *" $CARGO_PKG_NAME:$target "*) exec "$@" ;;
esac
