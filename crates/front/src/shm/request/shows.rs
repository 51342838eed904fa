//! What a client says with a read or a write besides where and how much.

use polylane_ipc::message::{APPENDS, AT_END, AT_OFFSET, Message, SAYS_APPENDS, SHOW, SHOW_END};

/// What a client that reads would like to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShowRead {
    /// Nothing.
    Nothing,
    /// The state, if the file ends where the read did.
    End,
    /// The state and pages.
    Pages,
}

impl ShowRead {
    pub(super) fn from_flags(flags: u32) -> ShowRead {
        match flags {
            _ if flags & SHOW != 0 => ShowRead::Pages,
            _ if flags & SHOW_END != 0 => ShowRead::End,
            _ => ShowRead::Nothing,
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
        let is = |flag| message.flags & flag != 0;
        let appends = is(SAYS_APPENDS).then_some(is(APPENDS));
        let at_end = (is(AT_END) != is(AT_OFFSET)).then_some(is(AT_END));
        HowToWrite { show: is(SHOW), appends, at_end }
    }
}
