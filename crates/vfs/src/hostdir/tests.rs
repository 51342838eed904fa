//! Unit tests of `hostdir`.
