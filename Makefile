# make demo: the main job. make test: everything. Both set a fresh Debian 12 up by themselves.
SHELL := /bin/sh
CARGO_BIN := $(if $(CARGO_HOME),$(CARGO_HOME),$(HOME)/.cargo)/bin
export PATH := $(CARGO_BIN):$(PATH)
export CARGO_TARGET_DIR ?= $(CURDIR)/target
PREFIX ?= /usr/local
# Where mount(8) and umount(8) look for their helpers.
SBINDIR ?= /usr/sbin
# Where systemd looks for units of the administrator's own programs, and Docker for volume plugins.
UNITDIR ?= $(PREFIX)/lib/systemd/system
PLUGINDIR ?= /etc/docker/plugins
BIN := $(CARGO_TARGET_DIR)/release/polylane
TOOLS := $(CARGO_TARGET_DIR)/tools
FIGURES ?= ipc queue copy seqread fileio-ram cached-read cached-write stat open-close ocrd

.PHONY: demo test test-apps test-suites test-union test-containers test-ceph test-guest bench campaign build check tools install clean

# Real programs in a lane, then two tenants side by side: about a minute after the build.
demo:
	@scripts/setup.sh build demo
	@$(MAKE) --no-print-directory build
	@$(BIN) bench run demo

# Every check there is that needs no particular machine; ends with "N passed, N failed, N skipped".
test:
	@scripts/setup.sh build test
	@$(MAKE) --no-print-directory build tools
	@cargo xtask test

# Programs that people run, in lanes on ext4 volumes, by each way in: a table, after half an hour.
test-apps:
	@scripts/setup.sh build test apps
	@$(MAKE) --no-print-directory build
	@cargo xtask apps $(APPS)

# Test suites of other projects, by the library and by FUSE alone, beside the host: a table, after an
# hour. SUITES="go git": only those. tests/suites/known.txt lists the known differences.
test-suites:
	@scripts/setup.sh build test suites
	@$(MAKE) --no-print-directory build
	@cargo xtask suites $(SUITES)

# unionmount-testsuite and fuse-overlayfs' tests on lanes over lowers, beside overlayfs and
# fuse-overlayfs: tables, after a quarter of an hour. UNIONMOUNT_SUITE and FUSE_OVERLAYFS_SUITE name
# checkouts of them.
test-union:
	@scripts/setup.sh build test
	@$(MAKE) --no-print-directory build
	@scripts/test-union.sh

# Programs in containers on lanes: a Debian, a root of busybox and one of musl: a table, after five
# minutes. CONTAINERS="debian musl": only those; DEBIAN=FILE: a root file system that is there.
test-containers:
	@scripts/setup.sh build containers
	@$(MAKE) --no-print-directory build
	@scripts/test-containers.sh

# Lanes on a Ceph file system: a cluster of two OSDs and two MDS is started here, for minutes.
test-ceph:
	@scripts/setup.sh build test ceph
	@$(MAKE) --no-print-directory build tools
	@scripts/test-ceph.sh

# Front ends on kernels that have them, and whole machines on volumes: Debian's kernels under QEMU,
# a quarter to half an hour; GUESTS="nbd ublk": only tests with such names.
test-guest:
	@scripts/setup.sh build test guest
	@$(MAKE) --no-print-directory build
	@cargo xtask guest $(GUESTS)

build:
	@cargo build --release --quiet --package polylane --package polylane-client
	@scripts/build-musl.sh

check:
	@cargo xtask check

# Test suites from the crate registry, built once. Where it cannot be reached, their tests say so and
# are skipped.
tools: $(TOOLS)/bin/pjdfstest $(TOOLS)/bin/fsx
$(TOOLS)/bin/pjdfstest:
	@cargo install --quiet --locked pjdfstest --version 0.2.2 --root $(TOOLS) || \
		echo "make: pjdfstest could not be installed; its tests are skipped" >&2
$(TOOLS)/bin/fsx:
	@cargo install --quiet --locked fsx --version 0.3.2 --root $(TOOLS) || \
		echo "make: fsx could not be installed; its tests are skipped" >&2

# A quick look at every figure; `make campaign` runs them in full and takes hours.
bench:
	@scripts/setup.sh build demo
	@$(MAKE) --no-print-directory build
	@$(BIN) bench run $(FIGURES) --quick

campaign:
	@scripts/setup.sh build demo
	@$(MAKE) --no-print-directory build tools
	@$(BIN) bench run $(FIGURES)
	@cargo xtask campaign

install: build
	install -D -m 755 $(BIN) $(DESTDIR)$(PREFIX)/bin/polylane
	install -D -m 755 $(CARGO_TARGET_DIR)/release/libpolylane.so \
		$(DESTDIR)$(PREFIX)/lib/polylane/libpolylane.so
	install -d $(DESTDIR)$(SBINDIR)
	ln -sf $(PREFIX)/bin/polylane $(DESTDIR)$(SBINDIR)/mount.polylane
	ln -sf polylane $(DESTDIR)$(PREFIX)/bin/polylane-oci
	ln -sf $(PREFIX)/bin/polylane $(DESTDIR)$(SBINDIR)/umount.fuse.polylane
	ln -sf $(PREFIX)/bin/polylane $(DESTDIR)$(SBINDIR)/mount.fuse.polylane
	install -d $(DESTDIR)$(UNITDIR)
	sed 's|@PREFIX@|$(PREFIX)|' dist/systemd/polylane.service > $(DESTDIR)$(UNITDIR)/polylane.service
	install -m 644 dist/systemd/polylane.socket $(DESTDIR)$(UNITDIR)/polylane.socket
	install -D -m 644 dist/systemd/srv-web.mount $(DESTDIR)$(PREFIX)/share/doc/polylane/srv-web.mount
	install -D -m 644 dist/polylane.spec $(DESTDIR)$(PLUGINDIR)/polylane.spec
	[ ! -e $(CARGO_TARGET_DIR)/release/libpolylane-musl.so ] || \
		install -D -m 755 $(CARGO_TARGET_DIR)/release/libpolylane-musl.so \
			$(DESTDIR)$(PREFIX)/lib/polylane/libpolylane-musl.so

clean:
	@cargo clean
