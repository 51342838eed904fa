//! Fair shares of a device, by every policy.

mod budgets;
mod hurried;
mod lies;
mod mixed;
mod policies;
mod watch;
