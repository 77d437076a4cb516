#!/bin/sh
# Installs Debian's chromium and its driver, in which the report is tested, where that is possible.
# Never fails: without a browser those tests are skipped and say so.
has_browser() {
    command -v chromedriver >/dev/null 2>&1 &&
        { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null 2>&1
}

has_browser && exit 0
skip() {
    echo "No browser ($1): tests of the report in a browser will be skipped."
    exit 0
}
command -v apt-get >/dev/null 2>&1 || skip "no apt-get here; install chromium and chromedriver"
as_root=""
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || skip "not root; run: apt-get install chromium chromium-driver"
    as_root="sudo -n"
fi
echo "Installing chromium for the tests of the report ..."
install="$as_root apt-get install -y -qq --no-install-recommends chromium chromium-driver"
export DEBIAN_FRONTEND=noninteractive
$install >/dev/null 2>&1 || { $as_root apt-get update -qq >/dev/null 2>&1 && $install >/dev/null 2>&1; }
has_browser || skip "apt-get could not install chromium and chromium-driver"
