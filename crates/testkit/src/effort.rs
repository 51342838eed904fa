//! How much a test does: a sample every time, everything in the campaign (docs/design/crash.md).

/// Whether everything is looked at: `POLYLANE_CRASH=full`, which `cargo xtask crash --full` and
/// `cargo xtask campaign` set.
pub fn is_full() -> bool {
    std::env::var_os("POLYLANE_CRASH").is_some_and(|how| how == "full")
}

/// The number in the variable `name`; `otherwise` where there is none.
pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}
