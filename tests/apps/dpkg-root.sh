# The lane is the root file system: dpkg installs, verifies and purges a package, then apt does.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg --install /root/hello_*.deb >/dev/null
$OTHER hello | grep -q world
dpkg --verify hello
dpkg --audit
dpkg --purge hello >/dev/null
test ! -e /usr/bin/hello
# From its file: no archive need be in reach.
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -q /root/hello_*.deb >/root/apt.log 2>&1 || { tail -3 /root/apt.log; exit 1; }
hello | grep -q world
$OTHER dpkg --verify hello
$OTHER apt-get purge -y -q hello >>/root/apt.log 2>&1
test ! -e /usr/bin/hello
apt-get check -q >>/root/apt.log 2>&1
dpkg --audit
echo "$(dpkg-query -f '.\n' -W | wc -l) packages"
