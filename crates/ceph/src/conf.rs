//! What a `ceph.conf` and a keyring say: both are sections of `name = value`.
//!
//! libcephfs reads the configuration itself; only what has to be opened by its caller's rights,
//! the keyring, is looked up here. Source: Ceph's documentation, "Configuring Ceph".

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Options of every client: no file and no socket of its own.
const OPTIONS: [(&str, &str); 6] = [
    ("admin_socket", ""),
    ("log_file", ""),
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
    ("log_to_syslog", "false"),
    ("log_flush_on_exit", "false"),
];

/// What clients keep debug lines of, to log files and to memory. There is no file, and a line kept
/// in memory wakes a thread: several times for each call, which takes longer than the call does.
pub const DEBUG: [&str; 20] = [
    "debug_auth",
    "debug_buffer",
    "debug_client",
    "debug_context",
    "debug_crush",
    "debug_crypto",
    "debug_filer",
    "debug_finisher",
    "debug_journaler",
    "debug_mgrc",
    "debug_monc",
    "debug_ms",
    "debug_objectcacher",
    "debug_objecter",
    "debug_rados",
    "debug_rbd",
    "debug_striper",
    "debug_throttle",
    "debug_timer",
    "debug_tp",
];

/// Sets what every client is given: how long monitors and others may take to answer at the start,
/// and the user's secret, too.
///
/// # Errors
/// Those of `set`.
pub(crate) fn set_common<E>(
    set: impl Fn(&'static str, &str) -> Result<(), E>,
    timeout: Duration,
    key: Option<&str>,
) -> Result<(), E> {
    for (name, value) in OPTIONS {
        set(name, value)?;
    }
    for name in DEBUG {
        set(name, "0/0")?;
    }
    set("client_mount_timeout", &timeout.as_secs().max(1).to_string())?;
    key.map_or(Ok(()), |key| set("key", key))
}

/// Sections of settings. Names are lower case, with `_` for blanks and hyphens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sections(BTreeMap<String, BTreeMap<String, String>>);

impl Sections {
    /// Reads a file's text. Lines that say nothing are left out, as Ceph does.
    pub fn parse(text: &str) -> Sections {
        let mut sections = Sections::default();
        let mut section = String::from("global");
        for line in joined(text) {
            let line = line.split(['#', ';']).next().unwrap_or_default().trim();
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = name.trim().to_string();
            } else if let Some((name, value)) = line.split_once('=') {
                let value = value.trim().trim_matches('"').to_string();
                let settings = sections.0.entry(section.clone()).or_default();
                settings.insert(plain(name), value);
            }
        }
        sections
    }

    /// A setting of the user `client.ID`: its own, else of all clients, else of all.
    pub fn get(&self, id: &str, name: &str) -> Option<&str> {
        let own = format!("client.{id}");
        let places = [own.as_str(), "client", "global"];
        let found = places.iter().find_map(|section| self.0.get(*section)?.get(&plain(name)));
        found.map(String::as_str)
    }

    /// The secret of the user `client.ID`, of a keyring.
    pub fn key(&self, id: &str) -> Option<&str> {
        self.0.get(&format!("client.{id}"))?.get("key").map(String::as_str)
    }
}

/// Lines, each with those that a backslash at its end joins to it.
fn joined(text: &str) -> Vec<String> {
    let (mut lines, mut open) = (Vec::new(), String::new());
    for line in text.lines() {
        match line.strip_suffix('\\') {
            Some(begun) => open.push_str(begun),
            None => lines.push(std::mem::take(&mut open) + line),
        }
    }
    lines.push(open);
    lines
}

fn plain(name: &str) -> String {
    let words: Vec<_> = name.split([' ', '\t', '_', '-']).filter(|word| !word.is_empty()).collect();
    words.join("_").to_lowercase()
}

/// Where the keyring of the user `client.ID` may be, in the order of looking.
pub fn keyrings(conf: &Sections, id: &str) -> Vec<PathBuf> {
    const USUAL: &str = "/etc/ceph/$cluster.$name.keyring,/etc/ceph/$cluster.keyring,\
                         /etc/ceph/keyring,/etc/ceph/keyring.bin";
    let paths = conf.get(id, "keyring").unwrap_or(USUAL);
    let filled = |path: &str| {
        let path = path.replace("$cluster", "ceph").replace("$type", "client");
        path.replace("$name", &format!("client.{id}")).replace("$id", id)
    };
    let paths = paths.split(',').map(str::trim).filter(|path| !path.is_empty());
    paths.map(|path| PathBuf::from(filled(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: &str = "mon host = 1.2.3.4 # a comment\n[client]\n keyring = /k/$cluster.$name\n\
                        [client.app]\nkey\\\nring = \"/app/$id\" ; another\nno setting\n";

    #[test]
    fn the_most_particular_section_counts() {
        let conf = Sections::parse(CONF);
        assert_eq!(conf.get("admin", "mon_host"), Some("1.2.3.4"));
        assert_eq!(conf.get("app", "Mon-Host"), Some("1.2.3.4"));
        assert_eq!(keyrings(&conf, "admin"), [PathBuf::from("/k/ceph.client.admin")]);
        assert_eq!(keyrings(&conf, "app"), [PathBuf::from("/app/app")]);
        assert_eq!(keyrings(&Sections::default(), "x").len(), 4);
        assert_eq!(conf.get("app", "nothing"), None);
    }

    #[test]
    fn a_keyring_has_a_key_for_each_user() {
        let keyring = Sections::parse("[client.a]\n\tkey = AQ==\n\tcaps mon = \"allow r\"\n");
        assert_eq!(keyring.key("a"), Some("AQ=="));
        assert_eq!(keyring.key("b"), None);
    }
}
