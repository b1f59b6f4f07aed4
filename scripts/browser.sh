#!/bin/sh
# Finds the Chromium that the browser tests drive, or installs Debian's; without one those tests skip and say so.
set -u

for candidate in "${MUSECODE_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1; then
        exit 0
    fi
done

no_browser() {
    echo "No Chromium ($1): the browser tests will be skipped. Install one, or set MUSECODE_CHROMIUM to its path."
    exit 0
}

command -v apt-get >/dev/null 2>&1 || no_browser "apt-get is not here to install it"
if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    no_browser "neither root nor sudo without a password"
fi

echo "Installing Debian's chromium for the browser tests."
packages="chromium fonts-liberation"
install() {
    # shellcheck disable=SC2086 # both lists are split on purpose
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages \
        </dev/null >/dev/null 2>&1
}
install || { $as_root apt-get update -qq </dev/null >/dev/null 2>&1 && install; } || no_browser "apt-get failed"
