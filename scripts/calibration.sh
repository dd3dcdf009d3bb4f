#!/bin/sh
# Writes the table of docs/CALIBRATION.md anew, from the shipped commands in a release build. The text
# before it is written by hand.
set -eu
doc=docs/CALIBRATION.md
table=$(mktemp)
trap 'rm -f "$table"' EXIT
failed=0
VMETER_CALIBRATION=$table cargo test --release --locked -p vmeter --test calibration -- --test-threads=1 || failed=1
sed -e '/^| what | expected |/,$d' "$doc" >"$doc.new"
{
    echo '| what | expected | found | rate, 95 % interval |'
    echo '| --- | --- | --- | --- |'
    cat "$table"
} >>"$doc.new"
mv "$doc.new" "$doc"
exit $failed
