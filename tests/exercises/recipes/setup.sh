#!/usr/bin/env bash
# Gradescope runs this once, when the autograder's image is built. Debian or Ubuntu with Python 3.11 or newer.
set -eu
ROOT=${AUTOGRADER:-/autograder}
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install --no-install-recommends bubblewrap >/dev/null || echo "no bubblewrap: level 2"
for python in python3.13 python3.12 python3.11 python3.14; do
    if apt-get -qq install --no-install-recommends "$python" "$python-venv" >/dev/null 2>&1; then break; fi
done
# In /opt, where other users can read it: submissions run as one that owns nothing.
"$python" -m venv /opt/rungs
/opt/rungs/bin/pip install --quiet --extra-index-url https://download.pytorch.org/whl/cpu \
    -r "$ROOT/source/grader/requirements.txt"
chmod -R go= "$ROOT/source"
/opt/rungs/bin/python "$ROOT/source/grader/tests/exercises/grade.py" --doctor
