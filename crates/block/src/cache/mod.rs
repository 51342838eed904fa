//! What a volume's cache keeps.
//!
//! | module | what it decides |
//! |---|---|
//! | [`pdc`] | which writes are a journal's, so that they bypass the cache (pollution defence) |

pub mod pdc;
