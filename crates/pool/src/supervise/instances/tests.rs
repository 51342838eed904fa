//! A further lane as its supervisor has it, with this test in the service's place.

use std::process::Command;

use polylane_base::sync::Arc;
use polylane_front::beat::{self, Beat};
use polylane_sys::ns::Child;
use polylane_vfs::handover::Heart;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;

/// A process that does nothing.
#[expect(clippy::zombie_processes, reason = "it is waited for by what it becomes")]
fn process() -> Process {
    let child = Command::new("sleep").arg("60").spawn().expect("sleep");
    let pidfd = Pid::from_raw(child.id() as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let pidfd = pidfd.expect("a number").expect("pidfd");
    Process::new(Child { pid: child.id(), pidfd })
}

/// A lane that starts, and the service's end of its line.
fn starting(starter: Option<OwnedFd>) -> (Instance, Link) {
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").expect("open"));
    let (link, other) = Link::pair().expect("a line");
    let (handover, watchdog) = Watchdog::with_handover().expect("memory");
    let instance = Instance {
        id: 1,
        spec: PoolSpec::sample(),
        handed: Handed::default(),
        doors: Doors { fuse: file(), socket: file() },
        handover,
        watchdog,
        member: None,
        copies: Copies::default(),
        solidifying: Solidifying::default(),
        stage: Stage::Starting,
        since: Instant::now(),
        link: ServiceLine::new(link),
        witness: witness::Late::Ended,
        starter,
        enders: Vec::new(),
        run_dir: RunDir(PathBuf::from("/nowhere/no@1.1.lane")),
    };
    (instance, other)
}

/// The service's end of a line closes, which a child that another test forks may put off.
fn close(service: Link, one: &Instance) {
    drop(service);
    assert!(wait_for(one.link.as_fd(), Duration::from_secs(20)), "closed");
}

/// So often the watchdog looks at least before it takes a thread for one that hangs.
const LOOKS: usize = 10;

#[test]
fn a_lane_that_starts_or_ends_slowly_does_not_hang_its_service() {
    let (one, service) = starting(None);
    let heart = Arc::new(Heart::attach(&one.handover).expect("map"));
    let mut all = Instances { all: vec![one], ..Instances::new(true) };
    // As a service's thread does before it opens the volume.
    Beat::watched(heart, beat::MAIN).busy();
    let hangs = |all: &mut Instances| {
        (0..LOOKS).any(|_| {
            all.all[0].watchdog.hurry();
            all.hang(std::process::id())
        })
    };
    let lives = process();
    assert!(!hangs(&mut all), "it starts");
    service.send(&FromService::Ready { wire: 1 }, &[]).expect("send");
    assert_eq!(all.all[0].hear(&lives), None);
    assert!(hangs(&mut all), "it serves, and does not move");
    all.all[0].end();
    assert!(!hangs(&mut all), "it ends");
    assert_eq!(all.all[0].hear(&lives), None);
    // Without end it does neither.
    all.all[0].since -= FLUSH_TIME_MAX;
    assert!(matches!(all.all[0].hear(&lives), Some(Err(why)) if why.contains("in time")));
}

#[test]
fn a_service_that_ends_again_while_lanes_come_back_costs_none_of_them() {
    let (mut one, service) = starting(None);
    let (mut again, lives) = (process(), process());
    close(service, &one);
    assert_eq!(one.hear(&again), None, "the next service is told of it again");
    again.wait().expect("it is ended, if it is not yet");
    // One that was never served is not tried again.
    let (starter, _command) = scm::pair().expect("a line");
    let (mut one, service) = starting(Some(starter));
    close(service, &one);
    assert!(matches!(one.hear(&lives), Some(Err(_))));
}

#[test]
fn a_command_that_ends_a_lost_lane_late_is_told_once() {
    let mut all = Instances::new(true);
    all.lost.insert(7, "torn".to_string());
    let mut leave = |id| {
        let (client, command) = scm::pair().expect("a line");
        all.leave(client, id);
        let mut bytes = [0; 100];
        let count = scm::receive(&command, &mut bytes).expect("an answer").count;
        serde_json::from_slice::<Left>(&bytes[..count]).expect("JSON")
    };
    let ended = Left::Ended { is_last: false };
    assert_eq!(leave(8), ended);
    assert_eq!((leave(7), leave(7)), (Left::Lost("torn".to_string()), ended));
}
