//! Other users of the host, who own directories that root names: what they put there leads no
//! command of root's elsewhere.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use polylane_tests::host::{Host, polylane, refused, succeeds, text};
use polylane_tests::{skip, unavailable};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Another user.
const OTHER: u32 = 1000;

/// A directory of another user's, and one of root's below which that user cannot search.
struct Place {
    host: Host,
    theirs: PathBuf,
    secret: PathBuf,
}

impl Place {
    /// `None`: said why.
    fn new(test: &str) -> Option<Place> {
        if unavailable(test) {
            return None;
        }
        if fs::metadata("/proc/self").expect("stat").uid() != 0 {
            skip(test, "only root has directories of others");
            return None;
        }
        let host = Host::new();
        fs::set_permissions(host.path(""), PermissionsExt::from_mode(0o755)).expect("chmod");
        let (theirs, closed) = (host.dir("theirs"), host.dir("closed"));
        fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).expect("chmod");
        let secret = closed.join("inner");
        for (dir, text) in [(&secret, "secret"), (&theirs.join("data"), "theirs")] {
            fs::create_dir(dir).expect("mkdir");
            fs::write(dir.join("file"), text).expect("write");
        }
        for path in [theirs.clone(), theirs.join("data"), theirs.join("data/file")] {
            chown(path, Some(OTHER), Some(OTHER)).expect("chown");
        }
        Some(Place { host, theirs, secret })
    }

    /// A link of that user's.
    fn link(&self, to: &Path, name: &str) -> PathBuf {
        let link = self.theirs.join(name);
        symlink(to, &link).expect("link");
        lchown(&link, Some(OTHER), Some(OTHER)).expect("chown");
        link
    }
}

#[test]
fn links_of_another_user_lead_no_lane_elsewhere() {
    let name = "links_of_another_user_lead_no_lane_elsewhere";
    let Some(place) = Place::new(name) else { return };
    let (host, at) = (&place.host, place.host.dir("m"));
    let volume = place.secret.join("v.img");
    succeeds(&["volume", "create", "--size", "32M", text(&volume)]);
    fs::write(place.secret.join("layers"), format!("{}\n", text(&place.secret))).expect("write");
    let link = place.link(&place.secret, "link");
    let file = place.link(&volume, "v.img");
    let layers = place.link(&place.secret.join("layers"), "layers");
    let [dir, in_dir, volume_of, union] = [
        format!("dir:{}", text(&link)),
        format!("dir:{}/../inner", text(&link)),
        format!("volume:{}", text(&file)),
        format!("union:{}", text(&layers)),
    ];
    let new = format!("volume:{}/new.img", text(&link));
    let own = host.dir("own");
    let over = format!("dir:{}", text(&own));
    fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).expect("chmod");
    let at = text(&at);
    for words in [
        &["mount", &dir, at][..],
        &["mount", &in_dir, at],
        &["mount", &volume_of, at],
        &["mount", &new, at],
        &["mount", "--lower", text(&link), &over, at],
        &["mount", "--lower", text(&link), "none", at],
        &["mount", "--lower", &volume_of, "none", at],
        &["mount", "--lower", &union, "none", at],
        &["mount", "--lower", &format!("fixed:{dir}"), "none", at],
        &["run", "--dir", text(&link), "--", "true"],
        &["run", "--dir", &format!("{}/new/newer", text(&link)), "--", "true"],
        &["run", "--mem", "--lower", text(&link), "--", "true"],
        &["run", "--volume", text(&file), "--", "true"],
        &["volume", "create", &format!("{}/new.img", text(&link))],
    ] {
        let (status, line) = refused(words);
        assert_eq!(status, 1, "{words:?}: {line}");
        assert!(line.contains("symbolic link of another user"), "{words:?}: {line}");
    }
    let mut left: Vec<_> = fs::read_dir(&place.secret).expect("list").collect();
    left.retain(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name() == "new"));
    assert!(left.is_empty() && !place.secret.join("new.img").exists());
    // Links of root's lead on, also to what is another user's.
    symlink(place.theirs.join("data"), host.path("by-root")).expect("link");
    succeeds(&["mount", &format!("dir:{}", text(&host.path("by-root"))), at]);
    assert_eq!(fs::read_to_string(Path::new(at).join("file")).expect("read"), "theirs");
    succeeds(&["umount", at]);
    host.assert_nothing_is_left();
}

/// The other user exchanges the directory for a link again and again while root mounts it.
#[test]
fn what_is_mounted_is_what_was_looked_at() {
    let Some(place) = Place::new("what_is_mounted_is_what_was_looked_at") else { return };
    let (host, at) = (&place.host, place.host.dir("m"));
    let link = place.link(&place.secret, "link");
    let data = place.theirs.join("data");
    let source = format!("dir:{}", text(&data));
    let (done, mut found) = (AtomicBool::new(false), Vec::new());
    let own = host.dir("own");
    fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).expect("chmod");
    let over = format!("dir:{}", text(&own));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &link, CWD, &data, RenameFlags::EXCHANGE).expect("exchange");
                std::thread::yield_now();
            }
        });
        for turn in 0..24 {
            let words = match turn % 2 {
                0 => vec!["mount", &source, text(&at)],
                _ => vec!["mount", "--lower", text(&data), &over, text(&at)],
            };
            if !polylane(&words).status.success() {
                continue;
            }
            found.push(fs::read_to_string(at.join("file")).unwrap_or_default());
            let _ = polylane(&["umount", text(&at)]);
        }
        done.store(true, Ordering::Relaxed);
    });
    eprintln!("{} of 24 were mounted", found.len());
    assert!(found.iter().all(|found| found == "theirs"), "{found:?}");
    host.assert_nothing_is_left();
}
