//! `polylane bench` and `polylane demo`.

use std::path::PathBuf;

use polylane_bench::{Options, worker};
use polylane_pool::failure::{Failure, Result};

use crate::cli::BenchCommand;
use crate::print::{print, print_json};

/// Executes a benchmark command; the exit status.
pub(crate) fn execute(command: BenchCommand) -> Result<u8> {
    match command {
        BenchCommand::List(json) if json.json => print_json(&polylane_bench::list())?,
        BenchCommand::List(_) => {
            for (name, about) in polylane_bench::list() {
                print(&format!("{name:<16} {about}\n"))?;
            }
        }
        BenchCommand::Run(arguments) => {
            let options = Options {
                quick: arguments.quick,
                repeat: arguments.repeat,
                out: arguments.out,
                traces: arguments.trace,
                journal: arguments.journal,
                disk: arguments.disk,
                tenants: arguments.tenants.into_iter().map(usize::from).collect(),
                systems: arguments.system,
                ceph_conf: arguments.ceph_conf,
                ceph: arguments.ceph,
            };
            polylane_bench::run(&arguments.figures, &options).map_err(failure)?;
        }
        BenchCommand::Worker { load, dir, length } => {
            worker::main(&load, &dir, length).map_err(failure)?;
        }
    }
    Ok(0)
}

/// The demonstration, with its defaults.
pub(crate) fn demo() -> Result<u8> {
    let options = Options { out: PathBuf::from("polylane-results"), ..Options::default() };
    polylane_bench::run(&["demo".to_string()], &options).map_err(failure)?;
    Ok(0)
}

fn failure(error: anyhow::Error) -> Failure {
    Failure::failed(format!("{error:#}"))
}
