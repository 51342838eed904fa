//! `polylane daemon`: pools and mounts that are to be there, and an HTTP interface.

use std::path::PathBuf;

use clap::Args;
use polylane_daemon::{CONFIG_DIR, DaemonOptions};
use polylane_pool::failure::{Failure, Result, say};
use polylane_pool::names;
use polylane_volume as volume;

/// `polylane daemon`.
#[derive(Debug, Args)]
#[command(
    after_help = "Files *.toml of the configuration hold [[pool]] and [[mount]] tables with the \
    options of 'pool create' and 'mount', and [daemon] with the group that is served beside the \
    daemon's user. SIGHUP reads them again. Lanes do not notice when the daemon ends."
)]
pub(crate) struct DaemonArgs {
    /// Directory of the pools and mounts that are to be there
    #[arg(long, value_name = "DIR", default_value = CONFIG_DIR)]
    config: PathBuf,
    /// Socket of the HTTP interface [default: daemon.sock in the run-time directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Executes `polylane daemon`; the exit status.
pub(crate) fn execute(arguments: DaemonArgs) -> Result<u8> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::because("daemon", "find this program", error))?;
    let socket = arguments.socket.unwrap_or_else(|| names::runtime_dir().join("daemon.sock"));
    let state = volume::state_dir()?;
    let options = DaemonOptions { config: arguments.config, socket, state, program };
    polylane_daemon::serve(options, |line| say(line))
        .map_err(|error| Failure::failed(error.to_string()))?;
    Ok(0)
}
