#!/bin/sh
# layer.sh FOLDER ARGUMENTS...: `uv pip install ARGUMENTS` into /opt/hami; copies what is new there to FOLDER.
# The files are the same in each build. Bytecode is compiled by one process, in the order of names, and refers to its source
# by hash; uv's lock, and its note of when a local wheel was made, are left out.
set -eu
folder=$1
shift
touch /before
[ -e /opt/hami ] || uv venv /opt/hami
uv pip install --no-cache --python /opt/hami/bin/python "$@"
find /opt/hami/lib -cnewer /before -name RECORD -exec sed -i '/uv_cache\.json/d' {} +
find /opt/hami/lib -cnewer /before -name '*.py' ! -path '*/kubernetes_asyncio/*' ! -path '*/tests/*' | sort |
	PYTHONHASHSEED=0 python3 -m compileall -q -i - --invalidation-mode unchecked-hash
mkdir -p "$folder"
cd /opt/hami
find . -cnewer /before ! -type d ! -path ./.lock ! -name uv_cache.json | sort |
	tar --create --files-from=- | tar --extract --directory="$folder"
