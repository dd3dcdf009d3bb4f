#!/bin/sh
# Writes docs/results/calibration.md anew, from the shipped commands in a release build.
set -eu
doc=docs/results/calibration.md
table=$(mktemp)
trap 'rm -f "$table"' EXIT
failed=0
VMETER_CALIBRATION=$table cargo test --release --locked -p vmeter --test calibration -- --test-threads=1 || failed=1
{
    echo '# Calibration, every row'
    echo
    echo "\`make calibration\` wrote this on $(date -u '+%-d %B %Y') ($(git rev-parse --short HEAD)). [CALIBRATION.md](../CALIBRATION.md)"
    echo 'says what a row is, and what does not hold.'
    echo
    echo '| what | expected | found | rate, 95 % interval |'
    echo '| --- | --- | --- | --- |'
    cat "$table"
} >"$doc"
exit $failed
