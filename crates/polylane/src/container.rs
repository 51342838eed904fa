//! `polylane container`: containers whose root file system is a lane over an image.

use std::time::Duration;

use clap::{Args, Subcommand};
use polylane_base::size::ByteSize;
use polylane_engine::{
    Attached, Cluster, Container, FileCache, Further, Mount, NamespacesOf, Network, State, Wanted,
};
use polylane_pool::ceph::{CephPlace, ClusterOptions};
use polylane_pool::failure::{Failure, Result};
use serde_json::Value;

use crate::args::{ClusterArgs, JsonArgs, file_cache_modes};
use crate::print::{cell, columns, print, print_json};

#[derive(Debug, Subcommand)]
pub(crate) enum ContainerCommand {
    /// Make a container of an image and start it; exit with its status
    Run {
        /// Do not wait for it: print its name
        #[arg(long, short)]
        detach: bool,
        #[command(flatten)]
        new: Box<NewArgs>,
    },
    /// Make a container of an image, and print its name
    Create(Box<NewArgs>),
    /// Start a container that was made, or that has ended; its files are as it left them
    Start {
        /// Wait for it, and exit with its status
        #[arg(long, short)]
        attach: bool,
        /// Names, or first digits of identities
        #[arg(required = true, value_name = "CONTAINER")]
        containers: Vec<String>,
    },
    /// Execute a command in a container that runs; exit with its status
    Exec(ExecArgs),
    /// List containers that run
    Ps {
        /// All, whatever they do
        #[arg(long, short)]
        all: bool,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Print what a detached container has said
    Logs {
        /// Go on until it ends
        #[arg(long, short)]
        follow: bool,
        container: String,
    },
    /// Ask containers to end, and kill those that do not
    Stop {
        /// Seconds until then
        #[arg(long, short, value_name = "SECONDS", default_value_t = 10)]
        time: u32,
        #[arg(required = true, value_name = "CONTAINER")]
        containers: Vec<String>,
    },
    /// Send a signal to the first process of containers
    Kill {
        /// Its name or number
        #[arg(long, short, default_value = "SIGKILL")]
        signal: String,
        #[arg(required = true, value_name = "CONTAINER")]
        containers: Vec<String>,
    },
    /// Remove containers with all that they have written
    Rm {
        /// Also those that run
        #[arg(long, short)]
        force: bool,
        #[arg(required = true, value_name = "CONTAINER")]
        containers: Vec<String>,
    },
    /// Print all that is known of containers, as JSON
    Inspect {
        #[arg(required = true, value_name = "CONTAINER")]
        containers: Vec<String>,
    },
}

/// What a container is to be.
#[derive(Debug, Args)]
#[command(after_help = "SOURCE of a mount: a path of the host, or a lane's, as 'polylane mount' \
    takes it: volume:FILE, dir:DIR, mem:SIZE, ceph:FSNAME.")]
pub(crate) struct NewArgs {
    /// Its name [default: made up]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Pool of its lanes and processes [default: default]
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Remove it when it ends
    #[arg(long)]
    rm: bool,
    /// Show a directory or file of the host, or another lane, at TARGET (repeatable)
    #[arg(long, short, value_name = "SOURCE:TARGET[:ro]", value_parser = Mount::parse)]
    volume: Vec<Mount>,
    /// The same: type=bind,source=SOURCE,target=TARGET and, if wanted, ,readonly (repeatable)
    #[arg(long, value_name = "FIELDS", value_parser = Mount::parse_fields)]
    mount: Vec<Mount>,
    /// A variable; NAME alone has the caller's value (repeatable)
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Working directory [default: the image's]
    #[arg(long, short, value_name = "DIR")]
    workdir: Option<String>,
    /// User and group, by the image's names or by numbers [default: the image's]
    #[arg(long, short, value_name = "USER[:GROUP]")]
    user: Option<String>,
    /// What is executed with the arguments, in place of the image's
    #[arg(long, value_name = "PROGRAM")]
    entrypoint: Option<String>,
    /// Host name [default: its name]
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// Pass standard input on
    #[arg(long, short)]
    interactive: bool,
    /// Give it a terminal
    #[arg(long, short)]
    tty: bool,
    /// CPUs that it may use at a time, such as 1.5
    #[arg(long, value_name = "N", value_parser = cpus)]
    cpus: Option<u64>,
    /// Memory of its processes
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Processes and threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pids: Option<u64>,
    /// Size of its own volume, which has what it changes [default: 10G]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Keep the image's layers and what the container changes in this directory of a Ceph file
    /// system, which other hosts may use as well [default: on this host]
    #[arg(long, value_name = "ceph:[USER@]FSNAME[:PATH]", value_parser = store)]
    store: Option<CephPlace>,
    /// Keep files of its root in a cache of its own: changes go on after 5s and when they are
    /// synced (writeback), or at once (writethrough)
    #[arg(long, value_name = "MODE", value_parser = file_cache_modes())]
    file_cache: Option<String>,
    /// Most file data in that cache [default: a quarter of the pool's memory]
    #[arg(long, value_name = "SIZE", requires = "file_cache")]
    file_cache_size: Option<ByteSize>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Network: none but its own loopback device, or the host's
    #[arg(long, value_name = "none|host", default_value = "none", value_parser = network)]
    network: Network,
    /// Namespaces that its pool has for its containers: the pool's or its own [default: the pool's]
    #[arg(long, value_name = "pool|own", value_parser = namespaces)]
    ns: Option<NamespacesOf>,
    /// OCI runtime, a name or a path [default: runc, else crun]
    #[arg(long, value_name = "RUNTIME")]
    runtime: Option<String>,
    /// FUSE only: its processes are without the library
    #[arg(long)]
    no_preload: bool,
    /// The image
    image: String,
    /// Command and arguments [default: the image's]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// `polylane container exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// A variable; NAME alone has the caller's value (repeatable)
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Working directory [default: the container's]
    #[arg(long, short, value_name = "DIR")]
    workdir: Option<String>,
    /// User and group [default: the container's]
    #[arg(long, short, value_name = "USER[:GROUP]")]
    user: Option<String>,
    /// Pass standard input on
    #[arg(long, short)]
    interactive: bool,
    /// Give it a terminal
    #[arg(long, short)]
    tty: bool,
    /// Do not wait for it
    #[arg(long, short, conflicts_with = "tty")]
    detach: bool,
    /// Name, or first digits of an identity
    container: String,
    /// Command and arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Thousandths of a CPU.
fn cpus(text: &str) -> std::result::Result<u64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text}: not a number of CPUs"))?;
    match (0.01..=4096.0).contains(&number) {
        true => Ok((number * 1000.0).round() as u64),
        false => Err(format!("{text}: a container has 0.01 to 4096 CPUs")),
    }
}

fn store(text: &str) -> std::result::Result<CephPlace, String> {
    let place = text.strip_prefix("ceph:").ok_or("write ceph:[USER@]FSNAME[:/PATH]")?;
    place.parse()
}

fn network(text: &str) -> std::result::Result<Network, String> {
    match text {
        "none" => Ok(Network::None),
        "host" => Ok(Network::Host),
        _ => Err(format!("{text}: is none or host")),
    }
}

fn namespaces(text: &str) -> std::result::Result<NamespacesOf, String> {
    match text {
        "pool" => Ok(NamespacesOf::Pool),
        "own" => Ok(NamespacesOf::Own),
        _ => Err(format!("{text}: is pool or own")),
    }
}

impl NewArgs {
    fn wanted(self) -> Result<Wanted> {
        let NewArgs { volume, mount, .. } = self;
        let ClusterOptions { conf, keyring, timeout, .. } = self.cluster.options()?;
        let timeout_us = timeout.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let bytes = self.file_cache_size.map(|size| size.0);
        Ok(Wanted {
            store: self.store,
            cluster: Cluster { conf, keyring, timeout_us },
            file_cache: self.file_cache.map(|mode| FileCache { mode, bytes }),
            image: self.image,
            command: self.command,
            entrypoint: self.entrypoint,
            name: self.name,
            pool: self.pool,
            env: self.env,
            workdir: self.workdir,
            user: self.user,
            hostname: self.hostname,
            network: self.network,
            namespaces: self.ns,
            cpus: self.cpus,
            memory: self.memory.map(|size| size.0),
            pids: self.pids,
            size: self.size.map(|size| size.0),
            mounts: volume.into_iter().chain(mount).collect(),
            runtime: self.runtime,
            no_preload: self.no_preload,
            terminal: self.tty,
            interactive: self.interactive,
            remove: self.rm,
        })
    }
}

/// Executes `polylane container`; the exit status.
pub(crate) fn execute(command: ContainerCommand) -> Result<u8> {
    match command {
        ContainerCommand::Run { detach, new } => return run(new.wanted()?, detach),
        ContainerCommand::Create(new) => {
            let container = Container::create(&new.wanted()?)?;
            print(&format!("{}\n", container.record.name))?;
        }
        ContainerCommand::Start { attach, containers } => return start(attach, &containers),
        ContainerCommand::Exec(arguments) => return exec(arguments),
        ContainerCommand::Ps { all, json } => list(all, json.json)?,
        ContainerCommand::Logs { follow, container } => {
            Container::find(&container)?.logs(follow, &mut std::io::stdout().lock())?;
        }
        ContainerCommand::Stop { time, containers } => {
            let patience = Duration::from_secs(time.into());
            each(&containers, |container| container.stop(patience))?;
        }
        ContainerCommand::Kill { signal, containers } => {
            each(&containers, |container| container.kill(&signal))?;
        }
        ContainerCommand::Rm { force, containers } => {
            containers
                .iter()
                .try_for_each(|word| Container::find_to_remove(word)?.remove(force))?;
        }
        ContainerCommand::Inspect { containers } => {
            let all: Vec<Value> = containers
                .iter()
                .map(|word| Container::find(word)?.inspect())
                .collect::<Result<_>>()?;
            print_json(&all)?;
        }
    }
    Ok(0)
}

fn run(wanted: Wanted, detach: bool) -> Result<u8> {
    if detach && wanted.terminal {
        return Err(Failure::usage("--detach: a container with a terminal is waited for"));
    }
    let container = Container::create(&wanted)?;
    let attached = if detach { Attached::Log } else { Attached::Caller };
    match polylane_engine::start(&container, attached) {
        Ok(status) if detach => {
            print(&format!("{}\n", container.record.name))?;
            Ok(status)
        }
        Ok(status) => Ok(status),
        Err(failure) => {
            // One that never ran goes. What cannot be removed now 'rm' says.
            if let Ok(State::Created) = container.state() {
                let _ = container.remove(false);
            }
            Err(failure)
        }
    }
}

fn start(attach: bool, containers: &[String]) -> Result<u8> {
    if attach && containers.len() > 1 {
        return Err(Failure::usage("--attach: one container at a time"));
    }
    let mut status = 0;
    for word in containers {
        let container = Container::find(word)?;
        let attached = if attach { Attached::Caller } else { Attached::Log };
        status = polylane_engine::start(&container, attached)?;
    }
    Ok(status)
}

fn exec(arguments: ExecArgs) -> Result<u8> {
    let container = Container::find(&arguments.container)?;
    polylane_engine::exec(
        &container,
        &Further {
            command: arguments.command,
            env: arguments.env,
            workdir: arguments.workdir,
            user: arguments.user,
            terminal: arguments.tty,
            interactive: arguments.interactive,
            detach: arguments.detach,
        },
    )
}

/// The first that fails ends it.
fn each(words: &[String], act: impl Fn(&Container) -> Result<()>) -> Result<()> {
    words.iter().try_for_each(|word| act(&Container::find(word)?))
}

fn list(all: bool, json: bool) -> Result<()> {
    // Other engines have told nobody that a container is gone.
    polylane_engine::sweep()?;
    let shown: Vec<Value> =
        polylane_engine::all()?.iter().map(Container::summary).collect::<Result<_>>()?;
    let shown: Vec<Value> =
        shown.into_iter().filter(|one| all || one["state"] == "running").collect();
    if json {
        return print_json(&shown);
    }
    let head = ["NAME", "ID", "IMAGE", "STATE", "STATUS", "COMMAND"].map(str::to_string);
    let rows = shown.iter().map(|one| {
        let text = |name: &str| cell(&one[name]);
        let words = one["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let command = words.collect::<Vec<_>>().join(" ");
        let command: String =
            polylane_base::shown::escape_control(&command).chars().take(40).collect();
        [text("name"), text("id"), text("image"), text("state"), text("exit_status"), command]
    });
    print(&columns(std::iter::once(head).chain(rows).collect()))
}
