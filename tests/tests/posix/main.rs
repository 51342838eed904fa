//! POSIX suites on lanes, and the coherence of the two ways in.

mod coherence;
mod fsx;
mod leases;
mod pjdfstest;
