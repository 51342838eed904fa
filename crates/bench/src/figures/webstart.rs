//! `webstart`: web servers, each in a root of its own over one image, from nothing until all answer
//! (Polytropon's container start). The image is nginx with the host's libraries.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::pools::{memory, processes};
use crate::report::{Better, Report};
use crate::tools::{command, polylane};
use crate::unions::{Union, Way};
use crate::{Options, progress};

/// The first is the baseline.
const WAYS: [Way; 5] = [Way::Overlayfs, Way::Plain, Way::FuseOverlayfs, Way::LaneFuse, Way::Lane];

/// Servers listen from this port of the loopback device on.
const PORT: usize = 18_100;

/// How long all of them may take to answer.
const PATIENCE: Duration = Duration::from_secs(600);

const PAGE: &str = "a page\n";

/// Measures milliseconds from the first mount to the last answer.
///
/// # Errors
/// Not root, no nginx, or one does not answer.
pub fn run(options: &Options) -> Result<Report> {
    let title = "web servers on one image, from nothing until all answer";
    let mut report = Report::new("webstart", title, "servers", "ms", Better::Lower);
    let ways = Way::available(&Way::chosen(&WAYS, options)?, &mut report.notes);
    ensure!(!ways.is_empty(), "nothing to measure is on this host");
    report.baseline = ways[0].name().to_string();
    let image = tempfile::tempdir().context("directory of the image")?;
    make_image(image.path())?;
    let points: &[usize] = if options.quick { &[1, 8] } else { &[1, 16, 64, 256] };
    for servers in options.points(points) {
        for repeat in 0..options.repeats() {
            for &way in &ways {
                progress(&format!("{servers}, {}, repeat {}", way.name(), repeat + 1));
                measure(&mut report, way, servers, image.path())?;
            }
        }
    }
    report.notes.extend([
        "as many are started at a time as there are CPUs; each has a root file system of its own"
            .to_string(),
        "lanes are in one pool for 128 servers, so instances of one service; services_mib: \
         proportional set size of all processes of all lanes"
            .to_string(),
    ]);
    Ok(report)
}

/// A server that runs. Dropped, it is ended, and its root unmounted.
struct Server {
    // After the child: its root.
    child: Child,
    _union: Union,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lanes of a pool: its table takes 192.
const LANES: usize = 128;

/// The pools that all servers on lanes are in, each with one service. Dropped, they are removed.
struct Pools(Vec<String>);

impl Pools {
    fn make(way: Way, servers: usize) -> Result<Pools> {
        let mut pools = Pools(Vec::new());
        let lanes = if matches!(way, Way::LaneFuse | Way::Lane) { servers } else { 0 };
        for number in 0..lanes.div_ceil(LANES) {
            let name = format!("bench-webstart-{}-{number}", std::process::id());
            polylane(&["pool", "create", &name])?;
            pools.0.push(name);
        }
        Ok(pools)
    }

    /// The one of a server, if it is on a lane.
    fn of(&self, server: usize) -> Option<&str> {
        self.0.get(server / LANES).map(String::as_str)
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        for name in &self.0 {
            if let Err(error) = polylane(&["pool", "rm", name]) {
                progress(&format!("{error}"));
            }
        }
    }
}

fn measure(report: &mut Report, way: Way, count: usize, image: &Path) -> Result<()> {
    // Before the lanes, so that it is dropped after them.
    let pools = Pools::make(way, count)?;
    let before = processes()?;
    let lowers = [image.to_path_buf()];
    let (next, started) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cpus = polylane_sys::cpu::allowed()?.len();
    let begun = Instant::now();
    let work = || -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            let server = start((way, pools.of(number)), &lowers, number)?;
            started.lock().expect("not poisoned").push(server);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|it| it.join().expect("a thread does not panic"))
    })?;
    for number in 0..count {
        answer(number, begun + PATIENCE)?;
    }
    let took = begun.elapsed().as_secs_f64() * 1e3;
    let services: Vec<u32> = processes()?.difference(&before).copied().collect();
    let services = if services.is_empty() { 0.0 } else { memory(&services)? };
    let all = services / f64::from(1 << 20);
    report.add(way.name(), &count.to_string(), took, &[("services_mib", all)]);
    Ok(())
}

fn start((way, pool): (Way, Option<&str>), lowers: &[PathBuf], number: usize) -> Result<Server> {
    let union = Union::mount_in(way, lowers, pool)?;
    let port = PORT + number;
    let text = format!(
        "daemon off; master_process off; pid /run/pid; error_log /log;\n\
         events {{ worker_connections 16; }}\n\
         http {{ access_log /access; client_body_temp_path /run/b; proxy_temp_path /run/p;\n\
         fastcgi_temp_path /run/f; uwsgi_temp_path /run/u; scgi_temp_path /run/s;\n\
         server {{ listen 127.0.0.1:{port}; root /srv; }} }}\n"
    );
    fs::write(union.at().join("etc/conf"), text).context("a configuration")?;
    let mut program = union.program_in_root("/bin/nginx", &["-e", "/log", "-c", "/etc/conf"]);
    let child = program.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(Server { child: child.context("run nginx")?, _union: union })
}

/// Waits until a server answers.
fn answer(number: usize, until: Instant) -> Result<()> {
    while Instant::now() < until {
        if ask(PORT + number).is_ok_and(|said| said.ends_with(PAGE.as_bytes())) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    bail!("server {number} does not answer")
}

fn ask(port: usize) -> std::io::Result<Vec<u8>> {
    let port = u16::try_from(port).map_err(std::io::Error::other)?;
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"GET /page HTTP/1.0\r\n\r\n")?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    Ok(said)
}

/// nginx of this host and its libraries.
fn make_image(root: &Path) -> Result<()> {
    for dir in ["bin", "etc", "srv", "run", "tmp", "dev", "proc"] {
        fs::create_dir_all(root.join(dir))?;
    }
    let nginx = command("sh", &["-c", "PATH=$PATH:/usr/sbin command -v nginx"])
        .context("no nginx: 'scripts/setup.sh apps' installs it")?;
    let nginx = nginx.trim();
    let libraries = command("ldd", &[nginx])?;
    let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    for library in libraries {
        let to = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(to.parent().context("a directory")?)?;
        fs::copy(library, &to).with_context(|| format!("copy {library}"))?;
    }
    fs::copy(nginx, root.join("bin/nginx")).with_context(|| format!("copy {nginx}"))?;
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    fs::write(root.join("srv/page"), PAGE)?;
    ensure!(root.join("bin/nginx").exists(), "no nginx in the image");
    Ok(())
}
