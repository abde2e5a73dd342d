#!/bin/sh
# The page is tested in Chromium. Finds one, or installs one where the system can; without it those tests are skipped, and say so.
here=$(dirname "$0")
for name in chromium chromium-browser google-chrome; do command -v $name >/dev/null 2>&1 && exit 0; done
command -v apt-get >/dev/null 2>&1 || exit 0
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo -n"
"${PYTHON:-python3}" "$here/patiently.py" "installing Chromium, in which the page is tested, about a minute ..." "${TMPDIR:-/tmp}/millstream-chromium-$$.log" \
    sh -c "$as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y chromium" || true
