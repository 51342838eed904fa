//! The basement.
