#!/bin/sh
# Finds phrases that hide who does what, in documents and in the program's help. CONTRIBUTING.md says why.
# docs/results is generated, and is not read.
set -eu
cd "$(dirname "$0")/.."
phrases='\b(is|are|was|were|be) (told|said)\b|\bsome(body|one)\b|\bnobody\b|\bso many\b|\bgo(es|ne|ing)? on with\b'
# Code in backticks is not prose.
found=$(
    for page in README.md CHANGELOG.md CONTRIBUTING.md docs/*.md; do
        sed -e 's/`[^`]*`//g' "$page" | grep -nEi "$phrases" | sed "s|^|$page:|"
    done
    grep -rnEi "^ *///.*($phrases)" crates/cli/src/args.rs crates/cli/src/options crates/cli/src/commands || true
)
[ -z "$found" ] || { echo "$found" >&2; echo 'Name the actor: "vmeter prints", "N runs", "resume it".' >&2; exit 1; }
