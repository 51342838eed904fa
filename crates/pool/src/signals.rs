//! Signals of a person or a terminal, on their way to COMMAND.

use polylane_sys::ns::SignalFd;

use crate::failure::{Failure, Result};
use crate::link::{Link, ToInit};

/// Passes signals on to COMMAND; whether one of them asks it to end.
///
/// Ctrl-C and Ctrl-\ come from the kernel and go to the whole foreground process group, COMMAND
/// among it: passing them on would double them, and an interactive COMMAND may well live on.
pub(crate) fn pass_signals(signals: &SignalFd, link: &Link) -> Result<bool> {
    let mut ends = false;
    let failed = |error| Failure::because("signals", "read them", error);
    while let Some(received) = signals.next().map_err(failed)? {
        let hang_up = received.signal == libc::SIGHUP;
        if !received.from_kernel {
            let _ = link.send(&ToInit::Signal(received.signal), &[]);
        }
        let asks = matches!(received.signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP);
        ends |= asks && (hang_up || !received.from_kernel);
    }
    Ok(ends)
}
