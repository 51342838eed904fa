//! What e2fsck says of images that were opened and closed here.

mod common;

use std::sync::Arc;

use polylane_ext4::Ext4;

#[test]
fn an_untouched_image_stays_clean() {
    if !common::have_tools() {
        return;
    }
    for args in [common::LANE, &["-t", "ext4"], &["-t", "ext4", "-O", "^has_journal"]] {
        let device = common::make(64, args);
        let opened = Ext4::open(
            device.clone(),
            Arc::new(polylane_base::TestClock::default()),
            &polylane_ext4::Options::default(),
        );
        if let Ok(fs) = opened {
            fs.close().expect("closes");
        }
        assert_eq!(common::complaints(&device), None, "{args:?}");
    }
}
