//! Each command: arguments to options, results to text.

use std::path::PathBuf;

use clap::CommandFactory;
use polylane_pool::doctor::{self, Finding, State};
use polylane_pool::failure::{FAILED, Failure, Result};
use polylane_pool::kernel_fs::{KernelFs, KernelLane};
use polylane_pool::lower::LowerSource;
use polylane_pool::rbd::ImagePlace;
use polylane_pool::run::{AT_DEFAULT, LaneBeside, RunOptions, Source};
use polylane_pool::service::ServiceFds;
use polylane_pool::share::Policy;
use polylane_pool::spec::AccessTimes;
use polylane_pool::{lasting, limits, service, stats};

use crate::cli::{Cli, Command, LaneMedium, RunArgs, ServiceArgs, StatsArgs};
use crate::lane_args::{LaneArg, SourceArg};
use crate::print::{print, print_json};
use crate::{attach, bench, container, daemon, image, lane_env, mount, pool, top, volume};

/// Executes a command; the exit status.
pub(crate) fn execute(command: Command) -> Result<u8> {
    // What executes no command of the caller's is not bound by the limits of the caller's shell.
    // Lanes lift them where they start.
    match command {
        Command::Umount(_)
        | Command::Volume(_)
        | Command::Detach(_)
        | Command::Pool(_)
        | Command::Image(_) => limits::lift(),
        _ => {}
    }
    match command {
        Command::Run(arguments) => lasting::run(run_options(*arguments)?),
        Command::Service(arguments) => Ok(service::main(service_fds(&arguments), || ())),
        Command::Mount(arguments) => mount::mount(*arguments),
        Command::Umount(arguments) => mount::umount(&arguments),
        Command::Volume(command) => volume::execute(command),
        Command::Attach(arguments) => attach::attach(arguments),
        Command::Detach(arguments) => attach::detach(&arguments),
        Command::Engine(arguments) => Ok(attach::engine(arguments)),
        Command::Top(arguments) => top::execute(&arguments),
        Command::Pool(command) => pool::execute(command),
        Command::Exec(arguments) => pool::exec(&arguments),
        Command::Image(command) => image::execute(command),
        Command::Container(command) => container::execute(command),
        Command::Oci { words } => polylane_engine::oci(&words),
        Command::Env(arguments) => lane_env::execute(&arguments),
        Command::Stats(arguments) => print_stats(&arguments),
        Command::Daemon(arguments) => daemon::execute(arguments),
        Command::Doctor(json) => print_findings(json.json),
        Command::Completions { shell } => print_completions(shell),
        Command::Bench(command) => bench::execute(command),
        Command::Demo => bench::demo(),
    }
}

fn run_options(arguments: RunArgs) -> Result<RunOptions> {
    let medium = arguments.medium.and_then(|medium| match medium {
        LaneMedium::Volume(kind) => Some(kind),
        LaneMedium::Mem => None,
    });
    let mut lanes = lanes(&arguments)?;
    let first = lanes.remove(0);
    Ok(RunOptions {
        source: first.source,
        lowers: first.lowers,
        cluster: arguments.client.of(arguments.cluster)?,
        at: first.at,
        more: lanes,
        root: arguments.root,
        pool: arguments.pool,
        cpus: arguments.cpus,
        memory: arguments.memory.map(|size| size.0),
        size: arguments.size.map(|size| size.0),
        medium,
        weight: arguments.weight,
        cache: arguments.cache.options()?,
        write_back: arguments.write_back.options(),
        qos: arguments.qos.as_deref().and_then(Policy::named),
        kernel_fs: arguments
            .kernel_fs
            .as_deref()
            .and_then(KernelFs::named)
            .map(|kind| KernelLane { kind, trust_image: arguments.trust_image }),
        preload: !arguments.no_preload,
        suid: arguments.suid,
        privileged: arguments.privileged,
        become_users: arguments.become_users,
        map_users: None,
        id_maps: false,
        kernel_cache: arguments.kernel_cache,
        access_times: AccessTimes::Relatime,
        covered: Vec::new(),
        command: arguments.command,
        for_instances: false,
    })
}

/// The lanes of a run, in their order.
fn lanes(arguments: &RunArgs) -> Result<Vec<LaneBeside>> {
    let lanes = &arguments.lanes.lanes;
    let in_memory = arguments.medium == Some(LaneMedium::Mem);
    if in_memory && lanes.iter().any(|lane| !matches!(lane.source, None | Some(SourceArg::Mem))) {
        return Err(Failure::usage(
            "--medium mem: keeps the lane's files in RAM: leave --volume, --dir and --ceph out",
        ));
    }
    let source = |lane: &LaneArg| match &lane.source {
        Some(SourceArg::Ceph(place)) => Ok(Source::Ceph(place.clone())),
        Some(SourceArg::Dir(path)) => Ok(Source::Dir(path.clone())),
        Some(SourceArg::Volume(path)) => Ok(match ImagePlace::named(path)? {
            Some(place) => Source::Image(place),
            None => Source::Volume(Some(path.clone())),
        }),
        Some(SourceArg::Mem) => Ok(Source::Mem),
        None if in_memory => Ok(Source::Mem),
        None if !lane.lowers.is_empty() => Ok(Source::Lowers),
        None => Ok(Source::Volume(None)),
    };
    let lane = |lane: &LaneArg| {
        Ok(LaneBeside {
            source: source(lane)?,
            lowers: lane
                .lowers
                .iter()
                .map(|text| LowerSource::parse(text))
                .collect::<Result<_>>()?,
            at: lane.at.clone().unwrap_or_else(|| PathBuf::from(AT_DEFAULT)),
        })
    };
    lanes.iter().map(lane).collect()
}

fn service_fds(arguments: &ServiceArgs) -> ServiceFds {
    ServiceFds {
        spec: arguments.spec,
        fuse: arguments.fuse,
        socket: arguments.socket,
        control: arguments.control,
        handover: arguments.handover,
        witness: arguments.witness,
        mounts: arguments.mounts,
        dir: arguments.dir,
        lowers: arguments.lower.clone(),
        ceph: arguments.ceph_conf.map(|conf| (conf, arguments.ceph_keyring)),
        volume: arguments.volume.clone(),
        volume_plain: arguments.volume_plain.clone(),
        volume_lock: arguments.volume_lock.clone(),
        bypass: arguments.bypass_disk.zip(arguments.bypass_pool),
    }
}

fn print_stats(arguments: &StatsArgs) -> Result<u8> {
    let pools = match &arguments.pool {
        Some(pool) => stats::collect(Some(pool))?,
        None => stats::all()?,
    };
    if arguments.prometheus {
        print(&stats::prometheus::text(&pools))?;
        return Ok(0);
    }
    if arguments.json.json {
        print_json(&pools)?;
        return Ok(0);
    }
    if pools.is_empty() {
        print("no pool is running, and no volume is attached\n")?;
    }
    let lines = if arguments.all { stats::lines } else { stats::summary::lines };
    for pool in &pools {
        print(&(lines(pool).join("\n") + "\n\n"))?;
    }
    Ok(0)
}

fn print_findings(json: bool) -> Result<u8> {
    let findings = doctor::look();
    if json {
        print_json(&findings)?;
    } else {
        let widest = findings.iter().map(|finding| finding.found.len()).max().unwrap_or(0);
        // A longer one has its line, and the others do not follow it.
        let widest = widest.min(FOUND_WIDTH_MAX);
        print(&findings.iter().map(|finding| describe(finding, widest)).collect::<String>())?;
    }
    Ok(if doctor::can_run(&findings) { 0 } else { FAILED })
}

/// Widest column of what was found.
const FOUND_WIDTH_MAX: usize = 48;

fn describe(finding: &Finding, widest: usize) -> String {
    let mark = match finding.state {
        State::Good => "ok      ",
        State::Degraded => "degraded",
        State::Missing => "MISSING ",
        State::Unused => "-       ",
    };
    format!("{mark}  {:<20} {:<widest$}  {}\n", finding.name, finding.found, finding.note)
}

fn print_completions(shell: clap_complete::Shell) -> Result<u8> {
    let mut script = Vec::new();
    let mut command = visible(&Cli::command());
    clap_complete::generate(shell, &mut command, "polylane", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// The command without hidden subcommands, which the completion scripts would offer.
fn visible(command: &clap::Command) -> clap::Command {
    let shown = command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(visible);
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new(command.get_name().to_string())
        .about(about)
        .args(command.get_arguments().cloned())
        .subcommands(shown)
        .disable_help_subcommand(true)
}
