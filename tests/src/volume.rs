//! What a volume holds after a run: e2fsck is the judge.

use std::path::Path;
use std::process::Command;

/// Insists that e2fsck finds nothing to mend on a volume.
///
/// # Panics
/// It does, or it is not installed.
pub fn assert_clean(volume: &Path) {
    let program = crate::tool("e2fsck").expect("e2fsck (e2fsprogs) is installed");
    let output = Command::new(program).arg("-fn").arg(volume).output().expect("run e2fsck");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "e2fsck {}: {:?}\n{said}", volume.display(), output.status);
}
