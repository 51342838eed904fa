//! Totals.

use super::{Check, Subject};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::Kind;

pub(super) const CHECKS: &[Check] = &[("totals are plausible", totals)];

fn totals(s: &Subject) {
    let before = s.fs.statfs(&OpCtx::service()).unwrap();
    assert!(before.bsize >= 512 && before.bsize.is_power_of_two());
    assert!(before.bfree <= before.blocks && before.bavail <= before.bfree);
    assert!(before.ffree <= before.files);
    assert!(before.namelen >= 255);
    s.create(s.root(), "d", Kind::Dir);
    let after = s.fs.statfs(&OpCtx::service()).unwrap();
    assert_eq!(
        (after.blocks, after.files, after.magic),
        (before.blocks, before.files, before.magic)
    );
}
