//! The one binary: command line in, exit status and one line per error out.
//!
//! Nothing is decided here: arguments become the options of `polylane-pool` or `polylane-bench`.
#![forbid(unsafe_code)]

mod args;
mod attach;
mod bench;
mod cli;
mod commands;
mod later;
mod pool;
mod print;
mod top;
mod volume;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use polylane_pool::failure::{USAGE, say};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(line) = later::refusal(&arguments) {
        say(line);
        return ExitCode::from(USAGE);
    }
    match cli::Cli::try_parse_from(arguments) {
        Ok(cli) => match commands::execute(cli.command) {
            Ok(status) => ExitCode::from(status),
            Err(failure) => {
                say(&failure);
                ExitCode::from(failure.status)
            }
        },
        Err(error) => usage(&error),
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
