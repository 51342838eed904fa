# A Debian made by debootstrap (once, on the host: it wants device nodes that work) is unpacked in the lane.
release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
tree="$CACHE/debian-$release.tar"
if [ ! -e "$tree" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)
    root=$(mktemp -d "$CACHE/debian-XXXXXX")
    debootstrap --variant=minbase "$release" "$root" "$mirror" >"$CACHE/debootstrap.log" 2>&1 || {
        tail -3 "$CACHE/debootstrap.log"
        exit 1
    }
    (cd "$root/root" && apt-get download -q hello >/dev/null 2>&1)
    tar -C "$root" --exclude './dev/*' --exclude './proc/*' -cf "$tree.new" .
    mv "$tree.new" "$tree"
    rm -rf "$root"
fi
tar -xpf "$tree"
$OTHER tar --compare -f "$tree"
