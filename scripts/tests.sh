#!/usr/bin/env bash
# cargo test with these arguments; at the end, what tests did not do here. A test that can't do
# its work prints `skipped: WHY`, one that does less than the long suite `cut: WHAT`: the lines of
# tests that passed are counted and not shown.
set -o pipefail
# What records the host needs tracefs. Where it is not mounted, root mounts it for the tests alone.
if [ "$(id -u)" = 0 ] && [ ! -e /sys/kernel/tracing/trace_clock ] && [ -z "${VMETER_MOUNTED-}" ] &&
    unshare --mount true 2>/dev/null; then
    VMETER_MOUNTED=1 exec unshare --mount bash -c \
        'mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null; exec "$0" "$@"' "$0" "$@"
fi
cargo test --no-fail-fast "$@" -- --show-output 2>&1 | awk '
    /^successes:$/ { quiet = 1 }
    /^(failures:|test result:)/ { quiet = 0 }
    /^---- .* stdout ----$/ { test = $2 }
    /^skipped: / { why = substr($0, 10); if (!seen[test, why]++) { skips[why]++; all++ } }
    /^cut: / { if (!seen[test, $0]++) cuts++ }
    /^test .* FAILED$/ { failures++ }
    # A test binary that a signal ended has no test that failed.
    /^error: (test failed|[0-9]+ targets? failed)|^ +`-p |^ +process didn.t exit/ { ends[++errors] = $0 }
    /^failures:$/ { failing = 1 }
    /^test result:/ { failing = 0 }
    failing && /^---- .* stdout ----$/ { last[++lines] = $0; shown = 0 }
    failing && / panicked at / { shown = 4 }
    /^stack backtrace:$/ { shown = 0 }
    failing && shown > 0 { last[++lines] = "    " substr($0, 1, 200); shown-- }
    !quiet { print; fflush() }
    END {
        printf "\n%d skipped, %d cut short (make test-long)\n", all, cuts
        fflush()
        for (why in skips) printf "%4d skipped: %s\n", skips[why], why | "sort -k1,1nr -k2"
        close("sort -k1,1nr -k2")
        if (failures) printf "\n%d failed\n", failures
        for (i = 1; i <= lines; i++) print last[i]
        for (i = 1; i <= errors; i++) print ends[i]
    }'
