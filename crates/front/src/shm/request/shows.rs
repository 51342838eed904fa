//! What a client says with a read or a write besides where and how much.

use polylane_ipc::message::{Message, TransferFlags};

/// Whether a client would like to see the file that it asks about.
pub(super) fn wants_view(message: &Message) -> bool {
    TransferFlags::from_bits_retain(message.flags).contains(TransferFlags::SHOW)
}

/// What a client that reads would like to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShowRead {
    /// Nothing.
    Nothing,
    /// The state, if the file ends where the read did.
    End,
    /// The state and pages; `found`: it has found some lately.
    Pages { found: bool },
}

impl ShowRead {
    pub(super) fn of(message: &Message) -> ShowRead {
        let flags = TransferFlags::from_bits_retain(message.flags);
        match flags & (TransferFlags::SHOW | TransferFlags::SHOW_END) {
            none if none.is_empty() => ShowRead::Nothing,
            TransferFlags::SHOW_END => ShowRead::End,
            _ => ShowRead::Pages { found: flags.contains(TransferFlags::FOUND) },
        }
    }
}

/// What a client says with a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HowToWrite {
    /// It would like to see what it wrote.
    pub show: bool,
    /// Whether the open file appends by now, where others may have changed that.
    pub appends: Option<bool>,
    /// Whether this write appends, whatever the open file does otherwise.
    pub at_end: Option<bool>,
}

impl HowToWrite {
    pub(super) fn of(message: &Message) -> HowToWrite {
        let flags = TransferFlags::from_bits_retain(message.flags);
        let is = |flag| flags.contains(flag);
        let appends = is(TransferFlags::SAYS_APPENDS).then_some(is(TransferFlags::APPENDS));
        let at_end = (is(TransferFlags::AT_END) != is(TransferFlags::AT_OFFSET))
            .then_some(is(TransferFlags::AT_END));
        HowToWrite { show: is(TransferFlags::SHOW), appends, at_end }
    }
}
