//! Writing through the page cache: the libservice has the bytes first, and the pages follow.

use polylane_base::Result;

use super::pages::FilePages;
use super::{PAGE, PageCache};
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::fs::Source;
use crate::inode::Node;

/// Bytes handed to the libservice in one write: a source can be asked once for each of its bytes,
/// so they are copied on the way.
const CHUNK_BYTES: usize = 64 * PAGE;

impl Core {
    /// Writes `len` bytes at `offset` to the libservice, and to the pages what arrived there;
    /// returns how far it came. No page of the file may be dirty. Call with the data lock held for
    /// change.
    pub(crate) fn write_through(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        pages: &FilePages,
        (offset, len): (u64, usize),
        source: &mut dyn Source,
    ) -> Result<usize> {
        let mut buffer = vec![0; len.min(CHUNK_BYTES)];
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let part = &mut buffer[..(len - done).min(CHUNK_BYTES)];
            source.get(done, part);
            let backing = pages.backing.write();
            let written = self.fs.write(ctx, node.ino(), at, &mut &*part);
            let count = written.unwrap_or(0);
            if count > 0 {
                node.grew(at + count as u64);
                self.cache.added(pages.refresh(at, &part[..count], &self.cache));
                self.cache.watch(node, pages);
            }
            if count < part.len() {
                // What lies there now is not known.
                let end = at + part.len() as u64;
                self.cache.removed(pages.forget_range(at + count as u64, end));
            }
            drop(backing);
            done += count;
            match written {
                Err(errno) if done == 0 => return Err(errno),
                _ if count < part.len() => break,
                _ => (),
            }
        }
        self.make_room();
        Ok(done)
    }

    /// Forgets the clean pages of a file: it changed below. Call with the data lock held for
    /// change.
    pub(crate) fn drop_clean(&self, pages: &FilePages) {
        self.cache.removed(pages.forget_clean());
    }
}

impl PageCache {
    /// A page with these bytes.
    pub(super) fn filled(&self, bytes: &[u8]) -> super::PageData {
        let mut page = self.frames.unfilled();
        page.copy_from_slice(bytes);
        page
    }
}
