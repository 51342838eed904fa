//! Extended attributes of files and directories, on a real descriptor: those of users, and of a
//! layer of a union what else belongs to a file's rights.

use super::descriptors::Descriptors;
use super::host::errno;
use super::node::{Held, Node};
use crate::fs::{AclKind, Kind, XattrMode};
use polylane_base::{Errno, Result};
use rustix::fs::XattrFlags;
use std::sync::Arc;

/// XATTR_SIZE_MAX of linux/limits.h, of a value and of a list.
const XATTR_SIZE_MAX: usize = 65536;

/// Which attributes are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shown {
    /// `user.*`.
    OfUsers,
    /// Those, access control lists, and the capabilities of programs.
    OfLayers,
}

/// What a layer shows besides `user.*`.
const OF_LAYERS: [&[u8]; 3] =
    [b"security.capability", AclKind::Access.name(), AclKind::Default.name()];

impl Shown {
    /// Whether it has that attribute besides users'.
    fn adds(self, name: &[u8]) -> bool {
        self == Shown::OfLayers && OF_LAYERS.contains(&name)
    }
}

/// An attribute's value. Of those beside users' there is none where the service may not read the
/// file, whose data it then shows no tenant, and where the host keeps none.
pub(super) fn get(
    fds: &Descriptors,
    node: &Arc<Node>,
    (name, shown): (&[u8], Shown),
) -> Result<Vec<u8>> {
    if shown.adds(name) {
        return read(fds, node, name).map_err(|errno| match errno {
            Errno::EACCES | Errno::EPERM | Errno::EOPNOTSUPP | Errno::EOVERFLOW => Errno::ENODATA,
            errno => errno,
        });
    }
    read(fds, node, allowed(name)?)
}

fn read(fds: &Descriptors, node: &Arc<Node>, name: &[u8]) -> Result<Vec<u8>> {
    let Some(fd) = readable(fds, node)? else { return Err(Errno::ENODATA) };
    let mut value = Vec::with_capacity(256);
    match rustix::fs::fgetxattr(&fd, name, rustix::buffer::spare_capacity(&mut value)) {
        Ok(_) => return Ok(value),
        Err(rustix::io::Errno::RANGE) => value.reserve_exact(XATTR_SIZE_MAX),
        Err(error) => return Err(errno(error)),
    }
    let spare = rustix::buffer::spare_capacity(&mut value);
    rustix::fs::fgetxattr(&fd, name, spare).map_err(errno)?;
    Ok(value)
}

/// Writes an attribute.
pub(super) fn set(
    fds: &Descriptors,
    node: &Arc<Node>,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    let name = allowed(name)?;
    let Some(fd) = readable(fds, node)? else { return Err(Errno::EPERM) };
    let flags = match mode {
        XattrMode::Any => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    };
    rustix::fs::fsetxattr(&fd, name, value, flags).map_err(errno)
}

/// The names of all attributes a tenant may see.
pub(super) fn list(fds: &Descriptors, node: &Arc<Node>, shown: Shown) -> Result<Vec<Vec<u8>>> {
    let Some(fd) = readable(fds, node)? else { return Ok(Vec::new()) };
    let mut list = Vec::with_capacity(XATTR_SIZE_MAX);
    match rustix::fs::flistxattr(&fd, rustix::buffer::spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(errno(error)),
    }
    let is_shown = |name: &&[u8]| allowed(name).is_ok() || shown.adds(name);
    let names = list.split(|&byte| byte == 0).filter(is_shown);
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Removes an attribute.
pub(super) fn remove(fds: &Descriptors, node: &Arc<Node>, name: &[u8]) -> Result<()> {
    let name = allowed(name)?;
    let Some(fd) = readable(fds, node)? else { return Err(Errno::EPERM) };
    rustix::fs::fremovexattr(&fd, name).map_err(errno)
}

/// A real descriptor; `None` for kinds that cannot have `user.` attributes.
fn readable(fds: &Descriptors, node: &Arc<Node>) -> Result<Option<Arc<Held>>> {
    match node.kind {
        Kind::File | Kind::Dir => fds.reader(node).map(Some),
        _ => Ok(None),
    }
}

fn allowed(name: &[u8]) -> Result<&[u8]> {
    match name.strip_prefix(b"user.") {
        Some(b"") => Err(Errno::EINVAL),
        Some(rest) if rest.contains(&0) => Err(Errno::EINVAL),
        Some(_) if name.len() > 255 => Err(Errno::ERANGE),
        Some(_) => Ok(name),
        None => Err(Errno::EOPNOTSUPP),
    }
}
