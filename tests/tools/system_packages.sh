#!/bin/sh
# What Debian has and PyPI has not: libibverbs, which Mooncake's engine links against, and a C++ compiler with OpenSSL's
# headers, with which SGLang compiles its page hash. As root they are installed, else named.
set -e
wanted=
ldconfig -p 2>/dev/null | grep -q 'libibverbs\.so\.1' || wanted="$wanted libibverbs1"
command -v g++ >/dev/null || wanted="$wanted g++"
test -e /usr/include/openssl/sha.h || wanted="$wanted libssl-dev"
test -n "$wanted" || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing$wanted, which engines and stores in the tests need" >&2
    # shellcheck disable=SC2086 # one word for each package
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $wanted >/dev/null
else
    echo "some tests need$wanted; install with: sudo apt-get install$wanted" >&2
fi
