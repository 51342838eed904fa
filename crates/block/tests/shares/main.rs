//! Fair shares of a device, by every policy.

mod budgets;
mod lies;
mod mixed;
mod policies;
mod watch;
