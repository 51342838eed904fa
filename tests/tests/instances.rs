//! Lanes of one pool over the same layers: instances of one service, each with a volume, a mount
//! and caches of its own (`mount --share --lower`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_sys::scm;
use polylane_tests::host::{
    Host, child, children, lock_tables, polylane, refused, service_below, succeeds, text, until,
};
use polylane_tests::pool::{no_library, signal_to};
use polylane_tests::{binary, unavailable};
use rustix::process::{Pid, Signal, kill_process};

/// A pool, and the layers of its lanes.
struct Tenant {
    host: Host,
    pool: String,
    layers: Vec<PathBuf>,
    /// Lanes whose volumes are on disks that can be slow.
    slow: Vec<String>,
}

/// A disk that answers nothing while it is stopped: a lane, in which a volume is. Its supervisor
/// first, which would have another service at once.
struct Slow([u32; 2]);

impl Slow {
    fn stop(&self) {
        self.tell(Signal::STOP);
    }

    fn go(&self) {
        self.tell(Signal::CONT);
    }

    fn tell(&self, signal: Signal) {
        for process in self.0.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
            let _ = kill_process(process, signal);
        }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.go();
    }
}

impl Tenant {
    /// `None`: said why.
    fn new(test: &str) -> Option<Tenant> {
        if unavailable(test) {
            return None;
        }
        let host = Host::new();
        let pool = host.pool(&test.chars().take(20).collect::<String>());
        succeeds(&["pool", "create", &pool]);
        let layers: Vec<PathBuf> = ["upper", "lower"].map(|name| host.dir(name)).into();
        fs::create_dir(layers[0].join("dir")).expect("mkdir");
        fs::write(layers[0].join("dir/file"), "upper\n").expect("write");
        fs::write(layers[1].join("low"), "low\n").expect("write");
        fs::write(layers[1].join("big"), vec![7; 300_000]).expect("write");
        Some(Tenant { host, pool, layers, slow: Vec::new() })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.host.path(name)
    }

    fn volume(&self, name: &str) -> PathBuf {
        match self.slow.iter().any(|slow| slow == name) {
            true => self.host.path(&format!("slow-{name}/{name}.img")),
            false => self.host.path(&format!("{name}.img")),
        }
    }

    /// The disk that the volume of a lane is going to be on.
    fn slow(&mut self, name: &str) -> Slow {
        let at = self.host.dir(&format!("slow-{name}"));
        let volume = self.host.path(&format!("slow-{name}.img"));
        succeeds(&["mount", "--size", "256M", text(&volume), text(&at)]);
        self.slow.push(name.to_string());
        let is_it = |mount: &serde_json::Value| mount["path"].as_str() == Some(text(&at));
        let mount = self.host.mounts().into_iter().find(is_it).expect("mounted");
        let supervisor = mount["supervisor"].as_u64().expect("a number") as u32;
        Slow([supervisor, service_below(supervisor).expect("a service")])
    }

    /// The numbers of its lanes by which their run directories are called.
    fn ids(&self) -> Vec<String> {
        let entries = fs::read_dir("/run/polylane").expect("list");
        let names = entries.map(|entry| entry.expect("entry").file_name().into_string());
        let own = format!("{}@1.", self.pool);
        let id = |name: String| Some(name.strip_prefix(&own)?.strip_suffix(".lane")?.to_string());
        names.filter_map(|name| id(name.expect("UTF-8"))).collect()
    }

    fn words(&self, name: &str) -> Vec<String> {
        let mut words: Vec<String> =
            ["mount", "--pool", &self.pool, "--share", "--size", "64M"].map(String::from).into();
        for layer in &self.layers {
            words.extend(["--lower".to_string(), text(layer).to_string()]);
        }
        words.push(format!("volume:{}", text(&self.volume(name))));
        words.push(text(&self.at(name)).to_string());
        words
    }

    fn mount(&self, name: &str) -> PathBuf {
        fs::create_dir_all(self.at(name)).expect("mkdir");
        succeeds(&strs(&self.words(name)));
        self.at(name)
    }

    fn refused(&self, name: &str) -> String {
        fs::create_dir_all(self.at(name)).expect("mkdir");
        refused(&strs(&self.words(name))).1
    }

    fn umount(&self, name: &str) {
        succeeds(&["umount", text(&self.at(name))]);
    }

    fn info(&self) -> serde_json::Value {
        serde_json::from_str(&succeeds(&["pool", "info", "--json", &self.pool])).expect("JSON")
    }

    /// The processes of its services. One that was replaced just now has none for a moment.
    fn services(&self) -> Vec<u32> {
        let pid = |service: &serde_json::Value| Some(service["service_pid"].as_u64()? as u32);
        let pids = || {
            let info = self.info();
            let services = info["services"].as_array().expect("services");
            services.iter().map(pid).collect::<Option<Vec<_>>>()
        };
        let found = RefCell::new(None);
        until("each service has a process", || {
            found.replace(pids());
            found.borrow().is_some()
        });
        found.into_inner().expect("processes")
    }

    /// The only one.
    fn service(&self) -> u32 {
        let services = self.services();
        assert_eq!(services.len(), 1, "{}", self.info());
        services[0]
    }

    /// Kills the service, and waits for the next one.
    fn kill(&self) {
        let former = self.service();
        signal_to(former, "KILL");
        until("the next service", || {
            let info = self.info();
            let now = info["services"][0]["service_pid"].as_u64();
            now.is_some_and(|pid| pid != u64::from(former))
        });
    }

    /// The process that all of its lanes have above their service.
    fn supervisor(&self) -> u32 {
        self.host.mounts()[0]["supervisor"].as_u64().expect("a number") as u32
    }

    /// Leaves nothing in the volume of a lane, which keeps its size.
    fn wipe(&self, name: &str) {
        let volume = fs::File::options().write(true).open(self.volume(name)).expect("open");
        let size = volume.metadata().expect("stat").len();
        volume.set_len(0).and_then(|()| volume.set_len(size)).expect("truncate");
    }

    /// What the supervisor answers to a command that ends the lane of this number.
    fn leave(&self, id: &str) -> String {
        let control = format!("/run/polylane/{}@1.control", self.pool);
        let socket = scm::connect(Path::new(&control)).expect("connect");
        scm::send(&socket, format!("leave {id}").as_bytes(), &[]).expect("send");
        let mut bytes = [0; 1000];
        let count = scm::receive(&socket, &mut bytes).expect("an answer").count;
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    /// Nothing of the pool is left but itself.
    fn assert_nothing_is_left(&self) {
        self.host.assert_nothing_is_left();
        let own = format!("{}@", self.pool);
        let left = || {
            let entries = fs::read_dir("/run/polylane").into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.starts_with(&own)).collect::<Vec<_>>()
        };
        until("the service's files are gone", || left().is_empty());
        succeeds(&["pool", "rm", &self.pool]);
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Words as commands take them.
fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn append(path: &Path, words: &str) -> std::io::Result<()> {
    fs::File::options().append(true).create(true).open(path)?.write_all(words.as_bytes())
}

fn synced(path: &Path, words: &str) {
    let mut file = fs::File::create(path).expect("create");
    file.write_all(words.as_bytes()).expect("write");
    file.sync_all().expect("sync");
}

/// What a process calls its threads.
fn threads(pid: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let names = entries.map(|entry| fs::read_to_string(entry.path().join("comm")));
    names.flatten().map(|name| name.trim().to_string()).collect()
}

/// Threads of a lane that wait for the kernel: at most, and those that are there from the first.
const ASIDE: usize = 6;
const ASIDE_FIRST: usize = 3;

/// The processes that look at clients.
fn witnesses(supervisor: u32) -> Vec<u32> {
    let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let all = children(supervisor).expect("a supervisor").into_iter();
    all.filter(|pid| name(*pid).trim() == "polylane-look").collect()
}

/// A program with the library reads and writes in a lane.
fn has_the_fast_way(at: &Path) {
    let environment = succeeds(&["env", text(at)]);
    let script =
        format!("{environment}\ncd {}; cat low; echo fast >f; cat f big | wc -c", text(at));
    let output = Command::new("sh").args(["-euc", &script]).output().expect("sh");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said, "low\n300005\n");
    assert_eq!(read(&at.join("f")), "fast\n", "the kernel's way");
}

#[test]
fn lanes_over_the_same_layers_are_instances_of_one_service() {
    let Some(tenant) = Tenant::new("lanes_over_the_same_layers_are_instances_of_one_service")
    else {
        return;
    };
    let one = tenant.mount("one");
    let service = tenant.service();
    let alone = threads(service).len();
    let (two, three) = (tenant.mount("two"), tenant.mount("three"));
    assert_eq!(tenant.service(), service, "no further one was started");
    let instances = tenant.info()["services"][0]["instances"].clone();
    let paths: Vec<&str> =
        instances.as_array().expect("some").iter().filter_map(|i| i["path"].as_str()).collect();
    for at in [&one, &two, &three] {
        assert!(paths.contains(&text(at)), "{instances}");
    }
    // What one changes the others do not see, nor the layers.
    append(&one.join("low"), "one\n").expect("append");
    fs::remove_file(two.join("low")).expect("remove");
    fs::rename(two.join("dir"), two.join("moved")).expect("rename");
    assert_eq!(read(&one.join("low")), "low\none\n");
    assert!(!two.join("low").exists() && !two.join("dir").exists());
    assert_eq!(
        (read(&three.join("low")), read(&three.join("dir/file"))),
        ("low\n".into(), "upper\n".into())
    );
    assert_eq!(read(&two.join("moved/file")), "upper\n");
    assert_eq!(read(&tenant.layers[1].join("low")), "low\n");
    // One that ends takes its threads along, and is there again with what it had.
    tenant.umount("two");
    tenant.umount("three");
    until("its threads have ended", || threads(service).len() <= alone + ASIDE);
    assert_eq!(read(&one.join("low")), "low\none\n");
    let two = tenant.mount("two");
    assert_eq!(tenant.service(), service);
    assert_eq!(read(&two.join("moved/file")), "upper\n");
    // The first one is no more than the others.
    tenant.umount("one");
    assert_eq!(read(&two.join("moved/file")), "upper\n");
    tenant.umount("two");
    tenant.assert_nothing_is_left();
    for name in ["one", "two", "three"] {
        polylane_tests::volume::assert_clean(&tenant.volume(name));
    }
}

#[test]
fn programs_have_the_fast_way_into_each_of_them() {
    let test = "programs_have_the_fast_way_into_each_of_them";
    let Some(tenant) = Tenant::new(test) else { return };
    if no_library(test) {
        return;
    }
    let lanes = ["one", "two"].map(|name| tenant.mount(name));
    for at in &lanes {
        has_the_fast_way(at);
        fs::write(at.join("f"), text(at)).expect("write");
    }
    for at in &lanes {
        assert_eq!(read(&at.join("f")), text(at));
        tenant.umount(at.file_name().and_then(|name| name.to_str()).expect("a name"));
    }
    tenant.assert_nothing_is_left();
}

#[test]
fn what_serves_clients_is_there_from_the_first_client_on() {
    let test = "what_serves_clients_is_there_from_the_first_client_on";
    let Some(tenant) = Tenant::new(test) else { return };
    if no_library(test) {
        return;
    }
    let lanes = ["one", "two"].map(|name| tenant.mount(name));
    for at in &lanes {
        append(&at.join("low"), "more\n").expect("append");
        fs::rename(at.join("low"), at.join("other")).expect("rename");
        assert_eq!(read(&at.join("other")), "low\nmore\n");
        fs::write(at.join("low"), "low\n").expect("write");
    }
    let (supervisor, service) = (tenant.supervisor(), tenant.service());
    let named = |service, start: &str| {
        threads(service).iter().filter(|name| name.starts_with(start)).count()
    };
    // Threads of a lane's fast way in: they have their acceptor's name until they run.
    let serving = |service| named(service, "shm-").saturating_sub(1 + lanes.len());
    until("the acceptors", || named(service, "shm-accept") == 1 + lanes.len());
    // The service's own lane, of the layers alone, has a witness as any run has.
    assert_eq!((witnesses(supervisor).len(), serving(service)), (1, 0), "{:?}", threads(service));
    until("those that the kernel's requests may wait for", || {
        named(service, "fuse-") == ASIDE_FIRST * (1 + lanes.len())
    });
    has_the_fast_way(&lanes[0]);
    let one_has = serving(service);
    assert!(one_has > 1, "{:?}", threads(service));
    let former = witnesses(supervisor);
    assert_eq!(former.len(), 2);
    has_the_fast_way(&lanes[0]);
    assert_eq!((witnesses(supervisor), serving(service)), (former.clone(), one_has), "once");
    // A lane that had a client is ready for it when there is another service.
    tenant.kill();
    until("a witness for that lane", || {
        let now = witnesses(supervisor);
        now.len() == 2 && now.iter().all(|pid| !former.contains(pid))
    });
    for at in lanes.iter().rev() {
        has_the_fast_way(at);
    }
    let service = tenant.service();
    until("the acceptor of the layers", || serving(service) >= 2 * one_has);
    assert_eq!((witnesses(supervisor).len(), serving(service)), (3, 2 * one_has));
    tenant.umount("one");
    until("its witness has ended", || witnesses(supervisor).len() == 2);
    tenant.umount("two");
    tenant.assert_nothing_is_left();
}

#[test]
fn all_of_them_go_on_when_their_service_is_killed_or_replaced() {
    let test = "all_of_them_go_on_when_their_service_is_killed_or_replaced";
    let Some(tenant) = Tenant::new(test) else { return };
    let lanes = ["one", "two", "three"].map(|name| tenant.mount(name));
    let lower: Vec<fs::File> =
        lanes.iter().map(|at| fs::File::open(at.join("big")).expect("open")).collect();
    for at in &lanes {
        synced(&at.join("synced"), text(at));
    }
    let mut unsynced = fs::File::create(lanes[1].join("unsynced")).expect("create");
    unsynced.write_all(b"lost").expect("write");
    tenant.kill();
    for (at, open) in lanes.iter().zip(&lower) {
        assert_eq!(read(&at.join("synced")), text(at));
        let mut bytes = [0; 4];
        open.read_exact_at(&mut bytes, 200_000).expect("an open file of a layer");
        assert_eq!(bytes, [7; 4]);
        append(&at.join("low"), "more\n").expect("it goes on");
    }
    unsynced.sync_all().expect_err("who lost something is told");
    // What is not synced survives the replacement of a service that lives.
    succeeds(&["pool", "upgrade", &tenant.pool]);
    for at in &lanes {
        assert_eq!(read(&at.join("low")), "low\nmore\n");
    }
    assert_eq!(tenant.services().len(), 1);
    drop((lower, unsynced));
    // One that joined before a restart leaves as any other, and one joins after it.
    tenant.umount("one");
    let four = tenant.mount("four");
    assert_eq!(read(&four.join("low")), "low\n");
    tenant.kill();
    assert_eq!(read(&four.join("low")), "low\n");
    for name in ["two", "three", "four"] {
        tenant.umount(name);
    }
    tenant.assert_nothing_is_left();
}

#[test]
fn an_upper_that_fails_is_no_other_lanes_concern() {
    let test = "an_upper_that_fails_is_no_other_lanes_concern";
    let Some(tenant) = Tenant::new(test) else { return };
    let one = tenant.mount("one");
    let service = tenant.service();
    // Full.
    let two = tenant.mount("two");
    let full = fs::write(two.join("fill"), vec![1; 200 << 20]);
    let full = full.and_then(|()| fs::File::open(two.join("fill"))?.sync_all());
    assert_eq!(full.expect_err("64 MiB").kind(), std::io::ErrorKind::StorageFull);
    append(&one.join("low"), "one\n").expect("another has room");
    fs::remove_file(two.join("fill")).expect("remove");
    tenant.umount("two");
    // No upper: it has files of its own.
    let other = tenant.host.dir("plain");
    succeeds(&["mount", "--size", "64M", text(&tenant.volume("foreign")), text(&other)]);
    fs::write(other.join("file"), "mine").expect("write");
    succeeds(&["umount", text(&other)]);
    let line = tenant.refused("foreign");
    assert!(line.contains("file"), "{line}");
    // Torn: what lies in its middle is nonsense.
    let torn = fs::File::options().write(true).open(tenant.volume("two")).expect("open");
    torn.write_all_at(&[0xa5; 1 << 20], 0).expect("write");
    drop(torn);
    tenant.refused("two");
    // In use.
    let line = tenant.refused_at("one", "again");
    assert!(line.contains("one.img"), "{line}");
    // Who is told to go while it is used stays.
    let busy = fs::File::open(one.join("low")).expect("open");
    refused(&["umount", text(&one)]);
    assert_eq!(read(&one.join("low")), "low\none\n");
    drop(busy);
    assert_eq!(tenant.service(), service, "it has never ended");
    tenant.umount("one");
    tenant.assert_nothing_is_left();
}

impl Tenant {
    /// What is said of the volume of a lane at another path.
    fn refused_at(&self, name: &str, other: &str) -> String {
        fs::create_dir_all(self.at(other)).expect("mkdir");
        let mut words = self.words(name);
        let at = words.len() - 1;
        words[at] = text(&self.at(other)).to_string();
        // As its own SOURCE it would be one more path of the same lane.
        words.retain(|word| word != "--share");
        refused(&strs(&words)).1
    }
}

#[test]
fn a_lane_of_its_own_is_shared_at_more_paths() {
    let Some(tenant) = Tenant::new("a_lane_of_its_own_is_shared_at_more_paths") else { return };
    let (one, two) = (tenant.mount("one"), tenant.mount("two"));
    let more = tenant.host.dir("more");
    let mut words = tenant.words("one");
    let at = words.len() - 1;
    words[at] = text(&more).to_string();
    succeeds(&strs(&words));
    append(&more.join("low"), "more\n").expect("append");
    assert_eq!(
        (read(&one.join("low")), read(&two.join("low"))),
        ("low\nmore\n".into(), "low\n".into())
    );
    let (_, line) = refused(&["umount", text(&one)]);
    assert!(line.contains(text(&more)), "{line}");
    succeeds(&["umount", text(&more)]);
    succeeds(&["umount", text(&one)]);
    assert_eq!(read(&two.join("low")), "low\n");
    tenant.umount("two");
    tenant.assert_nothing_is_left();
}

/// Of other layers, or of those in another order, there is another service; a directory that was
/// exchanged for one of the same name is another layer.
#[test]
fn other_layers_have_another_service() {
    let Some(mut tenant) = Tenant::new("other_layers_have_another_service") else { return };
    tenant.mount("one");
    tenant.layers.reverse();
    tenant.mount("two");
    assert_eq!(tenant.services().len(), 2);
    tenant.layers.reverse();
    fs::rename(tenant.at("lower"), tenant.at("former")).expect("rename");
    fs::create_dir(tenant.at("lower")).expect("mkdir");
    fs::write(tenant.at("lower/low"), "new\n").expect("write");
    let three = tenant.mount("three");
    assert_eq!(read(&three.join("low")), "new\n");
    assert_eq!(read(&tenant.at("one/low")), "low\n");
    assert_eq!(tenant.services().len(), 3);
    for name in ["one", "two", "three"] {
        tenant.umount(name);
    }
    tenant.assert_nothing_is_left();
}

/// A command that is killed leaves no lane half made, and none that holds its volume.
#[test]
fn a_mount_that_is_killed_leaves_nothing() {
    let Some(tenant) = Tenant::new("a_mount_that_is_killed_leaves_nothing") else { return };
    tenant.mount("one");
    fs::create_dir(tenant.at("two")).expect("mkdir");
    for delay in 0..20 {
        let words = tenant.words("two");
        let mut command = Command::new(binary());
        let mut mount = command
            .args(&words)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a mount");
        std::thread::sleep(Duration::from_millis(3 * delay));
        mount.kill().expect("kill");
        mount.wait().expect("wait");
        // Mounted or not, it can be mounted again, and has what was there.
        until("it is mounted", || polylane(&strs(&words)).status.success());
        append(&tenant.at("two/log"), "x").expect("append");
        succeeds(&["umount", "--all", text(&tenant.at("two"))]);
    }
    tenant.mount("two");
    assert_eq!(read(&tenant.at("two/log")), "x".repeat(20));
    assert_eq!(tenant.services().len(), 1);
    tenant.umount("two");
    tenant.umount("one");
    tenant.assert_nothing_is_left();
}

/// Files of a lane as they are to be: what was synced, and what was written since.
#[derive(Clone, Default)]
struct Model {
    durable: BTreeMap<String, String>,
    now: BTreeMap<String, String>,
    /// A service was killed: the next sync may say that something was lost.
    may_be_told: bool,
}

/// Lanes start, end, write, sync and lose their service in random order; each has what it wrote,
/// after a kill at least what it synced, and none has anything of another's.
#[test]
fn lanes_in_random_order_keep_what_is_theirs() {
    let Some(tenant) = Tenant::new("lanes_in_random_order_keep_what_is_theirs") else { return };
    let mut rng = Rng::new(28);
    let names = ["a", "b", "c", "d"];
    let mut models: BTreeMap<&str, Model> = BTreeMap::new();
    let mut mounted: BTreeMap<&str, bool> = BTreeMap::new();
    for step in 0..120 {
        let name = names[rng.below(4) as usize];
        let is_mounted = mounted.get(name).copied().unwrap_or(false);
        let model = models.entry(name).or_default();
        let file = format!("f{}", rng.below(3));
        let path = tenant.at(name).join(&file);
        match rng.below(10) {
            0 if is_mounted => {
                tenant.umount(name);
                model.durable = model.now.clone();
                mounted.insert(name, false);
            }
            1 if mounted.values().any(|is| *is) => {
                tenant.kill();
                // Bytes that were not synced may be lost, or not.
                for (name, model) in
                    models.iter_mut().filter(|(name, _)| mounted.get(*name) == Some(&true))
                {
                    settle(&tenant.at(name), model);
                }
            }
            2 if mounted.values().any(|is| *is) => {
                succeeds(&["pool", "upgrade", &tenant.pool]);
            }
            3..=6 if is_mounted => {
                let words = format!("{name} {step}\n");
                synced_append(&path, &words, None);
                *model.now.entry(file).or_default() += &words;
            }
            7 | 8 if is_mounted => {
                let words = format!("{name} {step} synced\n");
                synced_append(&path, &words, Some(model.may_be_told));
                *model.now.entry(file.clone()).or_default() += &words;
                model.durable.insert(file.clone(), model.now[&file].clone());
            }
            _ if !is_mounted => {
                tenant.mount(name);
                mounted.insert(name, true);
            }
            _ => {}
        }
        for (name, model) in models.iter().filter(|(name, _)| mounted.get(*name) == Some(&true)) {
            for (file, words) in &model.now {
                assert_eq!(&read(&tenant.at(name).join(file)), words, "step {step}: {name}/{file}");
            }
        }
    }
    for (name, _) in mounted.iter().filter(|(_, is)| **is) {
        tenant.umount(name);
    }
    tenant.assert_nothing_is_left();
}

/// Appends, and with `sync` has it and its name durable. `Some(true)`: a loss may be told first.
fn synced_append(path: &Path, words: &str, sync: Option<bool>) {
    let mut file = fs::File::options().append(true).create(true).open(path).expect("open");
    file.write_all(words.as_bytes()).expect("write");
    let Some(may_be_told) = sync else { return };
    let above = fs::File::open(path.parent().expect("a directory")).expect("open");
    for file in [file, above] {
        let synced = file.sync_all();
        let synced = if may_be_told { synced.or_else(|_| file.sync_all()) } else { synced };
        synced.expect("sync");
    }
}

/// After a kill: each file has what was synced, and perhaps more of what was written.
fn settle(at: &Path, model: &mut Model) {
    model.may_be_told = true;
    for name in ["f0", "f1", "f2"] {
        let durable = model.durable.get(name).cloned();
        let now = model.now.remove(name);
        match fs::read_to_string(at.join(name)) {
            Ok(found) => {
                let wrote = now.unwrap_or_default();
                let durable = durable.unwrap_or_default();
                let kept = found.trim_end_matches('\0');
                assert!(found.starts_with(&durable), "{name}: {found:?} has not {durable:?}");
                assert!(wrote.starts_with(kept), "{name}: {found:?} is not of {wrote:?}");
                model.now.insert(name.to_string(), found.clone());
                model.durable.insert(name.to_string(), found);
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{name}");
                assert_eq!(durable, None, "{name}: was synced");
                model.durable.remove(name);
            }
        }
    }
}

/// Memory that a process has, its part of what it shares, but for that of files, in bytes.
fn own_memory(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("its memory");
    let of = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    of("Pss_Anon:") + of("Pss_Shmem:")
}

/// The host and the kernel have them.
#[test]
fn what_programs_read_of_the_layers_by_the_kernel_is_in_no_memory_of_the_service() {
    let name = "what_programs_read_of_the_layers_by_the_kernel_is_in_no_memory_of_the_service";
    let Some(tenant) = Tenant::new(name) else { return };
    let bytes: Vec<u8> = (0..32 << 20).map(|at: u32| (at / 5).to_le_bytes()[1]).collect();
    fs::write(tenant.layers[0].join("library"), &bytes).expect("write");
    let lanes = ["a", "b"].map(|name| tenant.mount(name));
    let before = own_memory(tenant.service());
    for lane in &lanes {
        assert!(fs::read(lane.join("library")).expect("read") == bytes);
    }
    let more = own_memory(tenant.service()).saturating_sub(before);
    assert!(more < 8 << 20, "{more} bytes more");
    // Who has it open sees what is written.
    let open = fs::File::open(lanes[0].join("library")).expect("open");
    let mut part = [0; 5000];
    open.read_exact_at(&mut part, 1_000_000).expect("read");
    append(&lanes[0].join("library"), "more").expect("write");
    let writer = fs::File::options().write(true).open(lanes[0].join("library")).expect("open");
    writer.write_all_at(b"new", 1_000_100).expect("write");
    let mut expected = [&bytes[..], b"more"].concat();
    expected[1_000_100..1_000_103].copy_from_slice(b"new");
    let mut now = vec![0; expected.len()];
    open.read_exact_at(&mut now, 0).expect("read");
    assert!(now == expected);
    assert!(
        fs::read(lanes[1].join("library")).expect("read") == bytes,
        "the other has the layer's"
    );
    drop((open, writer));
    ["a", "b"].iter().for_each(|name| tenant.umount(name));
    tenant.assert_nothing_is_left();
}

#[test]
fn sixty_four_are_started_at_once() {
    let Some(tenant) = Tenant::new("sixty_four_are_started_at_once") else { return };
    let names: Vec<String> = (0..64).map(|number| format!("n{number}")).collect();
    for name in &names {
        fs::create_dir(tenant.at(name)).expect("mkdir");
    }
    let commands: Vec<Vec<String>> = names.iter().map(|name| tenant.words(name)).collect();
    std::thread::scope(|scope| {
        for some in commands.chunks(16) {
            scope.spawn(move || {
                for words in some {
                    succeeds(&strs(words));
                }
            });
        }
    });
    for name in &names {
        synced(&tenant.at(name).join("own"), name);
    }
    tenant.service();
    tenant.kill();
    for name in &names {
        assert_eq!(read(&tenant.at(name).join("low")), "low\n");
        assert_eq!(&read(&tenant.at(name).join("own")), name);
    }
    assert_eq!(child(tenant.supervisor(), "polylane-svc"), tenant.service());
    for name in &names {
        tenant.umount(name);
    }
    tenant.assert_nothing_is_left();
}

/// Sixteen commands at once.
fn all_succeed(commands: &[Vec<String>]) {
    assert_eq!(commands.len(), 16);
    std::thread::scope(|scope| {
        for words in commands {
            scope.spawn(move || succeeds(&strs(words)));
        }
    });
}

#[test]
fn a_busy_supervisor_is_waited_for_and_a_stopped_one_is_not() {
    let test = "a_busy_supervisor_is_waited_for_and_a_stopped_one_is_not";
    let Some(tenant) = Tenant::new(test) else { return };
    tenant.mount("first");
    let names: Vec<String> = (0..16).map(|number| format!("n{number}")).collect();
    names.iter().for_each(|name| fs::create_dir(tenant.at(name)).expect("mkdir"));
    let control = PathBuf::from(format!("/run/polylane/{}@1.control", tenant.pool));
    // It waits a second for what each of these asks.
    let busy = || [(); 6].map(|()| scm::connect(&control).expect("connect"));
    let asking = busy();
    all_succeed(&names.iter().map(|name| tenant.words(name)).collect::<Vec<_>>());
    drop(asking);
    tenant.service();
    for name in &names {
        synced(&tenant.at(name).join("own"), name);
    }
    let asking = busy();
    let umount = |name: &String| vec!["umount".to_string(), text(&tenant.at(name)).to_string()];
    all_succeed(&names.iter().map(umount).collect::<Vec<_>>());
    drop(asking);
    for name in &names {
        assert_eq!(&read(&tenant.mount(name).join("own")), name, "it was durable");
        tenant.umount(name);
    }
    let supervisor = Slow([tenant.supervisor(); 2]);
    supervisor.stop();
    let says = |what: &str| {
        let begin = Instant::now();
        let (_, line) = refused(&["pool", "upgrade", &tenant.pool]);
        assert!(line.contains("is stopped"), "{what}: {line}");
        let line = tenant.refused("n0");
        assert!(line.contains("is stopped"), "{what}: {line}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{what}: {:?}", begin.elapsed());
    };
    says("with room in its queue");
    let waiting: Vec<_> = std::iter::from_fn(|| scm::connect_now(&control).ok()).collect();
    assert!(waiting.len() > 16, "{}", waiting.len());
    says("without");
    drop(waiting);
    supervisor.go();
    tenant.umount("first");
    tenant.assert_nothing_is_left();
}

#[test]
fn an_unmount_that_waits_for_its_service_holds_up_no_other_command() {
    let test = "an_unmount_that_waits_for_its_service_holds_up_no_other_command";
    let Some(tenant) = Tenant::new(test) else { return };
    for name in ["one", "two"] {
        append(&tenant.mount(name).join("file"), name).expect("append");
    }
    let service = Slow([tenant.supervisor(), tenant.service()]);
    service.stop();
    let mut umount =
        Command::new(binary()).args(["umount", text(&tenant.at("two"))]).spawn().expect("umount");
    // First it has everything made durable, by a process of its own.
    let syncs = || children(umount.id()).is_some_and(|all| !all.is_empty());
    until("it syncs", syncs);
    let tables = lock_tables();
    service.go();
    until("it has synced", || !syncs());
    // The next process that looks at its root asks the service for its mode.
    fs::set_permissions(tenant.at("two"), fs::Permissions::from_mode(0o755)).expect("chmod");
    service.stop();
    drop(tables);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        let asked = Instant::now();
        drop(lock_tables());
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(umount.try_wait().expect("wait"), None, "it waits for its service");
    service.go();
    assert!(umount.wait().expect("wait").success());
    assert_eq!(read(&tenant.mount("two").join("file")), "two");
    tenant.umount("one");
    tenant.umount("two");
    tenant.assert_nothing_is_left();
}

#[test]
fn a_lane_that_does_not_come_back_is_at_no_path() {
    let Some(tenant) = Tenant::new("a_lane_that_does_not_come_back_is_at_no_path") else { return };
    let one = tenant.mount("one");
    let others = tenant.ids();
    synced(&tenant.mount("two").join("file"), "old");
    tenant.umount("two");
    let two = tenant.mount("two");
    let id = tenant.ids().into_iter().find(|id| !others.contains(id)).expect("its number");
    tenant.wipe("two");
    tenant.kill();
    append(&one.join("low"), "one\n").expect("another goes on");
    let paths = || tenant.host.mounts().into_iter().map(|mount| mount["path"].clone());
    until("its entry is gone", || !paths().any(|path| path == text(&two)));
    let seen = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!seen.contains(text(&two)), "{seen}");
    // A command that unmounted it meanwhile is told, once.
    assert!(tenant.leave(&id).starts_with(r#"{"Lost":"#));
    assert_eq!(tenant.leave(&id), r#"{"Ended":{"is_last":false}}"#);
    let (_, line) = refused(&["umount", text(&two)]);
    assert!(line.contains("no lane is mounted there"), "{line}");
    // Its path and its name are free.
    fs::remove_file(tenant.volume("two")).expect("remove");
    synced(&tenant.mount("two").join("file"), "new");
    assert_eq!(read(&one.join("low")), "low\none\n");
    tenant.umount("one");
    tenant.umount("two");
    tenant.assert_nothing_is_left();
}

/// What the kernel's umount(8) does, without a word to polylane.
fn detach(at: &Path) {
    let status = Command::new("umount").args(["-i", "-l", text(at)]).status();
    assert!(status.expect("umount").success());
}

/// Longer than the watchdog waits for a thread that has something in hand.
const HANGS_AFTER: Duration = Duration::from_secs(21);

#[test]
fn a_slow_end_of_one_costs_no_other() {
    let Some(mut tenant) = Tenant::new("a_slow_end_of_one_costs_no_other") else { return };
    let disk = tenant.slow("ends");
    let one = tenant.mount("one");
    append(&tenant.mount("ends").join("file"), "kept").expect("append");
    let service = tenant.service();
    disk.stop();
    detach(&tenant.at("ends"));
    let begin = Instant::now();
    while begin.elapsed() < HANGS_AFTER {
        append(&one.join("log"), "x").expect("another goes on");
        assert_eq!(tenant.service(), service, "after {:?}", begin.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    disk.go();
    assert_eq!(read(&tenant.mount("ends").join("file")), "kept");
    assert_eq!(tenant.service(), service);
    for name in ["one", "ends", "slow-ends"] {
        tenant.umount(name);
    }
    tenant.assert_nothing_is_left();
}

/// The kernel gives the device number of a lane that is gone to the next one, which may be served
/// while the former one is still written back, and while a command is about to end that.
#[test]
fn a_lane_with_a_former_ones_device_number_is_not_taken_for_it() {
    let test = "a_lane_with_a_former_ones_device_number_is_not_taken_for_it";
    let Some(mut tenant) = Tenant::new(test) else { return };
    let disk = tenant.slow("former");
    let at = tenant.mount("former");
    let (former, device) = (tenant.ids(), at.metadata().expect("stat").dev());
    let [id] = &former[..] else { panic!("{former:?}") };
    append(&at.join("file"), "more").expect("append");
    disk.stop();
    detach(&at);
    let names = (0..8).map(|number| format!("next{number}"));
    let mut next = Vec::new();
    for name in names {
        let is_it = tenant.mount(&name).metadata().expect("stat").dev() == device;
        next.push(name);
        if is_it {
            break;
        }
    }
    let mut ids = tenant.ids();
    assert_eq!(ids.len(), next.len() + 1, "{ids:?}");
    disk.go();
    until("the former one is written back", || !tenant.ids().contains(id));
    ids.retain(|other| other != id);
    let left = tenant.ids();
    assert!(ids.iter().all(|id| left.contains(id)), "{left:?} are left of {ids:?}");
    // What a command says that was stopped before it could.
    assert_eq!(tenant.leave(id), r#"{"Ended":{"is_last":false}}"#);
    for (count, name) in next.iter().enumerate() {
        synced(&tenant.at(name).join("file"), name);
        tenant.umount(name);
        assert_eq!(tenant.ids().len(), next.len() - count - 1, "its run directory is gone at once");
    }
    assert_eq!(read(&tenant.mount("former").join("file")), "more");
    for name in ["former", "slow-former"] {
        tenant.umount(name);
    }
    tenant.assert_nothing_is_left();
}

#[test]
fn a_lane_in_another_mount_namespace_has_a_service_there() {
    let test = "a_lane_in_another_mount_namespace_has_a_service_there";
    let Some(tenant) = Tenant::new(test) else { return };
    let one = tenant.mount("one");
    let two = tenant.host.dir("two");
    let script = "\"$@\"; \"$1\" mount > /dev/null; cat \"$two/low\"; read go || true; \
                  \"$1\" mount > /dev/null; echo x > \"$two/low\"; \"$1\" umount \"$two\"";
    let mut other = Command::new("unshare")
        .args(["-m", "sh", "-euc", script, "sh"])
        .arg(binary())
        .args(tenant.words("two"))
        .env("two", &two)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare");
    let mut line = String::new();
    BufReader::new(other.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "low\n");
    assert_eq!(tenant.services().len(), 2);
    let mounted = tenant.host.mounts();
    assert!(mounted.iter().any(|mount| mount["path"] == text(&two)), "{mounted:?}");
    drop(other.stdin.take());
    assert!(other.wait().expect("wait").success());
    assert_eq!(read(&one.join("low")), "low\n");
    assert_eq!(read(&tenant.mount("two").join("low")), "x\n");
    tenant.service();
    tenant.umount("one");
    tenant.umount("two");
    tenant.assert_nothing_is_left();
}

/// A program that cannot serve one of them is none to go on with.
#[test]
fn an_upgrade_that_refuses_one_of_them_is_taken_back() {
    let test = "an_upgrade_that_refuses_one_of_them_is_taken_back";
    let Some(tenant) = Tenant::new(test) else { return };
    let one = tenant.mount("one");
    // What is new in a volume is written as it is handed over.
    synced(&tenant.mount("two").join("file"), "old");
    tenant.umount("two");
    tenant.mount("two");
    tenant.wipe("two");
    let (_, line) = refused(&["pool", "upgrade", &tenant.pool]);
    assert!(line.contains("former program goes on") && line.contains("two"), "{line}");
    append(&one.join("low"), "one\n").expect("it goes on");
    assert_eq!(read(&one.join("low")), "low\none\n");
    tenant.umount("one");
    let _ = polylane(&["umount", "-l", text(&tenant.at("two"))]);
    tenant.assert_nothing_is_left();
}

/// Lanes of a pool that was not made may be of different tenants.
#[test]
fn lanes_in_no_pool_have_services_of_their_own() {
    let Some(tenant) = Tenant::new("lanes_in_no_pool_have_services_of_their_own") else { return };
    for name in ["one", "two"] {
        fs::create_dir(tenant.at(name)).expect("mkdir");
        let mut words = tenant.words(name);
        words.retain(|word| *word != "--pool" && *word != tenant.pool);
        succeeds(&strs(&words));
    }
    let mounts = tenant.host.mounts();
    assert_ne!(mounts[0]["supervisor"], mounts[1]["supervisor"]);
    for name in ["one", "two"] {
        append(&tenant.at(name).join("low"), name).expect("append");
        tenant.umount(name);
    }
    tenant.assert_nothing_is_left();
}
