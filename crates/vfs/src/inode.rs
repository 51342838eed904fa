//! Live inodes.

use polylane_base::Ino;
use polylane_base::sync::Arc;
use polylane_base::sync::atomic::AtomicU64;

use crate::fs::Kind;

/// A live inode of one [`Vfs`](crate::Vfs); cheap to clone. While one is held, the inode lives.
pub type Node = Arc<Inode>;

/// A live inode.
#[derive(Debug)]
pub struct Inode {
    ino: Ino,
    generation: u64,
    kind: Kind,
    tag: AtomicU64,
}

impl Inode {
    /// Inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }
    /// Tells a reused inode number from its former owner.
    pub fn generation(&self) -> u64 {
        self.generation
    }
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }
    /// A word that the front ends own. Starts as 0; the VFS never looks at it.
    pub fn tag(&self) -> &AtomicU64 {
        &self.tag
    }
}
