//! The one binary: command line in, exit status and one line per error out.
//!
//! Nothing is decided here: arguments become the options of `polylane-pool` or `polylane-bench`.
#![forbid(unsafe_code)]

mod args;
mod attach;
mod bench;
mod cli;
mod commands;
mod container;
mod daemon;
mod helper;
mod image;
mod lane_args;
mod lane_env;
mod mount;
mod pool;
mod print;
mod rbd;
mod top;
mod volume;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use polylane_pool::failure::{FAILED, Failure, USAGE, say};

const SIGCHLD: i32 = rustix::process::Signal::CHILD.as_raw();

fn main() -> ExitCode {
    // A caller that ignores it has the kernel throw away how children end, which is waited for.
    polylane_sys::ns::set_ignored(SIGCHLD, false);
    let mut arguments: Vec<_> = std::env::args_os().collect();
    match helper::translate(&arguments) {
        None => {}
        // mount(8) only tries whether it could be (-f).
        Some(Ok(translated)) if translated.is_empty() => return ExitCode::SUCCESS,
        Some(Ok(translated)) => arguments = translated,
        Some(Err(line)) => {
            say(line);
            return ExitCode::from(USAGE);
        }
    }
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    // What the parser had; processes that are forked from now on share what is left.
    polylane_sys::footprint::trim_heap();
    polylane_volume::name_holders_by(polylane_pool::attach::holder_name);
    polylane_volume::end_lanes_by(polylane_pool::lasting::end_of);
    match commands::execute(cli.command) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            say(&failure);
            ExitCode::from(failure.status)
        }
    }
}

/// Bytes of stack in which arguments are parsed, whatever limit the caller has set (`ulimit -s`).
const PARSER_STACK_BYTES: usize = 1 << 20;

/// The command line, or the status to end with once what is wrong with it was said. A thread parses
/// it: the parser's frames are deep. It is gone before anything else is done, much of which only a
/// process with one thread may do.
fn parse(arguments: Vec<std::ffi::OsString>) -> Result<cli::Cli, ExitCode> {
    let parser = move || cli::Cli::try_parse_from(arguments).map_err(|error| usage(&error));
    let thread = std::thread::Builder::new().stack_size(PARSER_STACK_BYTES);
    match polylane_sys::ns::in_a_thread(thread, parser) {
        Ok(Ok(parsed)) => parsed,
        Ok(Err(_)) => Err(ExitCode::from(FAILED)),
        Err(error) => {
            say(Failure::because("command line", "parse it", error));
            Err(ExitCode::from(FAILED))
        }
    }
}

/// Help and version go to standard output in full; a mistake is one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Nobody left to tell when standard output is closed.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            say(one_line(error));
            ExitCode::from(USAGE)
        }
    }
}

/// The message of a clap error, which may list arguments on lines of their own, without its usage
/// and tips.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let words: Vec<&str> = message.lines().map(str::trim).collect();
    match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "no command: 'polylane --help' names them all".to_string()
        }
        _ => format!("{}: see 'polylane --help'", words.join(" ")),
    }
}
