//! What a newcomer sees of the lane: as its tenant does, or by the root that it shows.

use std::os::fd::{AsFd, OwnedFd};

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_ipc::owners::Owners;
use polylane_sys::notice::Notice;
use polylane_vfs::{Attachment, Kind};

use super::Around;
use crate::lane::Attached;
use crate::lane::nodes::Target;
use crate::witness::{Client, Numbers, Seen};

/// What a newcomer sees of the lane.
pub(super) struct View {
    /// Its first thread, as the kernel's FUSE requests have it.
    pub(super) thread: u32,
    pub(super) attachment: Option<Arc<Attached>>,
    pub(super) mounts: Option<Arc<Notice>>,
    pub(super) other_numbers: bool,
    pub(super) told: Told,
}

/// What a newcomer is told of its view.
#[derive(Default)]
pub(super) struct Told {
    /// The page that tells of mounts at its lane.
    pub(super) notice: Option<OwnedFd>,
    /// Where numbers of users and groups are others to it.
    pub(super) owners: Option<Owners>,
}

impl View {
    /// As the tenant sees it.
    pub(super) fn at_home(numbers: Numbers, mounts: Option<Arc<Notice>>) -> View {
        let (thread, told) = (numbers.thread, Told::default());
        View { thread, attachment: None, mounts, other_numbers: false, told }
    }

    /// By the root that it opened, which is at `path` to it. `EROFS`: it may write there only if
    /// it also shows that it can.
    pub(super) fn of(
        around: &Around,
        client: Client<'_>,
        connection: &OwnedFd,
        path: Vec<u8>,
    ) -> Result<View> {
        let pid = client.pid;
        let lane = &around.lane;
        let witness = lane.slots.witness.get().ok_or(Errno::EACCES)?;
        let seen = witness.attach(client, connection.as_fd()).map_err(|why| {
            around.views.refused(why);
            Errno::EACCES
        })?;
        let Seen { number, node, confined, made, other_numbers, .. } = seen;
        let root = match lane.nodes.get(node)? {
            Target::Node(node) if node.kind() == Kind::Dir => node,
            _ => return Err(Errno::EACCES),
        };
        if confined && !seen.read_only && !seen.shows_made {
            return Err(Errno::EROFS);
        }
        let has_made = |made| match lane.nodes.get(made) {
            Ok(Target::Node(file)) if file.is_linkable() => lane
                .take_unnamed(&file, &root)
                .is_some_and(|thread| thread == number || witness.has_thread(pid, thread)),
            _ => false,
        };
        let read_only = seen.read_only || confined && !made.is_some_and(has_made);
        let mounts = Notice::attach(&seen.notice)?;
        let bounds = Attachment { root: root.ino(), read_only, path };
        let attachment = Arc::new(Attached { root, bounds });
        lane.attached(&attachment);
        let (attachment, mounts) = (Some(attachment), Some(Arc::new(mounts)));
        let told = Told { notice: Some(seen.notice), owners: seen.owners };
        Ok(View { thread: number, attachment, mounts, other_numbers, told })
    }
}
