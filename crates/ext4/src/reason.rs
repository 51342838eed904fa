//! Why the bytes of a write go where they go, and how often: `synced.rs` decides.

use crate::counts::{Counted, Counts};

/// Why the bytes of a write go where they go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// There is no log, or too small a one: in place.
    NoLog,
    /// All data goes through the journal: logged.
    DataMode,
    /// No sync follows: in place.
    Unsynced,
    /// Much is synced: deferred.
    Large,
    /// Written blocks are written over, and nothing else is to be saved: in place, durable.
    Overwrite,
    /// Little is synced: logged.
    Small,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 6] = [
        Reason::NoLog,
        Reason::DataMode,
        Reason::Unsynced,
        Reason::Large,
        Reason::Overwrite,
        Reason::Small,
    ];

    /// What statistics call it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::NoLog => "no_log",
            Reason::DataMode => "data_mode",
            Reason::Unsynced => "unsynced",
            Reason::Large => "large",
            Reason::Overwrite => "overwrite",
            Reason::Small => "small",
        }
    }
}

impl Counted for Reason {
    fn number(self) -> usize {
        self as usize
    }
}

/// How many writes each reason decided.
pub type Reasons = Counts<Reason, { Reason::ALL.len() }>;
