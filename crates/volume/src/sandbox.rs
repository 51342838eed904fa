//! Programs that read what others wrote: e2fsck, resize2fs, qemu-img (decision 0041).
//!
//! A volume's content is its guest's, an image's its maker's, and these programs parse it with the
//! rights of polylane's caller. So they get the files that they are to work on, by descriptor,
//! and nothing else: an empty environment; as root no capability but the one to open these files
//! again; by Landlock no other file but programs and libraries; by seccomp no socket, no ring, no
//! other process.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr,
};
use polylane_sys::ns;
use rustix::io::FdFlags;

use super::program::program;
use crate::confine;
use crate::failure::{Failure, Result};

/// The newest Landlock whose rights this knows; an older kernel enforces those that it has.
const LANDLOCK: ABI = ABI::V6;

/// Where programs, their libraries and settings are.
const PROGRAMS: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache"];

/// What a program may do with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Right {
    /// Read it.
    Read,
    /// Read, write and cut it.
    Write,
}

/// A program that is going to run with these files alone.
pub(crate) struct Sandbox {
    program: PathBuf,
    files: Vec<(OwnedFd, Right)>,
    sees_mounts: bool,
}

impl Sandbox {
    /// One for a program of a package.
    ///
    /// # Errors
    /// It is not installed.
    pub(crate) fn new(name: &str, package: &str) -> Result<Sandbox> {
        let program = program(name, package)?;
        Ok(Sandbox { program, files: Vec::new(), sees_mounts: false })
    }

    /// Lets it read what is mounted, as the programs of e2fsprogs do before anything else. Of other
    /// processes it sees nothing in /proc that a tracer alone may see.
    pub(crate) fn see_mounts(mut self) -> Sandbox {
        self.sees_mounts = true;
        self
    }

    /// Gives it a file; the name by which the program finds it.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn give(&mut self, file: impl AsFd, right: Right) -> Result<PathBuf> {
        let file = file.as_fd().try_clone_to_owned();
        let file = file.map_err(|error| Failure::path(&self.program, "give it a file", error))?;
        let name = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        self.files.push((file, right));
        Ok(name)
    }

    /// The command, to be given its arguments.
    ///
    /// # Errors
    /// The host refuses a layer that it has.
    pub(crate) fn command(self) -> Result<Command> {
        let failed =
            |why: String| Failure::failed(format!("{}: confine it: {why}", self.program.display()));
        let landlock = self.landlock().map_err(|error| failed(error.to_string()))?;
        let filter = confine::no_reach().map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(&self.program);
        command.env_clear().env("LC_ALL", "C").stdin(Stdio::null());
        let (files, mut landlock) = (self.files, Some(landlock));
        ns::before_exec(&mut command, move || {
            rustix::thread::set_no_new_privs(true)?;
            if rustix::process::geteuid().is_root() {
                confine::keep_opening()?;
            }
            for (file, _) in &files {
                rustix::io::fcntl_setfd(file, FdFlags::empty())?;
            }
            if let Some(landlock) = landlock.take() {
                landlock.restrict_self().map_err(std::io::Error::other)?;
            }
            filter.apply().map_err(std::io::Error::other)
        });
        Ok(command)
    }

    /// What it may open.
    fn landlock(&self) -> std::result::Result<RulesetCreated, landlock::RulesetError> {
        let all = AccessFs::from_all(LANDLOCK);
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .create()?;
        let look: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute;
        let file_look: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::Execute;
        let own = self.program.canonicalize().unwrap_or_else(|_| self.program.clone());
        let beside = own.parent().unwrap_or(Path::new("/usr")).to_path_buf();
        let places = PROGRAMS.iter().map(PathBuf::from);
        for place in places.chain([beside.join("../lib"), beside]) {
            let Ok(fd) = PathFd::new(&place) else { continue };
            let rights = if place.is_dir() { look } else { file_look };
            rules = rules.add_rule(PathBeneath::new(fd, rights))?;
        }
        let mut open: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::WriteFile;
        open |= AccessFs::Truncate;
        if let Ok(null) = PathFd::new("/dev/null") {
            rules = rules.add_rule(PathBeneath::new(null, open))?;
        }
        if self.sees_mounts
            && let Ok(proc) = PathFd::new("/proc")
        {
            rules = rules.add_rule(PathBeneath::new(proc, AccessFs::ReadFile))?;
        }
        for (file, right) in &self.files {
            let rights = match right {
                Right::Read => AccessFs::ReadFile.into(),
                Right::Write => open,
            };
            rules = rules.add_rule(PathBeneath::new(file, rights))?;
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    fn said(sandbox: Sandbox, script: &str) -> String {
        let mut command = sandbox.command().expect("a command");
        let output = command.args(["-c", script]).output().expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn a_program_has_its_files_and_nothing_else() {
        if !confine::has_landlock() {
            eprintln!("skipped: this kernel has no Landlock");
            return;
        }
        let dir = tempfile::tempdir().expect("dir");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "secret").expect("write");
        let mut given = tempfile::tempfile().expect("file");
        given.write_all(b"given").expect("write");
        let shell = || Sandbox::new("sh", "a shell").expect("sh");
        let mut sandbox = shell();
        let name = sandbox.give(&given, Right::Read).expect("give");
        let script = format!(
            "cat {0}; echo; cat {1} 2>/dev/null || echo closed; (echo x >{0}) 2>/dev/null || \
             echo read-only; (echo x >{2}/new) 2>/dev/null || echo nothing new; env | grep -c HOME",
            name.display(),
            secret.display(),
            dir.path().display()
        );
        assert_eq!(said(sandbox, &script), "given\nclosed\nread-only\nnothing new\n0\n");
        let mut sandbox = shell();
        let name = sandbox.give(&given, Right::Write).expect("give");
        assert_eq!(said(sandbox, &format!("echo more >{} && echo done", name.display())), "done\n");
        given.seek(SeekFrom::Start(0)).expect("seek");
        assert_eq!(std::io::read_to_string(given).expect("read"), "more\n");
    }
}
