#!/bin/sh
# kit.sh stable|backports DIR: a kernel and an initramfs for guests under QEMU, from the packages of
# Debian 12 or of its backports. Makes DIR/vmlinuz and DIR/initrd.gz; what is there already stays.
# Needs: apt-get, dpkg-deb, xz, gzip, busybox-static; tools that are not installed are left out.
# The archive of the machine's own sources is asked, in an apt directory of its own.
set -eu
suite=$1 dir=$2
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
[ ! -f "$dir/initrd.gz" ] || [ "$here/kit.sh" -nt "$dir/initrd.gz" ] ||
    [ "$here/init" -nt "$dir/initrd.gz" ] || exit 0

TOOLS="fio debugfs mkfs.ext4 mkfs.xfs mkfs.btrfs e2fsck resize2fs xfs_repair xfs_growfs btrfs blkid"
MODULES="virtio_pci virtio_blk fuse loop nbd ublk_drv xfs btrfs"

mkdir -p "$dir/work/apt/lists/partial" "$dir/work/apt/archives/partial"
cd "$dir/work"
rm -rf kernel root
if ! ls ./linux-image-*.deb >/dev/null 2>&1; then
    if [ "$suite" = backports ]; then
        archive=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
            sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] *\)*\([^ ]*\) .*/\2/p' |
            grep '/debian/*$' | head -n 1)
        echo "deb ${archive:?no Debian archive among the sources of apt} bookworm-backports main" > apt/sources.list
        cat > apt/conf <<CONF
Dir::State::Lists "$PWD/apt/lists";
Dir::Cache "$PWD/apt";
Dir::Etc::SourceList "$PWD/apt/sources.list";
Dir::Etc::SourceParts "-";
CONF
        export APT_CONFIG="$PWD/apt/conf"
        apt-get update -qq
    fi
    package=$(apt-cache depends linux-image-cloud-amd64 |
        sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -n 1)
    apt-get download -qq "${package:?no kernel package in $suite}" 2>/dev/null ||
        apt-get download -qq "$package-unsigned"
fi
dpkg-deb -x "$(ls ./linux-image-*.deb)" kernel

version=$(basename kernel/lib/modules/*)
mkdir -p root/bin root/dev root/proc root/sys root/run root/mnt root/tmp root/etc root/var
find kernel/lib/modules -name '*.ko.xz' -exec xz -d {} +
# The version of depmod in busybox works for the running kernel, and below the current directory.
(cd "kernel/lib/modules/$version" && busybox depmod -b "$dir/work/kernel" "$version")
dependencies="kernel/lib/modules/$version/modules.dep"
for module in $MODULES; do
    line=$(grep "/$module\.ko:" "$dependencies") || continue
    for file in $(echo "$line" | tr -d :); do
        file=lib/modules/$version/${file##*"$version/"}
        mkdir -p "root/$(dirname "$file")"
        cp "kernel/$file" "root/$file"
    done
done
# XFS and btrfs ask for a checksum by name, which no dependency tells.
find kernel -name 'crc32c_generic.ko' -exec cp {} "root/lib/modules/$version/" \;
(cd "root/lib/modules/$version" && busybox depmod -b "$dir/work/root" "$version")
echo "crc32c_generic $MODULES" > root/etc/modules

"$here/closure.sh" root "$(command -v busybox)"
for tool in $TOOLS; do
    path=$(command -v "$tool") || continue
    "$here/closure.sh" root "$path"
done
cp "$here/init" root/init
chmod +x root/init
(cd root && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) > ../initrd.new
cp kernel/boot/vmlinuz-* ../vmlinuz
mv ../initrd.new ../initrd.gz
rm -rf kernel root
