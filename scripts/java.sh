#!/bin/sh
# Spark needs a Java 17 (or 21) runtime. Finds one, installs one where the system can, or says what to do.
version() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }

for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java; do
    [ -n "$java" ] && command -v "$java" >/dev/null 2>&1 || continue
    found=$(version "$java")
    if [ "${found:-0}" -ge 17 ] 2>/dev/null; then exit 0; fi
    echo "found Java ${found:-unknown}, Spark needs 17 or newer"
done

as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo -n"
if command -v apt-get >/dev/null 2>&1; then
    echo "installing a Java runtime (apt-get)..."
    $as_root apt-get update -qq && $as_root apt-get install -y -qq openjdk-17-jre-headless >/dev/null && exit 0
elif command -v dnf >/dev/null 2>&1; then
    echo "installing a Java runtime (dnf)..."
    $as_root dnf install -y -q java-17-openjdk-headless && exit 0
elif command -v brew >/dev/null 2>&1; then
    echo "installing a Java runtime (brew)..."
    brew install --quiet openjdk@17 && exit 0
fi
cat <<'END'
Millstream runs on Spark, which needs Java 17 or newer, and none could be installed here.
Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17),
or set JAVA_HOME to one you have, and run the command again.
END
exit 1
