//! `polylane env`: what gives a process or a container the fast way into lanes.

use std::path::PathBuf;

use clap::Args;
use polylane_pool::failure::Result;
use polylane_pool::lasting;

use crate::print::{print, print_bytes, print_json};

/// `polylane env`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without an option: lines for a shell, as in eval \"$(polylane env PATH)\". A \
    lane is at the same path in a container as on the host."
)]
pub(crate) struct EnvArgs {
    /// A path in the lane; one in each of several, of which the first is $POLYLANE_MOUNT
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    form: FormArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct FormArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// What is added to an OCI runtime's config.json
    #[arg(long)]
    oci: bool,
    /// A specification for /etc/cdi
    #[arg(long)]
    cdi: bool,
    /// Arguments of 'docker run'
    #[arg(long)]
    docker: bool,
    /// Arguments of 'podman run'
    #[arg(long)]
    podman: bool,
}

/// Executes `polylane env`; the exit status.
pub(crate) fn execute(arguments: &EnvArgs) -> Result<u8> {
    let lane = lasting::env(&arguments.paths)?;
    let FormArgs { json, oci, cdi, docker, podman } = arguments.form;
    match () {
        () if json => print_json(&lane.json()?)?,
        () if oci => print_json(&lane.oci()?)?,
        () if cdi => print_json(&lane.cdi()?)?,
        () if docker || podman => print(&format!("{}\n", lane.container_arguments()?))?,
        () => print_bytes(&lane.shell())?,
    }
    Ok(0)
}
