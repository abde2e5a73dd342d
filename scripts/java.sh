#!/bin/sh
# Spark needs a Java runtime, 17 or newer. Finds one, installs one where the system can, or says what to do.
here=$(dirname "$0")
version() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }

# Spark takes JAVA_HOME if it is set, and looks no further.
find_java() {
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    command -v "$java" >/dev/null 2>&1 || { found=none; return 1; }
    found=$(version "$java")
    [ "${found:-0}" -ge 17 ] 2>/dev/null
}

install() { "${PYTHON:-python3}" "$here/patiently.py" "installing a Java runtime, which Spark needs, about half a minute ..." "${TMPDIR:-/tmp}/millstream-java-$$.log" "$@"; }

find_java && exit 0
if [ "$found" != none ]; then
    echo "found Java ${found:-of an unknown version} ($java); Spark needs 17 or newer"
elif [ -n "$JAVA_HOME" ]; then
    echo "JAVA_HOME is $JAVA_HOME, which has no bin/java"
fi

as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo -n"
if [ -z "$JAVA_HOME" ]; then
    if command -v apt-get >/dev/null 2>&1; then
        install sh -c "$as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y openjdk-17-jre-headless"
    elif command -v dnf >/dev/null 2>&1; then
        install sh -c "$as_root dnf install -y java-17-openjdk-headless"
    elif command -v brew >/dev/null 2>&1; then
        install brew install openjdk@17
    fi
    find_java && exit 0
fi
cat <<'END'
Millstream runs on Spark, which needs Java 17 or newer, and there is none that Spark would find.
Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17),
or set JAVA_HOME to one you have (after brew: export JAVA_HOME="$(brew --prefix openjdk@17)"), and run the command again.
END
exit 1
