//! Projects: what belongs to which.

use polylane_base::Errno;

use crate::error::Result;
use crate::format::inode::InodeFlags;
use crate::inode::Core;
use crate::volume::Volume;

impl Volume {
    /// The project that what is in a directory has to belong to: its own, if it passes that on.
    fn shared_project(&self, dir: &Core) -> Option<u32> {
        let project = if self.traits.projects { dir.raw.project() } else { 0 };
        dir.raw.has_flag(InodeFlags::PROJECT_INHERIT).then_some(project)
    }

    /// The project of what is made in a directory.
    pub(crate) fn project_within(&self, dir: &Core) -> u32 {
        self.shared_project(dir).unwrap_or(0)
    }

    /// Whether an inode may get a name in a directory.
    ///
    /// # Errors
    /// `EXDEV`: all in the directory belongs to its project, and the inode to another.
    pub(crate) fn check_project(&self, dir: &Core, core: &Core) -> Result<()> {
        let own = if self.traits.projects { core.raw.project() } else { 0 };
        match self.shared_project(dir).is_none_or(|project| project == own) {
            true => Ok(()),
            false => Err(Errno::EXDEV.into()),
        }
    }
}
