#!/bin/sh
# Finds phrases that hide who does what, in documents and in the program's help. CONTRIBUTING.md says why.
# docs/results is generated, and is not read.
set -eu
cd "$(dirname "$0")/.."
phrases='\b(is|are|was|were|be) (told|said)\b|\bsome(body|one)\b|\bnobody\b|\bso many\b|\bgo(es|ne|ing)? on with\b'
found=0
# In documents; code in backticks is not prose.
for page in README.md CHANGELOG.md CONTRIBUTING.md docs/*.md; do
    sed -e 's/`[^`]*`//g' "$page" | grep -nEi "$phrases" | sed "s|^|$page:|" && found=1
done
# In help and messages of the command line.
grep -rnEi "^ *///.*($phrases)" crates/cli/src/args.rs crates/cli/src/options crates/cli/src/commands &&
    found=1
[ $found = 0 ] || { echo 'Name the actor: "vmeter prints", "N runs", "resume it".' >&2; exit 1; }
