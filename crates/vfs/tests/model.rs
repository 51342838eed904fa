//! The model file system: conformance, and what is built on it.

use polylane_base::TestClock;
use polylane_testkit::fs_suite::{self, Can};
use polylane_testkit::model::Model;
use polylane_vfs::fs::FileSystem;
use std::sync::Arc;

#[test]
fn the_model_itself_conforms() {
    let mut make = || Arc::new(Model::new(Arc::new(TestClock::default()))) as Arc<dyn FileSystem>;
    fs_suite::run(Can::ALL, &mut make);
}
