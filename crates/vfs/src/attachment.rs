//! Attachments: a client's own way into a lane.

use polylane_base::Ino;

/// The part of a lane that a client sees by its mount, and how: what the client does by paths is
/// bounded by it. A lane that a client sees whole, at its own path, to be written to, needs none.
#[derive(Debug)]
pub struct Attachment {
    /// The directory that the client sees as the lane's root. No path leads above it. It is held
    /// elsewhere as long as there is the attachment, or no path leads anywhere.
    pub root: Ino,
    /// The client's mount may not be written to.
    pub read_only: bool,
    /// Where the root is in the client's name space, absolute. The client says so: absolute links
    /// are followed by it, never past `root`.
    pub path: Vec<u8>,
}
