# A Debian is made in the lane (debootstrap runs dpkg for every package in it).
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)
release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
debootstrap --variant=minbase "$release" "$LANE" "$mirror" >/tmp/polylane-debootstrap.$$ 2>&1 || {
    tail -3 /tmp/polylane-debootstrap.$$
    exit 1
}
rm /tmp/polylane-debootstrap.$$
(cd "$LANE/var/cache/apt/archives" && apt-get download -q hello >/dev/null 2>&1)
