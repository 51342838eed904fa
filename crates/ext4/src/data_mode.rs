//! What is known of a new block's data when a transaction commits.

/// What is known of a new block's data when the block becomes a file's (Linux' `data=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DataMode {
    /// It is there: nobody ever sees what the block held before.
    #[default]
    Ordered,
    /// It is on its way. After a power cut the file may show what the block held before, wherever
    /// nobody waited for an fsync.
    Writeback,
    /// It is in the journal: a write is there whole or not at all, as far as one transaction holds
    /// it. Everything is written twice.
    Data,
}

impl DataMode {
    /// All of them.
    pub const ALL: [DataMode; 3] = [DataMode::Ordered, DataMode::Writeback, DataMode::Data];

    /// What Linux's `data=` calls it.
    pub fn name(self) -> &'static str {
        match self {
            DataMode::Ordered => "ordered",
            DataMode::Writeback => "writeback",
            DataMode::Data => "data",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<DataMode> {
        DataMode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}
