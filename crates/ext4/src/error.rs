//! What can be wrong: errors that are locations, so that a bug report says where to look.

use std::fmt;

use polylane_base::Errno;
use polylane_block::Error as DeviceError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A structure on disk that breaks its format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt {
    /// Which kind of structure.
    pub structure: Structure,
    /// Which one: an inode, group or block number, by kind.
    pub object: u64,
    /// Which field or rule.
    pub field: &'static str,
}

/// The kinds of structures on disk, with what [`Corrupt::object`] counts for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Structure {
    /// The superblock (0).
    Superblock,
    /// A group descriptor (group number).
    Group,
    /// A block bitmap (group number).
    BlockBitmap,
    /// An inode bitmap (group number).
    InodeBitmap,
    /// An inode (inode number).
    Inode,
    /// An extent tree (inode number).
    ExtentTree,
    /// A directory block (inode number of the directory).
    Directory,
    /// A directory's hash tree (inode number of the directory).
    HashTree,
    /// Extended attributes (inode number).
    Xattr,
    /// The journal's superblock (0).
    JournalSuperblock,
    /// A block of the journal (block number in the journal).
    Journal,
    /// The orphan file or list (inode number).
    Orphan,
}

impl Corrupt {
    /// A complaint about `field` of one structure.
    pub const fn new(structure: Structure, object: u64, field: &'static str) -> Self {
        Corrupt { structure, object, field }
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Corrupt { structure, object, field } = self;
        match structure {
            Structure::Superblock => write!(f, "superblock: {field}"),
            Structure::JournalSuperblock => write!(f, "journal superblock: {field}"),
            Structure::Group => write!(f, "group {object}: descriptor: {field}"),
            Structure::BlockBitmap => write!(f, "group {object}: block bitmap: {field}"),
            Structure::InodeBitmap => write!(f, "group {object}: inode bitmap: {field}"),
            Structure::Inode => write!(f, "inode {object}: {field}"),
            Structure::ExtentTree => write!(f, "inode {object}: extent tree: {field}"),
            Structure::Directory => write!(f, "directory inode {object}: {field}"),
            Structure::HashTree => write!(f, "directory inode {object}: hash tree: {field}"),
            Structure::Xattr => write!(f, "inode {object}: extended attributes: {field}"),
            Structure::Journal => write!(f, "journal block {object}: {field}"),
            Structure::Orphan => write!(f, "orphan inode {object}: {field}"),
        }
    }
}

/// Why an operation, or opening the file system, failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// An ordinary refusal: the name exists, no space is left, ….
    Errno(Errno),
    /// The image breaks its format.
    Corrupt(Corrupt),
    /// The image is sound but uses features that this implementation lacks; their names.
    Incompatible(Vec<String>),
    /// The image can be opened for reading only, for these reasons, and its journal must be
    /// replayed before.
    Unreplayed(Vec<String>),
    /// All data was to go through the journal, and it cannot, for these reasons; nothing was
    /// written.
    Unjournaled(Vec<String>),
    /// The device failed.
    Device(DeviceError),
    /// An earlier failure stopped the file system; open it again to replay its journal.
    Stopped,
}

impl Error {
    /// Whether the medium has no room left under the image: nothing is damaged, and it may have
    /// some later.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::Device(DeviceError::NoSpace))
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error::Errno(errno)
    }
}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Self {
        Error::Corrupt(corrupt)
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        Error::Device(error)
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        match error {
            Error::Errno(errno) => errno,
            // Linux: EFSCORRUPTED is EUCLEAN.
            Error::Corrupt(_) => Errno::EUCLEAN,
            Error::Incompatible(_) => Errno::EOPNOTSUPP,
            Error::Device(error) => error.into(),
            Error::Unreplayed(_) | Error::Stopped => Errno::EROFS,
            Error::Unjournaled(_) => Errno::EOPNOTSUPP,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Errno(errno) => errno.fmt(f),
            Error::Corrupt(corrupt) => write!(f, "corrupt image: {corrupt}; run e2fsck"),
            Error::Incompatible(names) => {
                write!(f, "unsupported features: {}", names.join(", "))
            }
            Error::Unreplayed(reasons) => write!(
                f,
                "its journal must be replayed first, by e2fsck or a mount by the kernel: it is \
                 not written here ({})",
                reasons.join(", ")
            ),
            Error::Unjournaled(reasons) => {
                write!(f, "data cannot go through its journal: {}", reasons.join(", "))
            }
            Error::Device(error) => error.fmt(f),
            Error::Stopped => f.write_str("file system stopped after an error; open it again"),
        }
    }
}

impl std::error::Error for Error {}
