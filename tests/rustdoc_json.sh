#!/bin/sh
# rustdoc with unstable options, for the JSON of `cargo xtask public-api`. A stable rustdoc takes them with this
# variable only; as one of Cargo's own environment it would build all dependencies again.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
