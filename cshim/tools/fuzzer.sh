#!/bin/sh
# Print the name of a clang that has libFuzzer. Where there is none, and this is root on a system with apt-get, Debian's is
# installed first. Fails with a line that says what to install otherwise. CLANG names one to try before the others.
set -u

fuzzes() {
	echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d == 0 && n == 0; }' |
		"$1" -fsanitize=fuzzer,address -x c -o /dev/null - 2>/dev/null
}

find_one() {
	for name in ${CLANG:-} clang clang-21 clang-20 clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do
		if command -v "$name" >/dev/null 2>&1 && fuzzes "$name"; then
			echo "$name"
			exit 0
		fi
	done
}

install_one() {
	command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || return 0
	apt-get update
	apt-get install -y --no-install-recommends clang
	command -v clang >/dev/null 2>&1 || return 0
	apt-get install -y --no-install-recommends "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev" # until 13 it is in clang
}

find_one
DEBIAN_FRONTEND=noninteractive install_one >&2
find_one
echo "no clang here has libFuzzer (Debian: apt-get install clang libclang-rt-14-dev, or the number of the clang there)" >&2
exit 1
