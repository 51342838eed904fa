//! Daemons of the cluster that stand still.

use std::path::Path;
use std::process::Command;

pub const OSDS: [&str; 2] = ["osd.0", "osd.1"];

/// Daemons that stand still until this is dropped.
pub struct Stopped<'a>(&'a Path, [&'static str; 2]);

impl<'a> Stopped<'a> {
    pub fn new(cluster: &'a Path, daemons: [&'static str; 2]) -> Stopped<'a> {
        let stopped = Stopped(cluster, daemons);
        stopped.signal("-STOP");
        stopped
    }

    fn signal(&self, signal: &str) {
        for daemon in self.1 {
            let pid = std::fs::read_to_string(self.0.join(format!("run/{daemon}.pid"))).unwrap();
            assert!(Command::new("kill").args([signal, pid.trim()]).status().unwrap().success());
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}
