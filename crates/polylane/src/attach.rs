//! `polylane attach` and `polylane detach`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use polylane_base::shown::Shown;
use polylane_pool::attach::engine::{self, EngineFds};
use polylane_pool::attach::{self, AttachOptions, Listed, Via};
use polylane_pool::failure::{Failure, Result};
use polylane_pool::rbd::ImagePlace;
use polylane_pool::share::{Policy, Wanted};
use polylane_volume::path_text;

use crate::args::{CacheArgs, ClusterArgs, JsonArgs, LimitArgs, policies};
use crate::print::{print, print_json};

/// `polylane attach`.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The volume's file, or an image of a Ceph cluster: `rbd:[USER@]POOL/IMAGE[@SNAP]`
    #[arg(required_unless_present = "list")]
    volume: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Front end [default: auto, the best that this host has]
    #[arg(long, value_name = "FRONT", default_value = "auto")]
    via: ViaArg,
    /// Where to listen, for vhost-user and for NBD clients other than the kernel's
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Have the kernel read and write the volume's file itself (--via loop): as fast as a plain
    /// loop device, but the volume cannot be copied meanwhile
    #[arg(long)]
    passthrough: bool,
    #[command(flatten)]
    cache: CacheArgs,
    /// Write every request down there, without its data, for 'polylane bench run pdc-trace'
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Share of its device, 1 to 10000; 'pool set DEVICE' changes it [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    weight: Option<u32>,
    #[command(flatten)]
    limits: LimitArgs,
    /// How volumes on that device share it [default: none; ledger with a weight or a limit]
    #[arg(long, value_name = "POLICY", value_parser = policies())]
    qos: Option<String>,
    /// List what is attached
    #[arg(long, conflicts_with_all = ["volume", "via", "socket"])]
    list: bool,
    #[command(flatten)]
    json: JsonArgs,
}

/// `polylane detach`.
#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    /// Its device, its socket or the volume's file
    #[arg(value_name = "DEVICE|VOLUME")]
    name: PathBuf,
}

/// The engine's hidden command.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    #[arg(long)]
    spec: i32,
    #[arg(long)]
    door: i32,
    #[arg(long)]
    left: Option<i32>,
    #[arg(long)]
    control: i32,
    #[arg(long)]
    volume: Vec<i32>,
    #[arg(long)]
    volume_plain: Vec<i32>,
    #[arg(long)]
    volume_lock: Vec<i32>,
    #[arg(long, requires = "bypass_pool")]
    bypass_disk: Option<i32>,
    #[arg(long, requires = "bypass_disk")]
    bypass_pool: Option<i32>,
    #[arg(long)]
    ceph_conf: Option<i32>,
    #[arg(long, requires = "ceph_conf")]
    ceph_keyring: Option<i32>,
    #[arg(long)]
    record: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ViaArg {
    Auto,
    Ublk,
    Nbd,
    Loop,
    VhostUser,
}

impl ViaArg {
    fn via(self) -> Option<Via> {
        match self {
            ViaArg::Auto => None,
            ViaArg::Ublk => Some(Via::Ublk),
            ViaArg::Nbd => Some(Via::Nbd),
            ViaArg::Loop => Some(Via::Loop),
            ViaArg::VhostUser => Some(Via::VhostUser),
        }
    }
}

/// Executes `attach`; the exit status.
pub(crate) fn attach(arguments: AttachArgs) -> Result<u8> {
    if arguments.list {
        let listed = attach::list()?;
        match arguments.json.json {
            true => print_json(&listed)?,
            false => print(&table(&listed))?,
        }
        return Ok(0);
    }
    let volume = arguments.volume.ok_or_else(|| Failure::usage("attach: no VOLUME"))?;
    let wanted = arguments.limits.wanted(arguments.weight);
    let qos = policy(arguments.qos.as_deref(), &wanted);
    if let Some(why) = wanted.contradiction(qos) {
        return Err(Failure::usage(why));
    }
    if ImagePlace::named(&volume)?.is_none() {
        arguments.cluster.refuse(&volume.display())?;
    }
    let options = AttachOptions {
        volume,
        cluster: arguments.cluster.options()?,
        via: arguments.via.via(),
        socket: arguments.socket,
        passthrough: arguments.passthrough,
        cache: arguments.cache.options()?,
        record: arguments.record,
        wanted,
        qos,
    };
    let device = attach::attach(&options)?;
    match arguments.json.json {
        true => print_json(&serde_json::json!({ "device": path_text::json(&device) }))?,
        false => print(&format!("{}\n", device.display()))?,
    }
    Ok(0)
}

/// How to share: as is said, or by the ledger when something is asked for.
fn policy(named: Option<&str>, wanted: &Wanted) -> Policy {
    match named {
        Some(name) => Policy::named(name).unwrap_or_default(),
        None if *wanted == Wanted::default() => Policy::None,
        None => Policy::Ledger,
    }
}

/// Executes `detach`; the exit status.
pub(crate) fn detach(arguments: &DetachArgs) -> Result<u8> {
    attach::detach(&arguments.name).map(|()| 0)
}

/// Runs an engine.
pub(crate) fn engine(arguments: EngineArgs) -> u8 {
    engine::main(EngineFds {
        spec: arguments.spec,
        door: arguments.door,
        left: arguments.left,
        control: arguments.control,
        volume: arguments.volume,
        volume_plain: arguments.volume_plain,
        volume_lock: arguments.volume_lock,
        bypass: arguments.bypass_disk.zip(arguments.bypass_pool),
        ceph: arguments.ceph_conf.map(|conf| (conf, arguments.ceph_keyring)),
        record: arguments.record,
    })
}

fn table(listed: &[Listed]) -> String {
    let mut text = format!("{:<24} {:<10} {:<5} VOLUME\n", "DEVICE", "VIA", "STATE");
    for Listed { record, alive, .. } in listed {
        let device = record.device.as_ref();
        let device = device.map_or("-".to_string(), |path| Shown::new(path).to_string());
        let state = if *alive { "up" } else { "dead" };
        text += &format!(
            "{device:<24} {:<10} {state:<5} {}\n",
            record.via.to_string(),
            Shown::new(&record.volume)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        attach: AttachArgs,
    }

    fn asked(words: &[&str]) -> (Wanted, Policy) {
        let AttachArgs { limits, weight, qos, .. } =
            Line::try_parse_from([&["attach", "v.img"], words].concat()).expect("parses").attach;
        let wanted = limits.wanted(weight);
        (wanted, policy(qos.as_deref(), &wanted))
    }

    #[test]
    fn limits_are_asked_for_and_make_the_ledger_share() {
        assert_eq!(asked(&[]), (Wanted::default(), Policy::None));
        let (wanted, qos) = asked(&["--max-iops", "500", "--min-bandwidth", "2M"]);
        assert_eq!((wanted.iops_max, wanted.bw_min), (Some(500), Some(2 << 20)));
        assert_eq!(qos, Policy::Ledger);
        let (wanted, qos) = asked(&["--max-iops", "5", "--max-bandwidth", "1M", "--qos", "static"]);
        assert_eq!((wanted.iops_max, wanted.bw_max), (Some(5), Some(1 << 20)));
        assert_eq!((wanted.weight, qos), (None, Policy::Static));
        assert_eq!(asked(&["--latency", "2ms"]).0.latency_target_us, Some(2000));
        assert_eq!(asked(&["--weight", "7", "--min-iops", "9"]).0.iops_min, Some(9));
    }
}
