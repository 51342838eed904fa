//! The lanes of `polylane run`: where the files of each are, and its mount path.
//!
//! One lane's options may come in any order. With several lanes the order counts: what says where a
//! lane's files are comes before its `--at`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use polylane_pool::ceph::CephPlace;

/// Where the files of a lane are, as its option says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SourceArg {
    Volume(PathBuf),
    Mem,
    Dir(PathBuf),
    Ceph(CephPlace),
}

/// One lane.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LaneArg {
    /// Where its files are; `None`: not said.
    pub(crate) source: Option<SourceArg>,
    /// Layers under them.
    pub(crate) lowers: Vec<OsString>,
    /// Its mount path; `None`: not said.
    pub(crate) at: Option<PathBuf>,
}

/// All lanes of a run, in the order of the command line; at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LaneArgs {
    pub(crate) lanes: Vec<LaneArg>,
}

/// One option.
enum Word {
    Source(&'static str, SourceArg),
    Lower(OsString),
    At(PathBuf),
}

/// The values of an option, each with its place on the command line.
fn values<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> Vec<(usize, T)> {
    let places = matches.indices_of(name).into_iter().flatten();
    let values = matches.get_many::<T>(name).into_iter().flatten().cloned();
    places.zip(values).collect()
}

fn words(matches: &ArgMatches) -> Vec<Word> {
    let mut words: Vec<(usize, Word)> = Vec::new();
    let mut add = |(place, word)| words.push((place, word));
    let source = |name, source| Word::Source(name, source);
    for (place, path) in values(matches, "volume") {
        add((place, source("--volume", SourceArg::Volume(path))));
    }
    for (place, path) in values(matches, "dir") {
        add((place, source("--dir", SourceArg::Dir(path))));
    }
    for (place, ceph) in values(matches, "ceph") {
        add((place, source("--ceph", SourceArg::Ceph(ceph))));
    }
    for (place, _) in values::<bool>(matches, "mem") {
        add((place, source("--mem", SourceArg::Mem)));
    }
    for (place, lower) in values(matches, "lower") {
        add((place, Word::Lower(lower)));
    }
    for (place, path) in values(matches, "at") {
        add((place, Word::At(path)));
    }
    words.sort_by_key(|(place, _)| *place);
    words.into_iter().map(|(_, word)| word).collect()
}

fn conflict(line: String) -> clap::Error {
    clap::Error::raw(ErrorKind::ArgumentConflict, line + "\n")
}

/// The lanes that the words of a command line mean.
fn lanes(words: Vec<Word>) -> Result<Vec<LaneArg>, clap::Error> {
    let count = |is: fn(&Word) -> bool| words.iter().filter(|word| is(word)).count();
    let paths = count(|word| matches!(word, Word::At(_)));
    let single = paths <= 1;
    let mut lanes = vec![LaneArg::default()];
    let mut last_source = "";
    for word in words {
        let lane = match lanes.last_mut() {
            Some(lane) if single || lane.at.is_none() => lane,
            _ => {
                lanes.push(LaneArg::default());
                let end = lanes.len() - 1;
                &mut lanes[end]
            }
        };
        match word {
            Word::Lower(lower) => lane.lowers.push(lower),
            Word::Source(name, _) if lane.source.is_some() => {
                return Err(conflict(format!(
                    "the argument '{name}' cannot be used with '{last_source}' for the same lane: \
                     with several lanes, write '--at PATH' after each"
                )));
            }
            Word::Source(name, source) => (lane.source, last_source) = (Some(source), name),
            Word::At(at) if !single && lane.source.is_none() && lane.lowers.is_empty() => {
                return Err(conflict(format!(
                    "'--at {}' follows nothing that says where the lane's files are: write \
                     '--volume', '--dir', '--mem', '--ceph' or '--lower' before it",
                    at.display().to_string().escape_debug()
                )));
            }
            Word::At(at) => lane.at = Some(at),
        }
    }
    match lanes.last() {
        Some(last) if !single && last.at.is_none() => Err(conflict(format!(
            "the lane of '{}' has no path: with several lanes, write '--at PATH' after each",
            if last.source.is_some() { last_source } else { "--lower" }
        ))),
        _ => Ok(lanes),
    }
}

impl FromArgMatches for LaneArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(LaneArgs { lanes: lanes(words(matches))? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = LaneArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for LaneArgs {
    fn augment_args(command: Command) -> Command {
        let option = |name: &'static str, value: &'static str| {
            Arg::new(name).long(name).value_name(value).action(ArgAction::Append)
        };
        let path = |name, value| option(name, value).value_parser(value_parser!(PathBuf));
        command
            .arg(path("volume", "FILE").help(
                "Keep the lane's files on this volume, a file or an image of a Ceph cluster \
                 (rbd:[USER@]POOL/IMAGE[@SNAP]), made and formatted if absent [default: the \
                 pool's own]",
            ))
            .arg(
                Arg::new("mem")
                    .long("mem")
                    .action(ArgAction::Append)
                    .num_args(0)
                    .default_missing_value("true")
                    .value_parser(value_parser!(bool))
                    .help("Keep the lane's files in RAM: they are gone with the lane"),
            )
            .arg(path("dir", "DIR").help("Keep the lane's files in this directory of the host"))
            .arg(
                option("lower", "SOURCE")
                    .value_parser(value_parser!(OsString))
                    .conflicts_with("kernel_fs")
                    .help(
                        "Layer that is seen under the lane's own files and never changed: a \
                         directory of the host (DIR or dir:DIR), a volume (FILE or volume:FILE), \
                         a directory of a Ceph file system (ceph:[USER@]FSNAME[:PATH]), or a \
                         union of the layers that a file names, one a line (union:FILE); \
                         each in a cache of its own with cached: or cached=SIZE: before it, \
                         a directory that nobody changes meanwhile with fixed:; \
                         repeatable, the uppermost first. The lane is read-only if \
                         neither --volume, --dir, --mem nor --ceph says where changes go",
                    ),
            )
            .arg(
                option("ceph", "[USER@]FSNAME[:PATH]").value_parser(value_parser!(CephPlace)).help(
                    "Keep the lane's files on a Ceph file system, in its directory PATH [default: \
                     as client.admin, in its root]",
                ),
            )
            .arg(path("at", "PATH").conflicts_with("root").help(
                "Mount path seen by COMMAND [default: /lane]; with several lanes each follows what \
                 says where the lane's files are",
            ))
    }

    fn augment_args_for_update(command: Command) -> Command {
        LaneArgs::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Vec<LaneArg>, String> {
        let command = LaneArgs::augment_args(Command::new("run"))
            .arg(Arg::new("kernel_fs").long("kernel-fs"))
            .arg(Arg::new("root").long("root").action(ArgAction::SetTrue));
        let words = std::iter::once("run").chain(line.split_whitespace());
        let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
        LaneArgs::from_arg_matches(&matches)
            .map(|lanes| lanes.lanes)
            .map_err(|error| error.to_string())
    }

    fn lane(source: Option<SourceArg>, lowers: &[&str], at: &str) -> LaneArg {
        let lowers = lowers.iter().map(OsString::from).collect();
        let at = Some(at).filter(|at| !at.is_empty()).map(PathBuf::from);
        LaneArg { source, lowers, at }
    }

    #[test]
    fn one_lane_is_written_in_any_order() {
        let volume = || Some(SourceArg::Volume("v".into()));
        for (line, expected) in [
            ("", lane(None, &[], "")),
            ("--volume v --at /a", lane(volume(), &[], "/a")),
            ("--at /a --volume v", lane(volume(), &[], "/a")),
            ("--lower x --at /a --mem --lower y", lane(Some(SourceArg::Mem), &["x", "y"], "/a")),
            ("--dir d", lane(Some(SourceArg::Dir("d".into())), &[], "")),
        ] {
            assert_eq!(read(line), Ok(vec![expected]), "{line}");
        }
    }

    #[test]
    fn each_path_of_several_lanes_follows_its_source() {
        let volume = |name: &str| Some(SourceArg::Volume(name.into()));
        let found =
            read("--volume a --at /a --lower x --mem --at /b --lower y --at /c --mem --at /d");
        let expected = vec![
            lane(volume("a"), &[], "/a"),
            lane(Some(SourceArg::Mem), &["x"], "/b"),
            lane(None, &["y"], "/c"),
            lane(Some(SourceArg::Mem), &[], "/d"),
        ];
        assert_eq!(found, Ok(expected));
        assert_eq!(read("--volume a --at /a --volume b --at /b").map(|lanes| lanes.len()), Ok(2));
    }

    #[test]
    fn what_belongs_to_no_lane_is_refused() {
        for (line, part) in [
            ("--volume a --volume b", "--volume"),
            ("--mem --dir d", "--dir"),
            ("--mem --mem", "--mem"),
            ("--volume a --volume b --at /b", "--at PATH"),
            ("--volume a --at /a --volume b", "--volume"),
            ("--at /a --volume a --at /b", "--at /a"),
            ("--volume a --at /a --at /b", "--at /b"),
            ("--mem --at /a --mem --at /b --lower x", "--lower"),
            ("--mem --at /a --root", "--root"),
            ("--mem --at /a --dir d --mem --at /b", "--mem"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
