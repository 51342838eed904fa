//! Volumes that are attached to this host for a figure. A process of its own takes them off again
//! when the bench ends, however it ends: it waits for the end of a pipe from it.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::tools::path;

/// Reads volumes, one a line, and detaches them at the end of its input. What is mounted on
/// `NAME.img` is mounted at `NAME`; a tenant that is still at work may hold it for a while. A
/// volume that is not there was never attached.
const WARDEN: &str = r#"
trap '' INT TERM HUP
program=$1
shift
while IFS= read -r volume; do set -- "$@" "$volume"; done
failed=0
for volume; do
    case $volume in
    rbd:*) ;;
    *) [ -e "$volume" ] || continue ;;
    esac
    tries=0
    while mountpoint -q "${volume%.img}" && ! umount "${volume%.img}" && [ $tries -lt 30 ]; do
        tries=$((tries + 1))
        sleep 1
    done
    "$program" detach "$volume" >&2 || failed=1
done
exit $failed
"#;

/// By which front end a volume is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front<'a> {
    /// A file exported by FUSE under a loop device; all data goes through the engine.
    Loop,
    /// The same, read and written inside the kernel.
    LoopPassedThrough,
    /// A server of the Network Block Device protocol at this socket.
    Nbd(&'a Path),
}

/// The attached volumes of a run.
pub struct Attached {
    /// This program.
    program: PathBuf,
    /// Runs from the first volume on.
    warden: RefCell<Option<Child>>,
}

impl Attached {
    /// None yet.
    ///
    /// # Errors
    /// This program's own path is not known.
    pub fn new() -> Result<Self> {
        let program = std::env::current_exe().context("own path")?;
        Ok(Attached { program, warden: RefCell::default() })
    }

    /// Makes a volume of `bytes` at `volume`, lets `fill` write to it, and attaches it until
    /// [`detach`](Self::detach) or the end of this process. Returns the device or socket.
    ///
    /// # Errors
    /// It cannot be made or attached, or not by that front end; it is then removed.
    pub fn attach(
        &self,
        volume: &Path,
        bytes: u64,
        front: Front<'_>,
        fill: &dyn Fn(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let name = path(volume)?;
        let size = bytes.to_string();
        self.run(&["volume", "create", "--fs", "none", "--size", &size, name])?;
        fill(volume)?;
        self.register(name)?;
        let attached = self.engage(name, front);
        if attached.is_err() {
            let _ = self.run(&["detach", name]);
            fs::remove_file(volume).context("remove a volume")?;
        }
        attached
    }

    /// Attaches an image of a Ceph cluster, `rbd:USER@POOL/IMAGE`, as a loop device until
    /// [`detach`](Self::detach) or the end of this process.
    ///
    /// # Errors
    /// It cannot be attached.
    pub fn attach_image(&self, image: &str, conf: &Path) -> Result<PathBuf> {
        let device = self.run(&["attach", "--via", "loop", "--ceph-conf", path(conf)?, image])?;
        // Attachments are listed with the user's whole name.
        self.register(&image.replacen("rbd:", "rbd:client.", 1))?;
        Ok(PathBuf::from(device.trim()))
    }

    fn engage(&self, volume: &str, front: Front<'_>) -> Result<PathBuf> {
        let device = match front {
            Front::Nbd(socket) => {
                let socket = path(socket)?;
                self.run(&["attach", "--via", "nbd", "--socket", socket, volume])?
            }
            Front::Loop => self.run(&["attach", "--via", "loop", volume])?,
            Front::LoopPassedThrough => {
                self.run(&["attach", "--via", "loop", "--passthrough", volume])?
            }
        };
        let passed = self.is_passed_through(volume)?;
        ensure!(passed == (front == Front::LoopPassedThrough), "it is not served as was asked for");
        Ok(PathBuf::from(device.trim()))
    }

    fn is_passed_through(&self, volume: &str) -> Result<bool> {
        let listed = self.run(&["attach", "--list", "--json"])?;
        let listed: Vec<serde_json::Value> =
            serde_json::from_str(&listed).context("list of attachments")?;
        let own = fs::canonicalize(volume).context("a volume")?;
        let own = listed.iter().find(|one| one["volume"].as_str().map(Path::new) == Some(&own));
        let own = own.context("the volume is not listed as attached")?;
        let passed = own["stats"]["engine"]["passthrough"].as_bool();
        passed.context("the engine does not say whether the volume is passed through")
    }

    /// Runs this program quietly; what it printed.
    fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(args).stdin(Stdio::null());
        let done = command.output().context("run polylane")?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            bail!("{}", said.lines().next().unwrap_or("polylane failed").trim());
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// Tells the warden of a volume, before it is attached.
    fn register(&self, volume: &str) -> Result<()> {
        let mut warden = self.warden.borrow_mut();
        let warden = match &mut *warden {
            Some(warden) => warden,
            none => none.insert(self.start_warden()?),
        };
        let pipe = warden.stdin.as_mut().context("the warden's input")?;
        writeln!(pipe, "{volume}").context("tell the warden of a volume")
    }

    fn start_warden(&self) -> Result<Child> {
        let mut command = Command::new("sh");
        command.args(["-uc", WARDEN, "polylane-warden", path(&self.program)?]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().context("run sh")
    }

    /// Detaches all volumes. What is mounted on them goes first.
    ///
    /// # Errors
    /// One is still in use; its message was printed.
    pub fn detach(&self) -> Result<()> {
        let Some(mut warden) = self.warden.take() else { return Ok(()) };
        drop(warden.stdin.take());
        let status = warden.wait().context("wait for the warden")?;
        ensure!(status.success(), "a volume is still attached");
        Ok(())
    }
}
