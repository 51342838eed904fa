//! Checking the ext4 on a volume, and mending it.
//!
//! After a kill or a power cut a file system is sound as soon as it is mounted: its journal is
//! replayed, and files are freed that were removed while somebody had them open. e2fsck would judge
//! it as it was before. So it is settled first, by the same code that mounts a lane.

use std::fs::File;
use std::path::Path;

use polylane_base::sync::Arc;
use polylane_base::{Errno, SystemClock};
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::image::{Draft, ImageError};
use polylane_ext4::{Ext4, Options};

use super::bypass;
use super::change::{no_ext4, open_raw};
use super::copy::{beside_temporary, materialize};
use super::host::failure;
use super::info::{Content, content, needs_replay};
use super::open::open_to_read;
use super::places::resolve;
use super::sidecar::{Sidecar, refuse_snapshot};
use super::stack::Stack;
use super::tools;
use crate::failure::{Failure, Result, say};

/// How much a check may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// Nothing.
    Look,
    /// What a mount would.
    Settle,
    /// Whatever is wrong.
    Repair,
}

/// Checks the ext4 on a volume that nobody has open; what e2fsck said. That it was settled, and
/// how, is said on standard error.
///
/// # Errors
/// There are errors, with what e2fsck said last; it is in use; it holds no ext4.
pub fn check(path: &Path, how: Check) -> Result<String> {
    let path = &resolve(path)?;
    if how == Check::Repair && Sidecar::load(path)?.bypass.is_some() {
        let mut said = String::new();
        bypass::rewrite(path, |copy| {
            let file = File::options().read(true).write(true).open(copy);
            let file = file.map_err(|error| Failure::path(path, "open its copy", error))?;
            said = judge(path, &file, how)?;
            Ok(())
        })?;
        return Ok(said);
    }
    let (file, _lock) = subject(path, how)?;
    judge(path, &file, how)
}

/// Checks the ext4 in a file.
fn judge(path: &Path, file: &File, how: Check) -> Result<String> {
    if content(file) == Content::None {
        return Err(no_ext4(path));
    }
    let unsettled = needs_replay(file);
    if unsettled && how != Check::Look {
        settle(path, file)?;
    }
    let output = tools::fsck(path, if how == Check::Repair { "-fy" } else { "-fn" }, file)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = tools::fsck_failure(&output);
    let path = path.display();
    if let Some(why) = failed {
        return Err(Failure::failed(format!("{path}: e2fsck cannot check it: {why}")));
    }
    match (output.status.code(), how) {
        (Some(tools::FSCK_CLEAN), _) | (Some(tools::FSCK_MENDED), Check::Repair) => Ok(said),
        (_, Check::Repair) => {
            let why = tools::last_words(&output);
            Err(Failure::failed(format!("{path}: e2fsck could not mend it: {why}")))
        }
        (_, Check::Look) if unsettled => Err(Failure::failed(format!(
            "{path}: the file system has errors before its journal is replayed: without -n it is"
        ))),
        _ => Err(Failure::failed(format!(
            "{path}: the file system has errors: see 'e2fsck -fn', mend with --repair"
        ))),
    }
}

/// The file that is looked at, with the volume's lock: the volume's own, or a copy that nobody
/// else sees where that is on others, or is never changed.
fn subject(path: &Path, how: Check) -> Result<(File, Option<std::os::fd::OwnedFd>)> {
    let sidecar = Sidecar::load(path)?;
    if how == Check::Repair {
        refuse_snapshot(path)?;
        // e2fsck claims a device itself.
        let files = polylane_block::image::unclaim(open_raw(path)?)
            .map_err(|error| failure(path, error))?;
        let Files { plain, lock, .. } = files;
        return Ok((File::from(plain), Some(lock)));
    }
    let stack = match sidecar.snapshot || how == Check::Look {
        true => Stack::from_own(path, open_to_read(path, &sidecar)?)?,
        false => Stack::open(path)?,
    };
    if stack.is_raw() && (!sidecar.snapshot || how == Check::Look) {
        let own = stack.files.into_iter().next().ok_or_else(|| no_ext4(path))?;
        return Ok((File::from(own.plain), Some(own.lock)));
    }
    let draft = nameless(path)?;
    materialize(path, stack, draft.file(), path)?;
    let copy = draft.file().try_clone();
    Ok((File::from(copy.map_err(|error| Failure::path(path, "copy it", error))?), None))
}

/// A file that never gets a name: beside the volume, which has room for it as a rule; where nothing
/// can be made there, among temporary files.
pub(crate) fn nameless(path: &Path) -> Result<Draft> {
    let name = beside_temporary(path);
    match Draft::new(&name, 0) {
        Err(ImageError::Host(_, Errno::EROFS | Errno::EACCES)) => {
            let elsewhere = std::env::temp_dir().join(name.file_name().unwrap_or_default());
            Draft::new(&elsewhere, 0).map_err(|error| failure(&elsewhere, error))
        }
        made => made.map_err(|error| failure(path, error)),
    }
}

/// Does what a mount does before anybody sees a file.
fn settle(path: &Path, file: &File) -> Result<()> {
    let failed = |error: std::io::Error| Failure::path(path, "settle it", error);
    let again = || file.try_clone().map(Into::into).map_err(failed);
    let files = Files { io: again()?, plain: again()?, lock: again()? };
    let device = FileDevice::open(files, Way::Calls).map_err(|error| failed(error.into()))?;
    let (named, path) = (path, path.display());
    match Ext4::open(device, Arc::new(SystemClock), &Options::default()) {
        Ok(fs) => {
            let found = fs.recovered;
            fs.close()
                .map_err(|error| Failure::failed(format!("{path}: cannot settle it: {error}")))?;
            say(format_args!(
                "{path}: settled as by a mount: {} transactions replayed, {} blocks, and removed \
                 files freed",
                found.transactions, found.blocks
            ));
            Ok(())
        }
        // Damaged, or of a kind that only the kernel mounts.
        Err(why) => {
            tools::fsck(named, "-p -E journal_only", file)?;
            say(format_args!("{path}: cannot be mounted ({why}): only its journal is replayed"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::format;

    /// An e2fsck that does not know a feature has found no error, and could mend none.
    #[test]
    fn what_e2fsck_does_not_know_is_no_damage() {
        if tools::find("mke2fs").is_none() {
            eprintln!("skipped: mke2fs is not installed");
            return;
        }
        let image = tempfile::NamedTempFile::new().expect("temporary file");
        image.as_file().set_len(64 << 20).expect("sparse file");
        let file = image.reopen().expect("again").into();
        format::format_file(image.path(), &file, 64 << 20, (0, 0)).expect("formatted");
        assert!(judge(image.path(), image.as_file(), Check::Look).is_ok());
        let debugfs = tools::find("debugfs").expect("comes with mke2fs");
        let mut debugfs = Command::new(debugfs);
        debugfs.args(["-w", "-R", "feature FEATURE_I30"]).arg(image.path());
        assert!(debugfs.output().expect("runs").status.success());
        for how in [Check::Look, Check::Settle, Check::Repair] {
            let said = judge(image.path(), image.as_file(), how).expect_err("unknown").to_string();
            assert!(said.contains("cannot check it: it has unsupported feature"), "{said}");
            assert!(!said.contains("errors") && !said.contains('\n'), "{said}");
        }
    }
}
