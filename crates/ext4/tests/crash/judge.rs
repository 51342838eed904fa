//! The outside judges: e2fsck and the kernel.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use polylane_testkit::sim::Image;
use tempfile::NamedTempFile;

/// A file in memory when there is such a place, else in the temporary directory.
pub fn scratch() -> NamedTempFile {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => NamedTempFile::new_in(memory),
        false => NamedTempFile::new(),
    }
    .expect("temporary file")
}

fn save(image: &Image) -> NamedTempFile {
    let mut file = scratch();
    image.save(file.as_file_mut()).expect("written");
    file
}

fn e2fsck(flags: &str, image: &Path) -> (i32, String) {
    let done = Command::new("e2fsck").arg(flags).arg(image).output().expect("e2fsck runs");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    (done.status.code().unwrap_or(-1), said)
}

/// A closed image must be clean.
pub fn clean(image: &Image) -> Result<(), String> {
    let file = save(image);
    match e2fsck("-fn", file.path()) {
        (0, _) => Ok(()),
        (code, said) => Err(format!("e2fsck -fn: {code}\n{said}")),
    }
}

/// What e2fsck may say while it brings an image back after a power cut.
fn is_expected(line: &str) -> bool {
    const EXPECTED: &[&str] = &[
        "e2fsck",
        "Pass ",
        "Clearing orphaned inode",
        "Truncating orphaned inode",
        "Free blocks count wrong (",
        "Free inodes count wrong (",
    ];
    let line = line.trim();
    // An orphan file in use, as the kernel leaves it too.
    let of_orphan_file = line.starts_with("Orphan file (") && line.ends_with(" is not clean.")
        || line == "Feature orphan_present is set but orphan file is clean.";
    line.is_empty()
        || of_orphan_file
        || EXPECTED.iter().any(|start| line.starts_with(start))
        || matches!(line, "Fix? yes" | "Clear? yes")
        || line.ends_with("recovering journal")
        || line.contains("FILE SYSTEM WAS MODIFIED")
        // A tree that a truncation left higher than it need be, as the kernel leaves them.
        || line.contains("extent tree (at level") && line.contains("could be")
        || (line.contains(" files (") && line.contains(" blocks"))
}

/// e2fsck's own recovery of a crash image: nothing but journal and orphans to mend, and clean
/// afterwards. Returns the file for the kernel to look at.
pub fn recovered(image: &Image) -> Result<NamedTempFile, String> {
    let file = save(image);
    let (code, said) = e2fsck("-fy", file.path());
    let surprise = said.lines().find(|line| !is_expected(line));
    if code > 1 || surprise.is_some() {
        return Err(format!("e2fsck -fy: {code}: {}\n{said}", surprise.unwrap_or_default()));
    }
    match e2fsck("-fn", file.path()) {
        (0, _) => Ok(file),
        (code, said) => Err(format!("e2fsck -fn after -fy: {code}\n{said}")),
    }
}

/// Names, modes, sizes and bytes as the kernel sees them after its own recovery.
pub type Seen = BTreeMap<String, (u32, u64, Vec<u8>)>;

/// Mounts image $1 at $2, says so, and unmounts at the end of its input. What a namespace of its
/// own has mounted no other's copy keeps mounted.
const MOUNT: &str = r#"
mount -o loop,noatime -t ext4 "$1" "$2" && echo mounted && read -r _
n=0
while mountpoint -q "$2" && ! umount "$2" && [ $((n += 1)) -lt 100 ]; do sleep 0.05; done
! mountpoint -q "$2"
"#;

/// Lets the kernel mount (and recover) the image; `None` when it may not here.
pub fn kernel(image: &Image) -> Result<Option<Seen>, String> {
    let file = save(image);
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut mounter = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-uc", MOUNT, "sh"])
        .args([file.path(), dir.path()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare runs");
    let mut told = [0];
    let mounted = mounter.stdout.as_mut().expect("piped").read(&mut told).expect("told") == 1;
    let inside = format!("/proc/{}/root{}", mounter.id(), dir.path().display());
    let seen = mounted.then(|| look(Path::new(&inside)));
    let done = mounter.wait_with_output().expect("unshare ends");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let Some(seen) = seen else {
        let denied = said.contains("ermission")
            || said.contains("not permitted")
            || said.contains("superuser")
            || keeps_quotas(file.path());
        return if denied { Ok(None) } else { Err(format!("kernel: {said}")) };
    };
    assert!(done.status.success(), "{} cannot be unmounted: {said}", dir.path().display());
    match e2fsck("-fn", file.path()) {
        (0, _) => seen.map(Some).map_err(|error| format!("kernel: {error}")),
        (code, said) => Err(format!("e2fsck -fn after the kernel: {code}\n{said}")),
    }
}

/// Whether the image has quotas, which many kernels are built without: those mount none.
fn keeps_quotas(image: &Path) -> bool {
    let listed = Command::new("dumpe2fs").arg("-h").arg(image).output();
    let listed = listed.expect("dumpe2fs runs").stdout;
    String::from_utf8_lossy(&listed).lines().any(|line| {
        line.starts_with("Filesystem features:") && line.split(' ').any(|word| word == "quota")
    })
}

fn look(root: &Path) -> std::io::Result<Seen> {
    use std::os::unix::fs::MetadataExt as _;
    let mut seen = Seen::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata()?;
        let bytes = match meta.file_type() {
            kind if kind.is_file() => std::fs::read(&path)?,
            kind if kind.is_symlink() => {
                std::fs::read_link(&path)?.into_os_string().into_encoded_bytes()
            }
            _ => Vec::new(),
        };
        if meta.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                todo.push(entry?.path());
            }
        }
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        seen.insert(name, (meta.mode(), meta.size(), bytes));
    }
    Ok(seen)
}

/// Whether the program is here and we may mount.
pub fn may_mount() -> bool {
    rustix_is_root() && Path::new("/dev/loop-control").exists()
}

fn rustix_is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}
