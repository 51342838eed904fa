//! Fresh images for the tests in this crate.

use std::process::Command;

use polylane_testkit::sim::Image;

/// What `mke2fs -t ext4` makes of `args` on so many bytes, with a journal of 4 MiB unless they say
/// `^has_journal`. `None`, and said so, without mke2fs.
///
/// # Panics
/// The image cannot be made.
pub fn image(bytes: u64, args: &[&str]) -> Option<Image> {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    file.as_file().set_len(bytes).expect("sparse file");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-Fq", "-t", "ext4"]).args(args);
    if !args.contains(&"^has_journal") {
        mke2fs.args(["-J", "size=4"]);
    }
    let Ok(made) = mke2fs.arg(file.path()).output() else {
        eprintln!("skipped: mke2fs is not installed");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(Image::new(std::fs::read(file.path()).expect("readable")))
}
