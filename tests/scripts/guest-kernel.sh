#!/bin/sh
# guest-kernel.sh DIR: a kernel and an initramfs for guests under QEMU, from Debian's packages.
# Needs: apt-get, dpkg-deb, busybox-static, gzip. Makes DIR/vmlinuz and DIR/initrd.gz.
set -eu
dir=$1
mkdir -p "$dir/work"
cd "$dir/work"
package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -n 1)
ls ./*.deb >/dev/null 2>&1 || apt-get download "$package" || apt-get download "$package-unsigned"
dpkg-deb -x ./*.deb kernel
modules=$(echo kernel/lib/modules/*/kernel)
mkdir -p root/bin root/dev root/proc root/sys root/mnt root/tmp root/etc root/lib/modules
cp "$(command -v busybox)" root/bin/busybox
for module in virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk \
    libcrc32c xfs xor raid6_pq zstd_compress xxhash_generic blake2b_generic btrfs; do
    find "$modules" -name "$module.ko" -exec cp {} root/lib/modules/ \;
done
for tool in mkfs.ext4 mkfs.xfs mkfs.btrfs e2fsck; do
    path=$(command -v "$tool") || continue
    cp -L "$path" root/bin/
    ldd "$path" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "root$(dirname "$library")"
        cp -L "$library" "root$library"
    done
done
cat > root/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for module in virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk \
    libcrc32c xfs xor raid6_pq zstd_compress xxhash_generic blake2b_generic btrfs; do
    insmod /lib/modules/$module.ko 2>/dev/null
done
n=0
while [ ! -b /dev/vda ] && [ $n -lt 50 ]; do sleep 0.2; n=$((n + 1)); done
echo GUEST-UP
eval "$(sed -n 's/.*guest=\([^ ]*\).*/\1/p' /proc/cmdline | base64 -d)"
echo GUEST-DONE
poweroff -f
INIT
chmod +x root/init
(cd root && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) > ../initrd.gz
cp kernel/boot/vmlinuz-* ../vmlinuz
