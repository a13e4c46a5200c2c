#!/bin/sh
# Install what some tests need beside Python: `make tools`. On Debian and Ubuntu; as root, or with sudo.
# What cannot be installed is named, and its tests are skipped.
PYTHON=${1:-.venv/bin/python}
REQUIREMENTS=${2:-requirements.txt}
PATH=$PATH:/usr/sbin:/sbin
missing=
for pair in slurmctld:slurm-wlm munged:munge ip:iproute2 chromium:chromium npm:npm bwrap:bubblewrap g++:g++; do
    command -v "${pair%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
if [ "$missing" ]; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    export DEBIAN_FRONTEND=noninteractive
    { $sudo apt-get -qq update && $sudo apt-get -qq install --no-install-recommends $missing; } >/dev/null \
        || echo "cannot install$missing: their tests will be skipped" >&2
fi
# The frameworks, Optuna for lesson 14, safetensors for notebook 09a, and the tools that check the recipes: the
# same. None of them changes what requirements.txt has.
pip="$PYTHON -m pip install --quiet --disable-pip-version-check"
$pip -c $REQUIREMENTS -r lessons/frameworks/requirements.txt \
    || echo "cannot install lessons/frameworks/requirements.txt: its tests will be skipped" >&2
$pip -c $REQUIREMENTS -r lessons/frameworks/deepspeed.txt \
    || echo "cannot install lessons/frameworks/deepspeed.txt: its tests will be skipped" >&2
$pip -c $REQUIREMENTS -r lessons/frameworks/ray.txt \
    || echo "cannot install lessons/frameworks/ray.txt: its tests will be skipped" >&2
$pip -c $REQUIREMENTS -r lessons/parts/tuning.txt \
    || echo "cannot install lessons/parts/tuning.txt: its tests will be skipped" >&2
$pip -c $REQUIREMENTS -r lessons/parts/fine_tuning.txt \
    || echo "cannot install lessons/parts/fine_tuning.txt: its tests will be skipped" >&2
# What builds the site has an environment of its own. axe-core says there whether everybody can read the pages.
AXE=axe-core-4.14.1
make --silent .venv-site/ready || echo "cannot install tools/makers/site/requirements.txt: its tests will be skipped" >&2
{ npm pack --silent --pack-destination .venv-site axe-core@${AXE#axe-core-} >/dev/null \
    && tar -xzf .venv-site/$AXE.tgz -C .venv-site --strip-components 1 package/axe.min.js; } \
    || echo "cannot fetch $AXE: its tests will be skipped" >&2
$pip --no-deps -r lessons/launch/requirements.txt \
    || echo "cannot install lessons/launch/requirements.txt: its tests will be skipped" >&2
