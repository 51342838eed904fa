//! Guests: Debian kernels under QEMU without KVM, for front ends that the host's kernel lacks and
//! for what a real machine does with a volume.
//!
//! A guest has the tools of `tests/guest/kit.sh` and runs one script (`sh -eu`); its console ends
//! with the script's exit status. `POLYLANE_GUEST` names the directory of kits, which `cargo xtask
//! guest` makes and sets; without it the tests that need one say so and are skipped. A guest takes
//! half a minute, is ended when its time is over (`POLYLANE_GUEST_PATIENCE` times its limit), and
//! when it is dropped.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{lacks, skip, tool};

/// A Debian kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// Debian 12's, 6.1: NBD, no ublk.
    Stable,
    /// Its backports', 6.12: both.
    Backports,
}

impl Kernel {
    fn name(self) -> &'static str {
        match self {
            Kernel::Stable => "stable",
            Kernel::Backports => "backports",
        }
    }
}

/// A kernel and an initramfs.
#[derive(Clone, Debug)]
pub struct Kit {
    dir: PathBuf,
}

impl Kit {
    /// The kit of a kernel, if there is one here; `test` is noted as skipped otherwise.
    pub fn find(test: &str, kernel: Kernel) -> Option<Kit> {
        let tools = ["qemu-system-x86_64", "busybox", "timeout", "gzip", "ldd"];
        if lacks(test, &tools) {
            return None;
        }
        let Some(kits) = std::env::var_os("POLYLANE_GUEST").map(PathBuf::from) else {
            skip(test, "POLYLANE_GUEST is not set: run `make test-guest`");
            return None;
        };
        let dir = kits.join(kernel.name());
        if !dir.join("initrd.gz").is_file() {
            skip(test, &format!("no kit of the {} kernel in POLYLANE_GUEST", kernel.name()));
            return None;
        }
        Some(Kit { dir })
    }
}

/// A guest that was not started yet.
#[derive(Debug)]
pub struct Guest {
    kit: Kit,
    name: String,
    script: String,
    programs: Vec<PathBuf>,
    trees: Vec<PathBuf>,
    /// Bytes of `/dev/vda`, a disk of its own.
    disk: Option<u64>,
    arguments: Vec<String>,
    limit: Duration,
}

impl Guest {
    /// A guest with 3 minutes to run `script`; its console is kept as `NAME.txt` beside the kits.
    pub fn new(kit: &Kit, name: &str, script: &str) -> Guest {
        Guest {
            kit: kit.clone(),
            name: name.replace(' ', "-"),
            script: script.to_string(),
            programs: Vec::new(),
            trees: Vec::new(),
            disk: None,
            arguments: Vec::new(),
            limit: Duration::from_secs(180),
        }
    }

    /// Puts a program of the host and its libraries into its `/bin`.
    #[must_use]
    pub fn program(mut self, path: &Path) -> Guest {
        self.programs.push(path.to_path_buf());
        self
    }

    /// Puts a directory of the host into its root, by the name that it has here.
    #[must_use]
    pub fn tree(mut self, path: &Path) -> Guest {
        self.trees.push(path.to_path_buf());
        self
    }

    /// Gives it an empty disk of `bytes`, its first.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Guest {
        self.disk = Some(bytes);
        self
    }

    /// More words for QEMU.
    #[must_use]
    pub fn arguments(mut self, words: &[&str]) -> Guest {
        self.arguments.extend(words.iter().map(|word| word.to_string()));
        self
    }

    /// Another time limit.
    #[must_use]
    pub fn limit(mut self, seconds: u64) -> Guest {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Starts it.
    ///
    /// # Panics
    /// QEMU or a tool cannot be run.
    pub fn start(self) -> Running {
        let patience = std::env::var("POLYLANE_GUEST_PATIENCE").ok();
        let limit = self.limit * patience.and_then(|number| number.parse().ok()).unwrap_or(1);
        let dir = tempfile::tempdir().expect("tempdir");
        let initrd = self.initrd(dir.path());
        let consoles = self.kit.dir.with_file_name("consoles");
        fs::create_dir_all(&consoles).expect("a directory for consoles");
        let console = consoles.join(format!("{}.txt", self.name));
        let file = || fs::File::options().append(true).open(&console).expect("its console");
        fs::write(&console, "").expect("its console");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &limit.as_secs().to_string()]);
        command.args(["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi"]);
        // Without it, that QEMU's emulation of cmpxchg16b crashes newer kernels.
        command.args(["-cpu", "max,-cx16", "-smp", "2", "-m", "1024"]);
        command.args(["-nodefaults", "-no-reboot", "-nographic", "-serial", "stdio"]);
        command.arg("-kernel").arg(self.kit.dir.join("vmlinuz"));
        command.arg("-initrd").arg(initrd);
        // Linux tests its timer by the time that passes, which on a busy machine may be none.
        command.args(["-append", "console=ttyS0 quiet panic=-1 no_timer_check"]);
        if let Some(bytes) = self.disk {
            let disk = dir.path().join("disk");
            fs::File::create(&disk).and_then(|file| file.set_len(bytes)).expect("a disk");
            let drive = format!(
                "file={},if=none,id=own,format=raw,cache=unsafe,discard=unmap",
                disk.display()
            );
            command.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=own"]);
        }
        command.args(&self.arguments);
        command.stdin(Stdio::null()).stdout(file()).stderr(file());
        let child = command.spawn().expect("timeout runs");
        Running { child, console, shown: 0, limit, begun: Instant::now(), _dir: dir }
    }

    /// Runs it to its end; what it printed.
    ///
    /// # Panics
    /// As [`Guest::start`] and [`Running::finish`].
    pub fn run(self) -> String {
        self.start().finish()
    }

    /// The kit's initramfs with the guest's own files behind it: the kernel unpacks both.
    fn initrd(&self, dir: &Path) -> PathBuf {
        let root = dir.join("root");
        fs::create_dir(&root).expect("a directory");
        fs::write(root.join("script"), &self.script).expect("its script");
        for program in &self.programs {
            let closure = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/closure.sh");
            let copied = Command::new("sh").arg(closure).arg(&root).arg(program).status();
            assert!(copied.expect("sh runs").success(), "copy {}", program.display());
        }
        for tree in &self.trees {
            let copied = Command::new("cp").arg("-a").arg(tree).arg(&root).status();
            assert!(copied.expect("cp runs").success(), "copy {}", tree.display());
        }
        let pack = "cp \"$1/initrd.gz\" \"$2/initrd\"; cd \"$2/root\"; \
            find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 >> ../initrd; rm -r ../root";
        let packed =
            Command::new("sh").args(["-euc", pack, "sh"]).arg(&self.kit.dir).arg(dir).status();
        assert!(packed.expect("sh runs").success(), "pack the initramfs");
        dir.join("initrd")
    }
}

/// A guest at work; ended when it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    console: PathBuf,
    /// Bytes of the console that were shown.
    shown: usize,
    limit: Duration,
    begun: Instant,
    _dir: tempfile::TempDir,
}

impl Running {
    /// What it has printed so far.
    pub fn console(&self) -> String {
        let printed = fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&printed).replace('\r', "")
    }

    /// Waits until it has printed `text`.
    ///
    /// # Panics
    /// It ends, or its time does, before that.
    pub fn wait_for(&mut self, text: &str) {
        while !self.console().contains(text) {
            assert!(self.is_running(), "'{text}' never came: {}", self.console());
        }
    }

    /// Waits for its end; what it printed.
    ///
    /// # Panics
    /// Its script failed, or it has no end in time.
    pub fn finish(mut self) -> String {
        while self.is_running() {}
        self.show();
        let printed = self.console();
        assert!(printed.contains("GUEST-DONE 0\n"), "{}", printed);
        printed
    }

    /// Whether it runs, after a moment.
    fn is_running(&mut self) -> bool {
        thread::sleep(Duration::from_millis(100));
        self.show();
        let late = self.begun.elapsed() > self.limit + Duration::from_secs(10);
        !late && matches!(self.child.try_wait(), Ok(None))
    }

    /// Shows what is new on its console, with `POLYLANE_GUEST_SHOW` in the environment.
    fn show(&mut self) {
        if std::env::var_os("POLYLANE_GUEST_SHOW").is_none() {
            return;
        }
        let printed = fs::read(&self.console).unwrap_or_default();
        // Past the test harness, which keeps what the print macros write.
        let _ = std::io::stderr().write_all(printed.get(self.shown..).unwrap_or_default());
        self.shown = printed.len();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let kill = tool("kill").unwrap_or_else(|| "kill".into());
        let end = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            // timeout(1) passes it on to QEMU.
            let _ = Command::new(&kill).arg(self.child.id().to_string()).status();
            thread::sleep(Duration::from_millis(100));
        }
    }
}
