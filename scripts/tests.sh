#!/usr/bin/env bash
# cargo test with these arguments; at the end, what tests did not do here. A test that can't do
# its work prints `skipped: WHY`, one that does less than the long suite `cut: WHAT`: the lines of
# tests that passed are counted and not shown.
set -o pipefail
cargo test "$@" -- --show-output | awk '
    /^successes:$/ { quiet = 1 }
    /^(failures:|test result:)/ { quiet = 0 }
    /^---- .* stdout ----$/ { test = $2 }
    /^skipped: / { why = substr($0, 10); if (!seen[test, why]++) { skips[why]++; all++ } }
    /^cut: / { if (!seen[test, $0]++) cuts++ }
    !quiet { print; fflush() }
    END {
        printf "\n%d skipped, %d cut short (make test-long)\n", all, cuts
        fflush()
        for (why in skips) printf "%4d skipped: %s\n", skips[why], why | "sort -k1,1nr -k2"
    }'
