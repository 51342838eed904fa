//! `forks`: what a fork costs a program whose open files lie on a lane, where each becomes the
//! kernel's own before (docs/decisions/0038), and how much of it bash, make, nginx and PostgreSQL
//! feel.
//!
//! The first two points are first forks, each of a program of its own: a later fork finds the nodes
//! of files that were opened before. The others do what their users do all day.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::sweep::available;
use crate::place::{Ground, Place, Script, Tenant, together};
use crate::report::{Better, Report};
use crate::tools::command;
use crate::worker::Outcome;
use crate::{Options, progress};

/// The first is the baseline.
const PLACES: [Place; 4] = [Place::Kernel("ext4"), Place::Tmpfs, Place::LaneFuse, Place::Lane];

/// How a script ends: its rounds took from `$begun` until now.
macro_rules! told {
    ($work:literal) => {
        concat!(
            "dir=$1 rounds=$2\nrm -rf \"$dir\"\nmkdir -p \"$dir\"\ncd \"$dir\"\n",
            $work,
            r#"
prepare
echo ready
read -r go
begun=$(date +%s%N)
work
ended=$(date +%s%N)
tell "$rounds" $((ended - begun))
read -r end || true
finish
cd /
rm -r "$dir"
"#
        )
    };
}

/// Programs that open files and fork for the first time; how long the forks alone took.
const FILES: Script = Script {
    name: "files",
    text: r#"
dir=$1 rounds=$2 files=$3
rm -rf "$dir"
mkdir -p "$dir"
echo ready
read -r go
python3 -c '
import json, os, sys, time
at, rounds, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def first_fork():
    held = [open(f"{at}/{n}", "w") for n in range(files)]
    begun = time.perf_counter_ns()
    child = os.fork()
    if child == 0:
        os._exit(0)
    took = time.perf_counter_ns() - begun
    os.waitpid(child, 0)
    return took
def of_a_new_process():
    told, tell = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(tell, str(first_fork()).encode())
        os._exit(0)
    os.close(tell)
    took = int(os.read(told, 64))
    os.close(told)
    os.waitpid(process, 0)
    return took
seconds = sum(of_a_new_process() for _ in range(rounds)) / 1e9
done = {"ops": rounds, "seconds": seconds, "settle_seconds": 0, "latency": {}}
print(json.dumps(done), flush=True)
' "$dir" "$rounds" "$files"
read -r end || true
rm -r "$dir"
"#,
    outcome: Outcome::from_json,
};

const BASH: Script = Script {
    name: "bash",
    text: told!(
        r#"
prepare() {
    echo 'exec 3>a 4>b 5>>c; for n in $(seq "$1"); do (echo "$n" >&3); done' > loop.sh
}
work() { bash loop.sh "$rounds"; }
finish() { :; }
"#
    ),
    outcome: Outcome::from_json,
};

const MAKE: Script = Script {
    name: "make",
    text: told!(
        r#"
prepare() {
    { printf 'all:'
      for n in $(seq "$rounds"); do printf ' %s.o' "$n"; done
      printf '\n%%.o: %%.c\n\t@cp $< $@\n'; } > Makefile
    for n in $(seq "$rounds"); do echo "$n" > "$n.c"; done
}
work() { make -s -j2; }
finish() { :; }
"#
    ),
    outcome: Outcome::from_json,
};

/// A server with four workers is started, answers and ends.
const NGINX: Script = Script {
    name: "nginx",
    text: told!(
        r#"
prepare() {
    sockets=$(mktemp -d)
    echo hello > index.html
    echo "worker_processes 4; pid $dir/pid; error_log $dir/errors; events { worker_connections 64; }
        http { access_log $dir/log; server { listen unix:$sockets/nginx; root $dir; } }" > conf
}
ask() { curl -sS --unix-socket "$sockets/nginx" http://host/index.html; }
work() {
    for n in $(seq "$rounds"); do
        nginx -e "$dir/errors" -c "$dir/conf"
        [ "$(ask)" = hello ]
        server=$(cat pid)
        kill -TERM "$server"
        while [ -e pid ]; do sleep 0.002; done
    done
}
finish() { rm -r "$sockets"; }
"#
    ),
    outcome: Outcome::from_json,
};

/// Each connection is a fork of the server.
const POSTGRES: Script = Script {
    name: "postgresql",
    text: told!(
        r#"
prepare() {
    bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
    sockets=$(mktemp -d)
    chown postgres "$dir" "$sockets"
    as() { setpriv --reuid postgres --regid postgres --clear-groups -- "$@"; }
    as "$bin/initdb" --no-sync --auth trust data > log 2>&1
    as "$bin/pg_ctl" -D data -w -l data/log -o "-k $sockets -c listen_addresses=" start >> log
}
work() {
    for n in $(seq "$rounds"); do
        psql -qAt -h "$sockets" -U postgres -c 'select 1' > /dev/null
    done
}
finish() { as "$bin/pg_ctl" -D data -m fast -w stop >> log; rm -r "$sockets"; }
"#
    ),
    outcome: Outcome::from_json,
};

/// One measurement: what a point is called, what does it, how often, and its further arguments.
struct Load {
    point: &'static str,
    script: &'static Script,
    rounds: usize,
    more: &'static [&'static str],
}

const LOADS: [Load; 6] = [
    Load { point: "3 files", script: &FILES, rounds: 20, more: &["3"] },
    Load { point: "100 files", script: &FILES, rounds: 20, more: &["100"] },
    Load { point: "bash: a subshell", script: &BASH, rounds: 200, more: &[] },
    Load { point: "make: a target", script: &MAKE, rounds: 100, more: &[] },
    Load { point: "nginx: start and end", script: &NGINX, rounds: 10, more: &[] },
    Load { point: "PostgreSQL: a connection", script: &POSTGRES, rounds: 50, more: &[] },
];

const NOTES: [&str; 4] = [
    "files: python3 opens so many files and forks; the call alone is timed, once a process",
    "bash: a script with three files open runs subshells; make: -j2, a shell and cp a target",
    "nginx: four workers, log, pid and pages on the lane; PostgreSQL: psql, 'select 1'",
    "lane: with the library; lane (FUSE): without it; both in memory",
];

/// Measures milliseconds for each.
///
/// # Errors
/// Not root, a program is missing, or a tenant failed.
pub fn run(options: &Options) -> Result<Report> {
    let wanted = "python3 bash make nginx curl psql setpriv";
    if command("sh", &["-c", &format!("for p in {wanted}; do command -v $p || exit 1; done")])
        .is_err()
    {
        bail!("one of {wanted} is missing: 'scripts/setup.sh apps' installs them");
    }
    let ground = Ground::new()?;
    let title = "forks of programs whose files lie on a lane";
    let mut report = Report::new("forks", title, "program", "ms", Better::Lower);
    report.baseline = PLACES[0].name();
    let ready = available(&ground, &PLACES, &mut report);
    for repeat in 0..options.repeats() {
        for load in &LOADS {
            for place in &ready {
                progress(&format!("{} {}, repeat {}", load.point, place.0.name(), repeat + 1));
                one(&mut report, place, load)?;
            }
        }
    }
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

fn one(report: &mut Report, (place, shared): &(Place, PathBuf), load: &Load) -> Result<()> {
    let shared: &Path = shared;
    let mut args = vec![load.rounds.to_string()];
    args.extend(load.more.iter().map(|word| word.to_string()));
    let tenant = Tenant::script(*place, shared, load.script, 0, &args)?;
    let outcome = together(vec![tenant])?.remove(0);
    report.add(&place.name(), load.point, 1e3 / outcome.rate(), &[]);
    Ok(())
}
