#!/bin/sh
# Refuse a Python that requirements.txt is not for, and say what to type instead: `make setup` asks it.
# An environment that was made by hand is asked before python3, since it is kept.
PYTHON=python3
if [ -e .venv/bin/python ] || [ -L .venv/bin/python ]; then
    PYTHON=.venv/bin/python
fi

is_right() {
    [ "$("$1" -c 'import sys, sysconfig
print((3, 11) <= sys.version_info < (3, 15), sysconfig.get_config_var("Py_GIL_DISABLED") or 0)' 2>/dev/null)" = "True 0" ]
}
if is_right "$PYTHON"; then
    if [ "$(uname)" = Darwin ]; then
        version=$(sw_vers -productVersion)
        if [ "$(uname -m)" != arm64 ] || [ "${version%%.*}" -lt 14 ]; then
            echo "error: PyTorch 2.13 needs Apple silicon and macOS 14 or newer, and this is macOS $version on $(uname -m)" >&2
            exit 1
        fi
    fi
    exit 0
fi

wrong="there is no $PYTHON that starts"
version=$("$PYTHON" -c 'import platform; print(platform.python_version())' 2>/dev/null)
case $version in
    "") ;;
    3.1[1-4].*) wrong="$PYTHON is the free-threaded build of Python $version, for which grpcio has no wheel" ;;
    *) wrong="$PYTHON is Python $version, and Python 3.11 to 3.14 is needed" ;;
esac
for name in python3.13 python3.14 python3.12 python3.11 python3; do
    if is_right "$name"; then
        echo "error: $wrong. Type: rm -rf .venv; $name -m venv .venv; source .venv/bin/activate" >&2
        exit 1
    fi
done
echo "error: $wrong. Install Python 3.13 (macOS: brew install python@3.13; Fedora: dnf install python3.13; Debian" \
    "and Ubuntu: apt install python3-venv), then type: rm -rf .venv; python3.13 -m venv .venv; source .venv/bin/activate" >&2
exit 1
