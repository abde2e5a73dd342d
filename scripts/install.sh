#!/bin/sh
# install.sh PYTHON VENV EXTRA WHAT [--newest]: Millstream with one of its extras, editable, into a virtual environment that is made if there is none. The
# versions of all packages are those of constraints.txt, or with --newest the newest there are.
python=$1 venv=$2 extra=$3 what=$4
here=$(dirname "$0")
versions="-c $here/../constraints.txt"
if [ "$5" = --newest ]; then versions="--upgrade --upgrade-strategy eager"; fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Millstream needs Python 3.11 or newer; say make PYTHON=python3.11 or the like"
    exit 1
}
if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    mkdir -p "$venv" || exit 1
    "$python" "$here/patiently.py" "making a virtual environment in $venv ..." "$venv/install.log" "$python" -m venv "$venv" || exit 1
fi
exec "$python" "$here/patiently.py" "$what" "$venv/install.log" \
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off $versions -e ".[$extra]"
