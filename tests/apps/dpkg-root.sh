# The lane is the root file system: dpkg installs, verifies and purges a package.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg --install /root/hello_*.deb >/dev/null
$OTHER hello | grep -q world
dpkg --verify hello
dpkg --audit
dpkg --purge hello >/dev/null
test ! -e /usr/bin/hello
echo "$(dpkg-query -f '.\n' -W | wc -l) packages"
