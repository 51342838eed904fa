//! `mount.polylane` and `umount.fuse.polylane`: names of this program by which mount(8), umount(8)
//! and so fstab and systemd's mount units start it. `polylane-oci`: that by which container engines
//! do, for `polylane oci`.
//!
//! They are called as `mount.TYPE SOURCE PATH [-sfnv] [-o OPTIONS] [-t TYPE]` and as
//! `umount.TYPE PATH [-flnrv]` (mount(8), "External helpers"). Here they become the arguments of
//! `polylane mount` and `polylane umount`. An option that would take something away from the lane's
//! users and that a lane does not have is refused, not passed over. Of two that contradict each
//! other the last counts. A value with commas stands in double quotes, as mount(8) has it:
//! `lower="a,b"`.

use std::ffi::OsString;
use std::path::Path;

/// Options of `polylane mount` that have a value.
const WITH_VALUE: [&str; 13] = [
    "lower",
    "map-users",
    "pool",
    "size",
    "medium",
    "weight",
    "cache",
    "cache-store",
    "cache-size",
    "dirty-limit",
    "flush-interval",
    "journal-mode",
    "qos",
];

/// Those that have none.
const FLAGS: [&str; 9] = [
    "ro",
    "suid",
    "share",
    "no-preload",
    "idmap",
    "kernel-cache",
    "discard",
    "noatime",
    "nodiratime",
];

/// What keeps users from something that no lane keeps them from: refused, also of a sloppy mount.
const KEEPS_FROM: [&str; 4] = ["noexec", "nosymfollow", "sync", "dirsync"];

/// Options of mount(8) that are a lane's way anyway, or mean nothing to one.
const IGNORED: [&str; 18] = [
    "rw",
    "defaults",
    "auto",
    "noauto",
    "nosuid",
    "nodev",
    "exec",
    "async",
    "nouser",
    "_netdev",
    "nofail",
    "atime",
    "relatime",
    // The kernel's way without it is `relatime` as well.
    "norelatime",
    "nostrictatime",
    // Times may be written later than other changes. They need not.
    "lazytime",
    "nolazytime",
    "diratime",
];

/// They let an ordinary user mount, or unmount.
const OF_USERS: [&str; 4] = ["user", "users", "owner", "group"];

/// The option that another one takes back.
const TAKEN_BACK: [(&str, &str); 5] = [
    ("rw", "--ro"),
    ("nosuid", "--suid"),
    ("atime", "--noatime"),
    ("relatime", "--noatime"),
    ("diratime", "--nodiratime"),
];

/// The arguments of polylane that these stand for, by the name that the program was started with;
/// `None` for its own name. An empty list: nothing is to be done.
///
/// # Errors
/// One line: an option that lanes do not have.
pub(crate) fn translate(words: &[OsString]) -> Option<Result<Vec<OsString>, String>> {
    let (name, words) = words.split_first()?;
    match Path::new(name).file_name()?.to_str()? {
        "mount.polylane" | "mount.fuse.polylane" => Some(mount(words)),
        "umount.polylane" | "umount.fuse.polylane" => Some(umount(words)),
        // Engines that take a runtime's path, and no words of it.
        "polylane-oci" => {
            let own = ["polylane", "oci"].map(OsString::from).into_iter();
            Some(Ok(own.chain(words.iter().cloned()).collect()))
        }
        _ => None,
    }
}

fn mount(words: &[OsString]) -> Result<Vec<OsString>, String> {
    let (mut places, mut options) = (Vec::new(), Vec::new());
    let (mut sloppy, mut fake) = (false, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-o") => {
                let list = words.next().map(|word| word.to_string_lossy()).unwrap_or_default();
                let of_list = split(&list);
                options.extend(of_list.ok_or_else(|| format!("-o {list}: a quote is not closed"))?);
            }
            Some("-t" | "-N") => drop(words.next()),
            Some(flags) if is_flags(flags) => {
                sloppy |= flags.contains('s');
                fake |= flags.contains('f');
            }
            _ => places.push(word.clone()),
        }
    }
    if options.iter().any(|option| option == "remount") {
        return Err(REMOUNT.to_string());
    }
    let mut arguments: Vec<OsString> = ["polylane", "mount"].map(OsString::from).to_vec();
    for option in &options {
        let mut taken_back: Vec<String> = TAKEN_BACK
            .iter()
            .filter(|(by, _)| by == option)
            .map(|(_, what)| (*what).to_string())
            .collect();
        // Said twice it counts once.
        taken_back.extend(FLAGS.contains(&option.as_str()).then(|| format!("--{option}")));
        arguments.retain(|word| !taken_back.iter().any(|what| word == what.as_str()));
        match translated(option) {
            Some(words) => arguments.extend(words.into_iter().map(OsString::from)),
            None if sloppy && !KEEPS_FROM.contains(&option.as_str()) => {}
            None if OF_USERS.contains(&option.as_str()) => {
                return Err(format!("-o {option}: root alone mounts lanes: leave it out"));
            }
            None => return Err(format!("-o {option}: no option of a lane")),
        }
    }
    // What mount(8) would note of the mount beside the kernel's table.
    let is_noted = |option: &&str| *option == "_netdev" || option.starts_with("x-");
    // One with a comma, which was in quotes, would be two there.
    let noted = options.iter().map(String::as_str).filter(|option| !option.contains(','));
    let noted = noted.filter(is_noted).collect::<Vec<_>>().join(",");
    if !noted.is_empty() {
        arguments.push(format!("--utab={noted}").into());
    }
    // Before the places, which may begin with a hyphen.
    arguments.push("--".into());
    arguments.extend(places);
    Ok(if fake { Vec::new() } else { arguments })
}

/// The line for `-o remount`: what is read-only is said to the lane's service, its table and its
/// library when it is mounted.
const REMOUNT: &str = "-o remount: a lane is not mounted anew where it is: umount it and mount it \
    with other options, or change this mount alone with 'mount -o remount,bind,ro PATH'";

/// The options of a list: commas part them but for those within double quotes, which go. `None`: a
/// quote is not closed, which would hide the options after it.
fn split(list: &str) -> Option<Vec<String>> {
    let (mut options, mut quoted) = (vec![String::new()], false);
    for letter in list.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => options.push(String::new()),
            letter => options.last_mut().expect("one is there").push(letter),
        }
    }
    options.retain(|option| !option.is_empty());
    (!quoted).then_some(options)
}

/// An option of mount(8) as arguments of `polylane mount`.
fn translated(option: &str) -> Option<Vec<String>> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    if IGNORED.contains(&option) || name.starts_with("x-") || name == "comment" {
        return Some(Vec::new());
    }
    // mount(8) does not hand on `suid`, which is its default, and not a lane's.
    if option == "setid" {
        return Some(vec!["--suid".to_string()]);
    }
    if FLAGS.contains(&option) {
        return Some(vec![format!("--{option}")]);
    }
    WITH_VALUE.contains(&name).then(|| vec![format!("--{name}={value}")])
}

fn umount(words: &[OsString]) -> Result<Vec<OsString>, String> {
    let mut arguments: Vec<OsString> = ["polylane", "umount"].map(OsString::from).to_vec();
    let (mut places, mut lazy) = (Vec::new(), false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-t" | "-O" | "-N") => drop(words.next()),
            Some(flags) if is_flags(flags) => lazy |= flags.contains('l'),
            _ => places.push(word.clone()),
        }
    }
    arguments.extend(lazy.then(|| "--lazy".into()));
    arguments.push("--".into());
    arguments.extend(places);
    Ok(arguments)
}

/// Whether a word is flags, such as `-nv`.
fn is_flags(word: &str) -> bool {
    let letters = word.strip_prefix('-').unwrap_or_default();
    !letters.is_empty() && letters.bytes().all(|byte| byte.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate_line(line: &str) -> Option<Result<String, String>> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let joined = |words: Vec<OsString>| {
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        translate(&words).map(|words| words.map(joined))
    }

    #[test]
    fn mounts_are_translated() {
        for (line, expected) in [
            ("/sbin/mount.polylane mem:1G /m", "polylane mount -- mem:1G /m"),
            (
                "mount.polylane /v.img /m -n -o rw,ro,pool=web,x-systemd.requires=a,nofail -t fuse",
                "polylane mount --ro --pool=web --utab=x-systemd.requires=a -- /v.img /m",
            ),
            ("mount.polylane a b -s -o odd", "polylane mount -- a b"),
            (
                "mount.polylane a b -o noatime,nodiratime,ro",
                "polylane mount --noatime --nodiratime --ro -- a b",
            ),
            (
                "mount.polylane a b -o suid,ro,ro,noatime,rw,nosuid,relatime",
                "polylane mount -- a b",
            ),
            (
                "mount.polylane a b -o rw,ro,suid,lazytime,norelatime",
                "polylane mount --ro --suid -- a b",
            ),
            ("mount.polylane a b -o setid", "polylane mount --suid -- a b"),
            ("mount.polylane a b -o _netdev,x-a=b", "polylane mount --utab=_netdev,x-a=b -- a b"),
            (
                "mount.polylane a b -o lower=\"x,y\",lower=volume:z,map-users=0:1000:1",
                "polylane mount --lower=x,y --lower=volume:z --map-users=0:1000:1 -- a b",
            ),
            ("mount.polylane a b -fv", ""),
            ("umount.fuse.polylane /m", "polylane umount -- /m"),
            ("/opt/polylane-oci --root /r state i", "polylane oci --root /r state i"),
            ("/sbin/umount.polylane /m -nl -t fuse.polylane", "polylane umount --lazy -- /m"),
        ] {
            assert_eq!(translate_line(line), Some(Ok(expected.to_string())), "{line}");
        }
        assert_eq!(translate_line("/usr/bin/polylane mount a b"), None);
    }

    #[test]
    fn what_a_lane_does_not_have_is_refused() {
        for option in
            ["noexec", "remount,rw", "pool", "sync", "dev", "strictatime", "user", "users"]
        {
            let line = format!("mount.polylane mem:1G /m -o {option}");
            let translated = translate_line(&line).expect("a helper");
            match option {
                // The parser says what it lacks.
                "pool" => assert!(translated.is_ok_and(|line| line.contains("--pool="))),
                _ => {
                    let word = option.split(',').next().unwrap_or_default();
                    assert!(translated.is_err_and(|line| line.contains(word)), "{option}");
                }
            }
        }
    }

    /// It would be writable: the comment goes, and what it swallows with it.
    #[test]
    fn a_quote_that_is_not_closed_is_refused() {
        for list in ["comment=\"a,ro", "x-y=\"a,ro", "lower=\"a\",\"ro"] {
            for sloppy in ["", " -s"] {
                let line = format!("mount.polylane a b{sloppy} -o {list}");
                let translated = translate_line(&line).expect("a helper");
                assert!(translated.is_err_and(|line| line.contains("quote")), "{line}");
            }
        }
    }

    #[test]
    fn a_sloppy_mount_gives_up_nothing_that_keeps_users_from_something() {
        let of = |option: &str| translate_line(&format!("mount.polylane a b -s -o {option}"));
        assert_eq!(of("odd"), Some(Ok("polylane mount -- a b".to_string())));
        for option in KEEPS_FROM {
            assert!(of(option).expect("a helper's name").is_err(), "{option}");
        }
    }
}
