#!/bin/sh
# Mooncake's engine links against libibverbs, which Debian has and PyPI has not. As root it is installed, else named.
set -e
if ldconfig -p 2>/dev/null | grep -q 'libibverbs\.so\.1'; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing libibverbs1, which Mooncake's engine needs" >&2
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq libibverbs1 >/dev/null
else
    echo "Mooncake needs libibverbs1; install it with: sudo apt-get install libibverbs1" >&2
fi
