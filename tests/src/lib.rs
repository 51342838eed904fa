//! Whole-system tests of polylane: the binary, the preload library and real programs.
#![forbid(unsafe_code)]
